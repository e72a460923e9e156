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

NATURE = ((32, 8, 4), (64, 4, 2), (64, 3, 1))  # channels, kernel, stride (Mnih 2015): needs 36 pixels a side
SMALL_IMAGE = ((16, 3, 1), (32, 3, 1))  # for grids such as 10 × 10; needs 5


class VectorEncoder(nn.Module):
    """[N, ...] numbers → [N, size]; bytes become 0..1."""

    def __init__(self, space: spaces.Box | spaces.MultiBinary) -> None:
        super().__init__()
        self.size = math.prod(space.shape)
        self.bytes = space.dtype == np.uint8 and isinstance(space, spaces.Box)

    def forward(self, observation: Tensor) -> Tensor:
        flat = observation.reshape(len(observation), self.size).float()
        return flat / 255.0 if self.bytes else flat


class ImageEncoder(nn.Module):
    """[N, height, width, channels], [N, channels, height, width] or [N, height, width] images → [N, size] features.

    The smaller of the first and the last axis is taken for the channels. Computes channels-last: a third faster.
    """

    def __init__(self, space: spaces.Box) -> None:
        super().__init__()
        shape = space.shape if len(space.shape) == 3 else (1, *space.shape)
        self.channels_last = shape[-1] < shape[0]
        channels, *sides = (shape[-1], *shape[:2]) if self.channels_last else shape
        self.scale = 1.0 / 255.0 if space.dtype == np.uint8 else 1.0
        self.convolutions = nn.ModuleList()
        for filters, kernel, stride in NATURE if min(sides) >= 36 else SMALL_IMAGE:
            layer = nn.Conv2d(channels, filters, kernel, stride)
            nn.init.orthogonal_(layer.weight, math.sqrt(2.0))
            nn.init.zeros_(cast(Tensor, layer.bias))
            layer.weight.data = layer.weight.data.contiguous(memory_format=torch.channels_last)
            self.convolutions.append(layer)
            channels, sides = filters, [(side - kernel) // stride + 1 for side in sides]
        self.size = channels * math.prod(sides)

    def forward(self, image: Tensor) -> Tensor:
        if image.dim() == 3:
            image = image.unsqueeze(1)
        x = image.movedim(-1, 1) if self.channels_last else image
        x = x.to(torch.float32, memory_format=torch.channels_last).mul_(self.scale)
        for layer in self.convolutions:
            x = torch.relu_(layer(x))
        return x.flatten(1)


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
        index = numbers.reshape(len(numbers), len(self.counts)).long() + cast(Tensor, self.offsets)
        return torch.zeros(len(index), self.size, device=index.device).scatter_(1, index, 1.0)


class CompositeEncoder(nn.Module):
    """The parts of a Dict or Tuple observation, each encoded on its own, side by side."""

    def __init__(self, parts: Mapping[Any, spaces.Space[Any]]) -> None:
        super().__init__()
        self.keys = list(parts)
        self.encoders = nn.ModuleList([make_encoder(part) for part in parts.values()])
        self.size = sum(cast(int, encoder.size) for encoder in self.encoders)

    def forward(self, observation: Any) -> Tensor:
        return torch.cat([encoder(observation[key]) for key, encoder in zip(self.keys, self.encoders)], dim=1)


def make_encoder(space: spaces.Space[Any]) -> nn.Module:
    """The encoder of a space: a module from observations [N, ...] to [N, size] with an attribute `size`."""
    match space:
        case spaces.Dict():
            return CompositeEncoder(space.spaces)
        case spaces.Tuple():
            return CompositeEncoder(dict(enumerate(space.spaces)))
        case spaces.Discrete():
            return OneHotEncoder([space.n], [space.start])
        case spaces.MultiDiscrete():
            return OneHotEncoder(space.nvec.flatten(), space.start.flatten())
        case spaces.Box() if is_image(space):
            return ImageEncoder(space)
        case spaces.Box() | spaces.MultiBinary():
            return VectorEncoder(space)
    raise UserError(
        f"The observation space {space} is not supported: use Box, Discrete, MultiDiscrete, MultiBinary, "
        "or a Dict or Tuple of these."
    )


def is_image(space: spaces.Box) -> bool:
    """Three axes with sides of at least 5 pixels, or a two-dimensional array of bytes of at least 36."""
    if len(space.shape) == 3:
        return sorted(space.shape)[1] >= 5
    return len(space.shape) == 2 and space.dtype == np.uint8 and min(space.shape) >= 36
