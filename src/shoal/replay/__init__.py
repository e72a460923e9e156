"""Experience storage: tables of items over shared rows, with samplers, removers and limiters; usable by itself."""

from __future__ import annotations

from . import columns
from .description import Table
from .errors import BadCheckpoint, ReplayClosed, ReplayTimeout, ShardsLost
from .extensions import Extension
from .frames import FrameStack
from .limiters import MinSize, Queue, Quota, SamplesPerInsert, Stack
from .messages import Block, Inserted, Items, Sample, Spans
from .patterns import Appended, Pattern, n_step, rollout, sequence
from .selectors import Fifo, Lifo, MaxHeap, MinHeap, Prioritized, Uniform
from .service import Replay
from .sharded import ShardedReplay
from .views import register_view
from .writer import Writer

__all__ = [
    "Appended",
    "BadCheckpoint",
    "Block",
    "Extension",
    "Fifo",
    "FrameStack",
    "Inserted",
    "Items",
    "Lifo",
    "MaxHeap",
    "MinHeap",
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
    "Stack",
    "Table",
    "Uniform",
    "Writer",
    "columns",
    "n_step",
    "register_view",
    "rollout",
    "sequence",
]
