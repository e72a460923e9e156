"""Encoders: any supported observation becomes one vector of features.

Vectors are flattened, bytes divided by 255, images go through convolutions, discrete parts become one-hot vectors, and
the parts of Dict and Tuple observations are encoded each on its own and concatenated.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, cast

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from shoal.errors import UserError
from shoal.nets.images import ImageEncoder, ResidualEncoder
from shoal.pixels import is_image


class VectorEncoder(nn.Module):
    """[N, ...] numbers → [N, size]; bytes become 0..1."""

    def __init__(self, space: spaces.Box | spaces.MultiBinary) -> None:
        super().__init__()
        self.size = math.prod(space.shape)
        self.bytes = space.dtype == np.uint8 and isinstance(space, spaces.Box)

    def forward(self, observation: Tensor) -> Tensor:
        flat = observation.reshape(observation.shape[0], self.size).float()
        return flat / 255.0 if self.bytes else flat


class OneHotEncoder(nn.Module):
    """[N] or [N, ...] whole numbers → [N, size], a one-hot vector per number, numbered from `starts`."""

    def __init__(self, counts: Iterable[int], starts: Iterable[int]) -> None:
        super().__init__()
        self.counts = tuple(int(count) for count in counts)
        self.size = sum(self.counts)
        before = np.cumsum((0, *self.counts[:-1]))
        offsets = before - np.fromiter(starts, np.int64)
        self.register_buffer("offsets", torch.from_numpy(offsets), persistent=False)  # where each part's 0 lies

    def forward(self, numbers: Tensor) -> Tensor:
        index = numbers.reshape(numbers.shape[0], len(self.counts)).long() + cast(Tensor, self.offsets)
        return torch.zeros(index.shape[0], self.size, device=index.device).scatter_(1, index, 1.0)


class CompositeEncoder(nn.Module):
    """The parts of a Dict or Tuple observation, each encoded on its own, side by side."""

    def __init__(self, parts: Mapping[Any, spaces.Space[Any]], images: str) -> None:
        super().__init__()
        self.keys = list(parts)
        self.encoders = nn.ModuleList([make_encoder(part, images) for part in parts.values()])
        self.size = sum(cast(int, encoder.size) for encoder in self.encoders)

    def forward(self, observation: Any) -> Tensor:
        return torch.cat([encoder(observation[key]) for key, encoder in zip(self.keys, self.encoders)], dim=1)


def make_encoder(space: spaces.Space[Any], images: str = "nature") -> nn.Module:
    """The encoder of a space: a module from observations [N, ...] to [N, size] with an attribute `size`. `images` says
    what theirs is: "nature" or "resnet" (`shoal.nets.images`)."""
    match space:
        case spaces.Dict():
            return CompositeEncoder(space.spaces, images)
        case spaces.Tuple():
            return CompositeEncoder(dict(enumerate(space.spaces)), images)
        case spaces.Discrete():
            return OneHotEncoder([space.n], [space.start])
        case spaces.MultiDiscrete():
            return OneHotEncoder(space.nvec.flatten(), space.start.flatten())
        case spaces.Box() if is_image(space):
            return ResidualEncoder(space) if images == "resnet" else ImageEncoder(space)
        case spaces.Box() | spaces.MultiBinary():
            return VectorEncoder(space)
    raise UserError(
        f"The observation space {space} is not supported: use Box, Discrete, MultiDiscrete, MultiBinary, "
        "or a Dict or Tuple of these."
    )
