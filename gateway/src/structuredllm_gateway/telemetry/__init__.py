"""Metrics, logs and request ids."""
