{{- define "yard.labels" -}}
app.kubernetes.io/name: modelyard
app.kubernetes.io/instance: {{ .release }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- define "yard.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag }}
{{- end }}

{{- define "yard.places" -}}
- --store
- {{ .Values.store | quote }}
- --artifacts
- {{ .Values.artifacts | quote }}
{{- end }}

{{/* What every container has. */}}
{{- define "yard.container" -}}
image: {{ include "yard.image" . | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
envFrom:
  - secretRef: { name: {{ .Values.secret }} }
{{- with .Values.environment }}
env:
  {{- range $name, $value := . }}
  - name: {{ $name }}
    value: {{ $value | quote }}
  {{- end }}
{{- end }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: { drop: [ALL] }
volumeMounts:
  - { name: temporary, mountPath: /tmp }
{{- end }}

{{/* What every pod has. */}}
{{- define "yard.pod" -}}
securityContext:
  runAsNonRoot: true
  runAsUser: {{ .Values.user }}
  runAsGroup: {{ .Values.user }}
  fsGroup: {{ .Values.user }}
  seccompProfile: { type: RuntimeDefault }
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{ toJson . }}
{{- end }}
{{- end }}

{{- define "yard.temporary" -}}
- name: temporary
  emptyDir: { sizeLimit: {{ .Values.temporary }} }
{{- end }}

{{/* The Job that is made of each job when a worker places jobs in the cluster. */}}
{{- define "yard.job" -}}
spec:
  template:
    spec:
      {{- include "yard.pod" . | nindent 6 }}
      automountServiceAccountToken: false
      terminationGracePeriodSeconds: {{ .Values.workerTerminationGracePeriodSeconds }}
      {{- with .Values.cluster.job.nodeSelector }}
      nodeSelector: {{ toJson . }}
      {{- end }}
      {{- with .Values.cluster.job.tolerations }}
      tolerations: {{ toJson . }}
      {{- end }}
      containers:
        - name: job
          {{- include "yard.container" . | nindent 10 }}
          resources: {{ toJson .Values.cluster.job.resources }}
      volumes:
        {{- include "yard.temporary" . | nindent 8 }}
{{- end }}
