"""Which environments of a run a policy acts for, beside its actor or central, and the first priorities it gives."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np
import pytest

from shoal.acting import FirstPriorities, GivesPriorities, PerEnvironment, Recorder, Sender
from shoal.replay import Replay, Table, n_step
from shoal.services.inference import InferenceServer
from shoal.services.metrics import Metrics
from shoal.services.weights import WeightStore
from shoal.step import Step
from shoal.types import Array, Columns
from steps import outcome

PATTERN = {"items": n_step(1, 0.9, following=("observation", "guess"))}


class Plain:
    """Acts, and knows nothing of environments and priorities."""

    def initial_state(self, count: int) -> Columns:
        return {}

    def load(self, weights: Columns) -> None: ...

    def act(self, observation: Array, state: Columns, first: Array) -> tuple[Array, Columns, Columns]:
        return np.zeros(len(observation), np.int64), state, {"guess": observation[:, 0] * 10}


class Numbered(Plain):
    """Acts with the number of each environment; items are worth what was guessed for the row after them."""

    first_priorities = FirstPriorities(lambda data: data["next_guess"], ("guess",), transient=("guess",))

    def set_environments(self, environments: Array, total: int) -> None:
        self.environments = environments

    def act(self, observation: Array, state: Columns, first: Array) -> tuple[Array, Columns, Columns]:
        _, state, extras = super().act(observation, state, first)
        return self.environments.copy(), state, extras


def rows(recorder: Recorder, count: int) -> None:
    """Rows 0, 1, … of environments that never end, with their number as observation."""
    for row in range(count):
        recorder.act(np.full((recorder.count, 1), row, np.float32))
        recorder.result(ordinary(recorder.count))


def ordinary(count: int) -> Step:
    return outcome(np.ones(count, np.float32), np.zeros(count, np.bool_), np.ones(count, np.bool_))


def replay() -> Replay:
    return Replay([Table.queue("items", 100)])


def test_a_policy_may_give_items_their_first_priorities() -> None:
    policy, table = Numbered(), replay()
    assert isinstance(policy, GivesPriorities)
    policy.set_environments(np.arange(2), 2)
    rows(Recorder(policy, 2, 2, Sender(policy, [table], PATTERN, "actor")), 5)
    sample = table.sample("items", 8)
    np.testing.assert_array_equal(sample.priorities, 10 * (sample.data["observation"][:, 0] + 1))
    assert "guess" not in sample.data


def test_a_policy_without_priorities_stores_all_it_gives() -> None:
    policy, table = Plain(), replay()
    assert not isinstance(policy, GivesPriorities)
    assert not isinstance(policy, PerEnvironment)
    rows(Recorder(policy, 2, 2, Sender(policy, [table], PATTERN, "actor")), 5)
    sample = table.sample("items", 8)
    np.testing.assert_array_equal(sample.priorities, np.ones(8))
    np.testing.assert_array_equal(sample.data["guess"], 10 * sample.data["observation"][:, 0])


def test_actors_spread_over_several_services_and_each_stays_at_one() -> None:
    policy, shards = Plain(), [replay(), replay()]
    for index in range(3):
        rows(Recorder(policy, 2, 2, Sender(policy, shards, PATTERN, f"actor/{index}", home=index)), 5)
    assert [shard.info()["items"]["inserts"] for shard in shards] == [16, 8]


@pytest.fixture
def server() -> Iterator[InferenceServer]:
    weights = WeightStore()
    weights.publish({}, 0)
    server = InferenceServer(
        lambda seed: Numbered(),
        PATTERN,
        2,
        [replay()],
        weights,
        Metrics(),
        max_batch=5,
        max_wait=10.0,
    )
    yield server
    server.close()


def test_a_central_policy_knows_whose_observations_it_is_given(server: InferenceServer) -> None:
    """Two actors with two and three environments, answered in one batch, in whichever order they came."""
    found: dict[str, Array] = {}

    def ask(name: str, count: int) -> None:
        found[name] = server.act(name, 0, np.zeros((count, 1), np.float32), None, {"actor/0": 0, "actor/1": 2}[name])

    actors = [threading.Thread(target=ask, args=pair) for pair in (("actor/1", 3), ("actor/0", 2))]
    for actor in actors:
        actor.start()
    server.step()
    for actor in actors:
        actor.join()
    np.testing.assert_array_equal(found["actor/0"], [0, 1])
    np.testing.assert_array_equal(found["actor/1"], [2, 3, 4])
