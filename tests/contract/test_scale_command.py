"""`shoal scale` as it is typed: more and fewer actors while a run goes on, and what it refuses."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from shoal.cli.main import main
from shoal.runs.requests import SCALE
from shoal.runs.tables import latest

SMALL = ["--env", "CartPole-v1", "--preset", "none", "--envs-per-actor", "2", "--hidden", "8", "--eval-episodes", "2"]
PAGES = {"impala": ["--unroll", "4", "--batch", "6", "--queue", "12"], "ppo": ["--unroll", "4", "--minibatches", "1"]}
PATIENCE = 90.0


@contextmanager
def running(run: Path, words: list[str]) -> Iterator[subprocess.Popen[str]]:
    """A run of another process, from its first row on; it is ended here."""
    command = [sys.executable, "-m", "shoal", *words, "--stop-updates", "1000000000"]
    with subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, stderr=subprocess.PIPE, text=True) as it:
        try:
            until(lambda: it.poll() is not None or bool(progress(run).get("learner_steps")))
            assert it.poll() is None, it.communicate()[1]
            yield it
        finally:
            it.send_signal(signal.SIGTERM)
            it.communicate(timeout=60)


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def progress(run: Path) -> dict[str, Any]:
    """What is counted, and the members of groups."""
    row = latest(run).get("progress", {}) if (run / "metrics.jsonl").exists() else {}
    return {**row.get("counts", {}), "members": row.get("members")}


def train(page: str, run: Path, actors: int = 1) -> list[str]:
    return ["train", page, *SMALL, *PAGES[page], "--actors", str(actors), "--run-dir", str(run)]


def scale(run: Path, *words: str) -> int:
    return main(["scale", str(run), *words, "--wait", str(PATIENCE)])


def goes_on(run: Path) -> None:
    """Updates are made and steps are taken from now on."""
    before = progress(run)
    until(lambda: all(progress(run)[name] > before[name] for name in ("learner_steps", "env_steps")))


@pytest.mark.timeout(300)
@pytest.mark.parametrize("page", PAGES)
def test_a_run_is_scaled_while_it_goes_on_and_is_resumed_as_it_was_left(
    page: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    with running(run, train(page, run)):
        for before, count, lost in ((1, 3, ""), (3, 2, "; the open episodes of those that leave are counted as lost")):
            assert scale(run, f"actors={count}") == 0
            assert capfd.readouterr().out == f"actors: {before} → {count}{lost}\n"
            until(lambda count=count: progress(run)["members"] == {"actors": count})  # type: ignore[misc]
            goes_on(run)
            assert main(["status", str(run)]) == 0
            assert f"actors   {count}\n" in capfd.readouterr().out
        until(lambda: 0 < progress(run).get("lost_episodes", 0) <= 2)
    assert json.loads((run / "config.json").read_text())["config"]["actors"] == 2
    with running(run, ["resume", str(run)]):
        goes_on(run)
        assert progress(run)["members"] == {"actors": 2}


@pytest.mark.timeout(300)
def test_what_cannot_be_is_refused_in_a_sentence_and_the_run_goes_on(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run, elsewhere = tmp_path / "run", tmp_path / "elsewhere.json"
    elsewhere.write_text('{"actors": 2}')
    request = run / SCALE
    with running(run, train("impala", run)):
        for words, sentence in (
            ([], "needs a run directory and what to change"),
            (["actors"], "needs a run directory and what to change"),
            (["actors="], "actors= says no number: give a whole one, as in actors=4."),
            (["actors=many"], "actors=many says no number"),
            (["actors=1.5"], "actors=1.5 says no number"),
            (["actors=0"], "actors=0 cannot be had: give a whole number from 1 to 100,000."),
            (["actors=-3"], "actors=-3 cannot be had"),
            (["actors=1000000"], "actors=1000000 cannot be had"),
            (["actors=90000"], "actors=90000 is 89,999 more at once, and a run takes up to 200 at a time"),
            (["learners=2"], "has no group 'learners' that can grow or shrink: it has actors."),
            (["actors=2", "actors=3"], "actors is given twice, as 2 and as 3: give one number."),
        ):
            assert scale(run, *words) == 2, words
            told = capfd.readouterr()
            assert sentence in told.err, words
            assert told.out == ""
            assert told.err.count("\n") == 1
            assert not request.exists()
        hostile: list[tuple[Callable[[], Any], str]] = [
            (lambda: put(request, "{"), "(it is damaged)"),
            (lambda: put(request, "[" * 9_000), "(it is damaged)"),
            (lambda: put(request, '{"actors": 3' + " " * 20_000 + "}"), "(it is damaged)"),
            (lambda: put(request, "[3]"), "is no request to scale"),
            (lambda: put(request, '{"actors": "3"}'), "What is asked for cannot be had"),
            (lambda: put(request, '{"actors": true}'), "cannot be had"),
            (lambda: put(request, '{"actors": 1e400}'), "cannot be had"),
            (lambda: put(request, '{"\\u001b[2J": 0}'), "What is asked for cannot be had"),
            (lambda: put(request, '{"\\u001b[2J": 2}'), "there is no group '\\x1b[2J'"),
            (lambda: request.symlink_to(elsewhere), "it is a link"),
            (lambda: os.mkfifo(request), "it is no regular file"),
        ]
        for leave, sentence in hostile:
            before = latest(run).get("scale")
            leave()
            until(lambda before=before: latest(run).get("scale") != before)  # type: ignore[misc]
            assert sentence in latest(run)["scale"]["refused"]
            assert not os.path.lexists(request)
        request.mkdir()  # which cannot be removed: it is told once
        until(lambda: "it is no regular file" in latest(run)["scale"]["refused"])
        goes_on(run)
        rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        assert len([row for row in rows if row["kind"] == "scale" and "regular" in row["refused"]]) == 2
        request.rmdir()
        assert progress(run)["members"] == {"actors": 1}
        assert elsewhere.read_text() == '{"actors": 2}'
    capfd.readouterr()
    assert scale(run, "actors=2") == 2
    assert f"is not running (interrupted): shoal resume {run} --actors N goes on with" in capfd.readouterr().err
    assert scale(tmp_path / "nowhere", "actors=2") == 2
    assert "There is no run directory" in capfd.readouterr().err


def put(path: Path, text: str) -> None:
    """Whole, as a request is."""
    other = path.with_name("other")
    other.write_text(text)
    other.rename(path)
