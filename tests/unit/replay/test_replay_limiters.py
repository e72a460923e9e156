"""Limiters hold with many writers and readers at once, and say what they wait for."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from replay_model import Single, audit

from shoal.replay import (
    MinSize,
    Prioritized,
    Queue,
    Quota,
    Replay,
    ReplayClosed,
    ReplayTimeout,
    SamplesPerInsert,
    Table,
    Writer,
    n_step,
)
from shoal.replay.extras import Extension, stack
from shoal.replay.limiters import Counts


def rows(first: int, count: int, environments: int = 1) -> dict[str, np.ndarray]:
    return {"reward": np.arange(first, first + count, dtype=np.float64)[:, None] + np.zeros((1, environments))}


class Watch(Extension):
    """Checks a law after every insert and sample, with the lock held."""

    def __init__(self, law) -> None:
        self.law = law
        self.inserts = 0
        self.samples = 0
        self.deletes = 0
        self.broken: list[str] = []

    def _check(self) -> None:
        if not self.law(self.inserts, self.samples, self.inserts - self.deletes):
            self.broken.append(f"{self.inserts} inserts, {self.samples} samples, {self.deletes} deletes")

    def inserted(self, table, keys, priorities) -> None:
        self.inserts += len(keys)
        self._check()

    def sampled(self, table, keys) -> None:
        self.samples += len(keys)
        self._check()

    def deleted(self, table, keys) -> None:
        self.deletes += len(keys)


def run(table: Table, law, *, writers: int, readers: int, blocks: int, batch: int) -> tuple[Replay, list[np.ndarray]]:
    """Writers insert all they have; readers read until they are closed."""
    watch = Watch(law)
    replay = Replay([table], extensions=[watch])
    batches: list[np.ndarray] = []

    def write(name: str) -> None:
        writer = Writer(replay, {table.name: Single()}, name=name)
        for block in range(blocks):
            writer.append(rows(block * 7, 7))
        writer.close()

    def read() -> None:
        try:
            while True:
                sample = replay.sample(table.name, batch, minimum=1)
                batches.append(sample.data["reward"][0])
        except ReplayClosed:
            pass

    writing = [threading.Thread(target=write, args=(f"writer {index}",)) for index in range(writers)]
    reading = [threading.Thread(target=read) for _ in range(readers)]
    for thread in writing + reading:
        thread.start()
    for thread in writing:
        thread.join(60)
        assert not thread.is_alive(), "a writer hangs"
    if not isinstance(table.limiter, MinSize):  # else there is no end to what can be read
        with replay._changed:
            assert replay._wait_until(lambda: replay._tables[table.name].sampleable(1) == 0, 30, "the test", [])
    replay.close()
    for thread in reading:
        thread.join(60)
        assert not thread.is_alive(), "a reader hangs"
    assert not watch.broken, watch.broken[:3]
    audit(replay)
    return replay, batches


def test_samples_per_insert_stays_within_its_error_under_concurrency() -> None:
    limiter = SamplesPerInsert(3.0, 10, 20.0)

    def law(inserts: int, samples: int, size: int) -> bool:
        ahead = (inserts - 10) * 3.0 - samples
        return (samples == 0 and inserts <= 10) or abs(ahead) <= 20.0

    table = Table("table", 5000, limiter=limiter)
    replay, _ = run(table, law, writers=4, readers=3, blocks=40, batch=16)
    info = replay.info()["table"]
    assert info["inserts"] == 4 * 40 * 7
    assert abs((info["inserts"] - 10) * 3.0 - info["samples"]) <= 20.0


@pytest.mark.parametrize("make", [Table.queue, stack])
def test_a_queue_is_never_over_full_and_gives_everything_exactly_once(make) -> None:
    table = make("table", 9)
    _, batches = run(table, lambda inserts, samples, size: size <= 9, writers=4, readers=3, blocks=40, batch=5)
    values, counts = np.unique(np.concatenate(batches), return_counts=True)
    assert values.tolist() == list(range(280))
    assert (counts == 4).all()


def test_a_queue_is_read_in_the_order_it_was_filled() -> None:
    _, batches = run(Table.queue("table", 9), lambda *_: True, writers=1, readers=1, blocks=40, batch=5)
    assert np.concatenate(batches).tolist() == list(range(280))


def test_a_minimum_size_is_waited_for() -> None:
    table = Table("table", 1000, limiter=MinSize(50))
    run(table, lambda inserts, samples, size: samples == 0 or size >= 50, writers=3, readers=2, blocks=10, batch=8)


def test_a_batch_is_admitted_up_to_the_largest_prefix() -> None:
    replay = Replay([Table("table", 100, limiter=SamplesPerInsert(1.0, 5, 3.0))])
    writer = Writer(replay, {"table": Single()})
    with pytest.raises(ReplayTimeout):
        writer.append(rows(0, 20), timeout=0)
    assert replay.info()["table"]["size"] == 8
    assert len(replay.sample("table", 50, minimum=1)) == 6
    with pytest.raises(ReplayTimeout):
        writer.flush(timeout=0)
    assert replay.info()["table"]["size"] == 14


def test_what_is_held_of_a_block_comes_in_together_or_when_a_reader_waits() -> None:
    """Every sample allows one item more: to wake the writer each time costs more than the items."""
    replay = Replay([Table("table", 100, limiter=SamplesPerInsert(1.0, 1, 5.0))])
    writer = Writer(replay, {"table": Single()})

    def size() -> int:
        time.sleep(0.05)
        return int(replay.info()["table"]["size"])

    with ThreadPoolExecutor(2) as threads:
        inserting = threads.submit(writer.append, rows(0, 14))
        assert size() == 6
        for _ in range(7):
            replay.sample("table", 1)
        assert size() == 6, "seven of the eight that are held would be allowed"
        replay.sample("table", 1)
        inserting.result(5.0)
        assert size() == 14
        inserting = threads.submit(writer.append, rows(14, 14))
        assert size() == 14
        reading = threads.submit(replay.sample, "table", 9)
        reading.result(5.0)
        replay.sample("table", 9)
        inserting.result(5.0)
    assert size() == 28


def test_a_timeout_says_who_waits_for_what_and_counts_as_a_wait() -> None:
    replay = Replay([Table("table", 100, limiter=SamplesPerInsert(2.0, 5, 4.0))])
    with pytest.raises(
        ReplayTimeout, match=r"^after 0.02 s a reader waits for 3 items of table 'table', where it holds 0"
    ):
        replay.sample("table", 3, timeout=0.02)
    writer = Writer(replay, {"table": Single()}, name="bob")
    with pytest.raises(ReplayTimeout, match=r"writer 'bob' waits to insert 13 items.*4.0 samples ahead"):
        writer.append(rows(0, 20), timeout=0.02)
    info = replay.info()["table"]
    assert (info["sample_waits"], info["insert_waits"]) == (1, 1)
    assert info["sample_wait_seconds"] >= 0.02
    assert info["insert_waiting"] == 0


def test_a_batch_that_can_never_be_admitted_is_refused_at_once() -> None:
    tables = [
        Table("ratio", 100, limiter=SamplesPerInsert(2.0, 5, 4.0)),
        Table.queue("queue", 8),
        Table("quota", 10, limiter=Quota(6), max_times_sampled=2),
        Table("plain", 10),
    ]
    replay = Replay(tables)
    for name, most in (("ratio", 6), ("queue", 8), ("quota", 12), ("plain", 10)):
        with pytest.raises(ValueError, match=f"can never come from table '{name}', which gives at most {most} at once"):
            replay.sample(name, most + 1, timeout=0)
        with pytest.raises(ReplayTimeout):
            replay.sample(name, most, timeout=0)
        with pytest.raises(ReplayTimeout):
            replay.sample(name, most + 1, minimum=1, timeout=0)


def test_descriptions_that_cannot_work_are_refused() -> None:
    for make, words in (
        (lambda: MinSize(0), "items of MinSize=0 must be"),
        (lambda: Queue(0), "size of Queue=0 must be"),
        (lambda: Quota(0), "items of Quota=0 must be"),
        (lambda: SamplesPerInsert(0.0, 1, 5.0), "ratio of SamplesPerInsert=0.0 must be"),
        (lambda: SamplesPerInsert(8.0, 1, 5.0), "error_buffer of at least"),
        (lambda: Prioritized(-1.0), "exponent of Prioritized=-1.0 must be"),
        (lambda: Table("", 1), "needs a name"),
        (lambda: Table("t", 0), "capacity of table 't'=0 must be"),
        (lambda: Table("t", 1, max_times_sampled=-1), "max_times_sampled of table"),
        (lambda: Table("t", 1, soft_capacity=-0.1), "soft_capacity=-0.1"),
        (lambda: Table("t", 1, limiter=Queue(5)), "set max_times_sampled"),
        (lambda: Table("t", 10, limiter=MinSize(11)), "can never be sampled"),
        (lambda: Replay([]), "one or more tables"),
        (lambda: Replay([Table("t", 1), Table("t", 2)]), "different names"),
        (lambda: Replay([Table("t", 1)], chunk_length=0), "chunk_length=0"),
        (lambda: Writer(Replay([Table("t", 1)]), {}), "at least one table"),
    ):
        with pytest.raises(ValueError, match=words):
            make()


def test_closing_one_table_wakes_its_waiters_and_leaves_the_others() -> None:
    replay = Replay([Table.queue("one", 2), Table.queue("two", 2)])
    outcomes: list[str] = []

    def read() -> None:
        try:
            replay.sample("one", 1)
        except ReplayClosed as error:
            outcomes.append(str(error))

    def write() -> None:
        try:
            Writer(replay, {"one": Single()}).append(rows(0, 5))
        except ReplayClosed as error:
            outcomes.append(str(error))

    for work in (read, write):
        replay = Replay([Table.queue("one", 2), Table.queue("two", 2)])
        thread = threading.Thread(target=work)
        thread.start()
        while not any(replay.info()["one"][f"{side}_waiting"] for side in ("insert", "sample")):
            pass
        replay.close("one")
        thread.join(10)
        assert not thread.is_alive()
        assert outcomes.pop() == "table 'one' of the replay service is closed"
        with pytest.raises(ReplayClosed):
            replay.sample("one", 1)
        with pytest.raises(ReplayClosed):
            replay.update_priorities("one", np.array([1]), np.array([1.0]))
        Writer(replay, {"two": Single()}).append(rows(0, 2))
        assert replay.sample("two", 1).data["reward"].tolist() == [[0.0]]
        audit(replay)


def test_readers_and_writers_at_once_never_see_rows_of_others() -> None:
    """Items are evicted and rows used again while batches are gathered: every row must be the one it should be."""
    replay = Replay([Table("table", 300, sampler=Prioritized(0.6)), Table.queue("queue", 40)], chunk_length=8)
    stop = threading.Event()
    failures: list[str] = []

    def write(name: str, number: int) -> None:
        writer = Writer(replay, {"table": Single(5), "queue": n_step(2, 0.5)}, name=name)
        first = 0
        while not stop.is_set():
            count = 1 + first % 13
            step = np.arange(first, first + count, dtype=np.int64)[:, None] + np.zeros((1, 4), np.int64)
            stamp = step * 100 + number * 10 + np.arange(4)
            frame = np.repeat(stamp[..., None], 300, axis=2)
            columns = {"stamp": stamp, "observation": frame, "reward": stamp.astype(np.float64)}
            columns["terminated"] = np.zeros(stamp.shape, bool)
            try:
                writer.append(columns)
            except ReplayClosed:
                return
            first += count

    def read(table: str) -> None:
        generator = np.random.default_rng(0)
        while True:
            try:
                sample = replay.sample(table, 16)
                if table == "table":
                    replay.update_priorities(table, sample.keys, generator.random(16))
            except ReplayClosed:
                return
            data = sample.data
            if table == "table":
                good = (data["observation"] == data["stamp"][..., None]).all()
                good &= (np.diff(data["stamp"], axis=0) == 100).all()
            else:
                good = (data["observation"] == data["stamp"][..., None]).all()
                good &= (data["next_observation"] == data["stamp"][..., None] + 200).all()
                good &= np.allclose(data["reward"], data["stamp"] * 1.5 + 50)
            if not good:
                failures.append(f"{table}: {data['stamp']}")
                return

    threads = [threading.Thread(target=write, args=(f"writer {number}", number)) for number in range(3)]
    threads += [threading.Thread(target=read, args=(name,)) for name in ("table", "table", "queue")]
    for thread in threads:
        thread.start()
    stop.wait(3)
    stop.set()
    replay.close()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    assert not failures
    assert replay.info()["table"]["inserts"] > 1000
    audit(replay)


def test_sampling_begins_with_exactly_as_many_items_as_were_asked_for() -> None:
    limiter = MinSize(5)
    assert [limiter.sampleable(Counts(size=size), 3) for size in (4, 5, 6)] == [0, 3, 3]


def test_inserting_may_always_fill_up_to_what_sampling_needs() -> None:
    """After items were removed a ratio alone would hold back what sampling waits for."""
    limiter = SamplesPerInsert(1.0, 10, 5.0)
    counts = Counts(size=4, inserts=30, samples=10)
    assert limiter.insertable(counts, 20) == 6
    assert limiter.insertable(Counts(size=10, inserts=30, samples=10), 20) == 0
