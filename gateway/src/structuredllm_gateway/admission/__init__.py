"""What may pass before an engine is asked: concurrency, body size, and what a request may cost an engine."""
