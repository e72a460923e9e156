"""Checkpoints: states in files that cannot run code, complete or absent, kept, found again, and transferred."""

from __future__ import annotations

from shoal.checkpoints.errors import CheckpointFailed, DamagedCheckpoint
from shoal.checkpoints.lock import RunLock
from shoal.checkpoints.store import Checkpoint, Checkpoints
from shoal.checkpoints.transfer import Transfer, freeze, transfer

__all__ = [
    "Checkpoint",
    "CheckpointFailed",
    "Checkpoints",
    "DamagedCheckpoint",
    "RunLock",
    "Transfer",
    "freeze",
    "transfer",
]
