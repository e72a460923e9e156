"""Stable-Baselines3's PPO on CartPole-v1 until its greedy policy is good, with the settings its own zoo tuned.

    python bench/ppo/sb3_side.py SEED [--target 475] [--seconds 60]

Run by bench/ppo/compare.py in an environment that has stable-baselines3. A policy counts as good as soon as 10 fresh
greedy episodes reach the target and 50 more confirm it, asked every half second of wall-clock time, as with Shoal.
Seconds are told with the evaluation (Shoal's evaluator takes its share of the machine, too) and without it.
"""

from __future__ import annotations

import argparse
import json
import time

import torch
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy


class Judge(BaseCallback):
    """Between rollouts, every half second: is it good enough?"""

    def __init__(self, seed: int, target: float, seconds: float) -> None:
        super().__init__()
        self.envs = make_vec_env("CartPole-v1", n_envs=10, seed=seed + 1_000)
        self.target, self.seconds = target, seconds
        self.judging = 0.0  # seconds spent here
        self.reached: tuple[float, float] | None = None  # seconds with evaluation and without

    def _on_training_start(self) -> None:
        self.begun = self.judged = time.perf_counter()

    def _on_step(self) -> bool:
        return self.reached is None and self.spent() < self.seconds

    def _on_rollout_start(self) -> None:
        spent, begun = self.spent(), time.perf_counter()
        if begun - self.judged < 0.5:
            return
        good = self._returns(10) >= self.target and self._returns(50) >= self.target
        self.judged = time.perf_counter()
        self.judging += self.judged - begun
        if good:
            self.reached = self.judged - self.begun, spent

    def spent(self) -> float:
        """Seconds of training, without evaluation."""
        return time.perf_counter() - self.begun - self.judging

    def _returns(self, episodes: int) -> float:
        mean, _ = evaluate_policy(self.model, self.envs, n_eval_episodes=episodes, deterministic=True, warn=False)
        return float(mean)  # type: ignore[arg-type]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("seed", type=int)
    parser.add_argument("--target", type=float, default=475.0)
    parser.add_argument("--seconds", type=float, default=60.0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    envs = make_vec_env("CartPole-v1", n_envs=8, seed=options.seed)
    model = PPO(
        "MlpPolicy",
        envs,
        n_steps=32,
        batch_size=256,
        n_epochs=20,
        gae_lambda=0.8,
        gamma=0.98,
        ent_coef=0.0,
        learning_rate=lambda left: 1e-3 * left,
        clip_range=lambda left: 0.2 * left,
        seed=options.seed,
        device="cpu",
    )
    judge = Judge(options.seed, options.target, options.seconds)
    model.learn(total_timesteps=100_000, callback=judge)
    spent = judge.spent()
    wall, training = judge.reached or (None, None)
    found = {"seed": options.seed, "seconds_to_target": wall, "without_evaluation": training}
    print(json.dumps({**found, "env_steps_per_second": model.num_timesteps / spent}))


if __name__ == "__main__":
    main()
