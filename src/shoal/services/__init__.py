"""Services that nodes share: weights, metrics."""
