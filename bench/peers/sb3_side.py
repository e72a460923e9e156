"""Stable-Baselines3's PPO on one of the tasks, with its own wrappers and its own vectors.

    python bench/peers/sb3_side.py pong [--seconds 30] [--threads 2] [--vector dummy]

Run by `python -m bench.peers` in an environment that has stable-baselines3. One process acts and learns in turns; with
`--vector subproc` each environment has a process of its own. Steps are SB3's own count, one for each action of each
environment; what is trained is counted by the optimizer's steps.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_atari_env, make_vec_env
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecFrameStack
from tasks import CLIP, LEARNING_RATE, TASKS, Clock, arguments


class Watch(BaseCallback):
    """Asks the clock between an update and the next rollout."""

    def __init__(self, clock: Clock, minibatch: int) -> None:
        super().__init__()
        self.clock, self.minibatch = clock, minibatch
        self.updates, self.goes_on = 0, True

    def _on_training_start(self) -> None:
        def count(*_: Any) -> None:
            self.updates += 1

        self.model.policy.optimizer.register_step_post_hook(count)

    def _on_rollout_start(self) -> None:
        if self.num_timesteps:
            trained = self.updates * self.minibatch
            self.goes_on = self.clock.update(env_steps=self.num_timesteps, trained_rows=trained)

    def _on_step(self) -> bool:
        return self.goes_on


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--vector", choices=("dummy", "subproc"), default="dummy")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    task = TASKS[options.task]
    work = task.work("ppo")
    # Forked, its processes know the games that are registered here.
    vector: Any = {"dummy": DummyVecEnv, "subproc": partial(SubprocVecEnv, start_method="fork")}[options.vector]
    if options.task == "pong":
        import ale_py  # noqa: F401 (registers the games)

        games = make_atari_env(task.env, n_envs=work.environments, seed=0, vec_env_cls=vector)
        policy, envs = "CnnPolicy", VecFrameStack(games, n_stack=4)
    else:
        policy, envs = "MlpPolicy", make_vec_env(task.env, n_envs=work.environments, seed=0, vec_env_cls=vector)
    # Its own networks are those of the task: NatureCNN with 512 units for both, or 2 × 64 with tanh for each.
    model = PPO(
        policy,
        envs,
        n_steps=work.unroll,
        batch_size=work.minibatch,
        n_epochs=work.epochs,
        learning_rate=LEARNING_RATE,
        clip_range=CLIP,
        ent_coef=0.01,
        seed=0,
        device="cpu",
    )
    clock = Clock(options.seconds)
    model.learn(total_timesteps=10**12, callback=Watch(clock, work.minibatch))
    envs.close()
    print(clock.result(("stable-baselines3", "torch", "gymnasium", "numpy")))


if __name__ == "__main__":
    main()
