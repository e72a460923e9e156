"""Transfer: a new network starts with old weights, as far as they fit, and some of it may stay as it is."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

import torch
from torch import Tensor, nn

from shoal.errors import UserError
from shoal.types import Array

SHOWN = 12  # layers that an error names at most


@dataclass(frozen=True)
class Transfer:
    """What became of old weights in a new network."""

    loaded: tuple[str, ...]
    skipped: tuple[str, ...]  # a line each: those of both sides that have no fitting partner

    def lines(self) -> list[str]:
        """What the user is told."""
        said = [f"restored {len(self.loaded)} of {len(self.loaded) + len(self.skipped)} layers"]
        return [*said, *(f"  not restored: {line}" for line in self.skipped)]


@torch.no_grad()
def transfer(network: nn.Module, weights: Mapping[str, Tensor | Array], *, partial: bool = False) -> Transfer:
    """Load `weights` (by name, as of `state_dict`) into a network, in place: its parameters stay the same tensors.

    Unless `partial`, a layer that does not fit, is missing or is left over is a `UserError` that lists all of them, and
    nothing is loaded. Values that are not finite are refused always.
    """
    own = network.state_dict()
    fitting, mismatched = {}, []
    for name, target in own.items():
        if name not in weights:
            mismatched.append(f"{name}: new, {_shape(target)}")
            continue
        source = torch.as_tensor(weights[name])
        if source.shape != target.shape or source.is_floating_point() != target.is_floating_point():
            mismatched.append(f"{name}: old {_shape(source)}, new {_shape(target)}")
        else:
            fitting[name] = source
    mismatched += [
        f"{name}: old {_shape(torch.as_tensor(weights[name]))}, not in the network"
        for name in weights
        if name not in own
    ]
    if mismatched and not partial:
        raise UserError(
            f"The old weights do not fit the network: {_listed(mismatched)}. Give the options they were trained with, "
            "or --restore-partial to load what fits."
        )
    if not fitting:
        raise UserError(f"No layer of the old weights fits the network: {_listed(mismatched)}.")
    for name, source in fitting.items():
        if source.is_floating_point() and not bool(torch.isfinite(source).all()):
            raise UserError(f"The old weights are not finite in {name}: restore from an earlier checkpoint.")
    for name, source in fitting.items():
        own[name].copy_(source)  # of a state_dict, whose tensors are the network's own
    return Transfer(tuple(fitting), tuple(mismatched))


def freeze(network: nn.Module, patterns: str) -> list[str]:
    """Keep the parameters whose names match one of the patterns (`torso.*`, separated by commas) as they are:
    optimizers take only those that require a gradient. Their names; a pattern that matches none, or patterns that match
    all of them, are an error."""
    names = [name for name, _ in network.named_parameters()]
    frozen: set[str] = set()
    for pattern in re.split(r"[,\s]+", patterns.strip(", ")):  # of nothing but commas one is left that matches none
        matching = {name for name in names if fnmatchcase(name, pattern) or name.startswith(f"{pattern}.")}
        if not matching:
            raise UserError(f"--freeze {pattern or patterns} matches no parameter: there are {_listed(names)}.")
        frozen |= matching
    if len(frozen) == len(names):
        raise UserError(f"--freeze {patterns} leaves nothing to train: all of {_listed(names)} match.")
    for name, parameter in network.named_parameters():
        if name in frozen:
            parameter.requires_grad_(False)
    return sorted(frozen)


def _shape(tensor: Tensor) -> str:
    return str(list(tensor.shape)) + (
        "" if tensor.is_floating_point() else f" of {str(tensor.dtype).removeprefix('torch.')}"
    )


def _listed(lines: list[str]) -> str:
    more = f" and {len(lines) - SHOWN} more" if len(lines) > SHOWN else ""
    return "; ".join(lines[:SHOWN]) + more
