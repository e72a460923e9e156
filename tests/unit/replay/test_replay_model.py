"""Every sampler, remover and limiter against a model that works one item at a time."""

from __future__ import annotations

import itertools
from functools import partial

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from replay_model import SELECTORS, Deleted, Item, Model, Single, audit

from shoal.replay import (
    MinSize,
    Queue,
    Quota,
    Replay,
    ReplayTimeout,
    SamplesPerInsert,
    Table,
    Uniform,
    Writer,
)

LIMITERS = (MinSize(1), MinSize(4), SamplesPerInsert(2.0, 3, 9.0), Queue(7), Quota(6))


def tables(limiter: object) -> dict[str, object]:
    """Options that go with a limiter."""
    if isinstance(limiter, Queue | Quota):
        return {"max_times_sampled": 1}
    return {}


class Pair:
    """A service with one table and its model, driven together."""

    def __init__(self, table: Table, seed: int, length: int = 1) -> None:
        self.log = Deleted()
        self.replay = Replay([table], extensions=[self.log], seed=seed, chunk_length=4)
        self.model = Model(table)
        self.length = length
        self.writers: dict[str, Writer] = {}
        self.rows: dict[str, int] = {}
        for name in ("ann", "bob"):
            self.start_writer(name)
        self.number = 0
        self.version = 0

    def start_writer(self, name: str) -> None:
        self.writers[name] = Writer(self.replay, {"table": Single(self.length)}, name=name, priority_columns=["reward"])
        self.rows[name] = 0

    def append(self, name: str, count: int, priorities: list[float]) -> None:
        """One environment, `count` rows: as many items, once the first are complete."""
        writer, first = self.writers[name], self.rows[name]
        offset = 100_000 if name == "bob" else 0
        values = (offset + np.arange(first, first + count, dtype=np.float64))[:, None]
        columns = {"reward": values, "version": np.full((count, 1), self.version, np.int32)}
        complete = [row for row in range(first, first + count) if row >= self.length - 1]
        given = np.array((priorities * (len(complete) + 1))[: len(complete)])
        try:
            writer.append(columns, lambda data: given[: data["reward"].shape[1]], timeout=0)
        except ReplayTimeout:
            writer._unsent = None  # give the rest up
        self.rows[name] += count
        self._insert_into_model(name, [offset + row for row in complete], given)

    def _insert_into_model(self, name: str, rows: list[int], priorities: np.ndarray) -> None:
        model, capacity = self.model, self.model.table.capacity
        admitted = []
        if isinstance(model.table.limiter, Quota) and rows:
            if model.version is None or self.version > model.version:
                model.version, model.admitted, model.writers, model.items = self.version, 0, set(), []
            allowed = min(len(rows), model.table.limiter.items - model.admitted)
            allowed = 0 if name in model.writers or self.version < model.version else allowed
            if allowed:
                model.writers.add(name)
            model.admitted += allowed
            model.refused += len(rows) - allowed
            rows, priorities = rows[:allowed], priorities[:allowed]
            admitted = list(zip(rows, priorities))
        else:
            before = (list(model.items), model.inserts)
            for row, priority in zip(rows, priorities):
                if not model.may_insert():
                    break
                admitted.append((row, priority))
                model.items.append(Item(row, priority, -1))
                model.inserts += 1
            model.items, model.inserts = before
        keys, deleted = self.log.inserted_keys, self.log.deleted_keys
        assert len(keys) == len(admitted)
        while admitted:  # the table makes room for as many as it can hold, then takes them
            part, admitted = admitted[:capacity], admitted[capacity:]
            excess = len(model.items) + len(part) - model.table.slots
            if excess > 0:
                self._evict(len(model.items) + len(part) - capacity, deleted)
            for row, priority in part:
                model.items.append(Item(row, priority, model.inserts, key=keys.pop(0)))
                model.inserts += 1
        if not isinstance(model.table.limiter, Quota):
            assert not deleted
        deleted.clear()

    def _evict(self, count: int, deleted: list[int]) -> None:
        model = self.model
        gone = [deleted.pop(0) for _ in range(count)]
        ranked = model.ranked(model.table.remover)
        if ranked is not None:
            assert gone == [item.key for item in ranked[:count]]
        assert len(set(gone)) == count
        for key in gone:
            item = model.by_key(key)
            assert item is not None, "something was removed that was not there"
            model.items.remove(item)

    def sample(self, batch: int) -> None:
        model, limit = self.model, self.model.table.max_times_sampled
        try:
            sample = self.replay.sample("table", batch, timeout=0, minimum=1)
        except ReplayTimeout:
            assert not model.may_sample()
            return
        except ValueError:
            assert batch > model.table.capacity
            return
        size = len(model.items)
        assert sample.table_size == size
        probabilities = {item.key: model.probability(item) for item in model.items}
        data = sample.data["reward"]
        for index, key in enumerate(sample.keys):
            assert model.may_sample(size), "more was sampled than the limiter allows"
            ranked = model.ranked(model.table.sampler)
            item = model.by_key(int(key))
            assert item is not None, "an item was sampled that is not there"
            if ranked is not None:
                assert item is ranked[0]
            assert data[-1, index] == item.row
            assert data[:, index].tolist() == [item.row - back for back in reversed(range(self.length))]
            assert sample.priorities[index] == item.priority
            if ranked is not None or not limit:  # else what was left when its part of the batch was drawn counts
                assert sample.probabilities[index] == pytest.approx(probabilities[item.key], rel=1e-9)
            item.times += 1
            model.samples += 1
            if limit and item.times >= limit:
                model.items.remove(item)
        if len(sample) < min(batch, model.table.slots * max(1, limit)):  # all that is ever given at once
            assert not model.may_sample(size), "fewer were sampled than the limiter allows"
        self.log.deleted_keys.clear()

    def update(self, generator: np.random.Generator, count: int) -> None:
        keys = [item.key for item in self.model.items]
        chosen = generator.choice(keys, min(count, len(keys)), replace=False) if keys else np.empty(0, int)
        stale = np.array([int(chosen[0]) + (1 << 40), -1] if len(chosen) else [], int)
        priorities = np.round(generator.random(len(chosen) + len(stale)), 1)  # ties are wanted
        applied = self.replay.update_priorities("table", np.concatenate([chosen, stale]), priorities)
        assert applied == len(chosen)
        for key, priority in zip(chosen, priorities):
            item = self.model.by_key(int(key))
            assert item is not None
            item.priority = priority

    def delete(self, generator: np.random.Generator) -> None:
        keys = [item.key for item in self.model.items]
        chosen = generator.choice(keys, min(2, len(keys)), replace=False) if keys else np.empty(0, int)
        assert self.replay.delete("table", chosen) == len(chosen)
        self.model.items = [item for item in self.model.items if item.key not in chosen]
        self.log.deleted_keys.clear()

    def check(self) -> None:
        info = self.replay.info()["table"]
        assert info["size"] == len(self.model.items)
        assert info["inserts"] == self.model.inserts
        assert info["samples"] == self.model.samples
        running = self.replay._tables["table"]
        for item in self.model.items:
            (slot,) = running.find(np.array([item.key]))
            assert slot >= 0
            assert running.priority[slot] == item.priority
            assert running.times_sampled[slot] == item.times
        audit(self.replay)


