"""d3rlpy's IQL and TD3+BC on the data of `single_file.py`, in the same sizes.

    python bench/offline_speed/d3rlpy_side.py iql [--seconds 10] [--threads 2]

Needs d3rlpy 2.8; `fit` draws its batches and makes its updates, without files or progress.
"""

from __future__ import annotations

import argparse
import json
import time

import d3rlpy
import numpy as np
import torch
from single_file import BATCH, RATE, WIDTH, columns

TRIAL = 200  # updates that tell how many fit into the time


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("method", choices=("iql", "td3_bc"))
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    seen, action, reward, _, ended = (np.asarray(column) for column in columns())
    nothing = np.zeros_like(ended)
    dataset = d3rlpy.dataset.MDPDataset(seen, action, reward, nothing, ended)  # episodes end by time
    form = d3rlpy.models.VectorEncoderFactory([WIDTH, WIDTH])
    same = {"actor_encoder_factory": form, "critic_encoder_factory": form, "batch_size": BATCH}
    same |= {"actor_learning_rate": RATE, "critic_learning_rate": RATE}
    if options.method == "iql":
        made = d3rlpy.algos.IQLConfig(**same, value_encoder_factory=form).create(device=False)
    else:
        made = d3rlpy.algos.TD3PlusBCConfig(**same).create(device=False)
    quiet = d3rlpy.logging.NoopAdapterFactory()

    def fit(updates: int) -> float:
        begin = time.perf_counter()
        made.fit(dataset, n_steps=updates, n_steps_per_epoch=updates, show_progress=False, logger_adapter=quiet)
        return updates / (time.perf_counter() - begin)

    fit(TRIAL)
    rate = fit(TRIAL)
    print(json.dumps({"updates_per_second": fit(max(TRIAL, int(rate * options.seconds)))}))


if __name__ == "__main__":
    main()
