"""CartPole as a simulator outside, without Shoal: `python cartpole.py ws://127.0.0.1:8700 [environment|evaluator]`.

One that learns is a single environment. One that judges is a vector of ten: episodes of a good policy are long, and ten
at once are judged in the time of one.
"""

from __future__ import annotations

import sys

import gymnasium
import numpy as np
from shoal_client import Client, Ended

SPACES = {
    "observation_space": {"kind": "box", "shape": [4], "dtype": "float32", "low": "-inf", "high": "inf"},
    "action_space": {"kind": "discrete", "n": 2, "start": 0},
}


def learn(url: str) -> None:
    simulator = gymnasium.make("CartPole-v1", disable_env_checker=True)
    with Client(url, **SPACES) as shoal:
        observation, _ = simulator.reset()
        action = shoal.reset(observation)
        while True:
            observation, reward, terminated, truncated, _ = simulator.step(action)
            action = shoal.step(observation, reward, terminated, truncated)
            if terminated or truncated:
                observation, _ = simulator.reset()
                action = shoal.reset(observation)


def judge(url: str, count: int = 10) -> None:
    simulators = gymnasium.make_vec("CartPole-v1", count, vectorization_mode="sync")  # each resets in its next step
    with Client(url, **SPACES, role="evaluator", environments=count) as shoal:
        observation, _ = simulators.reset()
        action, ended = shoal.reset(observation), np.zeros(count, bool)
        while True:
            observation, reward, terminated, truncated, _ = simulators.step(action)
            action = shoal.step(observation, reward, terminated, truncated, reset=ended)
            ended = terminated | truncated


if __name__ == "__main__":
    try:
        {"environment": learn, "evaluator": judge}[sys.argv[2] if len(sys.argv) > 2 else "environment"](sys.argv[1])
    except Ended as end:
        print(end)
