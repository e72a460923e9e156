"""Encoders of images: the convolutions of Mnih 2015, or IMPALA's residual network (Espeholt 2018).

Bytes cross to the device as bytes and become numbers from 0 to 1 there, once. Computed channels-last, a third faster on
a CPU. With `precision` bfloat16 the convolutions are computed in it, and what they give is float32 again.
"""

from __future__ import annotations

import math
from typing import TypeVar, cast

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from shoal.options import Learning

N = TypeVar("N", bound=nn.Module)
NATURE = ((32, 8, 4), (64, 4, 2), (64, 3, 1))  # channels, kernel, stride (Mnih 2015): needs 36 pixels a side
SMALL_IMAGE = ((16, 3, 1), (32, 3, 1))  # for grids such as 10 × 10; needs 5
RESIDUAL = (16, 32, 32)  # channels of the three sections of IMPALA's deep network, each of which halves the sides


class Pixels(nn.Module):
    """[N, height, width, channels], [N, channels, height, width] or [N, height, width] images, or stacks of such, one
    axis more in front of them → [N, channels, height, width] float32, channels-last in memory.

    The smaller of an image's first and last axis is taken for the channels; those of a stack lie side by side.
    """

    def __init__(self, space: spaces.Box) -> None:
        super().__init__()
        self.stacked = len(space.shape) == 4
        frames = space.shape[0] if self.stacked else 1
        shape = space.shape[-3:] if len(space.shape) >= 3 else (1, *space.shape)
        self.channels_last = shape[-1] < shape[0]
        channels, *self.sides = (shape[-1], *shape[:2]) if self.channels_last else shape
        self.channels = channels * frames
        self.scale = 1.0 / 255.0 if space.dtype == np.uint8 else 1.0

    def forward(self, image: Tensor) -> Tensor:
        if image.dim() == 3:
            image = image.unsqueeze(1)
        x = image.movedim(-1, 2 if self.stacked else 1) if self.channels_last else image
        if self.stacked:
            x = x.flatten(1, 2)
        return x.to(torch.float32, memory_format=torch.channels_last).mul_(self.scale)


class Convolutions(nn.Module):
    """What encoders of images share: pixels in, features [N, size] out, in the precision that they are computed in."""

    size: int

    def __init__(self, space: spaces.Box) -> None:
        super().__init__()
        self.pixels = Pixels(space)
        self.precision = torch.float32

    def forward(self, image: Tensor) -> Tensor:
        x = self.pixels(image)
        if self.precision == torch.float32:
            return self.features(x)
        with torch.autocast(x.device.type, self.precision):
            features = self.features(x)
        return features.float()

    def features(self, x: Tensor) -> Tensor:
        raise NotImplementedError


class ImageEncoder(Convolutions):
    """Three convolutions, or two for small images."""

    def __init__(self, space: spaces.Box) -> None:
        super().__init__(space)
        channels, sides = self.pixels.channels, self.pixels.sides
        self.convolutions = nn.ModuleList()
        for filters, kernel, stride in NATURE if min(sides) >= 36 else SMALL_IMAGE:
            self.convolutions.append(convolution(channels, filters, kernel, stride))
            channels, sides = filters, [(side - kernel) // stride + 1 for side in sides]
        self.size = channels * math.prod(sides)

    def features(self, x: Tensor) -> Tensor:
        for layer in self.convolutions:
            x = torch.relu_(layer(x))
        return x.flatten(1)


class ResidualEncoder(Convolutions):
    """Three sections of a convolution, a max pool and two residual blocks."""

    def __init__(self, space: spaces.Box) -> None:
        super().__init__(space)
        channels, sides = self.pixels.channels, self.pixels.sides
        self.sections = nn.ModuleList()
        for filters in RESIDUAL:
            blocks = [Residual(filters), Residual(filters)]
            pool = nn.MaxPool2d(3, stride=2, padding=1)
            self.sections.append(nn.Sequential(convolution(channels, filters, 3, padding=1), pool, *blocks))
            channels, sides = filters, [(side + 1) // 2 for side in sides]
        self.size = channels * math.prod(sides)

    def features(self, x: Tensor) -> Tensor:
        for section in self.sections:
            x = section(x)
        return torch.relu(x).flatten(1)


class Residual(nn.Module):
    """x + two convolutions of it."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = convolution(channels, channels, 3, padding=1)
        self.second = convolution(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        inner: Tensor = self.second(torch.relu_(self.first(torch.relu(x))))
        return x + inner


def convolution(channels: int, filters: int, kernel: int, stride: int = 1, padding: int = 0) -> nn.Conv2d:
    """Orthogonal weights, zero biases, channels-last."""
    layer = nn.Conv2d(channels, filters, kernel, stride, padding)
    nn.init.orthogonal_(layer.weight, math.sqrt(2.0))
    nn.init.zeros_(cast(Tensor, layer.bias))
    layer.weight.data = layer.weight.data.contiguous(memory_format=torch.channels_last)
    return layer


def compute_in(network: N, precision: str) -> N:
    """The same network, whose convolutions of images compute in "float32" or "bfloat16"."""
    for module in network.modules():
        if isinstance(module, Convolutions):
            module.precision = getattr(torch, precision)
    return network


def precision_of(cfg: object) -> str:
    return cfg.precision if isinstance(cfg, Learning) else "float32"
