"""Benchmarks of the patched engine; run by `make bench-engine`."""
