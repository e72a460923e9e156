"""Datasets in a folder: what was appended comes back, patterns read it as they read a replay, and a kill leaves whole
episodes."""

from __future__ import annotations

import errno
import fcntl
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from shoal.cli.main import main
from shoal.data import BadData, Dataset, DatasetWriter, Episode, Items, episode, gather, manifest
from shoal.data.cutting import Cutter
from shoal.data.exporting import export
from shoal.data.manifest import EPISODES, MANIFEST, ROWS
from shoal.replay import Fifo, Replay, Table, Writer, n_step, sequence
from shoal.types import Array

LENGTHS = (1, 2, 3, 4, 7, 7, 30, 61, 5, 12)
BOX = spaces.Box(-1.0, 1.0, (3,), np.float32)
ACTIONS = spaces.Box(-2.0, 2.0, (2,), np.float32)


def made(length: int, number: int = 0, **options: Any) -> Episode:
    random = np.random.default_rng([length, number])
    observations = random.uniform(-1, 1, (length + 1, 3)).astype(np.float32)
    actions, rewards = random.uniform(-2, 2, (length, 2)).astype(np.float32), random.normal(size=length)
    ends = {"terminated": number % 3 == 0, "truncated": number % 3 == 1, "seed": number} | options
    return episode(observations, actions, rewards.astype(np.float32), **ends)


def write(path: Path, lengths: tuple[int, ...] = LENGTHS) -> Dataset:
    with DatasetWriter(path, BOX, ACTIONS, env="Own-v0") as writer:
        for number, length in enumerate(lengths):
            writer.append(made(length, number))
    return Dataset(path)


def test_what_was_appended_comes_back(tmp_path: Path) -> None:
    data = write(tmp_path / "data")
    assert (len(data), data.steps, data.env) == (len(LENGTHS), sum(LENGTHS), "Own-v0")
    for number, (found, length) in enumerate(zip(data.episodes(), LENGTHS, strict=True)):
        given = made(length, number)
        assert np.array_equal(found.observations["observation"], given.observations["observation"])
        assert np.array_equal(found.actions, given.actions)
        assert np.array_equal(found.rewards, given.rewards)
        assert (found.terminated, found.truncated, found.seed) == (given.terminated, given.truncated, number)
        assert data.returns[number] == given.total
    data.verify()


def test_statistics_are_of_all_observations(tmp_path: Path) -> None:
    data = write(tmp_path / "data")
    everything = np.concatenate([found.observations["observation"] for found in data.episodes()]).astype(np.float64)
    found = data.statistics()["observation"]
    assert found.count == len(everything)
    for name, value in (("mean", everything.mean(0)), ("deviation", everything.std(0)), ("most", everything.max(0))):
        np.testing.assert_allclose(getattr(found, name), value, rtol=1e-9)


def by_replay(data: Dataset, pattern: Any) -> dict[str, Array]:
    """All items of a pattern in their order, as a replay service gives them for the same rows."""
    replay = Replay([Table("items", 10_000, sampler=Fifo(), max_times_sampled=1)])
    writer = Writer(replay, {"items": pattern})
    for found in range(len(data)):
        entry = data.index[found]
        rows = data.rows[entry["first"] : entry["first"] + entry["length"] + 1]
        writer.append({name: rows[name][:, None] for name in data.record.names or ()})
    count = replay.info()["items"]["size"]
    sample = replay.sample("items", count)
    replay.close()
    return sample.data


@pytest.mark.parametrize(
    "pattern",
    [
        n_step(1, 0.9),
        n_step(3, 0.9, following=("observation", "action"), reward_clip=0.5),
        sequence(5, period=3, burn_in=2),
        sequence(8, period=4, burn_in=0, end="shift"),
        sequence(6, end="drop"),
    ],
    ids=["1-step", "3-step", "pad", "shift", "drop"],
)
def test_patterns_read_it_as_they_read_a_replay(tmp_path: Path, pattern: Any) -> None:
    data = write(tmp_path / "data")
    items = Items(data, pattern)
    expected = by_replay(data, pattern)
    found = gather(data, pattern, items.place(np.arange(len(items))))
    assert found.keys() == expected.keys()
    for name in expected:
        np.testing.assert_array_equal(found[name], expected[name], err_msg=name)


