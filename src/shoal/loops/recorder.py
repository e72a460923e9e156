"""Acting and remembering for a vector of environments: a policy, its recurrent state, and the rows to be stored."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from shoal import tree
from shoal.program import Done, Future, futures
from shoal.replay import Block, Inserted, Pattern, Replay, ShardedReplay, Writer
from shoal.services.weights import NONE, Weights

Array = npt.NDArray[Any]
Columns = dict[str, Array]


class Policy(Protocol):
    """What acts. `state` is what a recurrent policy carries from row to row; empty for a feed-forward one.

    A policy that wants to know what its last actions gave has "last_reward", float32 [B], in its state: it is filled in
    by who steps the environments.
    """

    def initial_state(self, count: int) -> Columns: ...
    def act(self, observation: Any, state: Columns, first: Array) -> tuple[Array, Columns, Columns]: ...
    def load(self, weights: Weights) -> None: ...


@runtime_checkable
class Placed(Protocol):
    """A policy that explores differently from environment to environment."""

    def place(self, environments: Array) -> None:
        """The rows of the coming calls of `act` are these environments, int [B], counted over all actors of a run."""


@runtime_checkable
class Prioritizing(Protocol):
    """A policy that gives items their first priorities, from what it knew when it acted."""

    @property
    def priority_columns(self) -> tuple[str, ...]: ...  # what `priorities` reads, beside reward, terminated and valid
    @property
    def transient(self) -> tuple[str, ...]: ...  # those columns among them that are not worth storing
    def priorities(self, data: Columns) -> Array:
        """One for each of the items whose columns, as a sample has them, are given: [items]. Any thread may call it."""


_NOTHING = Done(Inserted({}, {}))


class Ahead:
    """A replay service as an actor sees it that goes on while its last block is being stored: the answer to an insert
    is the one before it."""

    def __init__(self, replay: Replay) -> None:
        self._replay = replay
        self._last: Future = _NOTHING
        self.forget_writer = replay.forget_writer

    def insert(self, block: Block, timeout: float | None = None) -> Inserted:
        before, self._last = self._last, _NOTHING  # where sending fails there is nothing to wait for
        self._last = futures(self._replay).insert(block, timeout)  # copied out while the one before is being stored
        result: Inserted = before.result()
        return result


class Sender:
    """Hands blocks of rows to a writer of its own, with the priorities of the items that they complete.

    Of several replay services it writes to the one at `home`, and if that is lost to the next.
    """

    def __init__(
        self,
        policy: Policy,
        replay: Replay | list[Replay],
        patterns: Mapping[str, Pattern],
        name: str,
        home: int = 0,
    ) -> None:
        receiver = ShardedReplay(replay, home=home) if isinstance(replay, list) else Ahead(replay)
        prioritizing = policy if isinstance(policy, Prioritizing) else None
        self._priorities = prioritizing.priorities if prioritizing else None
        self._writer = Writer(
            receiver,
            dict(patterns),
            name=name,
            priority_columns=prioritizing.priority_columns if prioritizing else (),
            transient=prioritizing.transient if prioritizing else (),
        )

    def __call__(self, block: Columns) -> None:
        self._writer.append(block, self._priorities)


class Recorder:
    """Writes down one row per call of `act` and `result`, and hands on full blocks of rows, time-major.

    The first block is one row longer than the others: an item of n transitions needs n + 1 observations, and so each
    becomes complete with the last row of a block. With `overlap` 0 all blocks are alike.
    """

    def __init__(
        self,
        policy: Policy,
        count: int,
        rows: int,
        ship: Callable[[Columns], object],
        overlap: int = 1,
        first_environment: int = 0,  # the place of its environments among those of all actors
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
        self._row, self._until = 0, rows + overlap

    def load(self, version: int, weights: Weights) -> None:
        self.policy.load(weights)
        self.version = version

    def act(self, observation: Any) -> Array:
        """Choose the actions for a row and write it down, but for what they give."""
        state = self.state()
        action, after, extras = self.policy.act(observation, state, self.first)
        self.record(observation, state, action, after, extras)
        return action

    def state(self) -> Columns:
        """What the policy carries into the coming row: zero where an episode begins."""
        if self._state and self.first.any():
            return {name: _zero_where(self.first, value) for name, value in self._state.items()}
        return self._state

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
        self._state = rewarded(self._state, reward)
        self._row += 1
        if self._row < self._until:
            return False
        self._ship({name: column[: self._row] for name, column in columns.items()})
        self._row, self._until = 0, self._rows
        return True

    def _allocate(self, observation: Any, action: Array, extras: Columns, state: Columns) -> None:
        samples = {**tree.flatten(observation, "observation"), "action": action, **extras}
        samples |= {"state/" + name: value for name, value in state.items()}
        samples["reward"] = np.zeros(self.count, np.float32)
        samples["terminated"] = samples["valid"] = np.zeros(self.count, np.bool_)
        samples["version"] = np.zeros(self.count, np.int64)
        for name, value in samples.items():
            self._columns[name] = np.empty((self._rows + 1, *value.shape), value.dtype)


def rewarded(state: Columns, reward: Array) -> Columns:
    """The state after actions gave this reward, for policies that want to know."""
    return {**state, "last_reward": reward} if "last_reward" in state else state


def _zero_where(first: Array, value: Array) -> Array:
    return np.where(first.reshape(-1, *[1] * (value.ndim - 1)), np.zeros((), value.dtype), value)
