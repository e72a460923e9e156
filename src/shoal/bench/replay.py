"""`shoal bench replay`: the replay service under three kinds of work, in process and from a process of its own."""

from __future__ import annotations

import collections
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TextIO

import numpy as np
import numpy.typing as npt

from shoal.acting.sender import PipelinedInserts
from shoal.program import Program, futures
from shoal.replay import Pattern, Prioritized, Replay, Table, Writer, n_step, sequence
from shoal.runtime import launch

TABLE = "experience"
PREFETCH = 2
WINDOW = 0.5  # seconds per measurement; the best of several counts


@dataclass(frozen=True)
class Work:
    """One kind of items, and the blocks in which an actor would write them."""

    shape: tuple[int, ...]  # of an observation
    dtype: str
    pattern: Pattern
    capacity: int  # items
    environments: int
    rows: int  # per block
    batch: int

    def block(self, seed: int = 0) -> dict[str, npt.NDArray[Any]]:
        """Rows as an actor appends them; episodes do not end, since ends cost nothing and blur the count."""
        random = np.random.default_rng(seed)
        leading = (self.rows, self.environments)
        return {
            "observation": random.integers(0, 255, (*leading, *self.shape)).astype(self.dtype),
            "action": random.integers(0, 4, leading, np.int32),
            "reward": random.random(leading, np.float32),
            "terminated": np.zeros(leading, np.bool_),
            "valid": np.ones(leading, np.bool_),
        }

    def table(self) -> Table:
        return Table(TABLE, self.capacity, sampler=Prioritized(0.6))


WORKS = {
    "transitions": Work((4,), "float32", n_step(1, 0.99), 1_000_000, 64, 100, 512),
    "frame stacks": Work((84, 84), "uint8", n_step(1, 0.99, stack={"observation": 4}), 40_000, 16, 100, 256),
    "sequences": Work((84, 84), "uint8", sequence(80, period=40), 1_000, 16, 40, 16),
}


class Driver:
    """A client that inserts or samples for a while and says how many items a second it managed."""

    def __init__(self, work: Work, replay: Replay) -> None:
        self._work, self._replay = work, replay
        self._writer = Writer(PipelinedInserts(replay), {TABLE: work.pattern})  # as actors write
        self._block = work.block()
        self._random = np.random.default_rng(1)

    def fill(self) -> None:
        """Until items are removed for every one that comes, and all memory has been touched."""
        accepted = 0
        while accepted < 1.3 * self._work.capacity:
            accepted += self._writer.append(self._block).accepted.get(TABLE, 0)

    def insert_for(self, seconds: float) -> float:
        items, begun = 0, time.perf_counter()
        while (spent := time.perf_counter() - begun) < seconds:
            items += self._writer.append(self._block).accepted.get(TABLE, 0)
        return items / spent

    def sample_for(self, seconds: float) -> float:
        ask = futures(self._replay).sample  # as learners read: the next batches are asked for ahead of time
        items, begun = 0, time.perf_counter()
        asked = collections.deque(ask(TABLE, self._work.batch) for _ in range(PREFETCH))
        while (spent := time.perf_counter() - begun) < seconds:
            items += len(asked.popleft().result())
            asked.append(ask(TABLE, self._work.batch))
        for left in asked:
            left.result()
        return items / spent

    def train_for(self, seconds: float) -> float:
        """Seconds per batch that is sampled and whose priorities are updated."""
        batches, begun = 0, time.perf_counter()
        priorities = self._random.random(self._work.batch) + 0.1
        while (spent := time.perf_counter() - begun) < seconds:
            sample = self._replay.sample(TABLE, self._work.batch)
            self._replay.update_priorities(TABLE, sample.keys, priorities)
            batches += 1
        return spent / batches


def best(measure: Callable[[float], float], repeat: int) -> float:
    return max(measure(WINDOW) for _ in range(repeat))


def in_process(work: Work, repeat: int) -> dict[str, float]:
    replay = Replay([work.table()])
    driver = Driver(work, replay)
    driver.fill()
    info = replay.info()[TABLE]
    return {
        "insert": best(driver.insert_for, repeat),
        "sample": best(driver.sample_for, repeat),
        "bytes_per_row": info["row_bytes"] / _rows_of(work, info["size"]),
        "bytes_per_item": info["item_bytes"] / info["size"],
    }


def _rows_of(work: Work, items: int) -> float:
    """Rows that items refer to, each counted once, and those that the next item of every environment begins with."""
    period = 40 if work is WORKS["sequences"] else 1
    return (items - work.environments) * period + work.environments * (work.pattern.rows + period - 1)


