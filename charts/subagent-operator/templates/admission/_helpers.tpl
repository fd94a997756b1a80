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

{{/*
CEL: who may take the operator's finalizers and owners off, and remove what it keeps. Whoever may update the finalizers
of runs: the operator, garbage collection (it may update everything), administrators, and no tenant with the chart's
or Kubernetes' default roles.
*/}}
{{- define "subagent-operator.mayRelease" -}}
authorizer.group('subagents.dev').resource('subagentruns').subresource('finalizers')
.namespace(request.namespace).check('update').allowed()
{{- end }}
