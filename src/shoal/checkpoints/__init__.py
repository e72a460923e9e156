"""Checkpoints: states in files that cannot run code, complete or absent, kept, and found again."""

from __future__ import annotations

from shoal.checkpoints.lock import RunLock
from shoal.checkpoints.state_files import DamagedCheckpoint
from shoal.checkpoints.store import Checkpoint, CheckpointFailed, Checkpoints

__all__ = [
    "Checkpoint",
    "CheckpointFailed",
    "Checkpoints",
    "DamagedCheckpoint",
    "RunLock",
]