def served(work: Work, repeat: int) -> dict[str, float]:
    """From a process of its own, to one client alone and to two at once: one that writes and one that reads."""
    program = Program()
    replay = program.add("replay", Replay, [work.table()])
    writer = program.add("writer", Driver, work, replay)
    reader = program.add("reader", Driver, work, replay)
    with launch(program, "local") as run:
        write, read = run.client(writer), run.client(reader)
        write.fill()
        alone = {"insert": best(write.insert_for, repeat), "sample": best(read.sample_for, repeat)}
        both = []
        for _ in range(repeat):
            inserting, sampling = write.future.insert_for(2 * WINDOW), read.future.sample_for(2 * WINDOW)
            both.append((inserting.result(), sampling.result()))
        fairest = max(both, key=lambda pair: min(pair[0] / alone["insert"], pair[1] / alone["sample"]))
        return {**alone, "insert at once": fairest[0], "sample at once": fairest[1]}


def growth(repeat: int, sizes: Sequence[int] = (10_000, 100_000, 1_000_000, 10_000_000)) -> dict[str, float]:
    """Microseconds per batch of 512 transitions, sampled and updated, by the table's size."""
    costs = {}
    for size in sizes:
        work = replace(WORKS["transitions"], capacity=size)
        driver = Driver(work, Replay([work.table()]))
        driver.fill()
        costs[str(size)] = min(driver.train_for(WINDOW) for _ in range(repeat)) * 1e6
    return costs


def age(repeat: int, inserts: int = 50_000_000) -> dict[str, float]:
    """The same for a table of 100,000 items that is new, and after `inserts`, measured in turns."""
    work = replace(WORKS["transitions"], capacity=100_000)
    old, new = (Driver(work, Replay([work.table()])) for _ in range(2))
    old.fill()
    new.fill()
    done = 0.0
    while done < inserts:
        done += old.insert_for(1.0)
    pairs = [(old.train_for(WINDOW), new.train_for(WINDOW)) for _ in range(repeat)]
    return {"inserts": done, "old": min(pair[0] for pair in pairs) * 1e6, "new": min(pair[1] for pair in pairs) * 1e6}


def checkpoints(repeat: int) -> dict[str, dict[str, float]]:
    """Seconds to save and to load a million transitions and 200,000 frames, and how long others waited for the save.

    The best of several each, and the first load: a virtual machine may be given its memory only then.
    """
    frames = replace(WORKS["frame stacks"], capacity=200_000)
    return {
        "transitions": _save_and_load(WORKS["transitions"], repeat),
        "frames": _save_and_load(frames, repeat, _like_atari(frames)),
    }


def _like_atari(work: Work) -> dict[str, npt.NDArray[Any]]:
    """Frames with large even areas and a few small moving things, which compress about as well as Pong."""
    block = work.block()
    frames = np.full((work.rows, work.environments, *work.shape), 87, np.uint8)
    random = np.random.default_rng(2)
    for row in range(work.rows):
        for environment in range(work.environments):
            for _ in range(6):
                y, x = random.integers(0, 76, 2)
                frames[row, environment, y : y + 8, x : x + 3] = random.integers(0, 255)
    return {**block, "observation": frames}


def _save_and_load(work: Work, repeat: int, block: dict[str, npt.NDArray[Any]] | None = None) -> dict[str, float]:
    replay = Replay([work.table()])
    writer = Writer(replay, {TABLE: work.pattern})
    block = work.block() if block is None else block
    while replay.info()[TABLE]["size"] < work.capacity:
        for _ in range(20):
            writer.append(block)
    saves, loads = [], []
    for _ in range(repeat):
        with tempfile.TemporaryDirectory(prefix="shoal-bench-") as directory:
            saves.append(replay.save(directory))
            fresh = Replay([work.table()])
            begun = time.perf_counter()
            fresh.load(directory)
            loads.append(time.perf_counter() - begun)
            del fresh
    best_of = {kind: min(save[f"{kind}seconds"] for save in saves) for kind in ("", "pause_")}
    return {"save": best_of[""], "pause": best_of["pause_"], "load": min(loads), "first load": loads[0]}


def measure_all(repeat: int, quick: bool, output: TextIO) -> dict[str, Any]:
    """Every kind of work, told as it is measured; with `quick` without growth, age and checkpoints."""
    report: dict[str, Any] = {"bench": "replay", "repeat": repeat, "window_seconds": WINDOW}
    for place, measure in (("in process", in_process), ("served", served)):
        report[place] = {}
        for name, work in WORKS.items():
            report[place][name] = found = measure(work, repeat)
            shown = "  ".join(f"{key} {value:,.0f}" for key, value in found.items())
            print(f"{place:<11} {name:<13} items/s: {shown}", file=output, flush=True)
    if not quick:
        for title, part in (("growth", growth), ("age", age)):
            report[title] = part(repeat)
            print(f"{title}: {report[title]}", file=output, flush=True)
        report["checkpoints"] = checkpoints(repeat)
        print(f"checkpoints: {report['checkpoints']}", file=output, flush=True)
    return report
