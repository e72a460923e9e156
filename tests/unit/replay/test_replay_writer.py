"""Writers: retries, restarts, priorities and what is kept where."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path

import numpy as np
import pytest
from replay_model import Single, audit
from replay_streams import make_stream

from shoal.replay import (
    Block,
    Inserted,
    Prioritized,
    Quota,
    Replay,
    ReplayTimeout,
    Table,
    Writer,
    n_step,
    rollout,
    sequence,
)
from shoal.replay.extras import stack


def rows(first: int, count: int, environments: int = 2, **more: np.ndarray) -> dict[str, np.ndarray]:
    step = np.arange(first, first + count, dtype=np.float64)[:, None] + np.zeros((1, environments))
    return {"reward": step, **more}


class Flaky:
    """A connection that loses answers, or calls, every now and then."""

    def __init__(self, replay: Replay, seed: int) -> None:
        self.replay = replay
        self.generator = np.random.default_rng(seed)

    def insert(self, block: Block, timeout: float | None = None) -> Inserted:
        chance = self.generator.random()
        if chance < 0.2:
            raise ConnectionError("the call was lost")
        result = self.replay.insert(block, timeout)
        if chance < 0.4:
            raise ConnectionError("the answer was lost")
        return result

    def forget_writer(self, name: str) -> None:
        self.replay.forget_writer(name)


def test_a_retried_call_never_doubles_or_loses_data() -> None:
    replay = Replay([Table.queue("table", 10_000)])
    writer = Writer(Flaky(replay, 0), {"table": Single(3)})
    for first in range(0, 200, 5):
        try:
            writer.append(rows(first, 5))
        except ConnectionError:
            while True:
                try:
                    writer.flush()
                    break
                except ConnectionError:
                    pass
    sample = replay.sample("table", 396)
    expected = sorted(list(range(2, 200)) * 2)
    assert sorted(sample.data["reward"][-1].tolist()) == expected
    assert replay.info()["table"]["size"] == 0
    audit(replay)


def test_a_call_that_is_repeated_after_its_answer_does_nothing() -> None:
    replay = Replay([Table("table", 100)])
    sent: list[Block] = []

    class Tap(Flaky):
        def insert(self, block: Block, timeout: float | None = None) -> Inserted:
            sent.append(block)
            return self.replay.insert(block, timeout)

    writer = Writer(Tap(replay, 0), {"table": Single()})
    writer.append(rows(0, 5))
    writer.append(rows(5, 5))
    for block in sent:
        assert replay.insert(block).repeated
    assert replay.info()["table"]["inserts"] == 20


def test_a_writers_arrays_may_be_used_again_after_a_failed_call() -> None:
    replay = Replay([Table.queue("table", 100)])
    flaky = Flaky(replay, 0)
    flaky.insert = lambda block, timeout=None: (_ for _ in ()).throw(ConnectionError())  # type: ignore[method-assign]
    writer = Writer(flaky, {"table": Single()})
    columns = rows(0, 3)
    with pytest.raises(ConnectionError):
        writer.append(columns)
    columns["reward"][:] = -1
    writer._replay = replay
    writer.flush()
    assert replay.sample("table", 6).data["reward"][0].tolist() == [0, 0, 1, 1, 2, 2]


def test_rows_lost_with_a_service_cost_only_the_items_that_need_them() -> None:
    table = Table.queue("table", 100)
    first, second = Replay([table]), Replay([table])
    writer = Writer(first, {"table": Single(4)})
    writer.append(rows(0, 10))
    writer._replay = second  # restarted, without what it held
    result = writer.append(rows(10, 10))
    assert result.refused == {"table": 6}  # three items per environment begin before row 10
    assert result.accepted == {"table": 14}
    assert second.info()["table"]["refused"] == 6
    data = second.sample("table", 14).data["reward"]
    assert data[0].min() == 10
    np.testing.assert_array_equal(data, data[0] + np.arange(4)[:, None])
    audit(second)


def test_a_service_has_the_newest_of_a_writer_only_where_all_of_it_is_there() -> None:
    table = Table.queue("table", 100)
    first, second = Replay([table]), Replay([table])
    writer = Writer(first, {"table": Single(4)})
    writer.append(rows(0, 10))
    assert first.has_newest(writer.name, writer.life)
    assert not first.has_newest(writer.name, "another life")
    assert not second.has_newest(writer.name, writer.life)
    writer._replay = second  # restarted, without what it held
    writer.append(rows(10, 10))
    assert not second.has_newest(writer.name, writer.life), "the first items begin in rows that were lost"
    writer.append(rows(20, 10))
    assert second.has_newest(writer.name, writer.life)


def test_a_new_life_of_a_writer_drops_what_was_kept_for_the_old_one() -> None:
    replay = Replay([Table("table", 4)], chunk_length=8)
    for _ in range(50):
        Writer(replay, {"table": Single()}, name="actor").append(rows(0, 8))
    (store,) = replay._intake.stores.values()
    assert store.used <= 8
    ended = replay._intake.ended["actor"][-1]
    late = Block("actor", ended, 99, 0, 1, rows(0, 1), {})
    assert replay.insert(late).repeated, "a late call of an earlier life is ignored"
    audit(replay)


def test_a_new_life_is_taken_in_whatever_the_clock_says_and_what_is_dropped_is_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A restart on a machine whose clock lags, or after a step back, is a new life like any other."""
    replay = Replay([Table("table", 100)])
    now = 10**18
    for clock in ("time", "time_ns", "monotonic_ns", "perf_counter_ns"):
        monkeypatch.setattr(time, clock, lambda: now)
    old = Writer(replay, {"table": Single()}, name="actor")
    assert old.append(rows(0, 5, 1)).accepted == {"table": 5}
    now -= 10**15
    new = Writer(replay, {"table": Single()}, name="actor")
    for _ in range(3):
        assert new.append(rows(0, 5, 1)).accepted == {"table": 5}
    assert replay.info()["table"]["repeated"] == 0
    assert old.append(rows(5, 4, 1)).repeated, "its life has ended"
    assert new.append(rows(0, 5, 1)).accepted == {"table": 5}, "and ends nobody else's"
    info = replay.info()["table"]
    assert (info["inserts"], info["repeated"]) == (25, 4)


