"""Inserting, sampling, updating and evicting for a long time: no growth in memory, no growth in cost, nothing lost."""

from __future__ import annotations

import gc
import threading
import time

import numpy as np
import psutil
import pytest

from shoal.replay import Prioritized, Replay, Table, Writer, n_step, sequence


def rows(first: int, environments: int, generator: np.random.Generator) -> dict[str, np.ndarray]:
    valid = generator.random((20, environments)) > 0.01
    return {
        "observation": np.full((20, environments, 42, 42), first % 251, np.uint8),
        "reward": np.ones((20, environments), np.float32),
        "terminated": np.zeros((20, environments), bool),
        "valid": valid,
        "state/core": np.zeros((20, environments, 64), np.float32),
    }


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_memory_stays_within_one_percent_after_the_first_fill() -> None:
    replay = Replay([Table("steps", 60_000, sampler=Prioritized(0.6)), Table("sequences", 1_000)])
    generator = np.random.default_rng(0)
    writers = [Writer(replay, {"steps": n_step(3, 0.99), "sequences": sequence(16, period=8)}) for _ in range(2)]
    blocks = [rows(first, 16, generator) for first in range(50)]

    def work(seconds: float) -> None:
        end = time.monotonic() + seconds
        index = 0
        while time.monotonic() < end:
            for writer in writers:
                writer.append(blocks[index % len(blocks)])
            for table, batch in (("steps", 256), ("sequences", 16)):
                sample = replay.sample(table, batch)
                replay.update_priorities(table, sample.keys, generator.random(batch))
            index += 1

    while replay.info()["steps"]["deletes"] < 60_000 or replay.info()["sequences"]["deletes"] < 1_000:
        work(1.0)
    gc.collect()
    before = psutil.Process().memory_info().rss
    work(300.0)
    gc.collect()
    after = psutil.Process().memory_info().rss
    assert abs(after - before) / before < 0.01


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_many_writers_come_and_go() -> None:
    """Actors are restarted all the time, some under their old name, some never say goodbye."""
    replay = Replay([Table("steps", 5_000)], chunk_length=16)
    stop = threading.Event()

    def act(name: str) -> None:
        generator = np.random.default_rng(len(name))
        while not stop.is_set():
            writer = Writer(replay, {"steps": n_step(2, 0.9)}, name=name)
            for first in range(int(generator.integers(1, 10))):
                writer.append(rows(first, 4, generator))
            if generator.random() < 0.5:
                writer.close()

    threads = [threading.Thread(target=act, args=(f"actor {index}",)) for index in range(4)]
    for thread in threads:
        thread.start()
    used = []
    for _ in range(15):
        time.sleep(1.0)
        replay.sample("steps", 64)
        used.append(next(iter(replay._intake.stores.values())).used)
    stop.set()
    for thread in threads:
        thread.join(30)
    assert max(used[8:]) <= 1.3 * max(used[2:8])
    assert len(replay._intake.writers) <= 4
