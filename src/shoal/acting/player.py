"""Playing a policy in a vector of environments: what it sees, what it carries from row to row, what it is told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from shoal import tree
from shoal.acting.policy import LAST_REWARD, PerEnvironment, Policy
from shoal.functional.arrays import to_numpy, zero_where
from shoal.replay.frames import FrameStack
from shoal.step import Step
from shoal.types import Array, Values


class Stacker:
    """Keeps the newest frames of a vector of environments, for those parts of an observation that are stacked."""

    def __init__(self, stacks: Mapping[str, int]) -> None:  # columns, and of how many frames
        self._stacks = {name: FrameStack(count) for name, count in stacks.items()}

    def push(self, observation: Any, first: Array) -> Any:
        """What a policy sees: observation [B, ...] with stacks [B, count, ...] in the place of frames, which are the
        stacker's own until the next push. `first` bool [B]: where an episode begins."""
        return self._each("push", observation, first)

    def peek(self, observation: Any, first: Array) -> Any:
        """What `push` would return, as a copy; nothing is kept."""
        return self._each("peek", observation, first)

    def state_dict(self) -> dict[str, Any]:
        return {name: stack.state_dict() for name, stack in self._stacks.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for name, stack in self._stacks.items():
            stack.load_state_dict(state[name])

    def _each(self, method: str, observation: Any, first: Array) -> Any:
        parts = tree.flatten(observation, "observation")
        for name, stack in self._stacks.items():
            parts[name] = getattr(stack, method)(parts[name], first)
        return tree.unflatten(parts, "observation")


class Player:
    """Asks a policy for actions, row after row: frames are stacked, its state is zero where an episode begins, and a
    policy that wants to know is told what its last actions gave. Arrays or tensors, as the environments give them.

    Of the last row it keeps what a `Recorder` writes down: what was `seen`, the state `before`, and the policy's
    `extras`.
    """

    def __init__(
        self,
        policy: Policy,
        count: int,  # environments
        stacks: Mapping[str, int] | None = None,  # columns of which the policy sees stacks, and of how many frames
        first_environment: int = 0,  # the place of its environments among those of all actors
    ) -> None:
        self.policy = policy
        self.count = count
        self.place(first_environment, first_environment + count)
        self.first: Values = np.ones(count, np.bool_)  # the observation to come begins an episode
        self._state: dict[str, Values] = policy.initial_state(count)
        self._stacker = Stacker(stacks) if stacks else None
        self.seen: Any = None
        self.before: dict[str, Values] = {}
        self.extras: dict[str, Values] = {}

    def place(self, first_environment: int, total: int) -> None:
        """Its environments are so many from there on, of the `total` of all actors."""
        self.environments, self.total = first_environment + np.arange(self.count), total

    def on_device(self, device: torch.device) -> Player:
        """The same for environments that give tensors: what it holds before the first row is there too."""
        self.first = torch.ones(self.count, dtype=torch.bool, device=device)
        self._state = {name: torch.as_tensor(value, device=device) for name, value in self._state.items()}
        return self

    def act(self, observation: Any) -> Values:
        """The actions [B, ...] for a row's observation."""
        action, self._state, self.extras = self.policy.act(*self.look(observation), self.first)
        return action

    def look(self, observation: Any) -> tuple[Any, dict[str, Values]]:
        """What the policy sees of a row's observation, and the state it carries into the row; once for every row."""
        self.seen = observation if self._stacker is None else self._stacker.push(observation, self.first)
        self.before = zero_where(self.first, self._state)
        return self.seen, self.before

    def acted(self, after: dict[str, Values], extras: dict[str, Values]) -> None:
        """What the policy made of what it was shown."""
        self._state, self.extras = after, extras

    def result(self, step: Step) -> None:
        """What the actions gave."""
        self.first = step.begins
        self.told(step.reward)

    def told(self, reward: Values) -> None:
        """What the last actions gave, [B], for a policy that wants to know."""
        if LAST_REWARD in self._state:
            self._state = {**self._state, LAST_REWARD: reward}

    def peek(self, observation: Any) -> Any:
        """What the policy would see of an observation; nothing is kept."""
        return observation if self._stacker is None else self._stacker.peek(observation, self.first)

    def state_dict(self) -> dict[str, Any]:
        """Where every environment stands between two rows."""
        return {
            "first": to_numpy(self.first),
            "state": {name: to_numpy(value) for name, value in self._state.items()},
            "frames": self._stacker.state_dict() if self._stacker is not None else {},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        same = self._like
        self.first = same(state["first"])
        self._state = {name: same(value) for name, value in state["state"].items()}
        if self._stacker is not None:
            self._stacker.load_state_dict(state["frames"])

    def _like(self, array: Array) -> Values:
        """A copy of an array, as what its environments give."""
        first = self.first
        return torch.tensor(array, device=first.device) if isinstance(first, Tensor) else np.array(array)


def act_together(policy: Policy, players: Sequence[Player], observations: Sequence[Any]) -> list[Values]:
    """The actions of several players of one policy, which is asked once for all of them."""
    if _explores_by_environment(type(policy)):
        environments = np.concatenate([player.environments for player in players])
        cast(PerEnvironment, policy).set_environments(environments, max(player.total for player in players))
    if len(players) == 1:
        return [players[0].act(observations[0])]
    looks = [player.look(observation) for player, observation in zip(players, observations)]
    seen, before = (tree.map(lambda *parts: np.concatenate(parts), *parts) for parts in zip(*looks))
    first = np.concatenate([player.first for player in players])
    action, after, extras = policy.act(seen, before, first)
    ends = np.cumsum([player.count for player in players])
    actions = []
    for player, end in zip(players, ends):
        part = slice(end - player.count, end)
        player.acted(*({name: value[part] for name, value in columns.items()} for columns in (after, extras)))
        actions.append(action[part])
    return actions


@lru_cache(maxsize=64)
def _explores_by_environment(kind: type[Policy]) -> bool:
    """To find that a policy has not what a protocol asks for takes as long as a small network."""
    return issubclass(kind, PerEnvironment)
