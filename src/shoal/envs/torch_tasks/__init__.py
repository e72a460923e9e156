"""Environments that are written in torch and live on any device, registered under `torch/`; each is a vector."""

from __future__ import annotations

import gymnasium

NAMESPACE = "torch"

gymnasium.register(
    "torch/CartPole-v1",
    vector_entry_point="shoal.envs.torch_tasks.cartpole:CartPoles",
    max_episode_steps=500,
    reward_threshold=475.0,
)
gymnasium.register(
    "torch/Pendulum-v1",
    vector_entry_point="shoal.envs.torch_tasks.pendulum:Pendulums",
    max_episode_steps=200,
)
gymnasium.register(
    "torch/Catch-v0",
    vector_entry_point="shoal.envs.torch_tasks.catch:Catches",
    reward_threshold=0.9,
)
