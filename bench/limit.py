"""The machine's own limit for IMPALA on CartPole: acting and learning in one loop of one process, alone and twice.

    python bench/limit.py [--seconds 4]

No services, no processes, no evaluator: what the same environment, policy and update cost when nothing else happens.
Two copies at once show how much of a second core there really is.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time

for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(name, "1")


def loop(seconds: float) -> float:
    """Steps per second of one process."""
    import numpy as np
    import torch

    from shoal import envs
    from shoal.acting import Recorder
    from shoal.algorithms import impala
    from shoal.batches import to_batch
    from shoal.nets.weights import export_weights

    torch.set_num_threads(1)
    env = envs.describe("CartPole-v1")
    cfg = impala.Config(env="CartPole-v1", **impala.PRESETS["classic"])
    vector = envs.make("CartPole-v1", cfg.envs_per_actor, seed=0)
    learner = impala.Impala(cfg, env, 0)
    last: dict[str, np.ndarray] = {}

    def learn(block: dict[str, np.ndarray]) -> None:
        nonlocal last
        rows = {name: np.concatenate([last[name], column]) if last else column for name, column in block.items()}
        last = {name: column[-1:].copy() for name, column in block.items()}
        learner.update(to_batch(rows, env.observation_space))
        recorder.load(0, export_weights(learner.network))

    recorder = Recorder(impala.make_policy(cfg, env, 1), cfg.envs_per_actor, cfg.unroll, learn)
    recorder.load(0, export_weights(learner.network))
    observation = vector.reset()
    steps, begun = 0, time.perf_counter()
    while (spent := time.perf_counter() - begun) < seconds:
        outcome = vector.step(recorder.act(observation))
        observation = outcome.observation
        steps += int(outcome.valid.sum())
        recorder.result(outcome)
    return steps / spent


def copies(count: int, seconds: float) -> list[float]:
    """Steps per second of each of several processes that run at once."""
    command = [sys.executable, __file__, "--seconds", str(seconds), "--one"]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(count)]
    return [float(process.communicate()[0]) for process in running]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--one", action="store_true", help="run the loop here and print its figure only")
    options = parser.parse_args()
    if options.one:
        print(loop(options.seconds))
        return
    print(json.dumps({"alone": copies(1, options.seconds), "two at once": copies(2, options.seconds)}))


if __name__ == "__main__":
    main()
