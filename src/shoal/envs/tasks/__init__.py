"""Tasks that come with the project and that Gymnasium does not have, registered under `shoal/`."""

from __future__ import annotations

import gymnasium

gymnasium.register(
    "shoal/CartPoleHidden-v0",
    "shoal.envs.tasks.hidden_cartpole:cartpole_hidden",
    vector_entry_point="shoal.envs.tasks.hidden_cartpole:CartPoleHiddenVector",
    max_episode_steps=500,
    reward_threshold=475.0,
)
gymnasium.register(
    "shoal/Recall-v0",
    "shoal.envs.tasks.recall:Recall",
    vector_entry_point="shoal.envs.tasks.recall:RecallVector",
    reward_threshold=0.95,
)
gymnasium.register(
    "shoal/Catch-v0",
    "shoal.envs.tasks.catch:Catch",
    vector_entry_point="shoal.envs.tasks.catch:CatchVector",
    reward_threshold=0.9,
)
gymnasium.register(
    "shoal/CatchMemory-v0",
    "shoal.envs.tasks.catch:Catch",
    vector_entry_point="shoal.envs.tasks.catch:CatchVector",
    kwargs={"visible": 1},
    reward_threshold=0.9,
)
