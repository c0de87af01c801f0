"""Models for demo and tests, made or converted once and kept in the user's cache."""
