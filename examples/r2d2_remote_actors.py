"""R2D2 with your own environment, network and adder modules, on remote actors.

    python examples/r2d2_remote_actors.py [ray|local|inline]

Two actors, the replay, the learner and the weights are nodes; with `ray` each is a Ray actor, and a cluster's machines
share the acting (`ray_address="auto"`). docs/coming-from-acme.md puts it beside acme_dist_toolkit's own example.
"""

from __future__ import annotations

import sys

import shoal
from shoal.algorithms import r2d2

CONFIG = r2d2.Config(
    env="r2d2_user_modules:make_environment",
    network="r2d2_user_modules:make_network",
    pattern="r2d2_user_modules:make_adder",
    actors=2,
    envs_per_actor=16,
    rows=12,  # steps of each environment in a message to the replay
    burn_in=0,
    length=5,  # steps of the longest item
    period=5,
    n=5,
    capacity=5_000,
    learning_starts=100,
    samples_per_insert=4.0,
    batch=64,
    target_every=25,
    learning_rate=3e-3,
)


def main(runtime: str, **options: object) -> shoal.Result:
    result = shoal.train(CONFIG, runtime=runtime, seed=1, stop_return=0.9, stop_updates=1_000, **options)
    print(f"return {result.eval_return} after {result.learner_steps} updates of {result.env_steps} steps")
    return result


if __name__ == "__main__":
    main(*sys.argv[1:] or ["ray"])
