"""Policy servers side by side: `python -m bench.serving`."""
