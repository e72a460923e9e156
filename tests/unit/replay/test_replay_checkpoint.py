"""Checkpoints: complete, verified, and everything is as it was."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from replay_model import SELECTORS, Single, audit
from replay_streams import make_stream

from shoal.replay import (
    BadCheckpoint,
    MinSize,
    Prioritized,
    Queue,
    Quota,
    Replay,
    SamplesPerInsert,
    Table,
    Uniform,
    Writer,
    n_step,
    rollout,
    sequence,
)
from shoal.replay.extras import Lifo, MinHeap

TABLES = [
    Table("steps", 300, sampler=Prioritized(0.6)),
    Table("sequences", 40, sampler=Uniform(), remover=Uniform(), limiter=SamplesPerInsert(2.0, 3, 5000.0)),
    Table("extremes", 60, sampler=MinHeap(), remover=Lifo(), soft_capacity=0.5),
    Table.queue("rollouts", 500),
    Table("round", 20, limiter=Quota(4), max_times_sampled=100),
    Table("unused", 5),
]


def fill(replay: Replay, seed: int = 0, rows: int = 200, name: str | None = None) -> Writer:
    stream = make_stream(seed, rows, 4, 30)
    stream.columns["version"] = np.full((rows, 4), 1, np.int32)
    patterns = {
        "steps": n_step(3, 0.9, stack={"frame": 3}),
        "sequences": sequence(10, period=5, burn_in=2),
        "extremes": Single(2),
        "rollouts": rollout(7),
        "round": rollout(50),
    }
    writer = Writer(replay, patterns, name=name, priority_columns=["observation"])
    generator = np.random.default_rng(seed)
    for block in stream.blocks(generator, 30):
        writer.append(block, lambda data: generator.random(data["reward"].shape[-1]))
    return writer


def use(replay: Replay, steps: int = 6) -> list[np.ndarray]:
    """Everything that sampling and updating gives from here on."""
    seen: list[np.ndarray] = []
    generator = np.random.default_rng(9)
    for _ in range(steps):
        for name, batch in (("steps", 32), ("sequences", 8), ("extremes", 4), ("rollouts", 5), ("round", 4)):
            sample = replay.sample(name, batch, minimum=1, timeout=5)
            seen += [sample.keys, sample.probabilities, sample.priorities, sample.times_sampled]
            seen += [sample.data[column] for column in sorted(sample.data)]
            replay.update_priorities(name, sample.keys, generator.random(len(sample)))
    return seen


def same(one: list[np.ndarray], other: list[np.ndarray]) -> None:
    assert len(one) == len(other)
    for left, right in zip(one, other):
        np.testing.assert_array_equal(left, right)
        assert left.dtype == right.dtype


def numbers(replay: Replay) -> dict[str, dict[str, object]]:
    names = ("size", "inserts", "samples", "deletes", "refused", "stale_updates", "times_sampled_mean")
    return {table: {name: info.get(name) for name in names} for table, info in replay.info().items()}


@pytest.mark.parametrize("chunk_length", [64, 4])
def test_a_loaded_service_goes_on_exactly_as_the_saved_one(tmp_path: Path, chunk_length: int) -> None:
    replay = Replay(TABLES, chunk_length=chunk_length)
    fill(replay)
    use(replay, 2)
    report = replay.save(tmp_path / "save")
    assert report["bytes"] > 0
    assert 0 <= report["pause_seconds"] <= report["seconds"]
    loaded = Replay(TABLES, chunk_length=chunk_length, seed=77)
    loaded.load(tmp_path / "save")
    assert numbers(loaded) == numbers(replay)
    audit(loaded)
    same(use(loaded), use(replay))
    assert numbers(loaded) == numbers(replay)
    fill(replay, 1, name="late")
    fill(loaded, 1, name="late")
    same(use(loaded, 3), use(replay, 3))
    audit(loaded)


@pytest.mark.parametrize("sampler", SELECTORS, ids=str)
@pytest.mark.parametrize("remover", SELECTORS, ids=str)
def test_every_selector_is_restored(tmp_path: Path, sampler, remover) -> None:
    table = Table("table", 50, sampler=sampler, remover=remover)
    pair = [Replay([table]), Replay([table])]
    writer = Writer(pair[0], {"table": Single()}, priority_columns=["reward"])
    generator = np.random.default_rng(0)
    for first in range(0, 120, 8):
        rows = np.arange(first, first + 8.0)[:, None]
        writer.append({"reward": rows}, lambda data: np.round(generator.random(8), 1))
    pair[0].save(tmp_path)
    pair[1].load(tmp_path)
    for _ in range(5):
        first, second = (replay.sample("table", 9) for replay in pair)
        same([first.keys, first.data["reward"]], [second.keys, second.data["reward"]])
        for replay in pair:
            replay.update_priorities("table", first.keys, first.keys % 7 / 7)
            Writer(replay, {"table": Single()}, name="x").append({"reward": np.ones((6, 1))})
    assert numbers(pair[0]) == numbers(pair[1])
    for replay in pair:
        audit(replay)


LIMITERS = [MinSize(5), SamplesPerInsert(1.0, 5, 100.0), Queue(60), Quota(40)]


@pytest.mark.parametrize("sampler", SELECTORS, ids=str)
@pytest.mark.parametrize("limiter", LIMITERS, ids=str)
def test_a_hundred_samples_are_those_that_an_uninterrupted_service_would_have_given(
    tmp_path: Path, sampler, limiter
) -> None:
    """Between them items are inserted and priorities change; a queue's items are used up, a quota takes no more."""
    times = 1 if isinstance(limiter, Queue) else 30
    table = Table("table", 100, sampler=sampler, limiter=limiter, max_times_sampled=times)
    going, loaded = Replay([table], seed=3), Replay([table], seed=8)

    def go_on(replay: Replay, first: int, samples: int) -> list[np.ndarray]:
        seen: list[np.ndarray] = []
        generator = np.random.default_rng(first)
        writer = Writer(replay, {"table": Single()}, name=f"writer {first}", priority_columns=["reward"])
        for number in range(first, first + samples):
            if number % 4 == 0:
                rows = 12 if number else 40
                block = {"reward": np.arange(float(rows))[:, None] + 40 * number, "version": np.zeros((rows, 1), int)}
                writer.append(block, lambda data: generator.random(data["reward"].size), timeout=0.5)
            sample = replay.sample("table", 3, timeout=0.5)
            seen += [sample.keys, sample.probabilities, sample.times_sampled, sample.data["reward"]]
            replay.update_priorities("table", sample.keys, generator.random(len(sample)))
        return seen

    go_on(going, 0, 20)
    going.save(tmp_path)
    loaded.load(tmp_path)
    same(go_on(loaded, 20, 100), go_on(going, 20, 100))
    assert numbers(loaded) == numbers(going)