def test_frames_are_stacked_when_they_are_read(tmp_path: Path) -> None:
    space = spaces.Box(0, 255, (6, 6), np.uint8)
    with DatasetWriter(tmp_path / "data", space, spaces.Discrete(3)) as writer:
        for length in (1, 4, 9):
            frames = np.random.default_rng(length).integers(0, 256, (length + 1, 6, 6), np.uint8)
            writer.append(episode(frames, np.zeros(length, np.int64), np.ones(length), terminated=True))
    data = Dataset(tmp_path / "data")
    for pattern in (
        n_step(1, 0.9, stack={"observation": 4}),
        n_step(2, 0.9, stack={"observation": 3}),
        sequence(3, period=2, stack={"observation": 2}),
    ):
        items, expected = Items(data, pattern), by_replay(data, pattern)
        found = gather(data, pattern, items.place(np.arange(len(items))))
        for name in expected:
            np.testing.assert_array_equal(found[name], expected[name], err_msg=name)


def test_nested_observations_and_log_probabilities(tmp_path: Path) -> None:
    space = spaces.Dict({"place": spaces.Box(-1, 1, (2,), np.float64), "near": spaces.Discrete(4)})
    chances = np.array([-0.5, -0.25], np.float32)
    seen = {"place": np.zeros((3, 2)), "near": np.array([0, 3, 1])}
    with DatasetWriter(tmp_path / "data", space, spaces.Discrete(3, start=1), log_probs=True) as writer:
        writer.append(episode(seen, np.array([0, 2]), np.ones(2), terminated=True, log_probs=chances))
        writer.append(episode(seen, np.array([0, 2]), np.ones(2), terminated=True))
    data = Dataset(tmp_path / "data")
    first, second = data.episodes()
    assert np.array_equal(first.log_probs, chances)  # type: ignore[arg-type]
    assert second.log_probs is None
    assert first.observations["observation/place"].dtype == np.float32
    assert data.manifest.native_action_space == spaces.Discrete(3, start=1)
    assert data.action_space == spaces.Discrete(3)
    columns = gather(data, n_step(1, 0.9), Items(data, n_step(1, 0.9)).place(np.arange(2)))
    assert columns["next_observation/near"].tolist() == [3, 1]


def test_a_kill_leaves_whole_episodes_and_the_next_writer_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "data"
    pid = os.fork()
    if pid == 0:  # it dies without a word between two commits, with half an episode on disk
        writer = DatasetWriter(path, BOX, ACTIONS)
        writer.append(made(5, 0))
        writer.append(made(6, 1))
        writer.commit()
        writer.append(made(7, 2))
        writer._files[ROWS].write(b"half")
        for file in writer._files.values():
            file.flush()
        os._exit(9)
    os.waitpid(pid, 0)
    data = Dataset(path)
    data.verify()
    assert data.lengths.tolist() == [5, 6]
    with DatasetWriter.go_on(path) as writer:
        writer.append(made(8, 3))
    data = Dataset(path)
    data.verify()
    assert data.lengths.tolist() == [5, 6, 8]
    assert np.array_equal(data.episode(2).actions, made(8, 3).actions)


def test_one_writer_at_a_time(tmp_path: Path) -> None:
    writer = DatasetWriter(tmp_path / "data", BOX, ACTIONS)
    with pytest.raises(BadData, match="is being written by another process"):
        DatasetWriter.go_on(tmp_path / "data")
    writer.append(made(3))
    writer.close()
    DatasetWriter.go_on(tmp_path / "data").close()


def test_who_goes_on_loses_nothing_of_who_wrote_until_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "data", (3,))
    lock = fcntl.flock

    def late(descriptor: int, how: int) -> None:  # another one writes before we have the lock
        monkeypatch.setattr(fcntl, "flock", lock)
        with DatasetWriter.go_on(tmp_path / "data") as other:
            other.append(made(4, 1))
        lock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", late)
    with DatasetWriter.go_on(tmp_path / "data") as writer:
        writer.append(made(5, 2))
    assert Dataset(tmp_path / "data").lengths.tolist() == [3, 4, 5]


def test_two_who_begin_the_same_dataset_do_not_write_over_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = fcntl.flock

    def late(descriptor: int, how: int) -> None:
        monkeypatch.setattr(fcntl, "flock", lock)
        other = DatasetWriter.__new__(DatasetWriter)
        monkeypatch.setattr("shoal.data.writer.check_new", lambda path: None)  # it looked when nothing was there
        other.__init__(tmp_path / "data", BOX, ACTIONS)  # type: ignore[misc]
        other.append(made(4, 1))
        other.close()
        lock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", late)
    with pytest.raises(BadData, match="is there already"):
        DatasetWriter(tmp_path / "data", BOX, ACTIONS)
    assert Dataset(tmp_path / "data").lengths.tolist() == [4]


def test_an_episode_that_did_not_fit_on_the_disk_leaves_those_before_it_whole(tmp_path: Path) -> None:
    writer = DatasetWriter(tmp_path / "data", BOX, ACTIONS)
    writer.append(made(3, 0))
    writer._files[EPISODES] = Full(writer._files[EPISODES])  # type: ignore[assignment]
    with pytest.raises(BadData, match="the disk is full"):
        writer.append(made(4, 1))
    writer.close()
    data = Dataset(tmp_path / "data")
    data.verify()
    assert data.lengths.tolist() == [3]


