"""Updates per second of td3_bc on a dataset, from memory or from a disk.

`python -m bench.dataset_reads make FOLDER GB`, then `python -m bench.dataset_reads run FOLDER [--drop]`, within the
limit of memory that is to be tried."""

from __future__ import annotations

import os
import sys
import time

import numpy as np
import torch
from gymnasium import spaces

from shoal.algorithms import td3_bc
from shoal.data import Dataset, DatasetWriter, episode
from shoal.data.ahead import memory
from shoal.experiment.environments import describe_task
from shoal.learning import Learning
from shoal.loops.datasets import DatasetSource
from shoal.replay import n_step

STEPS, WARM, MEASURED = 1000, 100, 800


def make(folder: str, gigabytes: float) -> None:
    """Episodes of HalfCheetah's shape, of random numbers."""
    random = np.random.default_rng(0)
    observations, actions = spaces.Box(-np.inf, np.inf, (17,), np.float32), spaces.Box(-1.0, 1.0, (6,), np.float32)
    with DatasetWriter(folder, observations, actions) as writer:
        while writer.rows * writer.manifest.record.itemsize < gigabytes * 1e9:
            seen = random.normal(size=(STEPS + 1, 17)).astype(np.float32)
            acted = random.uniform(-1, 1, (STEPS, 6)).astype(np.float32)
            writer.append(episode(seen, acted, random.normal(size=STEPS), terminated=False, truncated=True))
    print(f"{writer.rows:,} rows, {writer.rows * writer.manifest.record.itemsize / 1e9:.2f} GB")


def run(folder: str, drop: bool) -> None:
    data = Dataset(folder)
    if drop:
        os.posix_fadvise(data.descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    else:
        data.verify()  # reads everything
    cfg = td3_bc.Config(data=folder, preset="none", actor_hidden=(256, 256), critic_hidden=(256, 256), batch=256)
    env = describe_task(cfg)
    learner = td3_bc.TD3BC(cfg, env, seed=0)
    learning = Learning(learner, torch.device("cpu"))
    source = DatasetSource(
        learning, path=folder, pattern=n_step(1, 0.99), batch=256, observation_space=env.observation_space
    )
    taking = 0.0
    for update in range(WARM + MEASURED):
        if update == WARM:
            begun, taking = time.perf_counter(), 0.0
        before = time.perf_counter()
        taken = source.take()
        taking += time.perf_counter() - before
        learner.update(taken.batch)
        learning.updates += 1
    rate = MEASURED / (time.perf_counter() - begun)
    where = "from disk" if drop else "from memory"
    print(f"{where}: {rate:.1f} updates/s, {1e3 * taking / MEASURED:.2f} ms of each for its batch")
    print(f"dataset {data.nbytes / 1e6:,.0f} MB, memory {memory() / 1e6:,.0f} MB, ahead {source._ahead is not None}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    if sys.argv[1] == "make":
        make(sys.argv[2], float(sys.argv[3]))
    else:
        run(sys.argv[2], "--drop" in sys.argv)
