"""What Shoal can train on, and one clear sentence for an environment that is outside of it or contradicts itself."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
from gymnasium import Env, Space, spaces

from shoal import tree
from shoal.envs.faults import EnvFault, what_was_raised
from shoal.errors import UserError
from shoal.pixels import is_image
from shoal.types import Array

OLD_GYM = "that is old gym's API: wrap it in shimmy.GymV21CompatibilityV0(env=...), of the package shimmy"
MASKS = frozenset({"action_mask", "action_masks", "avail_actions", "available_actions", "legal_actions", "mask"})


def refuse_several_agents(environment: str, made: Any) -> None:
    """As PettingZoo and those who follow it have them: `possible_agents`, or `agents` where it is no gymnasium.Env."""
    if hasattr(made, "possible_agents") or (hasattr(made, "agents") and not isinstance(made, Env)):
        raise UserError(
            f"{environment} has several agents, as in PettingZoo, and Shoal trains one policy in an environment of one "
            "agent: wrap it as a gymnasium.Env that plays one of them and has the others move inside step()."
        )


def mask_note(environment: str, space: Space[Any], told: Collection[str], made: Any) -> str | None:
    """A sentence for the user whose environment says which actions are allowed: in its observation, in an info, or by
    a method `action_masks`."""
    seen = [name for name in tree.leaf_spaces(space, "observation") if name.rpartition("/")[2] in MASKS]
    beside = [f"its infos hold {name!r}" for name in sorted(MASKS.intersection(told))]
    beside += ["it has action_masks()"] if callable(getattr(made, "action_masks", None)) else []
    if not seen and not beside:
        return None
    what = f"its observation holds {seen[0]!r}, which the policy sees" if seen else f"{beside[0]}, which nobody reads"
    return (
        f"{environment}: {what}, but masks of actions are not obeyed yet: actions that are not allowed will be tried, "
        "so let step() answer them with a small penalty or as if nothing was done, and not raise."
    )


def observation_space(space: Space[Any], environment: str, name: str = "observation") -> Space[Any]:
    """The space of what the policy sees: as the environment's, but floating point is always float32."""
    match space:
        case spaces.Dict():
            keys = list(space.spaces)
            if any("/" in str(key) for key in keys) or all(str(i) in keys for i in range(len(keys))):
                raise UserError(
                    f"{environment}: the keys {keys} of the Dict space '{name}' would be confused with nested or Tuple "
                    "spaces; rename them to plain words without '/'."
                )
            return spaces.Dict({key: observation_space(s, environment, f"{name}/{key}") for key, s in space.items()})
        case spaces.Tuple():
            return spaces.Tuple(
                observation_space(s, environment, f"{name}/{position}") for position, s in enumerate(space.spaces)
            )
        case spaces.Box() | spaces.MultiDiscrete() | spaces.MultiBinary() if 0 in space.shape:
            raise UserError(f"{environment}: its '{name}', {space}, holds no number: there is nothing to see.")
        case spaces.Box() if np.issubdtype(space.dtype, np.floating):
            return _as_float32(space)
        case spaces.Box() | spaces.Discrete() | spaces.MultiDiscrete() | spaces.MultiBinary():
            return space
    raise UserError(
        f"{environment}: the {type(space).__name__} space of '{name}' is not supported; wrap the environment so that "
        "its observations are Box, Discrete, MultiDiscrete, MultiBinary, or a Dict or Tuple of these."
    )


def action_space(space: Space[Any], environment: str) -> Space[Any]:
    """The space the policy acts in: discrete actions are counted from 0, continuous ones are float32."""
    match space:
        case spaces.Box() if 0 in space.shape:
            raise UserError(f"{environment}: its actions, {space}, hold no number: there is nothing to choose.")
        case spaces.Discrete():
            return spaces.Discrete(int(space.n))
        case spaces.MultiDiscrete() if space.nvec.ndim == 1:
            return spaces.MultiDiscrete(space.nvec)
        case spaces.Box() if np.issubdtype(space.dtype, np.floating):
            return _as_float32(space)
    raise UserError(
        f"{environment}: actions in {space} are not supported; wrap the environment so that its actions are Discrete, "
        "a one-dimensional MultiDiscrete, or a Box of floating point."
    )


