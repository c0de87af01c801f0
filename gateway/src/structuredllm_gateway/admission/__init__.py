"""What may pass before an engine is asked: concurrency, body size, schema policy."""
