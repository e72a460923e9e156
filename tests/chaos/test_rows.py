"""Nodes are killed while numbered rows go through them: none comes twice, and what is missing is what was counted."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from gymnasium import spaces
from numbered import FILE, read_rows
from survival import Survival

from shoal.acting import Sender
from shoal.loops.prefetch import Prefetch
from shoal.program import Program, current, futures
from shoal.replay import Replay, Table, n_step
from shoal.runtime import launch
from shoal.types import Columns

ROWS, BATCH, QUEUE = 4, 4, 64  # rows of a block; items that are read at once, and that may wait to be read
KILLS = 3
HERE = Path(__file__).parent


class Numbering:
    """As an actor: every row has the number after the last one's."""

    restart = True

    def __init__(self, replays: list[Replay]) -> None:
        self._send = Sender(cast(Any, object()), replays, {"rows": n_step(1, 0.99)}, current().name)
        self._next, self._lost = 0, {"lost_rows": 0, "lost_items": 0}

    def step(self) -> None:
        numbers = np.arange(self._next, self._next + ROWS)[:, None]
        self._next += ROWS
        flags = {name: np.zeros((ROWS, 1), bool) for name in ("terminated", "truncated")}
        block: Columns = {
            "observation": numbers.astype(np.float32),
            "action": np.zeros((ROWS, 1), np.int64),
            "reward": numbers.astype(np.float32),
            "valid": np.ones((ROWS, 1), bool),
            "version": np.zeros((ROWS, 1), np.int64),
            **flags,
        }
        self._send(block)
        for name, lost in self._send.take_lost().items():
            self._lost[name] += lost

    def life(self) -> int:
        return current().restarts

    def lost(self) -> dict[str, int]:
        return self._lost


class Reading:
    """As a learner: takes every item once, and writes the numbers down."""

    restart = True

    def __init__(self, replay: Replay) -> None:
        self._seen: list[int] = []
        space = spaces.Box(-np.inf, np.inf, ())
        self._batches = Prefetch(lambda: futures(replay).sample("rows", BATCH, timeout=1.0), space, torch.device("cpu"))

    def step(self) -> None:
        self._batches.ask()
        sample, _ = self._batches.take()
        self._seen += [int(number) for number in np.ravel(sample.data["reward"])]
        time.sleep(0.002)

    def seen(self) -> list[int]:
        return list(self._seen)

    def lost_items(self) -> int:
        return self._batches.lost_items


def test_a_killed_replay_costs_what_was_in_it_and_no_row_is_read_twice() -> None:
    program = Program()
    replay = program.add("replay", Replay, [Table.queue("rows", QUEUE)])
    program.place("replay", restart=True)
    numbering = program.add("numbering", Numbering, [replay])
    reading = program.add("reading", Reading, replay)
    with launch(program, "local") as run:
        reads = run.client(reading)
        for _ in range(KILLS):
            before, deadline = len(reads.seen()), time.monotonic() + 60.0
            while len(reads.seen()) < before + 200:
                run.wait(0.05)
                assert time.monotonic() < deadline
            os.kill(run.pids()["replay"], signal.SIGKILL)
            run.wait(0.5)
        while len(seen := reads.seen()) < before + 400:
            run.wait(0.05)
        lost = run.client(numbering).lost()
        counted = reads.lost_items() + lost["lost_items"]
        assert run.client(numbering).life() == 0, "it has waited for the replay"
        assert run.supervisor.restarts == {"replay": KILLS}
    assert len(set(seen)) == len(seen), "no row came twice"
    missing = max(seen) + 1 - len(seen)
    assert lost["lost_rows"] <= missing
    # The count is of the reader's last look: what was let in, or was on its way to it, since then is missing too.
    assert 0 <= missing - counted <= KILLS * 3 * BATCH, (missing, counted)


# Whole runs. An item is UNROLL rows of an environment; the learner is slow, so that the queue is full.

ACTORS, ENVS, UNROLL = 2, 4, 5
RUN = {"actors": ACTORS, "envs-per-actor": ENVS, "unroll": UNROLL, "batch": BATCH, "queue": QUEUE, "hidden": 8}
UNDER_WAY = 3 * BATCH  # items at the most that are on their way to a learner, or have come since it looked


class Killed:
    """A run of `numbered.py`, and what has become of its rows."""

    def __init__(
        self, directory: Path, monkeypatch: pytest.MonkeyPatch, victims: tuple[str, ...], seconds: float
    ) -> None:
        file = directory / "rows"
        monkeypatch.setenv(FILE, str(file))
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")]))
        options = [word for name, value in RUN.items() for word in (f"--{name}", str(value))]
        words = [str(HERE / "numbered.py"), "--env", "numbered:Numbered", *options]
        run = Survival(words, directory, runtime="local", seed=0)
        try:
            run.await_learning()
            time.sleep(2.0)
            run.hit(signal.SIGKILL, seconds, 3.0, victims)
            run.await_life()
            time.sleep(2.0)  # all that was lost is told
            outcome = run.finish(0.0)
        finally:
            run.close()
        self.hit, self.lost, self.told = outcome.hit, outcome.summary["lost"], outcome.told
        rows = read_rows(file)
        self.given, self.different = len(rows), len(np.unique(rows, axis=0))
        streams = [np.sort(rows[rows[:, 0] == one, 1]) for one in np.unique(rows[:, 0])]
        self.gaps = [int(gap) for stream in streams for gap in np.diff(stream, prepend=0) - 1 if gap]

    def kills(self, name: str) -> int:
        return sum(name in hit for hit in self.hit)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_killed_replay_costs_a_run_the_items_that_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Killed(tmp_path, monkeypatch, ("replay",), 12.0)
    assert run.kills("replay") >= 3
    assert run.different == run.given, "no row came twice"
    assert all(gap % UNROLL == 0 for gap in run.gaps), "items are whole"
    missing = sum(run.gaps) // UNROLL
    assert 0 <= missing - run.lost["items"] <= run.kills("replay") * UNDER_WAY, (missing, run.lost)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_whoever_is_killed_no_row_is_trained_twice_and_what_is_missing_is_what_was_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A learner that dies also loses the batches that were on their way to it: those are no loss of its replay's."""
    run = Killed(tmp_path, monkeypatch, (), 60.0)
    assert run.different == run.given, "no row came twice"
    assert all(gap % UNROLL == 0 for gap in run.gaps), "items are whole"
    missing = sum(run.gaps) // UNROLL
    deaths = run.kills("replay") + run.kills("learner")
    assert abs(missing - run.lost.get("items", 0)) <= deaths * UNDER_WAY, (missing, run.lost, run.hit)
