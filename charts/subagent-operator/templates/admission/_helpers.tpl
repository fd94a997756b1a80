{{/* Where a policy holds: everywhere, or in the watched namespaces. */}}
{{- define "subagent-operator.policyScope" -}}
{{- with .Values.watchNamespaces -}}
namespaceSelector:
  matchExpressions:
    - key: kubernetes.io/metadata.name
      operator: In
      values:
        {{- toYaml . | nindent 8 }}
{{- end }}
{{- end }}

{{/* A binding that refuses what its policy refuses. Takes the root context and the policy's name. */}}
{{- define "subagent-operator.policyBinding" -}}
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  name: {{ .policy }}
  labels:
    {{- include "subagent-operator.labels" .root | nindent 4 }}
spec:
  policyName: {{ .policy }}
  validationActions: [Deny]
  {{- with include "subagent-operator.policyScope" .root }}
  matchResources:
    {{- . | nindent 4 }}
  {{- end }}
{{- end }}
