"""OpenAI wire shapes: requests, answers, errors, server-sent events. Pure: no I/O."""
