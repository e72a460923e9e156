"""A folder full of mistakes, and a command line whose commands run in this process and never start a node."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.hunt.bad_code import FILES

from shoal.cli import main as cli
from shoal.cli.commands import bench
from shoal.envs import describing, trial
from shoal.experiment import experiment

Told = Callable[..., list[str]]


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("mistakes")
    for name, text in FILES.items():
        (made / name).write_text(text)
    return made


@pytest.fixture(autouse=True)
def here(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing is launched: what should have been refused and was not is a failure of the test, not a training run."""

    def launch(*_: Any, **__: Any) -> None:
        raise AssertionError("this should have been refused, and was about to be started")

    apart = trial.describe_apart

    def describe(env: Any, *rest: Any) -> Any:  # a process of its own only where the environment ends it
        return apart(env, *rest) if "exit" in str(env) else describing.describe_here(env, *rest)

    for module in (cli, bench):
        monkeypatch.setattr(module, "warm", lambda words: None)
    monkeypatch.setattr(experiment, "launch", launch)
    monkeypatch.setattr(trial, "describe_apart", describe)
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    for name in FILES:
        if name != "json.py":
            sys.modules.pop(name.removesuffix(".py"), None)


@pytest.fixture
def told(capsys: pytest.CaptureFixture[str]) -> Told:
    """The lines that a command writes to stderr before it ends with exit code 2."""

    def run(*words: str) -> list[str]:
        code = cli.main(words)
        captured = capsys.readouterr()
        assert code == 2, captured
        assert "Traceback" not in captured.err
        return [line for line in captured.err.splitlines() if not line.startswith("starting ")]

    return run
