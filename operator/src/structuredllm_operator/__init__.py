"""Kubernetes operator that runs gated, patched vLLM engines for structured output."""
