"""Kubernetes API access. The only folder that imports the Kubernetes client library."""
