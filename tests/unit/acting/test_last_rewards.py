"""A policy that wants to know what its last actions gave is told, whoever steps the environments."""

from __future__ import annotations

import threading

import numpy as np

from shoal import envs
from shoal.acting import Recorder, Sender
from shoal.loops.evaluator import evaluate
from shoal.replay import Replay, Table, sequence
from shoal.services.inference import InferenceServer
from shoal.services.metrics import Metrics
from shoal.services.weights import WeightStore
from shoal.step import Step
from shoal.types import Array, Columns
from steps import outcome

COUNT = 2
PATTERN = {"items": sequence(1)}


class Told:
    """Writes down the rewards that it is told of, and where episodes begin."""

    def __init__(self) -> None:
        self.told: list[Array] = []
        self.first: list[Array] = []

    def initial_state(self, count: int) -> Columns:
        return {"last_reward": np.zeros(count, np.float32)}

    def load(self, weights: Columns) -> None: ...

    def act(self, observation: Array, state: Columns, first: Array) -> tuple[Array, Columns, Columns]:
        self.told.append(state["last_reward"].copy())
        self.first.append(first.copy())
        return np.zeros(len(observation), np.int64), state, {}


def what_came(row: int) -> Step:
    """Row t gives rewards t + 1 and 10 (t + 1); environment 1 ends with row 2, so row 3 is no transition."""
    valid = np.array([True, row != 3])
    reward = np.where(valid, np.array([1.0, 10.0]) * (row + 1), 0.0).astype(np.float32)
    return outcome(reward, np.array([False, row == 2]), valid)


EXPECTED = [
    [0, 0],
    [1, 10],
    [2, 20],
    [3, 30],
    [4, 0],
    [5, 50],
    [6, 60],
]  # row 3 is still of the old episode, row 4 begins one


def make_replay() -> Replay:
    return Replay([Table.queue("items", 100)])


def test_a_recorder_tells_the_last_rewards_and_stores_them_where_items_begin() -> None:
    policy, replay = Told(), make_replay()
    recorder = Recorder(policy, COUNT, 2, Sender(policy, [replay], PATTERN, "actor"))
    for row in range(len(EXPECTED)):
        recorder.act(np.zeros((COUNT, 1), np.float32))
        recorder.result(what_came(row))
    np.testing.assert_array_equal(policy.told, EXPECTED)
    data = replay.sample("items", 100, minimum=1).data
    pairs = sorted(zip(data["reward"][0].tolist(), data["state/last_reward"].tolist()))
    of_first = [(1, 0), (2, 1), (3, 2), (4, 3), (5, 4), (6, 5)]
    assert pairs == [*of_first, (10, 0), (20, 10), (30, 20), (50, 0), (60, 50)]


def test_an_evaluator_tells_the_last_rewards() -> None:
    policy = Told()
    made = envs.make("CartPole-v1", COUNT, seed=1)
    evaluate(made, policy, COUNT)
    made.close()
    told, first = np.array(policy.told), np.array(policy.first)
    assert (told[~first] == 1.0).all()
    assert (told[first] == 0.0).all()


def test_an_inference_server_tells_each_environments_last_rewards() -> None:
    weights = WeightStore()
    weights.publish({}, 0)
    policy = Told()
    server = InferenceServer(
        lambda seed: policy, PATTERN, 2, [make_replay()], weights, Metrics(), max_batch=COUNT, max_wait=0.0
    )
    last = None
    for row in range(len(EXPECTED)):
        last = ask(server, last, row)
    server.close()
    np.testing.assert_array_equal(policy.told, EXPECTED)


def ask(server: InferenceServer, last: Step | None, row: int) -> Step:
    actor = threading.Thread(target=server.act, args=("actor/0", 0, np.zeros((COUNT, 1), np.float32), last))
    actor.start()
    server.step()
    actor.join()
    return what_came(row)
