"""The run directory: new or refused, complete or absent, and a full disk does not end a run."""

from __future__ import annotations

import json
import os
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
    made._metrics = open("/dev/full", "w")  # noqa: SIM115
    for _ in range(3):
        made.write_row("progress", {"seconds": 1.0})
    made.close()
    assert warnings == [f"{made.path}: metrics are no longer written (No space left on device)"]


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
    again = RunDirectory.reopen(made.path, offset, print)
    again.write_row("progress", {"seconds": 3.0})
    again.close()
    assert [row["seconds"] for row in directory.read_rows(made.path, "progress")] == [1.0, 3.0]
    RunDirectory.reopen(made.path, 10_000, print).close()  # the disk has lost what the checkpoint knew of
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
