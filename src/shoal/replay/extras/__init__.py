"""What no algorithm here uses and a replay service is known for: column operations, other orders, hooks.

Nothing outside of this folder imports from it. What is here is given to a `Table` or a `Replay`, which know it by the
protocols of `selectors.py`, `messages.py` and `tables.py`.
"""

from __future__ import annotations

from . import columns
from .extensions import Extension
from .orders import Lifo, MaxHeap, MinHeap, stack

__all__ = ["Extension", "Lifo", "MaxHeap", "MinHeap", "columns", "stack"]
