"""Fetches a model from a hub into a claim; runs in a pod of its own, from the operator's image."""
