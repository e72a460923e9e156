"""A replay is killed while numbered rows go through it: none comes twice, and what is missing was lost with it."""

from __future__ import annotations

import os
import signal
import time
from typing import Any, cast

import numpy as np
import torch
from gymnasium import spaces

from shoal.acting import Sender
from shoal.loops.prefetch import Prefetch
from shoal.program import Program, current, futures
from shoal.replay import Replay, Table, n_step
from shoal.runtime import launch
from shoal.types import Columns

ROWS, QUEUE = 4, 16  # rows of a block; items that may wait to be read
KILLS = 3


class Numbering:
    """As an actor: every row has the number after the last one's."""

    restart = True

    def __init__(self, replays: list[Replay]) -> None:
        self._send = Sender(cast(Any, object()), replays, {"rows": n_step(1, 0.99)}, current().name)
        self._next, self._lost = 0, 0

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
        self._lost += self._send.take_lost_rows()

    def life(self) -> int:
        return current().restarts

    def lost_rows(self) -> int:
        return self._lost


class Reading:
    """As a learner: takes every item once, and writes the numbers down."""

    restart = True

    def __init__(self, replay: Replay) -> None:
        self._seen: list[int] = []
        space = spaces.Box(-np.inf, np.inf, ())
        self._batches = Prefetch(lambda: futures(replay).sample("rows", 4, timeout=1.0), space, torch.device("cpu"))

    def step(self) -> None:
        sample, _ = self._batches.take()
        self._seen += [int(number) for number in np.ravel(sample.data["reward"])]
        self._batches.ask()
        time.sleep(0.002)

    def seen(self) -> list[int]:
        return list(self._seen)


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
        lost_on_the_way = run.client(numbering).lost_rows()
        assert run.client(numbering).life() == 0, "it has waited for the replay"
        assert run.supervisor.restarts == {"replay": KILLS}
    assert len(set(seen)) == len(seen), "no row came twice"
    gaps = [
        after - before - 1 for before, after in zip(sorted(seen), sorted(seen)[1:], strict=False) if after > before + 1
    ]
    assert len(gaps) <= KILLS
    most = QUEUE + 3 * ROWS  # what was in the queue, what was being read, and the block that was under way
    assert all(gap <= most for gap in gaps), gaps
    assert lost_on_the_way <= sum(gaps)
