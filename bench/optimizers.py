"""Our optimizers beside torch's, on one flat parameter of the sizes we train: microseconds a step, measured in turns.

    python -m bench.optimizers [seconds per turn]

What is timed is the update alone, with a gradient that is there already: clipping and backward cost both the same.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable

import torch
from torch import nn

from shoal.flat import FlatOptimizer

SIZES = {"2x64 MLP": 9_155, "2x256 MLP": 136_711, "Nature CNN": 1_687_719}
TURNS = 7


def ours(size: int, **options: object) -> Callable[[], object]:
    optimizer = FlatOptimizer(torch.randn(size), **options)  # type: ignore[arg-type]
    gradient = torch.randn(size)
    return lambda: optimizer.step(gradient, 1e-3)


def theirs(size: int, kind: type[torch.optim.Optimizer], **options: object) -> Callable[[], object]:
    parameter = nn.Parameter(torch.randn(size))
    parameter.grad = torch.randn(size)
    return kind([parameter], lr=1e-3, **options).step


CONTENDERS: dict[str, Callable[[int], Callable[[], object]]] = {
    "adam, ours": lambda size: ours(size, kind="adam"),
    "adam, torch fused": lambda size: theirs(size, torch.optim.Adam, fused=True),
    "adam, torch foreach": lambda size: theirs(size, torch.optim.Adam, foreach=True),
    "rmsprop, ours": lambda size: ours(size, kind="rmsprop"),
    "rmsprop, torch foreach": lambda size: theirs(size, torch.optim.RMSprop, foreach=True),
    "rmsprop, torch for loop": lambda size: theirs(size, torch.optim.RMSprop, foreach=False),
    "centred rmsprop, ours": lambda size: ours(size, kind="rmsprop", centred=True),
    "centred rmsprop, torch foreach": lambda size: theirs(size, torch.optim.RMSprop, foreach=True, centered=True),
    "sgd, ours": lambda size: ours(size, kind="sgd"),
    "sgd, torch fused": lambda size: theirs(size, torch.optim.SGD, fused=True),
}


def microseconds(step: Callable[[], object], seconds: float) -> float:
    steps, began = 0, time.perf_counter()
    while (passed := time.perf_counter() - began) < seconds:
        for _ in range(10):
            step()
        steps += 10
    return 1e6 * passed / steps


def main(seconds: float) -> None:
    torch.set_num_threads(1)
    print(f"{'':32}" + "".join(f"{name:>14}" for name in SIZES))
    measured: dict[tuple[str, str], list[float]] = {(name, size): [] for name in CONTENDERS for size in SIZES}
    for size, count in SIZES.items():
        steps = {name: make(count) for name, make in CONTENDERS.items()}
        for _ in range(TURNS):
            for name, step in steps.items():
                measured[name, size].append(microseconds(step, seconds))
    for name in CONTENDERS:
        print(f"{name:32}" + "".join(f"{statistics.median(measured[name, size]):14.1f}" for size in SIZES))


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 0.3)