def test_a_resumed_writer_is_a_new_life_of_a_saved_one(tmp_path: Path) -> None:
    """Its numbers begin at 0 again, and those of the run before were higher."""
    replay = Replay([Table("table", 100)])
    before = Writer(replay, {"table": Single()}, name="actor")
    for _ in range(4):
        before.append(rows(0, 5, 1))
    Writer(replay, {"table": Single()}, name="actor").append(rows(0, 5, 1))
    replay.save(tmp_path)
    resumed = Replay([Table("table", 100)])
    resumed.load(tmp_path)
    assert Writer(resumed, {"table": Single()}, name="actor").append(rows(0, 5, 1)).accepted == {"table": 5}
    before._replay = resumed
    assert before.append(rows(0, 3, 1)).repeated, "which lives have ended is part of a save"
    assert resumed.info()["table"]["repeated"] == 3


def test_closing_a_writer_gives_its_rows_back() -> None:
    replay = Replay([Table.queue("table", 1000)], chunk_length=8)
    for _ in range(20):
        writer = Writer(replay, {"table": rollout(3)})
        writer.append(rows(0, 7))
        replay.sample("table", 4)
        writer.close()
    (store,) = replay._intake.stores.values()
    assert store.used == 0


def test_an_unknown_writer_may_be_forgotten() -> None:
    Replay([Table("table", 4)]).forget_writer("nobody")


@pytest.mark.parametrize(
    "pattern", [n_step(3, 0.9), n_step(1, 0.9), sequence(5, period=2, burn_in=2), rollout(4)], ids=str
)
def test_a_priority_function_sees_what_a_sample_will_give(pattern) -> None:
    stream = make_stream(1, 80, 3, 15)
    names = ("observation", "action", "extra")
    stream.columns["extra"] = np.random.default_rng(0).random((80, 3))
    stored = ("observation", "action")
    seen: list[dict[str, np.ndarray]] = []

    def priority(data: dict[str, np.ndarray]) -> np.ndarray:
        seen.append(data)
        count = data["observation"].shape[1] if pattern.view.timed else len(data["observation"])
        return np.arange(1.0, count + 1)

    replay = Replay([Table.queue("table", 1000)])
    writer = Writer(replay, {"table": pattern}, priority_columns=names, transient=["extra"])
    given = []
    for block in stream.blocks(np.random.default_rng(2), 20):
        before = len(seen)
        writer.append(block, priority)
        for data in seen[before:]:
            count = data["observation"].shape[1 if pattern.view.timed else 0]
            given += list(range(1, count + 1))
    sample = replay.sample("table", 1000, minimum=1)
    assert "extra" not in sample.data
    assert all("extra" in data for data in seen)
    assert sample.priorities.tolist() == given
    axis = 1 if pattern.view.timed else 0
    for name in (*stored, "reward"):
        np.testing.assert_array_equal(np.concatenate([data[name] for data in seen], axis), sample.data[name])


