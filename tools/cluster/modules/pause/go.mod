module structuredllm.io/tools/cluster/pause

go 1.26.0
