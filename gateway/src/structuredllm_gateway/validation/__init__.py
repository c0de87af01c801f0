"""Judging answers: strict JSON, schema, outcome classes. Pure: no I/O."""
