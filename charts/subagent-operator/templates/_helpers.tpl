{{/* Name of the chart, at most 63 characters: it becomes a label value. */}}
{{- define "subagent-operator.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{/* Name of everything in the release. The longest suffix below has 13 characters; names of Services have at most 63. */}}
{{- define "subagent-operator.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" }}
{{- else }}
{{- $name := include "subagent-operator.name" . }}
{{- if contains $name .Release.Name }}
{{- .Release.Name | trunc 50 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name $name | trunc 50 | trimSuffix "-" }}
{{- end }}
{{- end }}
{{- end }}

{{- define "subagent-operator.selectorLabels" -}}
app.kubernetes.io/name: {{ include "subagent-operator.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "subagent-operator.labels" -}}
{{ include "subagent-operator.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "subagent-operator.serviceAccountName" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "subagent-operator.fullname" .) .Values.serviceAccount.name }}
{{- else }}
{{- required "serviceAccount.name is needed when serviceAccount.create is false" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{/* The operator as the API server sees it. */}}
{{- define "subagent-operator.username" -}}
system:serviceaccount:{{ .Release.Namespace }}:{{ include "subagent-operator.serviceAccountName" . }}
{{- end }}

{{/* The Secret with the root of the gateway's certificates; the operator makes it. */}}
{{- define "subagent-operator.rootSecret" -}}
{{ include "subagent-operator.fullname" . }}-gateway-root
{{- end }}

{{/* The ConfigMap that remembers which session store is the release's; the operator makes it. */}}
{{- define "subagent-operator.storeConfigMap" -}}
{{ include "subagent-operator.fullname" . }}-session-mark
{{- end }}

{{- define "subagent-operator.lease" -}}
{{ include "subagent-operator.fullname" . }}
{{- end }}

{{/* "true" when the session store is a folder on a volume. */}}
{{- define "subagent-operator.storeIsVolume" -}}
{{- if hasPrefix "file://" .Values.sessionStore.url }}true{{ end }}
{{- end }}

{{/* "true" when the session store is a volume that one node mounts: then one pod of the operator is all there may be. */}}
{{- define "subagent-operator.storeIsOneNodes" -}}
{{- if and (include "subagent-operator.storeIsVolume" .) (ne .Values.sessionStore.persistence.accessMode "ReadWriteMany") }}
{{- if gt (int .Values.replicas) 1 }}
{{- fail (printf "replicas is %d, but sessionStore.url is %s, on a volume that one node mounts: set sessionStore.url to a bucket (s3://, gs://, az://), or sessionStore.persistence.accessMode to ReadWriteMany if every node can mount the volume, or sessionStore.url to \"\" to go without continuable children" (int .Values.replicas) .Values.sessionStore.url) }}
{{- end }}true{{ end }}
{{- end }}

{{- define "subagent-operator.sessionsClaim" -}}
{{- default (printf "%s-sessions" (include "subagent-operator.fullname" .)) .Values.sessionStore.persistence.existingClaim }}
{{- end }}

{{/* Annotations of what is there only while the chart is being uninstalled. */}}
{{- define "subagent-operator.uninstallHook" -}}
helm.sh/hook: pre-delete
helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
{{- end }}
