"""A player: what a policy is shown and told, row after row, alone or together with others, and in either autoreset."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from shoal.acting import Player, act_together
from shoal.step import Step
from shoal.types import Array, Columns

COUNT = 2


class Summing:
    """Carries the sum of what it saw and was told; acts with it."""

    def __init__(self) -> None:
        self.shown: list[tuple[Any, Columns, Array]] = []

    def initial_state(self, count: int) -> Columns:
        return {"sum": np.zeros(count, np.float32), "last_reward": np.zeros(count, np.float32)}

    def load(self, weights: Columns) -> None: ...

    def act(self, observation: Array, state: Columns, first: Array) -> tuple[Array, Columns, Columns]:
        self.shown.append((observation.copy(), {name: value.copy() for name, value in state.items()}, first.copy()))
        total = state["sum"] + observation[:, 0] + 100 * state["last_reward"]
        return total, {**state, "sum": total}, {"seen": observation[:, 0]}


def row(number: int, count: int = COUNT) -> Array:
    return np.full((count, 1), number, np.float32)


def step(ends: Array, reset: Array, final: Any = None) -> Step:
    return Step(None, np.ones(COUNT, np.float32), ends, np.zeros_like(ends), reset, final)


@pytest.mark.parametrize("same_step", [False, True])
def test_the_state_is_zero_where_an_episode_begins_in_either_autoreset(same_step: bool) -> None:
    """Environment 1 ends with row 1. Its next episode begins with row 2 where it is reset within the step (SAME_STEP),
    and with row 3 where a step resets it (NEXT_STEP)."""
    policy = Summing()
    player = Player(policy, COUNT)
    nowhere, second = np.zeros(COUNT, np.bool_), np.array([False, True])
    for number in range(4):
        player.act(row(1))
        ends = second if number == 1 else nowhere
        reset = second if number == 2 and not same_step else nowhere
        player.result(step(ends, reset, row(9) if same_step else None))
    begins = 2 if same_step else 3
    for number, (_, state, first) in enumerate(policy.shown):
        assert first.tolist() == [number == 0, number in (0, begins)]
        assert (state["sum"] == 0).tolist() == first.tolist()
        assert (state["last_reward"] == 0).tolist() == first.tolist()


def test_several_players_act_as_each_does_alone() -> None:
    """Of one policy that is asked once a row for all; one of them begins its episodes later than the other."""
    alone = [Player(Summing(), count) for count in (2, 3)]
    policy = Summing()
    together = [Player(policy, count) for count in (2, 3)]
    for number in range(4):
        seen = [row(number + 1, 2), row(10 * (number + 1), 3)]
        expected = [player.act(observation) for player, observation in zip(alone, seen)]
        found = act_together(policy, together, seen)
        for one, other, player, same in zip(expected, found, alone, together):
            np.testing.assert_array_equal(one, other)
            np.testing.assert_array_equal(player.extras["seen"], same.extras["seen"])
            for name, value in player.before.items():
                np.testing.assert_array_equal(value, same.before[name])
        for index, players in enumerate(zip(alone, together)):
            for player in players:
                ends = np.arange(player.count) == number - 1 + index
                player.result(Step(None, row(number, player.count)[:, 0], ends, ends & False, reset=ends))
    assert len(policy.shown) == 4


def test_what_a_row_means_is_said_by_fields() -> None:
    flags = np.array([False, True]), np.array([False, False])
    ended = Step(None, np.zeros(2), *flags, reset=np.array([True, False]))
    assert ended.valid.tolist() == [False, True]
    assert ended.begins.tolist() == [True, False], "the observation of the row that ended is the final one"
    same = ended._replace(reset=np.zeros(2, np.bool_), final_observation=row(1))
    assert same.valid.tolist() == [True, True]
    assert same.begins.tolist() == [False, True]
    assert same._replace(alive=np.array([False, True])).valid.tolist() == [False, True], "an agent that is out"
