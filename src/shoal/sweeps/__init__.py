"""Sweeps: many runs of one experiment with other values of its options, as processes of this machine or on Ray."""

from __future__ import annotations

from shoal.sweeps.running import SweepResult, sweep

__all__ = ["SweepResult", "sweep"]
