"""The demo: from `kubectl apply` to a valid answer, on a real cluster, in one command."""