def test_an_import_whose_last_commit_fails_is_told_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    export(write(tmp_path / "data"), str(tmp_path / "logs.npz"))

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    commits = iter([os.fsync, os.fsync])  # the manifest of the beginning, and its folder
    monkeypatch.setattr(os, "fsync", lambda descriptor: next(commits, full)(descriptor))
    assert main(["data", "import", str(tmp_path / "logs.npz"), "--output", str(tmp_path / "again")]) == 2
    assert "again cannot be written: the disk is full." in capsys.readouterr().err


def test_links_in_a_dataset_are_not_written_through(tmp_path: Path) -> None:
    write(tmp_path / "data")
    precious = tmp_path / "precious"
    precious.write_text("precious")
    for name in ("writing", f"{MANIFEST}.new", ROWS):
        there = tmp_path / "data" / name
        there.unlink(missing_ok=True)
        there.symlink_to(precious)
        if name == f"{MANIFEST}.new":
            DatasetWriter.go_on(tmp_path / "data").close()
        else:
            with pytest.raises(BadData, match="cannot be written: Too many levels of symbolic links"):
                DatasetWriter.go_on(tmp_path / "data")
        assert precious.read_text() == "precious"
        there.unlink(missing_ok=True)


class Full:
    """A file on a disk without space."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def write(self, data: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def test_a_full_disk_takes_the_manifest_of_all_that_was_appended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_manifest = manifest.write

    def only_with_space(path: Path, what: Any) -> None:
        if what.episodes and (path / "reserve").exists():
            raise OSError(errno.ENOSPC, "No space left on device")
        write_manifest(path, what)

    monkeypatch.setattr(manifest, "write", only_with_space)
    write(tmp_path / "data", (3, 4))
    assert Dataset(tmp_path / "data").lengths.tolist() == [3, 4]
    assert not (tmp_path / "data" / "reserve").exists()


def test_an_import_that_goes_on_takes_no_episode_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed right after a commit that an episode has caused."""
    export(write(tmp_path / "data"), str(tmp_path / "logs.npz"))
    monkeypatch.setattr("shoal.data.writer.COMMIT_SECONDS", 0.0)
    pid = os.fork()
    if pid == 0:
        commits = iter(range(4))

        def killed(writer: DatasetWriter, origin: Any) -> None:
            commit(writer, origin)
            if next(commits) == 3:
                os._exit(9)

        commit = DatasetWriter._commit
        monkeypatch.setattr(DatasetWriter, "_commit", killed)
        main(["data", "import", str(tmp_path / "logs.npz"), "--output", str(tmp_path / "again")])
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 9
    assert len(Dataset(tmp_path / "again")) == 4
    assert main(["data", "import", str(tmp_path / "logs.npz"), "--output", str(tmp_path / "again")]) == 0
    assert Dataset(tmp_path / "again").lengths.tolist() == list(LENGTHS)


@pytest.mark.parametrize("output", ["parquet", "minari:own/test-v0"])
def test_an_export_that_fails_leaves_nothing(output: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    data = write(tmp_path / "data")
    read, counted = Dataset.episode, iter(range(3))

    def full(self: Dataset, number: int) -> Any:
        if next(counted, None) is None:
            raise OSError(errno.ENOSPC, "No space left on device")
        return read(self, number)

    monkeypatch.setattr(Dataset, "episode", full)
    monkeypatch.setattr(
        "pyarrow.parquet.write_table",
        lambda *_, **__: full(data, 0) and full(data, 9) and full(data, 9) and full(data, 9),
    )
    target = tmp_path / "parquet" if output == "parquet" else tmp_path / "minari" / "own" / "test-v0"
    with pytest.raises(BadData, match="No space left on device"):
        export(data, str(target) if output == "parquet" else output)
    assert not target.exists()


def test_an_id_that_minari_does_not_take_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    with pytest.raises(BadData, match="'a/b-v0' is no id of Minari's"):
        export(write(tmp_path / "data"), "minari:a/b-v0")


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"rewards": [1.0, np.nan, 1.0]}, "episode 0 has a reward at step 1 that is not finite"),
        ({"observations": np.full((4, 3), np.inf)}, "has a observation at step 0 that is not finite"),
        ({"actions": np.full((3, 2), 3.0)}, r"has the action \[3.0, 3.0\] at step 0, which is outside of"),
        ({"actions": np.zeros((3, 3))}, r"its action has the shape \[3, 3\] where \[3, 2\] belongs"),
        ({"observations": np.zeros((3, 3))}, r"its observation has the shape \[3, 3\] where \[4, 3\] belongs"),
        ({"actions": np.array([["a", "b"]] * 3)}, "has actions of the type"),
        ({"rewards": [], "observations": np.zeros((1, 3)), "actions": np.zeros((0, 2))}, "episode 0 has no step"),
    ],
)
def test_an_episode_that_cannot_be_learned_from_is_refused(
    tmp_path: Path, changes: dict[str, Any], sentence: str
) -> None:
    good = {"observations": np.zeros((4, 3)), "actions": np.zeros((3, 2)), "rewards": np.ones(3)}
    writer = DatasetWriter(tmp_path / "data", BOX, ACTIONS)
    with pytest.raises(BadData, match=sentence):
        writer.append(episode(**(good | changes), terminated=True))
    writer.append(episode(**good, terminated=True))
    writer.close()
    assert Dataset(tmp_path / "data").lengths.tolist() == [3], "what was refused left nothing"