def image_stacks(space: Space[Any], count: int, *, stacked: bool = False) -> dict[str, int]:
    """The images of an observation, each of which is one of `count` frames; or, when `stacked`, all of them."""
    if count == 1:
        return {}
    leaves = tree.leaf_spaces(space, "observation")
    return {name: count for name, leaf in leaves.items() if is_image(leaf) and len(leaf.shape) >= 2 + stacked}


def stacked_space(space: Space[Any], count: int) -> Space[Any]:
    """The space of an observation in which every image is a stack of `count` frames, oldest first, on a first axis."""
    match space:
        case spaces.Dict():
            return spaces.Dict({key: stacked_space(part, count) for key, part in space.items()})
        case spaces.Tuple():
            return spaces.Tuple(stacked_space(part, count) for part in space.spaces)
        case spaces.Box() if count > 1 and is_image(space):
            if len(space.shape) == 4:
                raise UserError(f"--frame-stack {count} cannot stack {shown(space)}, stacks already: leave it out.")
            return spaces.Box(np.stack([space.low] * count), np.stack([space.high] * count), dtype=space.dtype.type)
    return space


def frame_space(space: Space[Any], stacks: Mapping[str, int], name: str = "observation") -> Space[Any]:
    """The space of the frames whose stacks are in `space`, at these places of it."""
    match space:
        case spaces.Dict():
            return spaces.Dict({key: frame_space(part, stacks, f"{name}/{key}") for key, part in space.items()})
        case spaces.Tuple():
            return spaces.Tuple(frame_space(part, stacks, f"{name}/{i}") for i, part in enumerate(space.spaces))
        case spaces.Box() if name in stacks:
            return spaces.Box(space.low[0], space.high[0], dtype=space.dtype.type)
    return space


def _as_float32(space: spaces.Box) -> spaces.Box:
    with np.errstate(over="ignore"):  # a bound beyond float32 is no bound
        return spaces.Box(space.low.astype(np.float32), space.high.astype(np.float32), dtype=np.float32)


def shape_of(space: Space[Any]) -> tuple[int, ...]:
    assert space.shape is not None
    return tuple(space.shape)


def shown(space: Space[Any]) -> str:
    """A space in a sentence: without the bounds of its Boxes, which fill lines."""
    return ", ".join(f"{name} {_shown_leaf(leaf)}".strip() for name, leaf in tree.leaf_spaces(space).items())


def _shown_leaf(space: Space[Any]) -> str:
    return f"{space.dtype} {list(space.shape)}" if isinstance(space, spaces.Box) else str(space)


def check_spaces(environment: str, made: Any, *attributes: str) -> None:
    """The environment has the spaces that it must have from the moment it is made."""
    for attribute in attributes:
        space = getattr(made, attribute, None)
        if not isinstance(space, Space):
            found = f"'{attribute}' is {type(space).__name__}" if space is not None else f"there is no '{attribute}'"
            raise UserError(f"{environment}: {found}; set self.{attribute} to one of gymnasium.spaces in __init__.")


def check_observation(observation: Any, space: Space[Any], environment: str, count: int | None = None) -> None:
    """Names, shapes and dtypes are what `space` says, for one environment or a batch of `count`."""
    found = tree.flatten(observation, "observation")
    expected = tree.leaf_spaces(space, "observation")
    if set(found) != set(expected):
        raise EnvFault(
            f"{environment}: the observation has the parts {sorted(found)}, but its space has {sorted(expected)}."
        )
    for name, part in expected.items():
        array = _as_array(found[name], environment, name, whole=count is not None)
        _check_leaf(array, part, environment, name, () if count is None else (count,))


