"""State by torch's convention: `state_dict()` gives it, `load_state_dict(state)` takes it back.

What comes out holds only tensors, arrays, numbers, strings, lists and dicts, so that it can be written without pickles.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

State = dict[str, Any]
Scope = Literal[
    "own", "exact"
]  # what a node needs to go on by itself, or also what only all nodes of one moment can use


class Stateful:
    """The state of all attributes that have one: modules, optimizers, targets, generators of random numbers, tensors.

    Whoever adds such an attribute to a class need not think of saving it.
    """

    def state_dict(self) -> State:
        return {name: state_of(part) for name, part in vars(self).items() if has_state(part)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        parts = {name: part for name, part in vars(self).items() if has_state(part)}
        if parts.keys() != state.keys():
            lacking, unknown = sorted(parts.keys() - state.keys()), sorted(state.keys() - parts.keys())
            raise ValueError(
                f"the state does not fit {type(self).__name__}: it lacks {lacking or 'nothing'} "
                f"and has {unknown or 'nothing'} that is not known"
            )
        for name, part in parts.items():
            load_state(part, state[name])


def has_state(part: Any) -> bool:
    return isinstance(part, Tensor | torch.Generator | np.random.Generator) or (
        hasattr(part, "state_dict") and hasattr(part, "load_state_dict")
    )


def state_of(part: Any) -> Any:
    """A copy that does not change when the part does."""
    match part:
        case Tensor():
            return part.detach().clone()
        case torch.Generator():
            return part.get_state()
        case np.random.Generator():
            return copy.deepcopy(part.bit_generator.state)
    return copy.deepcopy(part.state_dict())


def load_state(part: Any, state: Any) -> None:
    match part:
        case Tensor():
            part.detach().copy_(state)
        case torch.Generator():
            part.set_state(state.cpu())
        case np.random.Generator():
            part.bit_generator.state = copy.deepcopy(state)
        case _:
            part.load_state_dict(state)


def as_arrays(state: Any) -> Any:
    """A state whose tensors have become arrays: what travels between processes."""
    return _converted(state, Tensor, lambda tensor: tensor.cpu().numpy())


def as_tensors(state: Any) -> Any:
    """The same back again."""
    return _converted(state, np.ndarray, lambda array: torch.from_numpy(np.array(array)))


def _converted(state: Any, kind: type, convert: Callable[[Any], Any]) -> Any:
    if isinstance(state, kind):
        return convert(state)
    if isinstance(state, Mapping):
        return {name: _converted(part, kind, convert) for name, part in state.items()}
    if isinstance(state, list | tuple):
        return [_converted(part, kind, convert) for part in state]
    return state
