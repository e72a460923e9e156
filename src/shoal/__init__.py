"""Shoal: distributed deep reinforcement learning, from one laptop to a cluster."""

__version__ = "0.1.0"
