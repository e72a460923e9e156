"""What can go wrong with checkpoints, each a sentence for the user."""

from __future__ import annotations

from shoal.errors import UserError


class DamagedCheckpoint(UserError):
    """A file is not what was written, or not a checkpoint at all: nothing of it was used."""


class CheckpointFailed(Exception):
    """A checkpoint could not be written; those that were there are as they were, and training can go on."""
