"""A run in which every few seconds a process is killed, then stopped, at random, and which has to learn its task still.

python tests/chaos/survival.py impala --kill-seconds 300 --stop-seconds 300
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
import uuid
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

CARTPOLE = ("--env", "CartPole-v1")
HANG_SECONDS = 5.0
MARKER = "SHOAL_SURVIVAL"  # every process of a run inherits it
CASES: dict[str, tuple[str, ...]] = {
    "impala": ("impala", *CARTPOLE, "--actors", "2"),
    "ppo": ("ppo", *CARTPOLE, "--actors", "2"),
    "apex_dqn": ("apex_dqn", *CARTPOLE, "--actors", "2", "--shards", "2"),
    "a3c": ("a3c", *CARTPOLE, "--actors", "2"),
    "r2d2": ("r2d2", "--env", "shoal/CartPoleHidden-v0", "--actors", "2", "--inference", "central"),
    "learners": ("impala", *CARTPOLE, "--actors", "2", "--learners", "2"),
}
GOALS = dict.fromkeys(CASES, 475.0) | {"r2d2": 400.0}  # of an evaluation


@dataclass(frozen=True)
class Outcome:
    """What became of the run."""

    hit: list[str]  # names of the processes, in order
    best: float  # return of an evaluation since the first of them was hit
    after: float  # the same since the last of them
    summary: dict[str, Any]
    losses: list[str]  # nodes that the run has told of
    told: str


class Survival:
    """One run, and what is done to it."""

    def __init__(self, words: Sequence[str], directory: Path, *, runtime: str, seed: int) -> None:
        self._rows = directory / "run" / "metrics.jsonl"
        self._runtime, self._random = runtime, random.Random(seed)
        self._output = directory / "output"
        words = [*words, "--run-dir", str(directory / "run"), "--stop-seconds", "1e6", "--runtime", runtime]
        words += ["--hang-seconds", str(HANG_SECONDS), "--seed", str(seed), "--checkpoint-every", "20"]
        self._mark = uuid.uuid4().hex
        command, environment = [sys.executable, "-m", "shoal", "train", *words], {**os.environ, MARKER: self._mark}
        with self._output.open("w") as output:
            self._process = subprocess.Popen(command, stdout=output, stderr=output, cwd=directory, env=environment)
        self._hit: list[str] = []
        self._evaluated = self._quiet = 0  # evaluations before the first signal, and before all was quiet again

    def rows(self, kind: str) -> list[dict[str, Any]]:
        if not self._rows.exists():
            return []
        lines = self._rows.read_text().splitlines()[:]
        found = []
        for line in lines:
            try:
                row = json.loads(line)
            except ValueError:  # it is being written
                continue
            found += [row] if row["kind"] == kind else []
        return found

    def await_learning(self, seconds: float = 180.0) -> None:
        deadline = time.monotonic() + seconds
        while not self.updates():
            self._check(deadline, "does not begin to learn")
            time.sleep(0.2)
        self._evaluated = len(self.rows("evaluation"))

    def hit(self, number: signal.Signals, seconds: float, every: float, names: Collection[str] = ()) -> None:
        """Send a signal to one process of the run at a time: to any, or to one of these names."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if victims := [victim for victim in self._victims() if not names or _name(victim) in names]:
                victim = self._random.choice(victims)
                try:
                    self._hit.append(f"{number.name} {_name(victim)}")
                    victim.send_signal(number)
                except psutil.Error:
                    self._hit.pop()  # it has just ended
            time.sleep(min(every, max(0.0, until - time.monotonic())))
            self._check(None, f"has ended after {self._hit}")

    def close_lid(self, seconds: float) -> None:
        """Stop everything, and let it go on."""
        family = [psutil.Process(self._process.pid), *self._family()]
        for process in family:
            process.suspend()
        time.sleep(seconds)
        for process in family[::-1]:
            process.resume()

    def await_life(self, seconds: float = 120.0) -> None:
        """Whatever it has reached before, it goes on: it learns, and is evaluated."""
        updates, evaluations = self.updates(), len(self.rows("evaluation"))
        self._quiet, deadline = evaluations, time.monotonic() + seconds
        while self.updates() <= updates or len(self.rows("evaluation")) <= evaluations:
            self._check(deadline, f"does not go on after {self._hit}")
            time.sleep(0.5)

    def await_return(self, goal: float, seconds: float) -> float:
        """The best return of an evaluation since it was hit first."""
        deadline = time.monotonic() + seconds
        while True:
            best = self._best_since(self._evaluated)
            if best >= goal or time.monotonic() > deadline:
                return best
            self._check(None, "has ended while it learned")
            time.sleep(0.5)

    def updates(self) -> int:
        return max((int(row["counts"].get("learner_steps", 0)) for row in self.rows("progress")), default=0)

    def _best_since(self, evaluations: int) -> float:
        return max((float(row["eval_return"]) for row in self.rows("evaluation")[evaluations:]), default=float("-inf"))

    def finish(self, best: float) -> Outcome:
        """Ctrl-C, and what the run says then."""
        self._process.send_signal(signal.SIGINT)
        code = self._process.wait(120.0)
        told = self._output.read_text()
        assert code == 130, f"exit code {code}:\n{told}"
        summary = json.loads((self._rows.parent / "summary.json").read_text())
        after = self._best_since(self._quiet)
        return Outcome(self._hit, best, after, summary, [row["node"] for row in self.rows("loss")], told)

    def close(self) -> None:
        family = [*self._family(), self._process]
        for process in family:
            try:
                process.kill()
            except psutil.Error:
                pass
        self._process.wait()

    def _victims(self) -> list[psutil.Process]:
        """Nodes, and on the local runtime the zygote; on Ray what the cluster itself consists of is not the run's."""
        if self._runtime == "ray":
            return [process for process in self._family() if "shoal.runtime.local.zygote" in _command(process)]
        return self._family()

    def _family(self) -> list[psutil.Process]:
        """All processes that the command has started, also those whose own parent is gone."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.pid != self._process.pid and process.environ().get(MARKER) == self._mark:
                    found.append(process)
            except psutil.Error:
                continue
        return found

    def _check(self, deadline: float | None, trouble: str) -> None:
        late = deadline is not None and time.monotonic() > deadline
        ended = self._process.poll() is not None
        if late or ended:
            raise AssertionError(f"the run {trouble}:\n{self._output.read_text()[-5000:]}")


def _name(process: psutil.Process) -> str:
    try:
        return str(process.name())
    except psutil.Error:  # it has just ended
        return ""


def _command(process: psutil.Process) -> list[str]:
    """Nodes have that of the zygote which has forked them."""
    try:
        return process.cmdline()
    except psutil.Error:  # it has just ended
        return []


def survive(
    case: str,
    directory: Path,
    *,
    runtime: str = "local",
    kill_seconds: float,
    stop_seconds: float,
    every: float = 15.0,
    goal: float | None = None,
    patience: float = 300.0,  # seconds after the last signal in which the goal must be reached
    seed: int = 0,
) -> Outcome:
    run = Survival(CASES[case], directory, runtime=runtime, seed=seed)
    try:
        run.await_learning()
        run.hit(signal.SIGKILL, kill_seconds, every)
        run.hit(signal.SIGSTOP, stop_seconds, every)
        run.await_life()
        return run.finish(run.await_return(GOALS[case] if goal is None else goal, patience))
    finally:
        run.close()


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("cases", nargs="+", choices=list(CASES))
    parser.add_argument("--runtime", default="local")
    parser.add_argument("--goal", type=float, help="475, or 400 for r2d2")
    for name, default in (("kill-seconds", 300.0), ("stop-seconds", 300.0), ("every", 15.0), ("patience", 300.0)):
        parser.add_argument(f"--{name}", type=float, default=default)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--directory", type=Path, help="where the runs are left, each under the name of its case")
    parser.add_argument("--verbose", action="store_true")
    given = vars(parser.parse_args())
    failed, verbose, kept = 0, given.pop("verbose"), given.pop("directory")
    for case in given.pop("cases"):
        with tempfile.TemporaryDirectory() as passing:
            directory = Path(passing) if kept is None else kept / case
            directory.mkdir(parents=True, exist_ok=True)
            outcome = survive(case, directory, **given)
        reached = outcome.best >= (given["goal"] or GOALS[case])
        failed += not reached
        if verbose:
            print(outcome.told)
        print(
            f"{case}: {'reached' if reached else 'MISSED'} {outcome.best:.1f}, since the last signal "
            f"{outcome.after:.1f}; {outcome.summary['learner_steps']:,} updates; hit {len(outcome.hit)}: "
            f"{', '.join(outcome.hit)}; {outcome.summary['restarts']} restarts, lost {outcome.summary['lost']}",
            flush=True,
        )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
