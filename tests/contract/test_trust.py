"""Runs of others do not run the code that they name, unless it is said; one's own go on without a word."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import shoal
from shoal.cli.main import main
from shoal.runs.trust import named_code

CODE = """
import pathlib
import gymnasium, torch
from torch import nn
pathlib.Path({mark!r}).touch()

class Net(nn.Module):
    def __init__(self, observation_space, action_space):
        super().__init__()
        self.torso, self.policy, self.value = nn.Linear(4, 8), nn.Linear(8, 2), nn.Linear(8, 1)

    def forward(self, x):
        h = torch.tanh(self.torso(x))
        return self.policy(h), self.value(h).squeeze(-1)

def make_env():
    return gymnasium.make("CartPole-v1")
"""
TRAIN = ["train", "impala", "--runtime", "inline", "--envs-per-actor", "2", "--eval-episodes", "2"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with code that leaves a mark where it is imported."""
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "theirs.py").write_text(CODE.format(mark=str(tmp_path / "mark")))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "here"))
    before = list(sys.path)
    yield tmp_path
    forget()
    sys.path[:] = before


def forget() -> None:
    sys.modules.pop("theirs", None)


def trained(folder: Path, monkeypatch: pytest.MonkeyPatch, *words: str) -> Path:
    """A run, after which nothing of its code is imported or can be found."""
    run = folder / "run"
    before = list(sys.path)
    with monkeypatch.context() as there:
        there.chdir(folder / "code")
        assert main([*TRAIN, *words, "--run-dir", str(run), "--stop-updates", "3"]) == 0
    forget()
    sys.path[:] = before
    (folder / "mark").unlink(missing_ok=True)
    return run


def elsewhere(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(folder / "elsewhere"))


CALLS: dict[str, Any] = {
    "load": lambda run, **given: shoal.load(run, **given),
    "evaluate": lambda run, **given: shoal.evaluate(run, episodes=1, **given),
    "export": lambda run, **given: shoal.export(run, format="torch", **given),
    "record": lambda run, **given: shoal.record(run, run / "film.gif", **given),
    "resume": lambda run, **given: shoal.resume(run, stop_updates=4, quiet=True, **given),
}


@pytest.mark.parametrize("call", ["load", "evaluate", "export", "resume"])
def test_a_run_of_others_runs_its_network_only_where_it_is_trusted(
    folder: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    run = trained(folder, monkeypatch, "--env", "CartPole-v1", "--network", "theirs:Net")
    elsewhere(folder, monkeypatch)
    with pytest.raises(shoal.UserError, match=r"not made on this account.*network theirs:Net, looked for in .*--trust"):
        CALLS[call](run)
    assert not (folder / "mark").exists()
    assert str(folder / "code") not in sys.path
    CALLS[call](run, trust=True)
    assert (folder / "mark").exists()
    forget()
    shoal.load(run)  # it is asked once


@pytest.mark.parametrize("call", ["evaluate", "record", "resume"])
def test_a_run_of_others_runs_its_environment_only_where_it_is_trusted(
    folder: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    run = trained(folder, monkeypatch, "--env", "theirs:make_env", "--hidden", "8")
    elsewhere(folder, monkeypatch)
    shoal.load(run)  # which needs no environment
    with pytest.raises(shoal.UserError, match=r"not made on this account.*env theirs:make_env"):
        CALLS[call](run)
    assert not (folder / "mark").exists()
    shoal.evaluate(run, env="CartPole-v1", episodes=1)  # one that the user names is the user's own
    assert not (folder / "mark").exists()


def test_ones_own_run_goes_on_from_anywhere_without_a_word(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    run = trained(folder, monkeypatch, "--env", "theirs:make_env", "--network", "theirs:Net")
    moved = run.rename(folder / "moved")
    assert main(["eval", str(moved), "--episodes", "1"]) == 0
    assert main(["resume", str(moved), "--stop-updates", "5"]) == 0
    assert "trust" not in capfd.readouterr().err


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("env", "subprocess:getoutput"),  # installed code, called with options, does as well
        ("env_options", {"render_mode": "rgb_array"}),
        ("network", "theirs:make_env"),
        ("folders", ["."]),
    ],
)
def test_a_config_that_was_changed_is_no_longer_the_one_that_was_made_here(
    folder: Path, monkeypatch: pytest.MonkeyPatch, field: str, value: Any
) -> None:
    run = trained(folder, monkeypatch, "--env", "theirs:make_env", "--network", "theirs:Net")
    record = json.loads((run / "config.json").read_text())
    (record if field in record and field != "env" else record["config"])[field] = value
    (run / "config.json").write_text(json.dumps(record))
    with pytest.raises(shoal.UserError, match="or was changed since"):
        shoal.evaluate(run, episodes=1)
    assert not (folder / "mark").exists()


def test_an_algorithms_file_of_others_is_not_imported(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    run = trained(folder, monkeypatch, "--env", "CartPole-v1", "--hidden", "8")
    record = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps(record | {"algorithm": str(folder / "code" / "theirs.py")}))
    for words in (["eval"], ["resume"], ["export"], ["record"]):
        assert main([*words, str(run)]) == 2
        assert "would run code that it names: algorithm" in capfd.readouterr().err
    assert not (folder / "mark").exists()


def test_resume_auto_needs_no_word_for_what_its_line_names(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine whose home does not last, as of a batch scheduler."""
    own = ["--env", "theirs:make_env", "--network", "theirs:Net"]
    run = trained(folder, monkeypatch, *own)
    told = json.loads((run / "summary.json").read_text()) | {"stopped_by": "interrupt"}
    (run / "summary.json").write_text(json.dumps(told))
    elsewhere(folder, monkeypatch)
    monkeypatch.chdir(folder / "code")
    assert main([*TRAIN, *own, "--run-dir", str(run), "--resume", "auto", "--stop-updates", "4"]) == 0
    assert json.loads((run / "summary.json").read_text())["learner_steps"] == 4


def test_a_run_without_code_of_its_own_needs_no_trust_anywhere(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = trained(folder, monkeypatch, "--env", "CartPole-v1", "--hidden", "8")
    assert not (folder / "here").exists()
    elsewhere(folder, monkeypatch)
    shoal.evaluate(run, episodes=1)
    shoal.resume(run, stop_updates=4, quiet=True)


def test_where_nothing_can_be_remembered_it_is_told(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (folder / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(folder / "file"))
    run = trained(folder, monkeypatch, "--env", "theirs:make_env", "--hidden", "8")
    assert "it cannot be remembered that this run was made here (Not a directory)" in capfd.readouterr().err
    assert main(["eval", str(run), "--episodes", "1"]) == 2
    assert main(["eval", str(run), "--episodes", "1", "--trust"]) == 0


@pytest.mark.parametrize("field", ["env", "network"])
def test_a_module_under_a_devices_name_is_code_too(field: str) -> None:
    record: dict[str, Any] = {"algorithm": "ppo", "config": {"env": "CartPole-v1", "device": "cuda:0"}}
    assert not named_code(record)
    assert named_code({**record, "config": {**record["config"], field: "cuda:0"}}) == {field: "cuda:0"}


def test_what_lies_in_the_working_directory_is_not_imported_under_a_librarys_name(tmp_path: Path) -> None:
    for name in ("numpy", "torch", "pickle"):
        (tmp_path / f"{name}.py").write_text("open('imported', 'w')\n")
    command = Path(sys.executable).with_name("shoal")
    words = [command, "train", "impala", "--env", "CartPole-v1", "--stop-updates", "2", "--run-dir", "run"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "imported").exists()
