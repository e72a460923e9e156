"""Experience storage: tables of items over shared rows, with samplers, removers and limiters; usable by itself.

What no algorithm uses is in `shoal.replay.extras`.
"""

from __future__ import annotations

from .description import Table
from .errors import BadCheckpoint, ReplayClosed, ReplayTimeout, ShardsLost
from .frames import FrameStack
from .limiters import MinSize, Queue, Quota, SamplesPerInsert
from .messages import Block, Inserted, Items, Sample, Spans
from .patterns import Appended, Pattern, n_step, rollout, sequence
from .selectors import Fifo, Prioritized, Uniform
from .service import Replay
from .sharded import ShardedReplay
from .views import register_view
from .writer import Writer

__all__ = [
    "Appended",
    "BadCheckpoint",
    "Block",
    "Fifo",
    "FrameStack",
    "Inserted",
    "Items",
    "MinSize",
    "Pattern",
    "Prioritized",
    "Queue",
    "Quota",
    "Replay",
    "ReplayClosed",
    "ReplayTimeout",
    "Sample",
    "SamplesPerInsert",
    "ShardedReplay",
    "ShardsLost",
    "Spans",
    "Table",
    "Uniform",
    "Writer",
    "n_step",
    "register_view",
    "rollout",
    "sequence",
]
