"""State by torch's convention: `state_dict()` gives it, `load_state_dict(state)` takes it back.

What comes out holds only tensors, arrays, numbers, strings, lists and dicts, so that it can be written without pickles.
"""

from __future__ import annotations

import copy
import types
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from shoal.errors import UserError

State = dict[str, Any]
Scope = Literal[
    "own", "exact"
]  # what a node needs to go on by itself, or also what only all nodes of one moment can use

NUMBERS = (int, float, np.number, np.bool_)


class Stateful:
    """The state of all attributes that have one: modules, optimizers, targets, generators of random numbers, tensors,
    numbers.

    Whoever adds such an attribute to a class need not think of saving it. What stays as it was made is none: settings,
    names, functions, spaces, tuples, None. An attribute that may be either, such as a list, is refused until the class
    says: it is named in `not_state`, or gets `state_dict` and `load_state_dict`.
    """

    not_state: ClassVar[tuple[str, ...]] = ()  # attributes that are none, though they look like it

    def state_dict(self) -> State:
        return {name: state_of(part) for name, part in self._parts().items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        parts = self._parts()
        if parts.keys() != state.keys():
            lacking, unknown = sorted(parts.keys() - state.keys()), sorted(state.keys() - parts.keys())
            raise ValueError(
                f"the state does not fit {type(self).__name__}: it lacks {lacking or 'nothing'} "
                f"and has {unknown or 'nothing'} that is not known"
            )
        for name, part in parts.items():
            if isinstance(part, NUMBERS):
                value = state[name]
                setattr(self, name, value.item() if isinstance(value, Tensor) else value)
            else:
                load_state(part, state[name])

    def _parts(self) -> State:
        found = {name: part for name, part in vars(self).items() if name not in self.not_state}
        for name, part in found.items():
            if not (has_state(part) or isinstance(part, NUMBERS) or _is_settled(part)):
                raise UserError(
                    f"{type(self).__name__}.{name} is a {type(part).__name__}, and nobody can tell whether it must be "
                    f'saved: give that class state_dict and load_state_dict, or write not_state = ("{name}",) into '
                    f"{type(self).__name__} where it need not be."
                )
        return {name: part for name, part in found.items() if has_state(part) or isinstance(part, NUMBERS)}


def _is_settled(part: Any) -> bool:
    """Whether it stays as it was made: a setting, a name, a function, a space, and tuples of whatever they are."""
    kinds = str, bytes, tuple, frozenset, type, types.FunctionType, types.MethodType, types.BuiltinFunctionType
    if part is None or isinstance(part, (*kinds, partial, torch.device, torch.dtype)):
        return True
    if (made := getattr(part, "__dataclass_params__", None)) is not None:
        return bool(made.frozen)
    return getattr(part, "stateless", False) is True or type(part).__module__.startswith("gymnasium.spaces")


def has_state(part: Any) -> bool:
    return isinstance(part, Tensor | torch.Generator | np.random.Generator) or (
        hasattr(part, "state_dict") and hasattr(part, "load_state_dict")
    )


def state_of(part: Any) -> Any:
    """A copy that does not change when the part does."""
    match part:
        case int() | float() | np.number() | np.bool_():
            return part
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
