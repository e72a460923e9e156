"""What a player did, written down: the rows to be stored, in blocks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from shoal import tree
from shoal.acting.player import Player
from shoal.acting.policy import Policy
from shoal.functional.arrays import library, to_numpy
from shoal.step import Step
from shoal.types import Arrays, Columns, Values
from shoal.versions import NONE


class Recorder:
    """Writes down one row per call of `act` and `result`, and hands on full blocks of rows, time-major.

    The first block is one row longer than the others: an item of n transitions needs n + 1 observations, and so each
    becomes complete with the last row of a block. With `overlap` 0 all blocks are alike, and each has one row more than
    was written: whoever gets it may put there what follows. Rows are arrays, or tensors of one device.
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
        store_finals: bool = False,  # of environments that reset within a step: final observations, and where they are
    ) -> None:
        self.player = Player(policy, count, stacks, first_environment)
        self.policy = policy
        self.count = count
        self.version = NONE
        self._rows = rows
        self._ship = ship
        self._columns: dict[str, Values] = {}
        self._overlap = overlap
        self._row, self._until = 0, rows + overlap
        self._store_stacks, self._store_finals = store_stacks, store_finals

    def state_dict(self) -> dict[str, Any]:
        """Where every environment stands between two rows, and the rows that have not been handed on."""
        rows = {name: to_numpy(column[: self._row]) for name, column in self._columns.items()}
        return {"version": self.version, "rows": rows, "until": self._until, **self.player.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.version, self._until = state["version"], state["until"]
        self.player.load_state_dict(state)
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

    def act(self, observation: Any) -> Values:
        """Choose the actions for a row and write it down, but for what they give."""
        action = self.player.act(observation)
        self.record(observation, action)
        return action

    def record(self, observation: Any, action: Values) -> None:
        """Write down a row that the player has acted on."""
        player = self.player
        if self._store_stacks:
            observation = player.seen
        if not self._columns:
            self._allocate(observation, action)
        columns, row = self._columns, self._row
        if isinstance(observation, np.ndarray):
            columns["observation"][row] = observation
        else:
            for name, value in tree.flatten(observation, "observation").items():
                columns[name][row] = value
        columns["action"][row] = action
        for name, value in player.extras.items():
            columns[name][row] = value
        for name, value in player.before.items():
            columns["state/" + name][row] = value
        columns["version"][row] = self.version

    def result(self, step: Step) -> bool:
        """What the actions gave; True when that completed a block, which has then been handed on."""
        columns, row = self._columns, self._row
        columns["reward"][row] = step.reward
        columns["terminated"][row] = step.terminated
        columns["valid"][row] = step.valid
        if step.final_observation is not None:
            self._record_finals(step)
        self.player.result(step)
        self._row += 1
        if self._row < self._until:
            return False
        block = {name: column[: self._row + 1 - self._overlap] for name, column in columns.items()}
        self._row, self._until = 0, self._rows
        self._ship(block)
        return True

    def _record_finals(self, step: Step) -> None:
        """Beside the row: a stream of such rows alone would lead from one episode into the next."""
        if not self._store_finals:
            raise ValueError("these environments reset within a step: their rows can be stored by `Rollouts` only")
        finals = {
            **tree.flatten(step.final_observation, "final_observation"),
            "ended": step.terminated | step.truncated,
        }
        for name, value in finals.items():
            if name not in self._columns:
                self._columns[name] = self._zeros(value)
            self._columns[name][self._row] = value

    def _zeros(self, like: Values) -> Values:
        """A column for rows like this one."""
        of = library(like)
        place = {} if of is np else {"device": like.device}
        return of.zeros((self._rows + 1, *like.shape), dtype=like.dtype, **place)

    def _allocate(self, observation: Any, action: Values) -> None:
        player, of = self.player, library(action)
        samples = {**tree.flatten(observation, "observation"), "action": action, **player.extras}
        samples |= {"state/" + name: value for name, value in player.before.items()}
        flags = dict.fromkeys(("terminated", "valid"), of.bool) | {"version": of.int64, "reward": of.float32}
        place = {} if of is np else {"device": action.device}
        for name, dtype in flags.items():
            samples[name] = of.zeros(self.count, dtype=dtype, **place)
        for name, value in samples.items():
            self._columns[name] = self._zeros(value)