def _as_array(value: Any, environment: str, name: str, whole: bool) -> Array:
    """What the environment returned as an array; where that is the `whole` vector's it must be one already."""
    kind = type(value)
    if whole and not isinstance(value, np.ndarray):
        raise EnvFault(
            f"{environment}: '{name}' is a {kind.__module__}.{kind.__qualname__}, but a vector environment must return "
            "numpy arrays: wrap it in a gymnasium.vector.VectorWrapper that answers with x.cpu().numpy()."
        )
    try:
        return np.asarray(value)
    except Exception as error:  # ragged lists, tensors of another device
        raise EnvFault(f"{environment}: '{name}' cannot be made a numpy array: {what_was_raised(error)}.") from error


def _check_leaf(array: Array, space: Space[Any], environment: str, name: str, batch: tuple[int, ...]) -> None:
    shape = batch + shape_of(space)
    if array.shape != shape:
        raise EnvFault(f"{environment}: '{name}' has shape {array.shape}, but its space says {shape}.")
    if array.dtype == object or not np.can_cast(array.dtype, np.dtype(space.dtype), "same_kind"):
        raise EnvFault(f"{environment}: '{name}' has dtype {array.dtype}, but its space says {space.dtype}.")
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        first, beyond = space.start, space.start + (space.n if isinstance(space, spaces.Discrete) else space.nvec)
        if np.any(array < first) or np.any(array >= beyond):
            raise EnvFault(f"{environment}: '{name}' is {array.tolist()}, which is outside of its space {space}.")


def check_rows(environment: str, count: int, **rows: Any) -> None:
    """Reward, terminated and truncated of a vector are arrays with one number or truth value per environment."""
    for name, value in rows.items():
        array = _as_array(value, environment, name, whole=True)
        kinds = "fiub" if name == "reward" else "b"
        if array.shape != (count,) or array.dtype.kind not in kinds:
            expected = "numbers" if name == "reward" else "booleans"
            raise EnvFault(
                f"{environment}: '{name}' has shape {array.shape} and dtype {array.dtype}, "
                f"but must be {count} {expected}."
            )


def check_outcome(environment: str, outcome: Any, space: Space[Any]) -> None:
    """A single environment's step gave an observation, a number, two truth values and an info."""
    if not isinstance(outcome, tuple) or len(outcome) != 5:
        what = f"{len(outcome)} values" if isinstance(outcome, tuple) else type(outcome).__name__
        old = f"; {OLD_GYM}" if what == "4 values" else ""
        raise EnvFault(
            f"{environment}: step() returned {what}, but must return "
            f"(observation, reward, terminated, truncated, info){old}."
        )
    observation, reward, terminated, truncated, _ = outcome
    check_observation(observation, space, environment)
    number = _as_array(reward, environment, "reward", whole=False)
    if number.shape != () or number.dtype.kind not in "fiub":
        raise EnvFault(f"{environment}: 'reward' is {reward!r}, but must be one number.")
    for name, value in (("terminated", terminated), ("truncated", truncated)):
        if not isinstance(value, bool | np.bool_):
            raise EnvFault(f"{environment}: '{name}' is {value!r}, but must be True or False.")


def reset_result(environment: str, result: Any) -> tuple[Any, Mapping[str, Any]]:
    """Observation and info out of what a single environment's reset returned."""
    if not isinstance(result, tuple) or len(result) != 2:
        old = "" if isinstance(result, tuple) else f"; {OLD_GYM}"
        raise EnvFault(
            f"{environment}: reset() returned {type(result).__name__}, but must return (observation, info){old}."
        )
    observation, info = result
    return observation, info if isinstance(info, Mapping) else {}


def rows_not_finite(array: Array) -> dict[int, str]:
    """Where the rows [B, ...] hold NaN or infinity, as float32: 'is nan at [1]', of each the first."""
    with np.errstate(over="ignore"):
        bad = ~np.isfinite(array.astype(np.float32))
    found: dict[int, str] = {}
    for number, *place in np.argwhere(bad).tolist():
        found.setdefault(number, f"is {array[(number, *place)]}" + (f" at {place}" if place else ""))
    return found


def refuse_what_is_not_finite(array: Array, environment: str, name: str) -> None:
    """Raise for the first NaN or infinity; nothing happens when there is none."""
    for number, what in rows_not_finite(array).items():
        raise EnvFault(f"{environment}: '{name}' of environment number {number} {what}.")