def test_a_second_save_writes_only_what_is_new(tmp_path: Path) -> None:
    replay = Replay([Table("table", 20_000)], chunk_length=64)
    writer = Writer(replay, {"table": Single()})
    generator = np.random.default_rng(0)

    def append(count: int) -> None:
        for _ in range(count):
            writer.append({"frame": generator.integers(0, 255, (64, 4, 200), dtype=np.uint8)})

    append(60)
    sizes = [replay.save(tmp_path)["bytes"]]
    append(3)
    sizes.append(replay.save(tmp_path)["bytes"])
    sizes.append(replay.save(tmp_path)["bytes"])
    assert sizes[1] < sizes[0] / 4
    assert sizes[2] < sizes[1]
    loaded = Replay([Table("table", 20_000)], chunk_length=64)
    loaded.load(tmp_path)
    assert loaded.save(tmp_path)["bytes"] < sizes[0] / 4, "what was loaded need not be written again"
    same([replay.sample("table", 50).data["frame"]], [loaded.sample("table", 50).data["frame"]])


def test_logs_do_not_pile_up(tmp_path: Path) -> None:
    replay = Replay([Table("table", 3000)], chunk_length=16)
    writer = Writer(replay, {"table": Single()})
    generator = np.random.default_rng(0)
    for _ in range(12):
        for _ in range(3):
            writer.append({"frame": generator.integers(0, 255, (64, 10, 100), dtype=np.uint8)})
        replay.save(tmp_path)
    live = 3000 * 100
    stored = sum(path.stat().st_size for path in tmp_path.iterdir())
    assert stored < 4 * live
    loaded = Replay([Table("table", 3000)], chunk_length=16)
    loaded.load(tmp_path)
    same([replay.sample("table", 50).data["frame"]], [loaded.sample("table", 50).data["frame"]])


