"""Small datasets for tests of pages that learn from data, written once in a session."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from shoal.data import DatasetWriter, episode

PLACE: list[Path] = []  # where this session's lie: set in tests/conftest.py
ENVS = {"bc": "CartPole-v1", "discrete_cql": "CartPole-v1"}
ENVS |= dict.fromkeys(("td3_bc", "iql", "cql"), "Pendulum-v1")
OFFLINE = [*ENVS]


def balance(observation: Any) -> int:
    """CartPole-v1: 500 with every seed that was tried."""
    place, speed, angle, turning = observation
    return int(0.1 * place + 0.3 * speed + 3.0 * angle + turning > 0.0)


def swing_up(observation: Any) -> Any:
    """Pendulum-v1: about -140. Energy until it is near the top, then held there."""
    cosine, sine, turning = observation
    energy = turning**2 / 6.0 + 5.0 * (cosine - 1.0)
    held = -(12.0 * np.arctan2(sine, cosine) + 3.0 * turning)
    push = held if cosine > 0.85 else -2.0 * np.sign(turning or 1.0) * np.sign(energy)
    return np.clip(np.float32([push]), -2.0, 2.0)


GUIDES: dict[str, Any] = {"CartPole-v1": balance, "Pendulum-v1": swing_up}


def page_options(algorithm: str) -> dict[str, Any]:
    """What a page needs that learns from data; nothing for others."""
    return {"env": ENVS[algorithm], "data": dataset(ENVS[algorithm])} if algorithm in ENVS else {}


@cache
def dataset(env: str, episodes: int = 8, steps: int = 40, guided: float = 0.0) -> str:
    """Episodes of at most so many steps, by who knows the task with the chance `guided`, and else by chance."""
    made, path = gymnasium.make(env, max_episode_steps=steps), PLACE[0] / f"{env}-{episodes}-{steps}-{guided}"
    made.action_space.seed(0)
    random, guide = np.random.default_rng(0), GUIDES[env]
    with DatasetWriter(path, made.observation_space, made.action_space, env=env) as writer:
        for seed in range(episodes):
            observation, _ = made.reset(seed=seed)
            seen, taken, earned = [observation], [], []
            terminated = truncated = False
            while not (terminated or truncated):
                action = guide(observation) if random.random() < guided else made.action_space.sample()
                observation, reward, terminated, truncated, _ = made.step(action)
                seen.append(observation)
                taken.append(action)
                earned.append(float(reward))
            ends = {"terminated": terminated, "truncated": truncated, "seed": seed}
            writer.append(episode(np.stack(seen), np.stack(taken), np.asarray(earned), **ends))
    made.close()
    return str(path)
