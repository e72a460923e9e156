"""Checkpoints: states in files that cannot run code, complete or absent, kept, and found again."""

from __future__ import annotations

from shoal.checkpoints.errors import CheckpointFailed, DamagedCheckpoint
from shoal.checkpoints.lock import RunLock
from shoal.checkpoints.store import Checkpoint, Checkpoints

__all__ = [
    "Checkpoint",
    "CheckpointFailed",
    "Checkpoints",
    "DamagedCheckpoint",
    "RunLock",
]
