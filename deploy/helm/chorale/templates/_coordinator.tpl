{{/* The coordinator's settings, in the container that founds it and in the one that serves. */}}
{{- define "chorale.coordinatorEnv" -}}
{{- with .Values.coordinator -}}
- name: POD_IP
  valueFrom:
    fieldRef: { fieldPath: status.podIP }
- name: CHORALE_DATA
  value: /var/lib/chorale/data
- name: CHORALE_COORDINATOR_PROBES_LISTEN
  value: {{ printf "%s:7445" (ternary "[$(POD_IP)]" "$(POD_IP)" $.Values.ipv6) | quote }}
{{- if $.Values.ipv6 }}
- name: CHORALE_COORDINATOR_LISTEN
  value: "[::]:7443"
- name: CHORALE_COORDINATOR_ENROL_LISTEN
  value: "[::]:7444"
{{- end }}
- name: CHORALE_COORDINATOR_HOST_NAMES
  value: {{ concat .hosts (list "localhost" "127.0.0.1") | uniq | toJson | quote }}
- name: CHORALE_COORDINATOR_COORDINATOR_ADDRESS
  value: {{ printf "%s:%d" (first .hosts) (int .publicPort) | quote }}
- name: CHORALE_COORDINATOR_ENROL_ADDRESS
  value: {{ printf "%s:%d" (first .hosts) (int .publicEnrolPort) | quote }}
{{- if .database.existingSecret }}
- name: CHORALE_COORDINATOR_DATABASE_URL
  valueFrom:
    secretKeyRef: { name: {{ .database.existingSecret }}, key: {{ .database.key }} }
{{- end }}
{{- if .objectStorage.url }}
- name: CHORALE_COORDINATOR_ADAPTERS_URL
  value: {{ .objectStorage.url | quote }}
{{- end }}
{{- if .probesTls.existingSecret }}
- name: CHORALE_COORDINATOR_PROBES_CERTIFICATE
  value: /etc/chorale/probes-tls/tls.crt
- name: CHORALE_COORDINATOR_PROBES_KEY
  value: /etc/chorale/probes-tls/tls.key
{{- end }}
{{- end -}}
{{- end -}}
