"""The run directory: new or refused, complete or absent, and a full disk does not end a run."""

from __future__ import annotations

import json
import os
import resource
from pathlib import Path
from typing import IO

import numpy as np
import pytest

from shoal.checkpoints import Checkpoints
from shoal.errors import UserError
from shoal.runs import directory
from shoal.runs.directory import RunDirectory


def create(path: Path | None, warnings: list[str] | None = None) -> RunDirectory:
    said = warnings if warnings is not None else []
    return RunDirectory.create(None if path is None else str(path), "impala", "ALE/Pong-v5", 3, said.append)


def test_default_directories_are_named_after_the_run_and_never_shared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    made = [create(None).path for _ in range(3)]
    assert len(set(made)) == 3
    assert all(str(path).startswith("runs/impala-ALE-Pong-v5-") and "-s3" in path.name for path in made)


def test_a_folder_that_holds_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "precious").touch()
    with pytest.raises(UserError, match="holds files already: give a new or empty folder"):
        create(tmp_path)
    assert os.listdir(tmp_path) == ["precious"]


def test_what_a_run_has_left_that_was_killed_at_once_is_no_run(tmp_path: Path) -> None:
    for name in ("metrics.jsonl", "run.lock", ".config.json.4711"):
        (tmp_path / name).touch()
    create(tmp_path).close()
    (tmp_path / "metrics.jsonl").write_text("{}\n")
    with pytest.raises(UserError, match="holds files already"):
        create(tmp_path)


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"cannot be written \(Not a directory\): give another one with --run-dir"):
        create(tmp_path / "file" / "run")


def test_a_run_that_did_not_start_leaves_nothing(tmp_path: Path) -> None:
    made = create(tmp_path / "run")
    made.write_config({"algorithm": "impala"})
    made.discard()
    assert os.listdir(tmp_path) == []


def test_rows_are_on_the_disk_at_once_and_numbers_that_are_not_finite_are_null(tmp_path: Path) -> None:
    made = create(tmp_path / "run")
    made.write_row("progress", {"values": {"loss": float("nan")}, "seconds": 1.0})
    made.write_row("evaluation", {"eval_return": 3.0})
    assert directory.read_rows(made.path, "evaluation") == [{"kind": "evaluation", "eval_return": 3.0}]
    assert directory.read_rows(made.path, "progress")[0]["values"] == {"loss": None}


def test_a_row_that_was_cut_short_is_left_out(tmp_path: Path) -> None:
    made = create(tmp_path / "run")
    made.write_row("evaluation", {"eval_return": 3.0})
    with (made.path / directory.METRICS).open("a") as file:
        file.write('{"kind": "evaluation", "eval')
    assert len(directory.read_rows(made.path, "evaluation")) == 1


def test_a_full_disk_is_warned_of_once_and_ends_nothing(tmp_path: Path) -> None:
    warnings: list[str] = []
    made = create(tmp_path / "run", warnings)
    made.write_row("progress", {"seconds": 1.0})
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (made.offset() + 10, before[1]))  # as full as a disk gets in a test
    try:
        for _ in range(3):
            made.write_row("progress", {"seconds": 2.0})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert warnings == [f"{made.path}: metrics cannot be written (File too large); rows are lost until they can"]
    made.write_row("progress", {"seconds": 3.0})  # no half of a row is in its way
    made.close()
    assert [row["seconds"] for row in directory.read_rows(made.path, "progress")] == [1.0, 3.0]
    assert directory.unreadable_rows(made.path) == 0


def test_weights_come_back_as_they_were(tmp_path: Path) -> None:
    made = create(tmp_path / "run")
    weights = {"torso/0.weight": np.arange(6, dtype=np.float32).reshape(2, 3), "steps": np.array(7)}
    made.write_weights(weights)
    found = directory.read_weights(made.path)
    assert set(found) == set(weights)
    for name, value in weights.items():
        np.testing.assert_array_equal(found[name], value)


