"""Serving a finished policy: requests of many clients in batches, newer checkpoints taken on the way."""