def test_several_tables_share_the_same_rows() -> None:
    replay = Replay([Table("steps", 1000), Table("sequences", 100), Table.queue("rollouts", 100)], chunk_length=32)
    stream = make_stream(0, 64, 2, 30)
    writer = Writer(replay, {"steps": n_step(2, 0.9), "sequences": sequence(8), "rollouts": rollout(7)})
    writer.append(stream.columns, {"steps": 2.0, "sequences": 3.0})
    (store,) = replay._intake.stores.values()
    assert store.used == 4
    assert replay.sample("steps", 5).priorities.tolist() == [2.0] * 5
    assert replay.sample("sequences", 5).priorities.tolist() == [3.0] * 5
    assert replay.sample("rollouts", 5).priorities.tolist() == [1.0] * 5
    audit(replay)


def test_tables_with_other_columns_have_rows_of_their_own() -> None:
    replay = Replay([Table("one", 10), Table("two", 10)])
    Writer(replay, {"one": Single()}).append(rows(0, 3))
    Writer(replay, {"two": Single()}).append({"reward": np.zeros((3, 1), np.int8)})
    assert len(replay._intake.stores) == 2
    assert replay.sample("two", 1).data["reward"].dtype == np.int8
    with pytest.raises(ValueError, match="'reward' is int8; table 'one' has float64"):
        Writer(replay, {"one": Single()}).append({"reward": np.zeros((3, 1), np.int8)})


def test_dtypes_and_shapes_are_kept_exactly() -> None:
    kinds = {
        "frame": np.uint8,
        "half": np.float16,
        "flag": np.bool_,
        "double/deep/er": np.float64,
        "complex": np.complex64,
        "time": "datetime64[s]",
        "big": ">i4",
    }
    generator = np.random.default_rng(0)
    columns = {name: generator.integers(0, 100, (6, 2, 3, 2)).astype(kind) for name, kind in kinds.items()}
    columns["nothing"] = np.zeros((6, 2, 0), np.float32)
    columns["wide"] = generator.random((6, 2, 4)).astype(np.float32)
    replay = Replay([Table.queue("table", 100)])
    Writer(replay, {"table": rollout(5)}).append(columns)
    data = replay.sample("table", 2).data
    for name, values in columns.items():
        assert data[name].dtype == values.dtype
        np.testing.assert_array_equal(data[name], values)


def test_received_arrays_may_be_read_only_and_are_copied() -> None:
    columns = rows(0, 4)
    columns["reward"].flags.writeable = False
    replay = Replay([Table.queue("table", 100)])
    Writer(replay, {"table": Single()}).append(columns)
    columns["reward"].flags.writeable = True
    columns["reward"][:] = -1
    assert (replay.sample("table", 8).data["reward"] >= 0).all()


def test_a_quota_takes_each_writer_once_per_version() -> None:
    replay = Replay([Table.quota("rollouts", 4)])
    writers = [Writer(replay, {"rollouts": rollout(2)}, name=f"actor {index}") for index in range(3)]

    def send(writer: Writer, first: int, count: int, version: int) -> Inserted:
        return writer.append(rows(first, count, version=np.full((count, 2), version, np.int32)))

    assert send(writers[0], 0, 3, 7).accepted == {"rollouts": 2}
    assert send(writers[0], 3, 2, 7).refused == {"rollouts": 2}, "a second time with the same version"
    with pytest.raises(ReplayTimeout, match="2 of 4 items of version 7 have come, from 1 writers"):
        replay.sample("rollouts", 4, timeout=0)
    assert send(writers[1], 0, 3, 7).accepted == {"rollouts": 2}
    assert send(writers[2], 0, 3, 7).refused == {"rollouts": 2}, "the round is complete"
    assert set(replay.sample("rollouts", 4).data["version"].ravel()) == {7}
    assert send(writers[2], 3, 2, 6).refused == {"rollouts": 2}, "an older version"
    assert send(writers[2], 5, 2, 8).accepted == {"rollouts": 2}
    assert send(writers[1], 3, 2, 9).accepted == {"rollouts": 2}, "a newer version opens a new round"
    assert replay.info()["rollouts"]["size"] == 2
    assert replay.info()["rollouts"]["refused"] == 6


def test_descriptions_are_picklable_and_say_what_they_are() -> None:
    import pickle

    tables = [
        Table("a", 10, sampler=Prioritized(0.5), signature={"reward": ((), "f4")}),
        Table.queue("b", 3),
        stack("c", 3),
        Table("d", 5, limiter=Quota(5), max_times_sampled=1),
    ]
    for table in tables:
        assert pickle.loads(pickle.dumps(table)) == table
    assert "Prioritized(exponent=0.5)" in repr(tables[0])
    assert dataclasses.replace(tables[0], capacity=11).capacity == 11
    for pattern in (n_step(2, 0.9, stack={"frame": 4}), rollout(3), sequence(4)):
        assert pickle.loads(pickle.dumps(pattern)) == pattern