def drive(pair: Pair, seed: int, steps: int) -> None:
    generator = np.random.default_rng(seed)
    for _ in range(steps):
        action = generator.integers(0, 10)
        if action < 4:
            name = "ann" if generator.random() < 0.7 else "bob"
            priorities = np.round(generator.random(5), 1).tolist()
            pair.version += int(generator.random() < 0.3)
            pair.append(name, int(generator.integers(1, 25)), priorities)
        elif action < 7:
            pair.sample(int(generator.integers(1, 12)))
        elif action < 9:
            pair.update(generator, int(generator.integers(1, 6)))
        else:
            pair.delete(generator)
    pair.check()


@pytest.mark.parametrize("limiter", LIMITERS, ids=str)
@pytest.mark.parametrize("remover", SELECTORS, ids=str)
@pytest.mark.parametrize("sampler", SELECTORS, ids=str)
def test_a_table_does_what_the_model_does(sampler, remover, limiter) -> None:
    table = Table("table", 11, sampler=sampler, remover=remover, limiter=limiter, **tables(limiter))
    for seed in range(2):
        pair = Pair(table, seed, length=1 + 2 * seed)
        drive(pair, seed, 40)


@pytest.mark.parametrize(("sampler", "limit"), list(itertools.product(SELECTORS, (1, 2, 3))), ids=str)
def test_an_item_is_gone_after_its_last_sample(sampler, limit) -> None:
    table = Table("table", 11, sampler=sampler, max_times_sampled=limit)
    drive(Pair(table, limit), limit, 80)


