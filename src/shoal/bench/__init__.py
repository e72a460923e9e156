"""Benchmarks that users run: `shoal bench throughput` and `shoal bench replay`."""
