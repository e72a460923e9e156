"""The state of environments in the middle of their episodes: given as plain data, and taken back by new ones.

An environment and its wrappers are layers, and so is a vector. What a layer holds is found in its attributes where its
class is one whose whole state lies there: Gymnasium's own classic control, toy text and wrappers, and our tasks. ALE
and MuJoCo are asked for what they keep beside it. A class of the user's gives its state with `state_dict()` and takes
it with `load_state_dict(state)`; its `np_random` is saved for it. Other classes have no state that could be relied on:
`NoState` names them. Nothing is pickled.
"""

from __future__ import annotations

import copy
import sys
from collections import deque
from collections.abc import Callable, Mapping
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from shoal.envs.faults import EnvFault

State = dict[str, Any]

# Whole state in plain attributes. Not Box2D: its bodies live in a library that does not give them.
_KNOWN = (
    "gymnasium.envs.classic_control.",
    "gymnasium.envs.toy_text.",
    "gymnasium.envs.mujoco.",
    "gymnasium.wrappers.",
    "gymnasium.vector.",
    "ale_py.env",
    "shoal.envs.",
)
_CONSTANT = {  # of Gymnasium's classes: what is set when they are made, and what only draws
    *("env", "envs", "spec", "metadata", "_metadata", "_saved_kwargs", "_cached_spec"),
    *("_ezpickle_args", "_ezpickle_kwargs"),
    *("P", "desc", "locs", "locs_colors", "_action_set", "model", "data", "ale", "fullpath", "observation_structure"),
    *("render_mode", "screen", "screens", "surf", "clock", "window", "window_surface", "isopen", "mujoco_renderer"),
    *("width", "height", "start_time"),
}
_STATELESS = (FunctionType, BuiltinFunctionType, MethodType, type, spaces.Space)
_NOT_PLAIN = (*_STATELESS, np.random.Generator, deque, gymnasium.Env, gymnasium.vector.VectorEnv)
_GENERATORS = ("PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64")


class NoState(Exception):
    """An environment cannot give its state: a sentence that names it and says what it lacks."""


# ---- one environment with its wrappers, or a vector with its own


def state_of_layers(env: Any) -> list[State]:
    """The state of an environment and everything around it, from the outside inwards."""
    return [_state_of(layer) for layer in layers(env)]


def load_layers(env: Any, states: list[State]) -> None:
    """Bring an environment of the same kind, which was reset, to where that state was taken."""
    there = layers(env)
    if [_name(layer) for layer in there] != [state.get("class") for state in states]:
        raise EnvFault(
            f"the state of {_name(there[-1])} is of other wrappers: {[state.get('class') for state in states]}, "
            f"and not {[_name(layer) for layer in there]}."
        )
    for layer, state in zip(there, states):
        _load(layer, state)


def layers(env: Any) -> list[Any]:
    """A wrapper, what it wraps, and so on to the innermost."""
    found = [env]
    while isinstance(found[-1], gymnasium.Wrapper | gymnasium.vector.VectorWrapper):
        found.append(found[-1].env)
    return found


# ---- one layer


def _state_of(layer: Any) -> State:
    state: State = {"class": _name(layer)}
    if gives_its_own(layer):
        state["own"] = plain_copy(layer.state_dict(), f"{_name(layer)}.state_dict()")
        if isinstance(generator := vars(layer).get("_np_random"), np.random.Generator):
            state["generators"] = {"_np_random": copy.deepcopy(generator.bit_generator.state)}
        return state
    known = _is_known(type(layer))
    if not known and not isinstance(layer, gymnasium.Wrapper | gymnasium.vector.VectorWrapper):
        raise NoState(
            f"{_name(layer)} cannot give its state, so that its open episodes are lost when a run is resumed: "
            "add the methods state_dict and load_state_dict."
        )
    return state | _attributes(layer, known) | _engine_state(layer)


def _load(layer: Any, state: State) -> None:
    if "own" in state:
        _load_generators(layer, state.get("generators", {}))
        layer.load_state_dict(copy.deepcopy(state["own"]))
        return
    _load_attributes(layer, state)
    _load_engine(layer, state)


def gives_its_own(layer: Any) -> bool:
    """Whether its class has the two methods; wrappers do not pass on those of what they wrap."""
    return all(callable(getattr(type(layer), method, None)) for method in ("state_dict", "load_state_dict"))


def _attributes(layer: Any, known: bool) -> State:
    """Attributes by what they are: plain data, generators, queues, and objects with attributes of their own."""
    found: State = {"plain": {}, "generators": {}, "queues": {}, "objects": {}}
    for name, value in vars(layer).items():
        place = f"{_name(layer)}.{name}"
        if name in _CONSTANT or isinstance(value, _STATELESS):
            continue
        if isinstance(value, np.random.Generator):
            found["generators"][name] = copy.deepcopy(value.bit_generator.state)
        elif isinstance(value, deque):
            found["queues"][name] = plain_copy(list(value), place)
        elif _is_known(type(value)) or gives_its_own(value):
            found["objects"][name] = _state_of(value)
        else:
            try:
                found["plain"][name] = plain_copy(value, place)
            except NoState:
                if known and callable(value):
                    continue  # a transformation that the user gave to a wrapper of Gymnasium's
                raise
    return found


