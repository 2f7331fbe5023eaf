{{/* What every pod has in common: the restricted profile of the Pod Security Standards. */}}

{{- define "chorale.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
fsGroupChangePolicy: OnRootMismatch
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- define "chorale.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{/* Probes go to the pod's address, where alone the second port listens. */}}
{{- define "chorale.probes" -}}
startupProbe:
  httpGet: { path: /livez, port: probes, scheme: {{ .scheme }} }
  periodSeconds: 5
  failureThreshold: {{ .startup }}
livenessProbe:
  httpGet: { path: /livez, port: probes, scheme: {{ .scheme }} }
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
readinessProbe:
  httpGet: { path: /readyz, port: probes, scheme: {{ .scheme }} }
  periodSeconds: 10
  timeoutSeconds: 5
{{- end -}}

{{- define "chorale.scheduling" -}}
{{- with .nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "chorale.claim" -}}
spec:
  accessModes: [ReadWriteOnce]
  {{- if .storageClass }}
  storageClassName: {{ .storageClass }}
  {{- end }}
  resources:
    requests:
      storage: {{ .size }}
{{- end -}}
