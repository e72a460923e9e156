"""The work of `shoal bench replay` on Shoal, in process or served from a process of its own; run by compare.py."""

from __future__ import annotations

import sys

from bench.replay.turns import WINDOW, take_turns

from shoal.bench.replay import WORKS, Driver, Work
from shoal.program import Program
from shoal.replay import Replay
from shoal.runtime import launch


def in_process(work: Work) -> None:
    driver = Driver(work, Replay([work.table()]))
    driver.fill()
    take_turns({"insert": lambda: driver.insert_for(WINDOW), "sample": lambda: driver.sample_for(WINDOW)})


def served(work: Work) -> None:
    program = Program()
    replay = program.add("replay", Replay, [work.table()])
    writer, reader = (program.add(name, Driver, work, replay) for name in ("writer", "reader"))
    with launch(program, "local") as run:
        write, read = run.client(writer), run.client(reader)
        write.fill()
        take_turns({"insert": lambda: write.insert_for(WINDOW), "sample": lambda: read.sample_for(WINDOW)})


if __name__ == "__main__":
    {"served": served, "in process": in_process}[sys.argv[2]](WORKS[sys.argv[1]])
