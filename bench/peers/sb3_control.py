"""Stable-Baselines3's SAC or TD3 with one environment and an update a step.

    python bench/peers/sb3_control.py halfcheetah --method sac [--seconds 30] [--threads 2]

Run by `python -m bench.peers` in an environment that has stable-baselines3. One process acts and learns in turns.
"""

from __future__ import annotations

from typing import Any

import torch
from stable_baselines3 import SAC, TD3
from stable_baselines3.common.callbacks import BaseCallback
from tasks import TASKS, Clock, arguments


class Watch(BaseCallback):
    """Counts updates as SB3 does, and asks the clock after each."""

    def __init__(self, clock: Clock, rows: int) -> None:
        super().__init__()
        self.clock, self.rows = clock, rows

    def _on_step(self) -> bool:
        made: int = self.model._n_updates
        return not made or self.clock.update(env_steps=self.num_timesteps, trained_rows=made * self.rows)


def main() -> None:
    options = arguments(__doc__).parse_args()
    torch.set_num_threads(options.threads)
    task = TASKS[options.task]
    kind: Any = {"sac": SAC, "td3": TD3}[options.method]
    layers = {"net_arch": [256, 256]}  # TD3's own are 400 and 300
    if options.method == "td3":
        layers["activation_fn"] = torch.nn.ReLU
    model = kind(
        "MlpPolicy",
        task.env,
        batch_size=task.work(options.method).rows,
        learning_starts=1_000,
        learning_rate=3e-4,
        train_freq=1,
        gradient_steps=1,
        policy_kwargs=layers,
        seed=0,
        device="cpu",
    )
    clock = Clock(options.seconds)
    model.learn(total_timesteps=10**12, callback=Watch(clock, task.work(options.method).rows))
    print(clock.result(("stable-baselines3", "torch", "gymnasium", "numpy")))


if __name__ == "__main__":
    main()
