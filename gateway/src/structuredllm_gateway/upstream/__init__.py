"""Engines: where they are, which one to ask, how to ask it."""
