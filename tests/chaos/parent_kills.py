"""One growing run whose command is killed with SIGKILL again and again, at random moments and into its saves.

python tests/chaos/parent_kills.py --kills 50
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shoal.checkpoints import Checkpoints

INTERVAL = 2.0  # seconds between two checkpoints
SLACK = 3.0  # seconds in which a save may be asked for and written, on a machine that has other things to do
LONGEST = 15.0  # seconds after its start at which a random kill comes at the latest
GOAL = 475.0
TRAIN = ["--env", "CartPole-v1", "--envs-per-actor", "16", "--stop-steps", "1000000000"]


@dataclass
class Kills:
    """What became of the run while it was killed."""

    lost: list[float] = field(default_factory=list)  # seconds of training, each time
    during_a_save: int = 0
    before_learning: int = 0  # kills of a command that had not come to a row of its own yet
    reached: float = 0.0
    life: int = 0


def rows(run: Path, *, cut: bool = False) -> list[dict[str, Any]]:
    """Every line is a row; with `cut`, the last may be one that a kill has cut short."""
    file = run / "metrics.jsonl"
    lines = file.read_text().split("\n") if file.exists() else [""]
    if cut or lines[-1] == "":
        lines.pop()
    return [json.loads(line) for line in lines]


def check_rows(run: Path) -> None:
    """No row is there twice, and nothing goes back."""
    told = rows(run)
    for kind in ("progress", "evaluation"):
        seconds = [row["seconds"] for row in told if row["kind"] == kind]
        assert seconds == sorted(seconds), f"{kind} rows go back"
        assert len(set(seconds)) == len(seconds), f"a row of {kind} is there twice"
    steps = [row["counts"].get("env_steps", 0) for row in told if row["kind"] == "progress"]
    assert steps == sorted(steps), "steps go back"


class Command:
    """`shoal train` or `shoal resume`, as a user types it."""

    def __init__(self, run: Path, *words: str) -> None:
        self._run, self._said = run, run.parent / "said"
        with self._said.open("w") as said:
            self._process = subprocess.Popen([sys.executable, "-m", "shoal", *words], stdout=said, stderr=said)

    def await_that(self, condition: Callable[[], bool], seconds: float, trouble: str) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert self._process.poll() is None, self._said.read_text()
            assert time.monotonic() < deadline, f"{trouble} after {seconds:g} s:\n{self._said.read_text()}"
            time.sleep(0.002)

    def live_for(self, seconds: float) -> None:
        time.sleep(seconds)
        assert self._process.poll() is None, self._said.read_text()

    def wait(self, seconds: float) -> None:
        assert self._process.wait(seconds) == 0, self._said.read_text()

    @property
    def pid(self) -> int:
        return self._process.pid

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()


def kill_again_and_again(run: Path, kills: int, *, seed: int = 3, patience: float = 300.0) -> Kills:
    """The first kill, and every second one, is aimed into a save; the others come at any moment of a command's life."""
    chance, outcome = random.Random(seed), Kills()
    folder = run / "checkpoints"
    for kill in range(kills):
        words = ("resume", str(run)) if kill else ("train", "impala", *TRAIN, "--run-dir", str(run))
        known, told = _names(folder), _seconds(run)
        command = Command(run, *words, "--checkpoint-every", str(INTERVAL))
        try:
            if kill % 2:
                command.live_for(chance.uniform(0.0, LONGEST))
            else:
                command.await_that(lambda known=known: _names(folder) > known, 90.0, "no checkpoint")  # type: ignore[misc]
                command.live_for(chance.uniform(0.0, 0.9 * INTERVAL))
                aim = f".saving-{command.pid}-*"
                command.await_that(lambda aim=aim: any(folder.glob(aim)), 60.0, "no save")  # type: ignore[misc]
        finally:
            command.kill()
        outcome.during_a_save += any(folder.glob(f".saving-{command.pid}-*"))
        outcome.before_learning += _seconds(run) <= told
        found, complaints = Checkpoints(folder).newest()
        assert found is not None
        assert not complaints, complaints
        outcome.lost.append(max(0.0, _seconds(run) - found.meta["seconds"]))
    done = Command(run, "resume", str(run), "--stop-return", str(GOAL))
    try:
        done.wait(patience)
    finally:
        done.kill()
    check_rows(run)
    assert not list(folder.glob(".*")), "what killed saves have left is removed"
    assert max(outcome.lost) <= INTERVAL + SLACK, outcome.lost
    summary = json.loads((run / "summary.json").read_text())
    assert summary["reached"], summary
    outcome.reached = max(row["eval_return"] for row in rows(run) if row["kind"] == "evaluation")
    outcome.life = json.loads((run / "config.json").read_text())["life"]
    return outcome


def _names(folder: Path) -> int:
    """The newest checkpoint's number."""
    found = [int(path.name) for path in folder.glob("[0-9]*")]
    return max(found, default=0)


def _seconds(run: Path) -> float:
    """How far the run has come, by its last row."""
    return max((row["seconds"] for row in rows(run, cut=True) if row["kind"] == "progress"), default=0.0)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=3)
    given = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory() as directory:
        outcome = kill_again_and_again(Path(directory) / "run", given.kills, seed=given.seed)
    print(
        f"killed {given.kills} times, {outcome.during_a_save} of them during a save and {outcome.before_learning} "
        f"before the command had come to a row; lost at most {max(outcome.lost):.1f} s of training, in the mean "
        f"{sum(outcome.lost) / len(outcome.lost):.1f} s, with an interval of {INTERVAL:g} s; went on "
        f"{outcome.life} times; reached {outcome.reached:.1f}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
