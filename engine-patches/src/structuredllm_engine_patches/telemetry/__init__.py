"""What one engine core shows of itself: counters, /metrics and /info."""
