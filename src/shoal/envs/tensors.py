"""Vectors of environments that live on a device: their steps as tensors, which never become arrays.

Like Gymnasium's vectors they have `num_envs`, `single_observation_space`, `single_action_space`, `reset()`, which gives
(observation, info), and `step(actions)`, which gives (observation, reward, terminated, truncated, info); but all of it
in tensors [B, ...] of one device, observations also in dicts and tuples.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, Protocol

import torch
from gymnasium import Space, spaces
from torch import Tensor

from shoal import tree
from shoal.errors import UserError
from shoal.step import Step

Autoreset = Literal["next_step", "same_step"]
FINAL = ("final_obs", "final_observation")  # names under which infos hold it


class TensorVector(Protocol):
    """What `TensorEnvs` needs of a vector."""

    num_envs: int
    single_observation_space: Space[Any]
    single_action_space: Space[Any]

    def reset(self) -> tuple[Any, dict[str, Any]]: ...
    def step(self, actions: Any, /) -> tuple[Any, Any, Any, Any, dict[str, Any]]: ...


class TensorEnvs:
    """A vector of environments on a device, as `Step`s.

    `autoreset` says when an environment is reset: in a step of its own after the one that ended its episode
    ("next_step"), or within that one ("same_step"), whose infos then hold the final observation of all environments,
    [B, ...], under "final_obs" or "final_observation", of meaning where an episode ended. By default it is what
    `metadata["autoreset_mode"]` says. The device is asked for a number by `take_returns` alone, and in such steps whose
    infos hold no final observation.
    """

    def __init__(self, vector: TensorVector, autoreset: Autoreset | None = None) -> None:
        self.count = vector.num_envs
        self.observation_space, self.action_space = vector.single_observation_space, vector.single_action_space
        self._vector = vector
        self._same_step = (autoreset or _stated(vector)) == "same_step"
        self._done: Tensor | None = None  # ended with the last step, so that the next one resets

    def reset(self) -> tree.Tree:
        """New episodes everywhere: their first observations, [B, ...]."""
        observation, _ = self._vector.reset()
        device = self.device = _checked(observation, self.count)
        self._prepare = _action_converter(self.action_space, device)
        self._done = torch.zeros(self.count, dtype=torch.bool, device=device)
        self._return = torch.zeros(self.count, device=device)
        self._ended, self._returns = torch.zeros((2,), device=device).unbind()
        return observation

    def step(self, action: Tensor) -> Step:
        """Act once in every environment."""
        assert self._done is not None, "reset() comes first"
        observation, reward, terminated, truncated, info = self._vector.step(self._prepare(action))
        reset, final = self._done, None
        reward, terminated, truncated = reward.float(), terminated.bool(), truncated.bool()
        if self._same_step:
            final = next((info[name] for name in FINAL if info.get(name) is not None), None)
            if final is None:
                final = observation  # nothing has ended that goes on
                _refuse_lost(truncated)
            done = terminated | truncated
        else:
            reward = reward.masked_fill(reset, 0.0)  # a reset gives nothing and ends nothing
            terminated, truncated = terminated & ~reset, truncated & ~reset
            done = self._done = terminated | truncated
        self._return = self._return + reward
        self._ended = self._ended + done.sum()
        self._returns = self._returns + self._return.masked_fill(~done, 0.0).sum()
        self._return = self._return.masked_fill(done, 0.0)
        return Step(observation, reward, terminated, truncated, reset, final)

    def take_returns(self) -> tuple[int, float]:
        """How many episodes have ended since this was last asked, and their mean return."""
        ended, returns = torch.stack([self._ended, self._returns]).tolist()
        self._ended, self._returns = self._ended * 0.0, self._returns * 0.0
        return int(ended), returns / max(ended, 1.0)


def _refuse_lost(truncated: Tensor) -> None:
    if truncated.any():
        raise UserError(
            "An episode was truncated and reset within one step, whose info holds no final observation: what it would "
            f"have led to cannot be known. Put the final observations [B, ...] into the info as {FINAL[0]!r}."
        )


def _stated(vector: TensorVector) -> Autoreset:
    metadata = getattr(vector, "metadata", None)
    mode = metadata.get("autoreset_mode") if isinstance(metadata, Mapping) else None
    match str(getattr(mode, "value", mode)).lower():
        case "nextstep" | "next_step":
            return "next_step"
        case "samestep" | "same_step":
            return "same_step"
    raise UserError(
        f"{type(vector).__name__} does not say when it resets an environment: give autoreset='next_step' or "
        "'same_step', or put Gymnasium's AutoresetMode into its metadata as 'autoreset_mode'."
    )


def _checked(observation: tree.Tree, count: int) -> torch.device:
    """The device of all parts of an observation."""
    parts = tree.flatten(observation, "observation")
    for name, part in parts.items():
        if not isinstance(part, Tensor) or part.shape[:1] != (count,):
            raise UserError(
                f"'{name}' must be a tensor [{count}, ...] of a vector of {count} environments on a device."
            )
    devices: set[torch.device] = {part.device for part in parts.values()}
    if len(devices) > 1:
        raise UserError(f"The parts of an observation lie on several devices: {', '.join(sorted(map(str, devices)))}.")
    return devices.pop()


def _action_converter(space: Space[Any], device: torch.device) -> Callable[[Tensor], Tensor]:
    """From actions as policies give them to those that the environment takes: see `shoal.envs.vector`."""
    match space:
        case spaces.Discrete() | spaces.MultiDiscrete():
            start = torch.as_tensor(space.start, device=device)
            return lambda action: action + start
        case spaces.Box():
            low, high = (torch.as_tensor(bound, device=device) for bound in (space.low, space.high))
            return lambda action: action.clamp(low, high)
    raise UserError(f"The action space {space} is not supported: use Discrete, MultiDiscrete or a Box of floats.")
