{{/* The silo's settings, in the container that joins and in the one that runs. */}}
{{- define "chorale.siloEnv" -}}
{{- with .Values.silo -}}
- name: POD_IP
  valueFrom:
    fieldRef: { fieldPath: status.podIP }
- name: CHORALE_SILO_DATA
  value: /var/lib/chorale/data
- name: CHORALE_SILO_PROBES_LISTEN
  value: {{ printf "%s:7446" (ternary "[$(POD_IP)]" "$(POD_IP)" $.Values.ipv6) | quote }}
- name: CHORALE_SILO_BASE_MODEL
  value: {{ .baseModel.path | quote }}
{{- if .policy }}
- name: CHORALE_SILO_POLICY_FILE
  value: /etc/chorale/policy/policy.toml
{{- end }}
{{- if .probesTls.existingSecret }}
- name: CHORALE_SILO_PROBES_CERTIFICATE
  value: /etc/chorale/probes-tls/tls.crt
- name: CHORALE_SILO_PROBES_KEY
  value: /etc/chorale/probes-tls/tls.key
{{- end }}
{{- if .probesToken.existingSecret }}
- name: CHORALE_SILO_PROBES_TOKEN_FILE
  value: /etc/chorale/probes-token/token
{{- end }}
{{- range $key, $value := .settings }}
- name: CHORALE_SILO_{{ $key }}
  value: {{ $value | quote }}
{{- end }}
{{- end -}}
{{- end -}}
