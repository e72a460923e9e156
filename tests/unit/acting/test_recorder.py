"""The recorder: what it writes down, and its state, which can be taken and given back between any two rows."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

from shoal.acting import Policy, Recorder
from shoal.types import Array, Arrays, Columns
from steps import outcome

COUNT, ROWS = 3, 4


class Remembering:
    """A recurrent policy whose actions tell all that it knows: its weights, its state and its random numbers."""

    def __init__(self) -> None:
        self.weight, self.random = 0.0, np.random.default_rng(5)

    def initial_state(self, count: int) -> Columns:
        return {"sum": np.zeros((count, 2), np.float32), "last_reward": np.zeros(count, np.float32)}

    def act(self, observation: Any, state: Columns, first: Array) -> tuple[Array, Columns, Columns]:
        after = state["sum"] + observation["place"] + state["last_reward"][:, None]
        noise = self.random.standard_normal(len(first)).astype(np.float32)
        action = (after[:, 0] + self.weight + noise).astype(np.float32)
        return action, {"sum": after, "last_reward": state["last_reward"]}, {"noise": noise}

    def load(self, weights: Arrays) -> None:
        self.weight = float(weights["weight"])


def row(number: int) -> tuple[Any, tuple[Array, Array, Array]]:
    """Observation and outcome of a row. Environment 1 ends with rows 2 and 7, so that 3 and 8 are no transitions."""
    place = np.arange(2 * COUNT, dtype=np.float32).reshape(COUNT, 2) + 10 * number
    reward = np.arange(COUNT, dtype=np.float32) + number
    ends = np.array([False, number in (2, 7), False])
    valid = np.array([True, number not in (3, 8), True])
    return {"place": place, "goal": np.full(COUNT, number)}, (reward, ends, valid)


def drive(recorder: Recorder, begin: int, end: int) -> list[Array]:
    actions = []
    for number in range(begin, end):
        observation, came = row(number)
        actions.append(recorder.act(observation))
        if number == 5:
            recorder.load(6, {"weight": np.array(2.0)})
        recorder.result(outcome(*came))
    return actions


def make(blocks: list[Columns]) -> Recorder:
    policy: Policy = Remembering()
    return Recorder(policy, COUNT, ROWS, lambda block: blocks.append(copy.deepcopy(block)))


def test_a_block_holds_every_row_with_the_state_from_before_it() -> None:
    blocks: list[Columns] = []
    recorder = make(blocks)
    actions = drive(recorder, 0, 9)
    assert [len(block["action"]) for block in blocks] == [ROWS + 1, ROWS]
    stored = {name: np.concatenate([block[name] for block in blocks]) for name in blocks[0]}
    np.testing.assert_array_equal(stored["action"], actions)
    carried, told = np.zeros((COUNT, 2), np.float32), np.zeros(COUNT, np.float32)
    for number in range(9):
        observation, (reward, terminated, valid) = row(number)
        np.testing.assert_array_equal(stored["state/sum"][number], carried)
        np.testing.assert_array_equal(stored["state/last_reward"][number], told)
        np.testing.assert_array_equal(stored["observation/place"][number], observation["place"])
        np.testing.assert_array_equal(stored["observation/goal"][number], observation["goal"])
        np.testing.assert_array_equal(stored["reward"][number], reward)
        np.testing.assert_array_equal(stored["terminated"][number], terminated)
        np.testing.assert_array_equal(stored["valid"][number], valid)
        assert (stored["version"][number] == (6 if number > 5 else -1)).all()
        carried = np.where(valid[:, None], carried + observation["place"] + told[:, None], 0.0)
        told = np.where(valid, reward, 0.0)


@pytest.mark.parametrize("cut", range(11))  # before the first row, inside blocks and at their ends, inside episodes
def test_a_recorder_goes_on_from_its_state_as_if_it_had_not_been_interrupted(cut: int) -> None:
    whole: list[Columns] = []
    expected = drive(make(whole), 0, 14)

    parted: list[Columns] = []
    before = make(parted)
    found = drive(before, 0, cut)
    state = before.state_dict()
    drive(before, cut, 14)  # what goes on elsewhere does not change the state that was taken
    del parted[sum(end <= cut for end in (5, 9, 13)) :]
    policy = Remembering()
    for _ in range(cut):
        policy.random.standard_normal(COUNT)
    policy.weight = 2.0 if cut > 5 else 0.0
    after = Recorder(policy, COUNT, ROWS, lambda block: parted.append(copy.deepcopy(block)))
    after.load_state_dict(copy.deepcopy(state))
    found += drive(after, cut, 14)

    np.testing.assert_array_equal(found, expected)
    assert len(parted) == len(whole) == 3
    for block, other in zip(parted, whole):
        assert block.keys() == other.keys()
        for name in block:
            np.testing.assert_array_equal(block[name], other[name], err_msg=name)
