{{/* Name of the chart, for labels. */}}
{{- define "structuredllm.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{/* Prefix of all names; 50 characters leave room for "-operator" and the like. */}}
{{- define "structuredllm.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- $name := include "structuredllm.name" . -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Labels of a part's pods that never change: (dict "root" $ "component" "operator"). */}}
{{- define "structuredllm.selectorLabels" -}}
app.kubernetes.io/name: {{ include "structuredllm.name" .root }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{/* All labels of a part's objects; same argument as selectorLabels. */}}
{{- define "structuredllm.labels" -}}
{{ include "structuredllm.selectorLabels" . }}
app.kubernetes.io/part-of: structuredllm
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- with .root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Image reference: (dict "root" $ "image" .Values.operator.image). A digest wins over a tag. */}}
{{- define "structuredllm.image" -}}
{{- $registry := default .image.registry .root.Values.global.imageRegistry -}}
{{- with $registry }}{{ trimSuffix "/" . }}/{{ end -}}
{{- .image.repository -}}
{{- if .image.digest -}}
@{{ .image.digest }}
{{- else -}}
:{{ default .root.Chart.AppVersion .image.tag }}
{{- end -}}
{{- end -}}

{{/* Service account of a part: (dict "root" $ "component" "operator"). */}}
{{- define "structuredllm.serviceAccountName" -}}
{{- $sa := (get .root.Values .component).serviceAccount -}}
{{- if $sa.create -}}
{{- default (printf "%s-%s" (include "structuredllm.fullname" .root) .component) $sa.name -}}
{{- else -}}
{{- default "default" $sa.name -}}
{{- end -}}
{{- end -}}

{{/* URL of the gateway inside the cluster; empty when there is none. */}}
{{- define "structuredllm.gatewayUrl" -}}
{{- if .Values.operator.gatewayUrl -}}
{{- .Values.operator.gatewayUrl -}}
{{- else if .Values.gateway.enabled -}}
{{- $port := int .Values.gateway.service.port -}}
http://{{ include "structuredllm.fullname" . }}-gateway.{{ .Release.Namespace }}.svc{{ if ne $port 80 }}:{{ $port }}{{ end }}
{{- end -}}
{{- end -}}

{{/* Scheduling of a part's pods, the argument is the part's values. */}}
{{- define "structuredllm.scheduling" -}}
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
{{- with .priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- end -}}

{{/*
Roles of a part, once for the whole cluster or once for each listed namespace:
(dict "root" $ "component" "gateway" "rules" "structuredllm.gateway.rules").
*/}}
{{- define "structuredllm.roles" -}}
{{- $root := .root -}}
{{- $component := .component -}}
{{- $rules := .rules -}}
{{- $name := printf "%s-%s" (include "structuredllm.fullname" $root) $component -}}
{{- $labels := include "structuredllm.labels" (dict "root" $root "component" $component) -}}
{{- $account := include "structuredllm.serviceAccountName" (dict "root" $root "component" $component) -}}
{{- if not $root.Values.scope.namespaces }}
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata:
  name: {{ $root.Release.Namespace }}-{{ $name }}
  labels:
    {{- $labels | nindent 4 }}
rules:
  {{- include $rules $root | nindent 2 }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata:
  name: {{ $root.Release.Namespace }}-{{ $name }}
  labels:
    {{- $labels | nindent 4 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: ClusterRole
  name: {{ $root.Release.Namespace }}-{{ $name }}
subjects:
  - kind: ServiceAccount
    name: {{ $account }}
    namespace: {{ $root.Release.Namespace }}
{{- else }}
{{- range $root.Values.scope.namespaces }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata:
  name: {{ $name }}
  namespace: {{ . }}
  labels:
    {{- $labels | nindent 4 }}
rules:
  {{- include $rules $root | nindent 2 }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  name: {{ $name }}
  namespace: {{ . }}
  labels:
    {{- $labels | nindent 4 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: Role
  name: {{ $name }}
subjects:
  - kind: ServiceAccount
    name: {{ $account }}
    namespace: {{ $root.Release.Namespace }}
{{- end }}
{{- end }}
{{- end -}}

{{/* The Secret with the hashes of the gateway's API keys. */}}
{{- define "structuredllm.gatewayKeysSecret" -}}
{{- .Values.gateway.auth.existingSecret | default (printf "%s-gateway-keys" (include "structuredllm.fullname" .)) -}}
{{- end }}
