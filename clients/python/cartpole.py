"""CartPole as a simulator outside, without Shoal: `python cartpole.py ws://127.0.0.1:8700 [environment|evaluator]`."""

from __future__ import annotations

import sys

import gymnasium
from shoal_client import Client, Ended

OBSERVATION = {"kind": "box", "shape": [4], "dtype": "float32", "low": "-inf", "high": "inf"}
ACTION = {"kind": "discrete", "n": 2, "start": 0}


def main(url: str, role: str = "environment", seed: int | None = None) -> None:
    simulator = gymnasium.make("CartPole-v1")
    with Client(url, observation_space=OBSERVATION, action_space=ACTION, role=role) as shoal:
        observation, _ = simulator.reset(seed=seed)
        action = shoal.reset(observation)
        try:
            while True:
                observation, reward, terminated, truncated, _ = simulator.step(action)
                action = shoal.step(observation, reward, terminated, truncated)
                if terminated or truncated:
                    observation, _ = simulator.reset()
                    action = shoal.reset(observation)
        except Ended as end:
            print(f"{end} (after {shoal.seq:,} messages)")


if __name__ == "__main__":
    main(*sys.argv[1:3])
