"""Several services as one: keys, priorities, and a shard that dies."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from replay_model import Single

from shoal.replay import (
    Prioritized,
    Replay,
    ReplayClosed,
    ReplayTimeout,
    SamplesPerInsert,
    ShardedReplay,
    Table,
    Writer,
    n_step,
    sequence,
)
from shoal.replay.sharded import _merge


class Mortal:
    """A service that can be killed and started again, and is asked like a remote one."""

    def __init__(self, table: Table, seed: int) -> None:
        self.table = table
        self.seed = seed
        self.service: Replay | None = Replay([table], seed=seed)
        self.calls = 0
        self.future = _Futures(self)

    def __getattr__(self, name: str) -> Any:
        self.calls += 1
        if self.service is None:
            raise ConnectionError("dead")
        return getattr(self.service, name)


class _Futures:
    def __init__(self, mortal: Mortal) -> None:
        self._mortal = mortal

    def __getattr__(self, name: str) -> Any:
        def call(*args: Any, **kwargs: Any) -> Future[Any]:
            future: Future[Any] = Future()
            try:
                future.set_result(getattr(self._mortal, name)(*args, **kwargs))
            except Exception as error:
                future.set_exception(error)
            return future

        return call


def make(count: int, table: Table | None = None, each: int = 40) -> tuple[list[Mortal], ShardedReplay, list[Writer]]:
    table = table or Table("table", 500, sampler=Prioritized(1.0))
    shards = [Mortal(table, seed) for seed in range(count)]
    writers = [
        Writer(ShardedReplay(shards, home=index), {"table": Single()}, name=f"writer {index}") for index in range(count)
    ]
    for index, writer in enumerate(writers):
        writer.append({"reward": index * 1000.0 + np.arange(each)[:, None]}, index + 1.0)
    return shards, ShardedReplay(shards, retry_seconds=1000.0), writers


def test_keys_find_their_way_back_to_their_shard() -> None:
    shards, replay, _ = make(3)
    sample = replay.sample("table", 100)
    rows = sample.data["reward"][0]
    assert sample.priorities.tolist() == (rows // 1000 + 1).tolist()
    assert replay.update_priorities("table", sample.keys, rows) == 100
    again = replay.sample("table", 200)
    known = dict(zip(sample.keys.tolist(), rows.tolist()))
    for key, row, priority in zip(again.keys.tolist(), again.data["reward"][0], again.priorities):
        assert priority == (row if key in known else row // 1000 + 1)
    assert replay.delete("table", np.array(list(known))) == len(known)
    assert replay.info()["table"]["size"] == 120 - len(known)
    assert sum(shard.info()["table"]["size"] for shard in shards) == 120 - len(known)


def test_columns_are_joined_along_the_batch() -> None:
    for layout, pattern in (("time", sequence(4)), ("batch", sequence(4)), ("time", n_step(2, 0.9))):
        services = [Replay([Table("table", 100)], seed=seed) for seed in range(2)]
        for index in range(2):
            writer = Writer(ShardedReplay(services, home=index), {"table": pattern})
            step = np.arange(40.0)[:, None] + 100 * index
            writer.append({"reward": step, "observation": step, "terminated": step < 0, "state/core": step})
        sample = ShardedReplay(services).sample("table", 30, layout=layout)  # type: ignore[arg-type]
        assert sample.data["state/core"].shape == (30,)
        first = sample.data["observation"]
        if sample.timed:
            assert first.shape == ((5, 30) if layout == "time" else (30, 5))
            first = first[0] if layout == "time" else first[:, 0]
        np.testing.assert_array_equal(first, sample.data["state/core"])
        assert len(set(first // 100)) == 2


def test_a_dead_shard_costs_only_its_items() -> None:
    shards, replay, writers = make(3)
    lost = replay.sample("table", 300)
    shards[1].service = None
    for _ in range(20):
        sample = replay.sample("table", 64)
        assert len(sample) == 64
        rows = sample.data["reward"][0]
        assert set(rows // 1000) <= {0, 2}
        np.testing.assert_allclose(sample.probabilities, (rows // 1000 + 1) / (40 + 120))
        assert sample.table_size == 80
    applied = replay.update_priorities("table", lost.keys, np.ones(300))
    assert applied == int((lost.data["reward"][0] // 1000 != 1).sum())
    info = replay.info()["table"]
    assert (info["size"], info["shards"], info["dead_shards"]) == (80, 2, 1)
    writers[1].append({"reward": np.full((5, 1), 5000.0)})
    assert replay.info()["table"]["size"] == 85, "its writers go on with another one"


def test_the_items_of_a_dead_shard_are_lost_once_however_often_it_is_asked_again() -> None:
    shards, _, _ = make(2)
    replay = ShardedReplay(shards, retry_seconds=0.0)
    replay.sample("table", 8)
    shards[0].service = None
    calls = shards[0].calls
    assert [replay.info()["table"]["lost_items"] for _ in range(3)] == [40, 40, 40]
    assert shards[0].calls == calls + 3


def test_a_shard_that_dies_in_the_middle_of_a_batch_is_made_up_for() -> None:
    shards, replay, _ = make(3)
    real = shards[1].service
    assert real is not None
    asked = []

    class Dying:
        def mass(self, table: str, wait: float = 0.0) -> Any:
            return real.mass(table, wait)

        def sample(self, *args: Any, **kwargs: Any) -> Any:
            asked.append(args)
            raise ConnectionError("died while sampling")

    shards[1].service = Dying()  # type: ignore[assignment]
    sample = replay.sample("table", 64)
    assert asked
    assert len(sample) == 64
    assert set(sample.data["reward"][0] // 1000) <= {0, 2}


def test_a_shard_that_comes_back_is_used_again() -> None:
    shards, _, writers = make(2)
    replay = ShardedReplay(shards, retry_seconds=0.0)
    shards[0].service = None
    replay.sample("table", 32)
    shards[0].service = Replay([shards[0].table])
    assert replay.info()["table"]["shards"] == 2
    writers[0]._replay = replay
    replay._home = 0
    result = writers[0].append({"reward": np.arange(40.0, 50.0)[:, None]})
    assert result.accepted == {"table": 10}
    assert replay.sample("table", 32).table_size == 50


def test_when_nobody_answers_one_sentence_says_so() -> None:
    shards, replay, writers = make(2)
    for shard in shards:
        shard.service = None
    for call in (
        lambda: replay.sample("table", 4),
        lambda: replay.info(),
        lambda: writers[0].append({"reward": np.zeros((1, 1))}),
    ):
        with pytest.raises(ReplayClosed, match="none of the 2 replay shards answers"):
            call()
    with pytest.raises(ValueError, match="at least one shard"):
        ShardedReplay([])


def test_queues_are_read_shard_by_shard_and_nothing_is_lost() -> None:
    services = [Replay([Table.queue("table", 8)]) for _ in range(3)]
    replay = ShardedReplay(services)

    def write(index: int) -> None:
        writer = Writer(ShardedReplay(services, home=index), {"table": Single()})
        for first in range(0, 60, 4):
            writer.append({"reward": 1000.0 * index + np.arange(first, first + 4.0)[:, None]})

    threads = [threading.Thread(target=write, args=(index,)) for index in range(3)]
    for thread in threads:
        thread.start()
    got = [replay.sample("table", 4, timeout=20).data["reward"][0] for _ in range(45)]
    for thread in threads:
        thread.join(10)
    assert sorted(np.concatenate(got)) == [1000.0 * index + row for index in range(3) for row in range(60)]
    with pytest.raises(ReplayTimeout):
        replay.sample("table", 1, timeout=0.3)


def test_an_empty_table_is_waited_for() -> None:
    services = [Replay([Table("table", 100)]) for _ in range(2)]
    replay = ShardedReplay(services)
    with pytest.raises(ReplayTimeout, match="empty on all 2 shards"):
        replay.sample("table", 4, timeout=0.1)
    got: list[int] = []
    reader = threading.Thread(target=lambda: got.append(len(replay.sample("table", 4, timeout=20))))
    reader.start()
    Writer(ShardedReplay(services, home=1), {"table": Single()}).append({"reward": np.zeros((9, 1))})
    reader.join(20)
    assert got == [4]


def test_a_batch_may_be_larger_than_what_one_shard_allows_at_once() -> None:
    table = Table("table", 100, limiter=SamplesPerInsert(1.0, 2, 20.0))
    _, replay, _ = make(2, table, each=20)
    assert len(replay.sample("table", 24)) == 24
    _, replay, _ = make(3, Table("table", 10), each=10)
    assert len(replay.sample("table", 29)) == 29


def test_checkpoints_are_kept_per_shard(tmp_path: Path) -> None:
    _, replay, _ = make(3)
    report = replay.save(tmp_path)
    assert report["bytes"] > 0
    other = ShardedReplay([Replay([Table("table", 500, sampler=Prioritized(1.0))], seed=9) for _ in range(3)])
    other.load(tmp_path)
    assert other.info()["table"]["size"] == 120
    assert other.info()["table"]["times_sampled_histogram"] == [120]
    one, two = replay.sample("table", 50), other.sample("table", 50)
    np.testing.assert_array_equal(one.keys, two.keys)
    other.close()
    with pytest.raises(ReplayClosed):
        other.sample("table", 1)


def test_numbers_of_shards_are_sums_largest_ages_and_means_over_all_items() -> None:
    parts = [
        {"size": 10, "inserts": 11, "age_mean": 1.0, "age_max": 9, "age_histogram": [10]},
        {"size": 30, "inserts": 33, "age_mean": 5.0, "age_max": 7, "age_histogram": [10, 20]},
        {"size": 0, "inserts": 2},  # an empty one has no ages
    ]
    assert _merge(parts) == {"size": 40, "inserts": 46, "age_mean": 4.0, "age_max": 9, "age_histogram": [20, 20]}