@pytest.mark.parametrize("remover", SELECTORS, ids=str)
def test_a_soft_capacity_removes_its_excess_in_batches(remover) -> None:
    table = Table("table", 20, remover=remover, soft_capacity=0.5)
    pair = Pair(table, 0)
    drive(pair, 0, 60)
    pair.append("ann", 25, [0.5])
    assert 20 < pair.replay.info()["table"]["size"] <= 30
    assert pair.replay.trim("table") > 0
    assert pair.replay.info()["table"]["size"] == 20


def test_extreme_selectors_stay_right_when_their_candidates_run_out() -> None:
    """Tables far larger than the list of candidates, so that it is formed again and again."""
    generator = np.random.default_rng(0)
    for sampler in SELECTORS[4:]:
        table = Table("table", 6000, sampler=sampler, remover=sampler, max_times_sampled=1)
        pair = Pair(table, 0)
        writer = pair.writers["ann"]
        priorities = np.round(generator.random(6000) * 50)
        rows = {"reward": np.arange(6000.0)[:, None], "version": np.zeros((6000, 1), np.int32)}
        writer.append(rows, partial(lambda given, _: given, priorities))
        sign = 1 if sampler == SELECTORS[4] else -1
        order = np.lexsort((np.arange(6000), sign * priorities))
        taken: list[float] = []
        while len(taken) < 6000:
            taken += pair.replay.sample("table", 500, minimum=1).data["reward"][0].tolist()
        assert taken == order.tolist()


class Machine(RuleBasedStateMachine):
    """Random tables and random calls."""

    @initialize(
        sampler=st.sampled_from(SELECTORS),
        remover=st.sampled_from(SELECTORS),
        limiter=st.sampled_from(LIMITERS),
        capacity=st.integers(7, 20),
        limit=st.integers(0, 3),
        soft=st.sampled_from([False, 0.3]),
        length=st.integers(1, 11),
        seed=st.integers(0, 1000),
    )
    def begin(self, sampler, remover, limiter, capacity, limit, soft, length, seed) -> None:
        limit = max(limit, 1) if isinstance(limiter, Queue | Quota) else limit
        table = Table(
            "table", capacity, sampler=sampler, remover=remover, limiter=limiter, max_times_sampled=limit,
            soft_capacity=soft,
        )  # fmt: skip
        self.pair = Pair(table, seed, length)
        self.generator = np.random.default_rng(seed)

    @rule(
        name=st.sampled_from(["ann", "bob"]),
        count=st.integers(1, 30),
        priorities=st.lists(st.sampled_from([0.0, 0.1, 0.5, 1.0, 3.0]), min_size=1, max_size=6),
    )
    def append(self, name, count, priorities) -> None:
        self.pair.append(name, count, priorities)

    @rule(batch=st.integers(1, 12))
    def sample(self, batch) -> None:
        self.pair.sample(batch)

    @rule(count=st.integers(1, 8))
    def update(self, count) -> None:
        self.pair.update(self.generator, count)

    @rule()
    def delete(self) -> None:
        self.pair.delete(self.generator)

    @rule()
    def publish(self) -> None:
        self.pair.version += 1

    @precondition(lambda self: not isinstance(self.pair.model.table.limiter, Quota))
    @rule(name=st.sampled_from(["ann", "bob"]))
    def restart_writer(self, name) -> None:
        self.pair.start_writer(name)

    @invariant()
    def same(self) -> None:
        if hasattr(self, "pair"):
            self.pair.check()


class TestMachine(Machine.TestCase):
    settings = settings(max_examples=80, stateful_step_count=25, deadline=None)


@pytest.mark.slow
@pytest.mark.timeout(1800)
class TestMachineForLong(Machine.TestCase):
    settings = settings(max_examples=500, stateful_step_count=60, deadline=None)


def test_a_uniform_table_of_one_item_gives_it() -> None:
    pair = Pair(Table("table", 1, sampler=Uniform()), 0)
    pair.append("ann", 3, [1.0])
    pair.sample(1)
    pair.check()