@pytest.mark.parametrize("damage", ["cut", "flip", "remove", "empty"])
def test_damage_is_noticed_and_leaves_the_service_as_it_was(tmp_path: Path, damage: str) -> None:
    replay = Replay(TABLES, chunk_length=64)
    fill(replay)
    replay.save(tmp_path / "good")
    other = Replay(TABLES, chunk_length=64)
    fill(other, 5)
    before = numbers(other)
    generator = np.random.default_rng(0)
    for path in sorted((tmp_path / "good").iterdir()):
        size = path.stat().st_size
        places = generator.integers(0, size, 12) if damage in ("cut", "flip") else [0]
        for place in places:
            bad = tmp_path / "bad"
            shutil.rmtree(bad, ignore_errors=True)
            shutil.copytree(tmp_path / "good", bad)
            data = bytearray(path.read_bytes())
            if damage == "cut":
                data = data[:place]
            elif damage == "flip":
                data[place] ^= 1 << int(generator.integers(0, 8))
            elif damage == "empty":
                data = bytearray()
            (bad / path.name).unlink()
            if damage != "remove":
                (bad / path.name).write_bytes(data)
            with pytest.raises(BadCheckpoint, match=r"^[^\n]+$"):
                other.load(bad)
    assert numbers(other) == before
    audit(other)
    other.load(tmp_path / "good")
    same(use(other), use(replay))


def test_what_is_not_there_or_does_not_fit_is_refused(tmp_path: Path) -> None:
    replay = Replay([Table("table", 50)])
    with pytest.raises(BadCheckpoint, match="there is no replay checkpoint at"):
        replay.load(tmp_path / "nowhere")
    replay.save(tmp_path / "empty")
    Replay([Table("table", 50)]).load(tmp_path / "empty")
    with pytest.raises(BadCheckpoint, match="capacity 50 and has now 60"):
        Replay([Table("table", 60)]).load(tmp_path / "empty")
    with pytest.raises(BadCheckpoint, match=r"holds the tables \['table'\], this service \['other'\]"):
        Replay([Table("other", 50)]).load(tmp_path / "empty")


def test_leftovers_of_an_interrupted_save_do_no_harm(tmp_path: Path) -> None:
    replay = Replay([Table("table", 50)])
    writer = Writer(replay, {"table": Single()})
    writer.append({"reward": np.arange(10.0)[:, None]})
    replay.save(tmp_path)
    (tmp_path / "rows-000007.log").write_bytes(b"half a log")
    (tmp_path / "manifest.new").write_bytes(b"half a manifest")
    Replay([Table("table", 50)]).load(tmp_path)
    writer.append({"reward": np.arange(10.0, 20.0)[:, None]})
    replay.save(tmp_path)
    assert not (tmp_path / "rows-000007.log").exists()
    loaded = Replay([Table("table", 50)])
    loaded.load(tmp_path)
    assert loaded.info()["table"]["size"] == 20


def test_writers_go_on_after_a_load_and_repeats_are_still_dropped(tmp_path: Path) -> None:
    replay = Replay([Table.queue("table", 500)], chunk_length=8)
    writer = Writer(replay, {"table": Single(3)})
    writer.append({"reward": np.arange(10.0)[:, None]})
    replay.save(tmp_path)
    writer.append({"reward": np.arange(10.0, 15.0)[:, None]})
    again = Replay([Table.queue("table", 500)], chunk_length=8)
    again.load(tmp_path)
    writer._replay = again
    result = writer.append({"reward": np.arange(15.0, 20.0)[:, None]})
    assert result.refused == {"table": 2}, "their first rows came after the save and are lost"
    assert result.accepted == {"table": 3}
    data = again.sample("table", 11).data["reward"]
    np.testing.assert_array_equal(data[0], [*range(8), 15, 16, 17])
    np.testing.assert_array_equal(data, data[0] + np.arange(3)[:, None])
    audit(again)


