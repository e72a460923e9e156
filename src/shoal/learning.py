"""What learns and what it reads: a `Learner` takes batches from a `Source` and answers each with an `Update`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, SupportsFloat

from torch import Tensor, nn

from shoal.batches import Batch

Measured = dict[str, SupportsFloat]  # numbers by name, or what gives one when it is read


@dataclass(frozen=True)
class Update:
    """What came of one update."""

    metrics: Mapping[str, SupportsFloat]  # numbers, or what gives one when it is read
    priorities: Tensor | None = None  # [items]: how surprising each was, for a source that draws by it
    applied: bool = True  # False where it was refused, because loss or gradient were not finite
    note: str | None = None  # a sentence for the user
    waited: float = 0.0  # seconds of it, for other nodes


class Learner(Protocol):
    """What learns. `network` is published.

    With `state_dict` and `load_state_dict` it goes on where it was after a restart; without, from its weights.
    """

    @property
    def network(self) -> nn.Module: ...
    def update(self, batch: Batch) -> Update: ...
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...