def test_weights_that_cannot_be_written_leave_the_old_ones_and_no_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = create(tmp_path / "run")
    made.write_weights({"a": np.ones(3)})

    def full(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        made.write_weights({"a": np.zeros(3)})
    assert sorted(os.listdir(made.path)) == [directory.METRICS, directory.WEIGHTS]
    np.testing.assert_array_equal(directory.read_weights(made.path)["a"], np.ones(3))


def test_the_config_records_versions_and_revision(tmp_path: Path) -> None:
    made = create(tmp_path / "run")
    made.write_config({"algorithm": "impala", "config": {}, "env": "CartPole-v1"})
    record = directory.read_config(made.path)
    assert json.loads((made.path / directory.CONFIG).read_text()) == record
    assert {"python", "torch", "numpy", "gymnasium", "shoal"} <= set(record["versions"])
    assert "git" in record


def test_a_run_that_goes_on_has_its_metrics_cut_back_to_its_checkpoint_and_no_further(tmp_path: Path) -> None:
    made = create(tmp_path / "run")
    made.write_row("progress", {"seconds": 1.0})
    offset = made.offset()
    made.write_row("progress", {"seconds": 2.0})
    made.close()
    told: list[str] = []
    again = RunDirectory.reopen(made.path, offset, 1, told.append)
    assert len(directory.read_rows(made.path, "progress")) == 2  # who does not even start cuts nothing
    again.write_row("progress", {"seconds": 3.0})
    again.close()
    assert [row["seconds"] for row in directory.read_rows(made.path, "progress")] == [1.0, 3.0]
    assert told == ["rows of metrics.jsonl after that: 1, now in metrics.cut.jsonl, as these steps are made again"]
    kept = [json.loads(line) for line in (made.path / "metrics.cut.jsonl").read_text().splitlines()]
    assert kept == [{"kind": "cut", "life": 1}, {"kind": "progress", "seconds": 2.0}]
    RunDirectory.reopen(made.path, 10_000, 1, print).close()  # the disk has lost what the checkpoint knew of
    assert (made.path / directory.METRICS).stat().st_size < 1000


def test_a_summary_that_cannot_be_written_whole_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    warnings: list[str] = []
    made = create(tmp_path / "run", warnings)
    made.write_summary({"env_steps": 1})

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    made.write_summary({"env_steps": 2})
    assert json.loads((made.path / directory.SUMMARY).read_text()) == {"env_steps": 1}
    assert sorted(path.name for path in made.path.iterdir()) == ["metrics.jsonl", "summary.json"]
    assert warnings == [f"{made.path}: summary.json could not be written (No space left on device)"]


def test_weights_that_were_half_written_do_not_take_the_place_of_the_old_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = create(tmp_path / "run")
    made.write_weights({"w": np.ones(3)})

    def full(file: IO[bytes], **_: object) -> None:
        file.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez", full)
    with pytest.raises(OSError, match="No space left"):
        made.write_weights({"w": np.zeros(3)})
    assert directory.read_weights(made.path)["w"].tolist() == [1.0] * 3


def test_weights_are_those_of_the_end_unless_the_run_has_gone_on_since(tmp_path: Path) -> None:
    made = create(tmp_path)
    made.write_weights({"w": np.array([1.0])})
    made.write_summary({"life": 1})
    made.close()
    Checkpoints(tmp_path / "checkpoints").save({"weights": {"w": np.array([0.5])}}, {})
    for life, expected in ((0, 1.0), (1, 1.0), (2, 0.5)):
        made.write_config({"life": life})
        assert directory.read_weights(tmp_path)["w"].tolist() == [expected]


def test_a_revision_says_whether_files_differ_from_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for differs, expected in (("", "c0ffee"), (" M src/file.py", "c0ffee+")):
        said = {"rev-parse": "c0ffee", "status": differs}
        monkeypatch.setattr(directory, "_git", lambda *command, said=said: said[command[0]])
        assert directory.git_revision() == expected


def test_metrics_that_were_shortened_or_damaged_are_told_and_the_next_row_is_whole(tmp_path: Path) -> None:
    made = create(tmp_path / "run")
    for seconds in (1.0, 2.0):
        made.write_row("progress", {"seconds": seconds})
    offset = made.offset()
    made.close()
    file = made.path / directory.METRICS
    file.write_bytes(b"\0\xff" + file.read_bytes()[2:-5])
    told: list[str] = []
    again = RunDirectory.reopen(made.path, offset, 1, told.append)
    again.write_row("progress", {"seconds": 3.0})
    again.close()
    assert told == [
        f"{file} was shortened: it has {offset - 5} bytes and had {offset} at the checkpoint; what is missing "
        "is missing in curves",
        f"{file} is damaged: rows that cannot be read, and stay as they are: 2",
    ]
    assert json.loads(file.read_bytes().splitlines()[-1])["seconds"] == 3.0


def with_a_link(tmp_path: Path, name: str) -> tuple[Path, Path]:
    """A run with a row of metrics in which `name` is a link to a file elsewhere, and that file."""
    made = create(tmp_path / "run")
    made.write_row("progress", {"seconds": 1.0})
    made.close()
    other = tmp_path / "other"
    other.write_text("precious\n" * 100)
    (made.path / name).unlink(missing_ok=True)
    (made.path / name).symlink_to(other)
    return made.path, other


def test_metrics_that_are_a_link_are_refused(tmp_path: Path) -> None:
    run, other = with_a_link(tmp_path, "metrics.jsonl")
    with pytest.raises(
        UserError, match=r"metrics\.jsonl cannot be written \(it is a link, and a run writes into its own"
    ):
        RunDirectory.reopen(run, 0, 1, print)
    assert other.read_text() == "precious\n" * 100


def test_rows_are_not_cut_where_they_could_only_be_kept_through_a_link(tmp_path: Path) -> None:
    run, other = with_a_link(tmp_path, "metrics.cut.jsonl")
    told: list[str] = []
    again = RunDirectory.reopen(run, 0, 1, told.append)
    again.write_row("progress", {"seconds": 2.0})
    again.close()
    assert other.read_text() == "precious\n" * 100
    assert [row["seconds"] for row in directory.read_rows(run, "progress")] == [1.0, 2.0]
    assert len(told) == 1
    assert "rows of before are kept, and some are there twice now (it is a link" in told[0]
