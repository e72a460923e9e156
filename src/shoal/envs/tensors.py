"""Vectors of environments that live on a device: their steps as tensors, which never become arrays.

What such a vector is, `shoal.envs.tensor_vector` says.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from gymnasium import Space, spaces
from torch import Tensor

from shoal import tree
from shoal.envs import check
from shoal.envs.faults import EnvFault
from shoal.envs.state import NoState
from shoal.envs.tensor_vector import FINAL, Autoreset, TensorVector, stated
from shoal.errors import UserError
from shoal.step import Step


class TensorEnvs:
    """A vector of environments on a device, as `Step`s.

    `autoreset` says when an environment is reset: in a step of its own after the one that ended its episode
    ("next_step"), or within that one ("same_step"), whose infos then hold the final observation of all environments,
    [B, ...], under "final_obs" or "final_observation", of meaning where an episode ended. By default it is what
    `metadata["autoreset_mode"]` says.

    Where an episode was truncated and its final observation is lost, its last step is no transition: what that step
    was taken from is then the last thing that is known of the episode, and what the step before it led to. So values
    are bootstrapped from an observation that was there, and one step of the episode is not learned from. To
    bootstrap from that step's own value, or from the next episode's first, would be wrong.

    The device is asked for numbers by `take_returns` and `take_notes` alone.
    """

    def __init__(self, vector: TensorVector, autoreset: Autoreset | None = None, name: str | None = None) -> None:
        self.count = vector.num_envs
        self.name = type(vector).__name__ if name is None else name
        self.observation_space = check.observation_space(vector.single_observation_space, self.name)
        self.action_space = check.action_space(vector.single_action_space, self.name)
        self.autoreset = autoreset or stated(vector)
        self.vector = vector
        self._same_step = self.autoreset == "same_step"
        self._done: Tensor | None = None  # ended with the last step, so that the next one resets
        self._checked = False
        self._told = False  # that final observations are lost

    def reset(self) -> tree.Tree:
        """New episodes everywhere: their first observations, [B, ...]."""
        observation, _ = self.vector.reset()
        device = checked_device(observation, self.count, self.name)
        self._prepare_for(device)
        return _as_seen(observation)

    def _prepare_for(self, device: torch.device) -> None:
        self.device = device
        self._prepare = action_converter(self.vector.single_action_space, device)
        self._done = torch.zeros(self.count, dtype=torch.bool, device=device)
        self._return = torch.zeros(self.count, device=device)
        self._sums = torch.zeros(3, device=device)  # episodes, their returns, final observations that were lost
        self._spoiled = torch.zeros((), device=device)  # not finite once a reward or an observation was not

    def step(self, action: Tensor) -> Step:
        """Act once in every environment."""
        assert self._done is not None, "reset() comes first"
        observation, reward, terminated, truncated, info = self.vector.step(self._prepare(action))
        if not self._checked:
            _check_rows(self.name, self.count, reward=reward, terminated=terminated, truncated=truncated)
            self._checked = True
        observation = _as_seen(observation)
        reset, final, lost = self._done, None, None
        reward, terminated, truncated = reward.float(), terminated.bool(), truncated.bool()
        if self._same_step:
            final = next((_as_seen(info[name]) for name in FINAL if info.get(name) is not None), None)
            done = terminated | truncated
            if final is None:
                final, lost = observation, truncated & ~terminated
                truncated = truncated & terminated
        else:
            reward = reward.masked_fill(reset, 0.0)  # a reset gives nothing and ends nothing
            terminated, truncated = terminated & ~reset, truncated & ~reset
            done = self._done = terminated | truncated
        self._count(observation, reward, done, lost)
        if lost is not None:
            reset, reward = lost, reward.masked_fill(lost, 0.0)
        return Step(observation, reward, terminated, truncated, reset, final)

    def take_returns(self) -> tuple[int, float]:
        """How many episodes have ended since this was last asked, and their mean return."""
        ended, returns, _, spoiled = torch.cat([self._sums, self._spoiled.unsqueeze(0)]).tolist()
        if spoiled != 0.0:
            raise EnvFault(f"{self.name} gave an observation or a reward that is not finite (NaN or infinity).")
        self._sums = self._sums * torch.tensor([0.0, 0.0, 1.0], device=self.device)
        return int(ended), returns / max(ended, 1.0)

    def take_notes(self) -> list[str]:
        """What the user should know of it, said once."""
        if self._told or self._done is None or not (lost := int(self._sums[2])):
            return []
        self._told = True
        return [
            f"{self.name} resets within a step and loses final observations: the last step of each episode that a "
            f"limit cuts is not learned from ({lost} so far); put final observations [B, ...] into the info as "
            f"{FINAL[0]!r} to learn from all"
        ]

    def state_dict(self) -> dict[str, Any]:
        """Where every episode stands, as plain data; `NoState` names a vector that cannot say it. Not the last
        observations."""
        if not callable(getattr(self.vector, "state_dict", None)):
            raise NoState(
                f"{self.name} cannot give its state, so that its open episodes are lost when a run is resumed: "
                "add the methods state_dict and load_state_dict."
            )
        if self._done is None:
            return {"vector": self.vector.state_dict()}  # type: ignore[attr-defined]
        own = {"done": self._done, "return": self._return, "sums": self._sums, "spoiled": self._spoiled}
        return {
            "vector": self.vector.state_dict(),  # type: ignore[attr-defined]
            **{name: part.cpu().numpy() for name, part in own.items()},
            "told": self._told,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where another vector of this kind was, after a `reset`."""
        self.vector.load_state_dict(state["vector"])  # type: ignore[attr-defined]
        if "done" not in state:
            return
        if len(state["done"]) != self.count:
            raise EnvFault(
                f"{self.name}: the state is of {len(state['done'])} environments, and there are {self.count}."
            )
        names = ("done", "return", "sums", "spoiled")
        self._done, self._return, self._sums, self._spoiled = (
            torch.as_tensor(np.array(state[name])).to(self.device) for name in names
        )
        self._told = bool(state["told"])

    def close(self) -> None:
        if callable(close := getattr(self.vector, "close", None)):
            close()

    def _count(self, observation: tree.Tree, reward: Tensor, done: Tensor, lost: Tensor | None) -> None:
        """Returns, and what must not be, added up on the device."""
        self._return = self._return + reward
        returns = self._return * done
        nothing = returns.new_zeros(()) if lost is None else lost.sum()
        self._sums = self._sums + torch.stack([done.sum(), returns.sum(), nothing])
        self._return = self._return * ~done
        self._spoiled = self._spoiled + 0.0 * reward.sum()
        for part in tree.flatten(observation, "observation").values():
            if part.is_floating_point():
                self._spoiled = self._spoiled + 0.0 * part.sum()