def _load_attributes(layer: Any, state: State) -> None:
    """Only what a layer gives itself may be set: a file cannot put anything in the place of a method or an engine."""
    for name in state["plain"]:
        there = vars(layer).get(name)
        if name in _CONSTANT or isinstance(there, _NOT_PLAIN) or (name not in vars(layer) and hasattr(layer, name)):
            raise EnvFault(f"the state of {_name(layer)} has a value for {name!r}, which is none of its data.")
    for name, value in state["plain"].items():
        setattr(layer, name, copy.deepcopy(value))
    _load_generators(layer, state["generators"])
    for name, values in state["queues"].items():
        queue = vars(layer).get(name)
        if not isinstance(queue, deque):
            raise EnvFault(f"the state of {_name(layer)} has a queue {name!r}, and it has none.")
        queue.clear()
        queue.extend(copy.deepcopy(values))
    for name, part in state["objects"].items():
        if _name(vars(layer).get(name)) != part.get("class"):
            raise EnvFault(f"the state of {_name(layer)}.{name} is of another class: {part.get('class')}.")
        _load(getattr(layer, name), part)


def _load_generators(layer: Any, states: Mapping[str, Any]) -> None:
    for name, state in states.items():
        kind = state["bit_generator"]
        if kind not in _GENERATORS or not isinstance(vars(layer).get(name), np.random.Generator | None):
            raise EnvFault(
                f"the state of {_name(layer)} has a random generator {name!r} of kind {kind!r} that it cannot take."
            )
        generator = np.random.Generator(getattr(np.random, kind)())
        generator.bit_generator.state = copy.deepcopy(state)
        setattr(layer, name, generator)


# ---- engines that hold a state of their own


def _engine_state(layer: Any) -> State:
    ale, data = vars(layer).get("ale"), vars(layer).get("data")
    if type(layer).__module__ == "ale_py.env" and ale is not None:
        return {"ale": ale.cloneSystemState().serialize()}  # with its random generator
    if type(data).__module__.startswith("mujoco.") and type(data).__name__ == "MjData":
        return {"mujoco": _mujoco_state(layer.model, data)}
    if hasattr(ale, "handle"):
        raise NoState(f"{_name(layer)} cannot give its state: with --vectorizer sync or async each of its games can.")
    return {}


def _load_engine(layer: Any, state: State) -> None:
    if "ale" in state:
        kind = type(layer.ale.cloneSystemState())
        layer.ale.restoreSystemState(kind(state["ale"]))
    if "mujoco" in state:
        _load_mujoco(layer.model, layer.data, state["mujoco"])


def _mujoco_state(model: Any, data: Any) -> State:
    """What is integrated, and what was worked out from it: environments read positions of bodies before they step, and
    those are from before the last step's integration."""
    mujoco: Any = sys.modules["mujoco"]
    integrated = np.empty(mujoco.mj_stateSize(model, mujoco.mjtState.mjSTATE_INTEGRATION), np.float64)
    mujoco.mj_getState(model, data, integrated, mujoco.mjtState.mjSTATE_INTEGRATION)
    return {"integrated": integrated, "derived": {name: array.copy() for name, array in _derived(data).items()}}


def _load_mujoco(model: Any, data: Any, state: State) -> None:
    mujoco: Any = sys.modules["mujoco"]
    integrated = np.array(state["integrated"], np.float64)
    if integrated.shape != (mujoco.mj_stateSize(model, mujoco.mjtState.mjSTATE_INTEGRATION),):
        raise EnvFault(f"the state of a MuJoCo model has {integrated.size} numbers, which is not this one's.")
    mujoco.mj_setState(model, data, integrated, mujoco.mjtState.mjSTATE_INTEGRATION)
    mujoco.mj_forward(model, data)  # works out what is derived, which changes a part of what is integrated
    mujoco.mj_setState(model, data, integrated, mujoco.mjtState.mjSTATE_INTEGRATION)
    for name, array in _derived(data).items():
        saved = state["derived"].get(name)
        if saved is not None and saved.shape == array.shape:
            array[...] = saved


def _derived(data: Any) -> dict[str, Any]:
    found = {
        name: getattr(data, name) for name in dir(data) if name.startswith(("x", "g", "s", "c", "q", "ten", "act"))
    }
    return {name: value for name, value in found.items() if isinstance(value, np.ndarray) and value.dtype == np.float64}


# ---- plain data


def plain_copy(value: Any, place: str) -> Any:
    """A copy of what can be written without pickles; anything else is `NoState`, with its place."""
    match value:
        case None | bool() | int() | float() | str() | bytes():
            return value if type(value).__module__ in ("builtins", "numpy") else _builtin(value)
        case np.generic() if value.dtype.kind in "biuf":
            return value
        case np.ndarray() if value.dtype.kind in "biuf":
            return value.copy()
        case list() | tuple():
            parts = [plain_copy(part, f"{place}[{i}]") for i, part in enumerate(value)]
            return tuple(parts) if isinstance(value, tuple) else parts
        case Mapping() if all(isinstance(key, str | int) for key in value):
            return {key: plain_copy(part, f"{place}[{key!r}]") for key, part in value.items()}
    raise NoState(f"{place} is a {type(value).__qualname__}, which is not plain data and cannot be saved.")


def _builtin(value: Any) -> Any:
    """Of a class derived from a number or string, such as an enum's member, the plain one."""
    kind: Callable[[Any], Any] = next(kind for kind in (int, float, str, bytes) if isinstance(value, kind))
    return kind(value)


def _is_known(kind: type) -> bool:
    return f"{kind.__module__}.".startswith(_KNOWN)


def _name(layer: Any) -> str:
    return f"{type(layer).__module__}.{type(layer).__qualname__}"
