"""CartPole as a simulator outside, without Shoal: `python cartpole.py ws://127.0.0.1:8700 [learn|local|judge]`.

One that learns is a single environment, and asks for every action; with `local` the policy comes here and acts here.
One that judges is a vector of ten: episodes of a good policy are long, and ten are judged in the time of one.
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


def learn(url: str, mode: str = "central") -> None:
    simulator = gymnasium.make("CartPole-v1", disable_env_checker=True)
    with Client(url, **SPACES, mode=mode) as shoal:
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
        match sys.argv[2:]:
            case [] | ["learn"]:
                learn(sys.argv[1])
            case ["local"]:
                learn(sys.argv[1], "local")
            case ["judge"]:
                judge(sys.argv[1])
            case _:
                sys.exit(__doc__)
    except Ended as end:
        print(end)
