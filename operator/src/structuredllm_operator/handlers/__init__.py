"""kopf adapters: turn cluster events into keys on the work queue, nothing more."""
