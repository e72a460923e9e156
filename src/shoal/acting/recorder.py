"""Acting and remembering for a vector of environments: a policy, its recurrent state, and the rows to be stored."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from shoal import tree
from shoal.acting.policy import LAST_REWARD, Policy
from shoal.acting.stacking import Stacker
from shoal.types import Array, Arrays, Columns
from shoal.versions import NONE


class Recorder:
    """Writes down one row per call of `act` and `result`, and hands on full blocks of rows, time-major.

    The first block is one row longer than the others: an item of n transitions needs n + 1 observations, and so each
    becomes complete with the last row of a block. With `overlap` 0 all blocks are alike, and each has one row more than
    was written: whoever gets it may put there what follows.
    """

    def __init__(
        self,
        policy: Policy,
        count: int,
        rows: int,
        ship: Callable[[Columns], object],
        overlap: int = 1,
        first_environment: int = 0,  # the place of its environments among those of all actors
        stacks: Mapping[str, int] | None = None,  # columns of which the policy sees stacks, and of how many frames
        store_stacks: bool = False,  # write down what the policy saw, and not each frame once
    ) -> None:
        self.policy = policy
        self.environments = first_environment + np.arange(count)
        self.version = NONE
        self._rows = rows
        self._ship = ship
        self._state = policy.initial_state(count)
        self.first = np.ones(count, np.bool_)  # the observation begins an episode
        self.count = count
        self._columns: Columns = {}
        self._overlap = overlap
        self._row, self._until = 0, rows + overlap
        self.stacker = Stacker(stacks) if stacks else None
        self._store_stacks = store_stacks

    def state_dict(self) -> dict[str, Any]:
        """Where every environment stands between two rows, and the rows that have not been handed on."""
        return {
            "version": self.version,
            "first": self.first.copy(),
            "state": {name: value.copy() for name, value in self._state.items()},
            "rows": {name: column[: self._row].copy() for name, column in self._columns.items()},
            "until": self._until,
            "frames": self.stacker.state_dict() if self.stacker is not None else {},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.version, self._until = state["version"], state["until"]
        self.first = np.array(state["first"])
        self._state = {name: np.array(value) for name, value in state["state"].items()}
        if self.stacker is not None:
            self.stacker.load_state_dict(state["frames"])
        self._row = len(state["rows"]["valid"]) if state["rows"] else 0
        for name, rows in state["rows"].items():
            self._columns[name] = np.zeros((self._rows + 1, *rows.shape[1:]), rows.dtype)
            self._columns[name][: self._row] = rows

    def begin_stream(self) -> None:
        """What is handed on next begins a stream of its own: its first block is the longer one."""
        self._until = self._rows + self._overlap

    def load(self, version: int, weights: Arrays) -> None:
        self.policy.load(weights)
        self.version = version

    def act(self, observation: Any) -> Array:
        """Choose the actions for a row and write it down, but for what they give."""
        state = self.state()
        seen = observation if self.stacker is None else self.see(observation)
        action, after, extras = self.policy.act(seen, state, self.first)
        if self._store_stacks:
            observation = seen
        self.record(observation, state, action, after, extras)
        return action

    def see(self, observation: Any) -> Any:
        """What the policy sees of a row's observation: stacks in the place of frames. Once for every row."""
        return observation if self.stacker is None else self.stacker.push(observation, self.first)

    def state(self) -> Columns:
        """What the policy carries into the coming row: zero where an episode begins."""
        return zero_where(self.first, self._state)

    def record(self, observation: Any, state: Columns, action: Array, after: Columns, extras: Columns) -> None:
        """Write down a row whose actions were chosen: `state` is from before it, `after` from after it."""
        self._state = after
        if not self._columns:
            self._allocate(observation, action, extras, state)
        columns, row = self._columns, self._row
        if isinstance(observation, np.ndarray):
            columns["observation"][row] = observation
        else:
            for name, value in tree.flatten(observation, "observation").items():
                columns[name][row] = value
        columns["action"][row] = action
        for name, value in extras.items():
            columns[name][row] = value
        for name, value in state.items():
            columns["state/" + name][row] = value
        columns["version"][row] = self.version

    def result(self, reward: Array, terminated: Array, valid: Array) -> bool:
        """What the actions gave; True when that completed a block, which has then been handed on."""
        columns, row = self._columns, self._row
        columns["reward"][row] = reward
        columns["terminated"][row] = terminated
        columns["valid"][row] = valid
        self.first = ~valid
        self._state = with_last_reward(self._state, reward)
        self._row += 1
        if self._row < self._until:
            return False
        block = {name: column[: self._row + 1 - self._overlap] for name, column in columns.items()}
        self._row, self._until = 0, self._rows
        self._ship(block)
        return True

    def _allocate(self, observation: Any, action: Array, extras: Columns, state: Columns) -> None:
        samples = {**tree.flatten(observation, "observation"), "action": action, **extras}
        samples |= {"state/" + name: value for name, value in state.items()}
        samples["reward"] = np.zeros(self.count, np.float32)
        samples["terminated"] = samples["valid"] = np.zeros(self.count, np.bool_)
        samples["version"] = np.zeros(self.count, np.int64)
        for name, value in samples.items():
            self._columns[name] = np.zeros((self._rows + 1, *value.shape), value.dtype)


def with_last_reward(state: Columns, reward: Array) -> Columns:
    """The state after actions gave this reward, for policies that want to know."""
    return {**state, LAST_REWARD: reward} if LAST_REWARD in state else state


def zero_where(first: Array, state: Columns) -> Columns:
    """A recurrent state [B, ...] that is zero where an episode begins, bool [B]."""
    if not state or not first.any():
        return state
    return {name: np.where(_align(first, x), np.zeros((), x.dtype), x) for name, x in state.items()}


def _align(mask: Array, x: Array) -> Array:
    """mask [B] with as many trailing axes as x [B, ...]."""
    return mask.reshape(-1, *[1] * (x.ndim - 1))
