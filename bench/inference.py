"""What acting costs beside the bare network: a policy's whole `act` against a loop of torch alone, in turns.

    python -m bench.inference [--env PongNoFrameskip-v4] [--batch 16] [--rounds 20]

The bare loop has the same network, laid out channels-last, and a batch of stacks that lies ready as a tensor.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from shoal.algorithms import impala
from shoal.envs import describe
from shoal.runs import registry

CALLS = 20  # of each side in a round


def milliseconds(call: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    for _ in range(CALLS):
        call()
    return (time.perf_counter() - begin) / CALLS * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", default="PongNoFrameskip-v4")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=20)
    options = parser.parse_args()
    torch.set_num_threads(1)
    spec = describe(options.env)
    preset = registry.load("impala").PRESETS["atari"]
    policy = impala.make_policy(impala.Config(env=options.env, **preset), spec, seed=0)
    shape = spec.observation_space.shape
    assert shape is not None
    seen = np.random.default_rng(0).integers(0, 256, (options.batch, *shape), np.uint8)
    state, first = policy.initial_state(options.batch), np.zeros(options.batch, np.bool_)
    rows, begins = torch.from_numpy(seen).unsqueeze(0), torch.from_numpy(first).unsqueeze(0)

    @torch.inference_mode()
    def bare() -> Any:
        return policy.network(rows, {}, begins)

    def acting() -> Any:
        return policy.act(seen, state, first)

    pairs = [(milliseconds(bare), milliseconds(acting)) for _ in range(options.rounds)]
    alone, whole = (statistics.median(side) for side in zip(*pairs))
    share = statistics.median(one / other for one, other in pairs)
    print(
        f"{options.env}, batch {options.batch}: bare {options.batch / alone * 1e3:,.0f}/s, policy "
        f"{options.batch / whole * 1e3:,.0f}/s: {share:.1%} of it (median of {options.rounds} rounds in turns)"
    )


if __name__ == "__main__":
    main()