def _as_seen(observation: tree.Tree) -> tree.Tree:
    """Floating point as float32, which networks are made for."""
    return tree.map(lambda part: part.float() if part.is_floating_point() else part, observation)


def _check_rows(name: str, count: int, **rows: Any) -> None:
    for what, row in rows.items():
        if not isinstance(row, Tensor) or row.shape != (count,):
            shown = list(row.shape) if isinstance(row, Tensor) else type(row).__name__
            raise EnvFault(f"{name}: its step gave {what} as {shown}; it must be a tensor [{count}].")


def checked_device(observation: tree.Tree, count: int, environment: str) -> torch.device:
    """The device of all parts of an observation."""
    parts = tree.flatten(observation, "observation")
    for name, part in parts.items():
        if not isinstance(part, Tensor) or part.shape[:1] != (count,):
            raise UserError(
                f"{environment}: '{name}' must be a tensor [{count}, ...] of a vector of {count} environments on a "
                "device."
            )
    devices: set[torch.device] = {part.device for part in parts.values()}
    if len(devices) > 1:
        raise UserError(
            f"{environment}: the parts of an observation lie on several devices: "
            f"{', '.join(sorted(map(str, devices)))}."
        )
    return devices.pop()


def action_converter(space: Space[Any], device: torch.device) -> Callable[[Tensor], Tensor]:
    """From actions as policies give them to those that the environment takes: see `shoal.envs.vector`."""
    match space:
        case spaces.Discrete() | spaces.MultiDiscrete():
            start = torch.as_tensor(space.start, device=device)
            return lambda action: action + start
        case spaces.Box():
            low, high = (torch.as_tensor(bound, device=device) for bound in (space.low, space.high))
            return lambda action: action.clamp(low, high)
    raise UserError(f"The action space {space} is not supported: use Discrete, MultiDiscrete or a Box of floats.")