def test_a_load_replaces_what_was_there_while_others_wait(tmp_path: Path) -> None:
    table = Table.queue("table", 4)
    saved = Replay([table])
    Writer(saved, {"table": Single()}).append({"reward": np.arange(3.0)[:, None]})
    saved.save(tmp_path)
    replay = Replay([table])
    got: list[list[float]] = []
    reader = threading.Thread(target=lambda: got.append(replay.sample("table", 3).data["reward"][0].tolist()))
    reader.start()
    while not replay.info()["table"]["sample_waiting"]:
        pass
    replay.load(tmp_path)
    reader.join(10)
    assert got == [[0.0, 1.0, 2.0]]
    writer = Writer(replay, {"table": Single()})
    results = []
    inserting = threading.Thread(target=lambda: results.append(writer.append({"reward": np.arange(9.0)[:, None]})))
    inserting.start()
    while not replay.info()["table"]["insert_waiting"]:
        pass
    replay.load(tmp_path)
    inserting.join(10)
    assert results[0].refused == {"table": 5}, "what was held up is refused, and counted"
    assert replay.info()["table"]["size"] == 3
    audit(replay)


def test_sampling_and_inserting_go_on_during_a_save(tmp_path: Path) -> None:
    """Each save holds exactly the items of one moment, and their rows, although rows are used again all the time."""
    replay = Replay([Table("table", 2000, sampler=Prioritized(0.6))], chunk_length=16)
    stop = threading.Event()

    def write() -> None:
        writer = Writer(replay, {"table": Single(4)})
        first = 0
        while not stop.is_set():
            step = np.arange(first, first + 9.0)[:, None] + np.zeros((1, 8))
            writer.append({"reward": step, "frame": np.repeat(step[..., None], 60, 2)})
            first += 9

    thread = threading.Thread(target=write)
    thread.start()
    while replay.info()["table"]["size"] < 2000:
        pass
    try:
        for index in range(6):
            replay.save(tmp_path)
            loaded = Replay([Table("table", 2000, sampler=Prioritized(0.6))], chunk_length=16)
            loaded.load(tmp_path)
            audit(loaded)
            assert loaded.info()["table"]["size"] == 2000
            for _ in range(10):
                data = loaded.sample("table", 200).data
                assert (data["frame"] == data["reward"][..., None]).all(), f"save {index}"
                assert (np.diff(data["reward"], axis=0) == 1).all()
    finally:
        stop.set()
        thread.join(10)


def test_rows_in_files_work_the_same(tmp_path: Path) -> None:
    in_memory = Replay(TABLES, chunk_length=64)
    in_files = Replay(TABLES, chunk_length=64, directory=tmp_path / "slabs")
    fill(in_memory)
    fill(in_files)
    same(use(in_memory), use(in_files))
    in_files.save(tmp_path / "save")
    loaded = Replay(TABLES, chunk_length=64, directory=tmp_path / "slabs")
    loaded.load(tmp_path / "save")
    same(use(loaded), use(in_memory))
    assert not list((tmp_path / "slabs").iterdir()), "files have no names, so that nothing is left behind"


@pytest.mark.parametrize("failing", ["write_whole", "_write_records"])
def test_a_save_that_fails_leaves_no_file_and_those_before_as_they_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    replay = Replay(TABLES)
    fill(replay)
    replay.save(tmp_path)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    fill(replay, seed=1, name="other")
    monkeypatch.setattr(f"shoal.replay.checkpoint.{failing}", full)
    with pytest.raises(OSError, match="No space left"):
        replay.save(tmp_path)
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before


def test_a_full_disk_is_an_error_that_says_so_and_not_a_signal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replay = Replay([Table("table", 10**6)], directory=tmp_path)
    writer = Writer(replay, {"table": Single()})
    block = {"frame": np.zeros((64, 16, 84, 84), np.uint8)}
    writer.append(block)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    def append_for_ever() -> None:
        while True:
            writer.append(block)

    monkeypatch.setattr("os.posix_fallocate", full)
    with pytest.raises(MemoryError, match="there is no room for more; lower the tables' capacity"):
        append_for_ever()
    size = replay.info()["table"]["size"]
    assert len(replay.sample("table", 64)) == 64, "what is there can still be read"
    monkeypatch.undo()
    writer.flush()
    assert replay.info()["table"]["size"] == size + 64 * 16
    audit(replay)


def test_a_process_with_little_address_space_can_have_a_table() -> None:
    program = """
import resource
resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))
import numpy as np
from shoal.replay import Replay, Table, Writer, n_step
replay = Replay([Table("table", 1000)])
writer = Writer(replay, {"table": n_step(1, 0.9)})
step = np.zeros((64, 8), np.float32)
for _ in range(10):
    writer.append({"observation": np.zeros((64, 8, 84, 84), np.uint8), "reward": step, "terminated": step > 0})
print(len(replay.sample("table", 32)))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == "32", done.stderr
