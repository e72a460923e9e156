"""GPUs that torch believes in and that are not there: what is asked of torch.cuda is written down."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch

GIB = 2**30


@dataclass
class FakeGPUs:
    """As many as `CUDA_VISIBLE_DEVICES` names, or `count`, of 24 GB each."""

    count: int = 1
    chosen: int = 0
    fractions: dict[int, float] = field(default_factory=dict)  # of the memory of each, that this process may take

    def visible(self) -> list[str]:
        named = os.environ.get("CUDA_VISIBLE_DEVICES")
        return (
            [str(index) for index in range(self.count)] if named is None else [one for one in named.split(",") if one]
        )

    def install(self, replace: Callable[[Any, str, Any], None] = setattr) -> FakeGPUs:
        """Put them in the place of torch's; `replace` may be `monkeypatch.setattr`."""
        zeros, cuda = torch.zeros, torch.cuda
        replace(torch, "zeros", lambda *size, device="cpu", **more: zeros(*size, device=self._behind(device), **more))
        replace(cuda, "is_available", lambda: bool(self.visible()))
        replace(cuda, "device_count", lambda: len(self.visible()))
        replace(cuda, "current_device", lambda: self.chosen)
        replace(cuda, "set_device", self._choose)
        replace(cuda, "get_device_properties", self._properties)
        replace(cuda, "set_per_process_memory_fraction", self._bound)
        return self

    def _behind(self, device: Any) -> Any:
        if not str(device).startswith("cuda"):
            return device
        if self._index(device) >= len(self.visible()):
            raise RuntimeError("CUDA error: invalid device ordinal\nand a paragraph of advice")
        return "cpu"

    def _index(self, device: Any) -> int:
        if isinstance(device, int):
            return device
        index = None if device is None else torch.device(device).index
        return self.chosen if index is None else index

    def _choose(self, device: int) -> None:
        self.chosen = device

    def _properties(self, device: Any) -> Any:
        return SimpleNamespace(total_memory=24 * GIB, uuid=f"GPU-{self.visible()[self._index(device)]}")

    def _bound(self, fraction: float, device: Any = None) -> None:
        assert isinstance(fraction, float)
        assert 0.0 <= fraction <= 1.0
        self.fractions[self._index(device)] = fraction
