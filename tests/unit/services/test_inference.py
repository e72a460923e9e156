"""Central inference: whatever order requests come in, every environment gets its own answer and keeps its own state."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal import envs, sync
from shoal.algorithms import impala
from shoal.config import validate
from shoal.errors import UserError
from shoal.loops.wiring import Settings
from shoal.program import Handle, Program
from shoal.replay import Replay, Table, rollout
from shoal.runtime.baton import TICK, Baton
from shoal.runtime.inline import InlineRun
from shoal.runtime.local.run import LocalRun
from shoal.services.inference import InferenceServer, Replaced
from shoal.services.metrics import Metrics
from shoal.services.weights import WeightStore
from shoal.step import Step
from shoal.types import Array, Columns
from shoal.versions import number
from steps import outcome

OLDEST = 100  # the first version; the weights are versions - OLDEST
ROWS = 3  # per block


class Witness:
    """Its actions tell whom it saw, what it remembered, which weights it had and whom it was told it acts for."""

    def __init__(self) -> None:
        self.weights, self.batches = 0, Counter[int]()
        self.takes = 0.0  # seconds in which others go on

    def initial_state(self, count: int) -> Columns:
        return {name: np.zeros(count, np.int64) for name in ("who", "steps", "last_weights")}

    def load(self, weights: Columns) -> None:
        self.weights = int(weights["weights"][0])

    def set_environments(self, environments: Array, total: int) -> None:
        self.environments = environments

    def act(self, observation: Array, state: Columns, first: Array) -> tuple[Array, Columns, Columns]:
        who, weights = observation[:, 0], np.full(len(observation), self.weights)
        self.batches[len(observation)] += 1
        if self.takes:
            sync.sleep(self.takes)
        action = [who, state["who"], state["steps"], state["last_weights"], weights, self.environments]
        after = {"who": who, "steps": state["steps"] + 1, "last_weights": weights}
        return np.stack(action, axis=1), after, {"log_prob": log_probability(who, weights)}


def log_probability(who: Array, weights: Array) -> Array:
    return np.asarray(-(who + weights / 64), np.float32)  # exact


class Life:
    """One life of an actor: environments that know what they have to be answered."""

    def __init__(self, actor: int, run: int, count: int, place: int, chance: random.Random) -> None:
        self.name, self.run, self.place = f"actor/{actor}", run, place + np.arange(count)
        self.who = 1 + 1000 * actor + 100 * run + np.arange(count)
        self.steps, self.last_weights = np.zeros(count, np.int64), np.zeros(count, np.int64)
        self.final = np.zeros(count, np.bool_)  # the observation is an episode's last, and the action goes nowhere
        self.actions: list[Array] = []
        self.outcomes: list[Step] = []
        self._chance = chance

    def step(self, server: InferenceServer) -> None:
        row = np.full(len(self.who), len(self.actions))
        last = self.outcomes[-1] if self.outcomes else None
        action = server.act(self.name, self.run, np.stack([self.who, row], axis=1), last, int(self.place[0]))
        weights = np.full(len(self.who), action[0, 4])
        remembered = np.where(self.steps > 0, self.who, 0)
        expected = [self.who, remembered, self.steps, self.last_weights, weights, self.place]
        np.testing.assert_array_equal(action, np.stack(expected, axis=1))
        terminated = ~self.final & np.array([self._chance.random() < 0.3 for _ in self.who])
        self.outcomes.append(outcome((self.who + row).astype(np.float32), terminated, ~self.final))
        self.actions.append(action)
        self.steps, self.last_weights = (np.where(self.final, 0, new) for new in (self.steps + 1, weights))
        self.final = terminated

    def shipped(self) -> int:
        """Rows that are in full blocks; the server has not been told yet what the last actions gave."""
        known = len(self.actions) - 1
        return 1 + ROWS * ((known - 1) // ROWS) if known > ROWS else 0


class World:
    """A server and what runs beside it, in turns and on a virtual clock."""

    def __init__(self, max_batch: int, max_wait: float) -> None:
        self.baton, self.failures = Baton(), list[Exception]()
        self.policy, self.weights, self.metrics = Witness(), WeightStore(), Metrics()
        self.publish(0)
        self.replay = Replay([Table.queue("items", 100_000)])
        self.server = InferenceServer(
            lambda seed: self.policy,
            {"items": rollout(1)},
            ROWS,
            [self.replay],
            self.weights,
            self.metrics,
            max_batch=max_batch,
            max_wait=max_wait,
        )
        self._under_way = 0

    def publish(self, weights: int) -> None:
        self.weights.publish({"weights": np.array([weights])}, OLDEST + weights)

    def begin(self, body: Callable[[], None]) -> None:
        def run() -> None:
            try:
                body()
            except Exception as error:
                self.failures.append(error)
            self._under_way -= 1

        self._under_way += 1
        self.baton.spawn("actor", (0,), run)

    def finish(self) -> None:
        """Serve until all that was begun has ended."""
        self.baton.spawn("server", (1,), self._serve)
        with self.baton.driving():
            ended = self.baton.wait_for(lambda: not self._under_way or bool(self.failures), 1e4, "actors")
        self.baton.stop()
        if self.failures:
            raise self.failures[0]
        assert ended

    def _serve(self) -> None:
        try:
            while True:
                self.server.step()
                self.baton.yield_turn()
        except Exception as error:
            self.failures.append(error)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    counts=st.lists(st.integers(1, 3), min_size=1, max_size=4),
    room=st.integers(0, 5),
    max_wait=st.sampled_from([0.0, 0.002, 0.02]),
)
def test_every_environment_gets_its_own_answer(seed: int, counts: list[int], room: int, max_wait: float) -> None:
    """Actors are replaced by new lives while old ones still ask, and weights change all the while."""
    chance = random.Random(seed)
    places = {f"actor/{actor}": sum(counts[:actor]) for actor in range(len(counts))}
    world = World(max(counts) + room, max_wait)
    world.policy.takes = chance.choice([0.0, 0.002, 0.01])
    newest: Counter[str] = Counter()
    lives: list[Life] = []

    def live(life: Life) -> None:
        for _ in range(chance.randint(1, 20)):
            sync.sleep(chance.choice([0.0, 0.001, 0.003, 0.03]))
            late = newest[life.name] > life.run
            newest[life.name] = max(newest[life.name], life.run)
            try:
                life.step(world.server)
            except Replaced:
                assert late
                return
            assert not late

    def actor(index: int) -> None:
        for run in range(chance.randint(1, 4)):
            life = Life(index, run, counts[index], places[f"actor/{index}"], chance)
            lives.append(life)
            world.begin(lambda life=life: live(life))  # type: ignore[misc]
            sync.sleep(chance.uniform(0.0, 0.3))

    def learner() -> None:
        for weights in range(1, 20):
            sync.sleep(chance.uniform(0.0, 0.05))
            world.publish(weights)

    for index in range(len(counts)):
        world.begin(lambda index=index: actor(index))  # type: ignore[misc]
    world.begin(learner)
    world.finish()
    assert max(world.policy.batches) <= max(counts) + room
    check_rows(world.replay, lives)


def check_rows(replay: Replay, lives: list[Life]) -> None:
    """Every row of a full block was stored, once, with what it was acted with."""
    items = int(replay.info()["items"]["inserts"])
    assert items == sum(len(life.who) * max(0, life.shipped() - 1) for life in lives)
    if not items:
        return
    data = replay.sample("items", items).data
    stored = {(who, row): index for index, (who, row) in enumerate(data["observation"][0].tolist())}
    assert len(stored) == items
    for life in lives:
        for row in range(life.shipped() - 1):
            at = [stored[who, row] for who in life.who.tolist()]
            action, came = life.actions[row], life.outcomes[row]
            np.testing.assert_array_equal(data["action"][0, at], action)
            np.testing.assert_array_equal(data["version"][0, at], OLDEST + action[:, 4])
            np.testing.assert_array_equal(data["log_prob"][0, at], log_probability(life.who, action[:, 4]))
            np.testing.assert_array_equal(data["reward"][0, at], came.reward)
            np.testing.assert_array_equal(data["terminated"][0, at], came.terminated)
            np.testing.assert_array_equal(data["valid"][0, at], came.valid)
            np.testing.assert_array_equal(data["observation"][1, at, 1], row + 1)
            for name, before in zip(("who", "steps", "last_weights"), action[:, 1:4].T):
                np.testing.assert_array_equal(data[f"state/{name}"][at], before)  # from before the row, not after it


def test_a_late_request_of_an_old_life_is_refused_and_leaves_the_new_one_alone() -> None:
    world, chance = World(2, 0.0), random.Random(0)
    old, new = (Life(0, run, 2, 0, chance) for run in (0, 1))

    def actor() -> None:
        for life in (old, old, new, new):
            life.step(world.server)
        with pytest.raises(Replaced, match=r"life 0 of 'actor/0' has ended: its life 1 acts in its place"):
            old.step(world.server)
        new.step(world.server)

    world.begin(actor)
    world.finish()
    assert (len(old.actions), len(new.actions)) == (2, 3)


def test_what_was_done_before_the_server_was_lost_is_no_result_of_its_next_life() -> None:
    world, answers = World(8, 0.0), []
    came = outcome(np.ones(2, np.float32), np.zeros(2, np.bool_), np.ones(2, np.bool_))
    seen = np.array([[1, 0], [2, 0]])

    def act() -> None:
        answers.extend(world.server.act("actor/0", 0, seen, came)[:, 2].tolist() for _ in range(2))

    world.begin(act)
    world.finish()
    assert answers == [[0, 0], [1, 1]], "it remembers what it has answered itself"
    world.replay.close()


def test_a_slot_writes_to_the_shard_of_its_actors_place(monkeypatch: pytest.MonkeyPatch) -> None:
    world, homes = World(8, 0.0), []

    def sender(policy: Any, replays: Any, patterns: Any, name: str, home: int) -> Any:
        homes.append((name, home))

    monkeypatch.setattr("shoal.services.inference.Sender", sender)
    world.server._open("actor/2", 1, 8, 4)
    assert homes == [("actor/2", 2)]
    world.replay.close()


def test_measurements_are_of_what_came_since_the_last_and_staleness_is_counted_in_updates() -> None:
    world = World(8, 0.0)
    server = world.server
    server._batches = [2, 4]
    server._measure()
    assert server._report.values["inference_batch"] == 3.0
    server._report.values.clear()
    server._measure()
    assert "inference_batch" not in server._report.values
    server._queueing.extend([0.001] * 90 + [0.005] * 10)
    server._measure()
    assert [server._report.values[f"queueing_ms_{part}"] for part in ("p50", "p99")] == pytest.approx([1.0, 5.0])
    world.publish(7)
    server._refresh()
    assert (server._report.values["acting_staleness"], world.policy.weights) == (7, 7)
    world.replay.close()


def test_closing_wakes_the_old_lives_of_actors_too() -> None:
    world, ended = World(8, 10.0), []

    def ask(run: int) -> None:
        try:
            world.server.act("actor/0", run, np.zeros((1, 2), np.int64), None)
        except RuntimeError as error:
            ended.append(str(error))

    threads = [threading.Thread(target=ask, args=(run,), daemon=True) for run in range(2)]
    for before, thread in enumerate(threads):
        thread.start()
        while len(world.server._pending) <= before:
            time.sleep(0.001)
    world.server.close()
    for thread in threads:
        thread.join(5.0)
    assert ended == ["the inference server has closed"] * 2
    world.replay.close()


def test_an_error_of_the_policy_is_told_to_those_who_waited_for_its_answer() -> None:
    world = World(max_batch=2, max_wait=0.0)
    told: list[str] = []

    def ask() -> None:
        try:
            world.server.act("actor/0", 0, np.zeros((1, 2), np.float32), None)
        except ValueError as error:
            told.append(str(error))

    def broken(*_: Any) -> Any:
        raise ValueError("no such head")

    world.policy.act = broken  # type: ignore[method-assign]

    def serve() -> None:
        with pytest.raises(ValueError, match="no such head"):
            world.server.step()

    world.begin(ask)
    world.begin(serve)
    world.finish()
    assert told == ["no such head"]


def ask_at_once(world: World, actors: int, environments: int, requests: int) -> list[float]:
    """Actors that ask all at once, again and again; how long each request took."""
    took: list[float] = []

    def actor(index: int) -> None:
        life = Life(index, 0, environments, index * environments, random.Random(index))
        for _ in range(requests):
            asked = sync.monotonic()
            life.step(world.server)
            took.append(sync.monotonic() - asked)

    for index in range(actors):
        world.begin(lambda index=index: actor(index))  # type: ignore[misc]
    world.finish()
    return took


def test_a_batch_never_exceeds_its_maximum() -> None:
    world = World(5, 0.05)
    ask_at_once(world, 4, 2, 10)
    assert world.policy.batches == {4: 20}


def test_a_lone_request_waits_no_longer_than_the_maximum_and_a_full_batch_not_at_all() -> None:
    lone = ask_at_once(World(4, 0.05), 1, 2, 10)
    assert 0.05 <= max(lone) <= 0.05 + 2 * TICK
    full = ask_at_once(World(4, 0.05), 2, 2, 10)
    assert max(full) <= 2 * TICK


def test_what_a_request_has_waited_for_a_busy_server_counts_towards_the_maximum() -> None:
    world = World(4, 0.05)
    world.policy.takes = 0.04
    took: list[float] = []

    def actor(index: int, later: float) -> None:
        sync.sleep(later)
        asked = sync.monotonic()
        Life(index, 0, 2, 2 * index, random.Random(index)).step(world.server)
        took.append(sync.monotonic() - asked)

    world.begin(lambda: actor(0, 0.0))
    world.begin(lambda: actor(1, 0.06))  # the server answers the other one from 0.05 to 0.09
    world.finish()
    assert took == pytest.approx([0.05 + 0.04, 0.05 + 0.04], abs=3 * TICK)


def test_what_a_server_does_is_in_the_metrics() -> None:
    world = World(6, 0.05)
    ask_at_once(world, 2, 2, 30)
    found = world.metrics.snapshot()
    batches = found["counts"]["inference_batches"]
    assert 1 < batches <= 30
    assert found["counts"]["inference_environments"] == 4 * batches
    assert found["values"]["inference_batch"] == 4
    assert found["values"]["queueing_ms_p50"] == pytest.approx(50, abs=2)
    assert found["values"]["queueing_ms_p99"] == pytest.approx(50, abs=2)
    assert {"inference_ms_p50", "inference_ms_p99"} <= found["values"].keys()


# ---- programs


def program(**options: Any) -> Program:
    cfg = impala.Config(inference="central", unroll=4, batch=4, queue=8, hidden=(8,), **options)
    return impala.program(cfg, envs.describe(cfg.env), Settings(max_updates=3, evaluate=False))


def test_actors_are_shared_out_among_servers_and_batches_hold_whole_requests() -> None:
    def largest(**options: Any) -> list[int]:
        made = program(actors=3, envs_per_actor=4, inference_servers=2, **options)
        nodes, members = made.nodes, made.members()
        assert nodes["actor/2"].callees()[:2] == ["inference/0", "inference/1"]  # of which it asks its own
        return [nodes[name].kwargs["max_batch"](members[name]) for name in ("inference/0", "inference/1")]

    assert largest() == largest(inference_batch=100) == [8, 4]
    assert largest(inference_batch=7) == [4, 4]
    assert largest(inference_batch=4) == [4, 4]  # just one request
    with pytest.raises(UserError, match="--inference-batch 3 cannot hold one request of --envs-per-actor 4"):
        largest(inference_batch=3)
    with pytest.raises(UserError, match="--inference-batch -1 is too small"):
        validate(impala.Config(inference_batch=-1))


@pytest.mark.parametrize("servers", [1, 2])
@pytest.mark.parametrize("runtime", [InlineRun, LocalRun])
def test_impala_learns_from_central_actors(runtime: Any, servers: int) -> None:
    with runtime(program(actors=2, envs_per_actor=2, inference_servers=servers, inference_batch=4)) as run:
        for _ in range(1000):
            if run.finished(Handle("learner")):
                break
            run.wait(0.1)
        else:
            raise AssertionError("the learner has not finished")
        assert number(run.client(Handle("weights")).version()) == 3
        names, metrics = {f"inference/{index}" for index in range(servers)}, run.client(Handle("metrics"))
        for _ in range(100):  # until every server has reported
            counts = {name: counted for name, (_, counted) in metrics.snapshot()["lives"].items() if name in names}
            if all(counts.get(name, {}).get("inference_environments") for name in names):
                break
            run.wait(0.1)
        else:
            raise AssertionError(f"not every server has answered: {counts}")
        assert run.supervisor.restarts.total() == 0