def test_nothing_is_written_over(tmp_path: Path) -> None:
    write(tmp_path / "data")
    before = (tmp_path / "data" / ROWS).read_bytes()
    with pytest.raises(BadData, match="is there already"):
        DatasetWriter(tmp_path / "data", BOX, ACTIONS)
    assert (tmp_path / "data" / ROWS).read_bytes() == before


def damaged(path: Path, name: str, how: str) -> None:
    file = path / name
    contents = bytearray(file.read_bytes())
    if how == "cut":
        file.write_bytes(contents[: len(contents) // 2])
    elif how == "missing":
        file.unlink()
    elif how == "pickle":
        file.write_bytes(b"\x80\x04\x95" + contents[3:])
    else:
        contents[len(contents) // 2] ^= 255
        file.write_bytes(contents)


@pytest.mark.parametrize(
    ("name", "how", "sentence"),
    [
        (ROWS, "cut", "rows is cut short"),
        (ROWS, "missing", "rows is missing"),
        (ROWS, "changed", "rows is damaged: its checksum"),
        (EPISODES, "cut", "episodes is cut short"),
        (EPISODES, "pickle", "episodes is damaged"),
        (MANIFEST, "cut", "is damaged: it is no JSON"),
        (MANIFEST, "missing", "is no dataset"),
        (MANIFEST, "pickle", "is damaged: it is no JSON"),
    ],
)
def test_a_damaged_file_is_named_in_a_sentence(tmp_path: Path, name: str, how: str, sentence: str) -> None:
    write(tmp_path / "data")
    damaged(tmp_path / "data", name, how)
    with pytest.raises(BadData, match=sentence):
        Dataset(tmp_path / "data").verify()


@pytest.mark.parametrize("field", ["rows", "episodes", "observation_space", "moments", "checksums", "origin", "format"])
def test_a_manifest_that_says_nonsense_is_refused(tmp_path: Path, field: str) -> None:
    write(tmp_path / "data")
    file = tmp_path / "data" / MANIFEST
    record = json.loads(file.read_text())
    for nonsense in (None, -1, "x", [1], {"kind": "box", "shape": [1 << 40], "dtype": "object", "low": 0, "high": 1}):
        file.write_text(json.dumps(record | {field: nonsense}))
        with pytest.raises(BadData):
            Dataset(tmp_path / "data")


def test_an_empty_dataset_is_refused(tmp_path: Path) -> None:
    DatasetWriter(tmp_path / "data", BOX, ACTIONS).close()
    with pytest.raises(BadData, match="has no episode"):
        Dataset(tmp_path / "data")


def test_episodes_too_short_for_a_pattern_are_told(tmp_path: Path) -> None:
    data = write(tmp_path / "data", (2, 3))
    with pytest.raises(BadData, match="has no item to learn from: its longest episode has 3 steps"):
        Items(data, sequence(8, end="drop"))


def test_of_actions_that_were_clipped_nobody_knows_the_probability() -> None:
    """They are stored as they were done, and what was drawn had another density."""
    block = {
        "observation": np.zeros((4, 1, 2), np.float32),
        "action": np.float32([[[0.5, 0.5]], [[3.0, 0.0]], [[0.0, 0.0]], [[0.0, 0.0]]]),
        "reward": np.ones((4, 1), np.float32),
        "terminated": np.array([[False], [False], [True], [False]]),
        "valid": np.array([[True], [True], [True], [False]]),
        "log_prob": np.float32([[-1.0], [-2.0], [-3.0], [0.0]]),
    }
    ((_, found),) = Cutter(ACTIONS.low, ACTIONS.high).feed(block)
    assert found.actions[1].tolist() == [2.0, 0.0]
    assert found.log_probs is not None
    np.testing.assert_array_equal(found.log_probs, np.float32([-1.0, np.nan, -3.0]))
