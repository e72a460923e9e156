"""Ape-X DQN (Horgan 2018): many actors at different ε fill a prioritised replay, one learner empties it of surprises.

Double, dueling, n-step Q-learning; `--quantiles N` learns N quantiles of the return instead of its mean (QR-DQN, Dabney
2018). Departures from the paper: `--samples-per-insert` can hold acting and learning to a ratio, where the paper lets
each run at its own pace; losses are means over a batch; the small preset uses Adam.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from shoal import optim
from shoal.acting.q import QPolicy
from shoal.batches import Batch
from shoal.config import Amount, Whole, config
from shoal.envs import EnvSpec
from shoal.functional.distributional import quantile_huber_loss, quantile_priorities
from shoal.functional.exploration import epsilon_ladder
from shoal.functional.n_step import bootstrap
from shoal.functional.q import as_priorities, chosen, double_q_values, huber, importance_mean, value_metrics
from shoal.learning import Update
from shoal.loops.wiring import Settings, experience_program
from shoal.nets.building import Spaces
from shoal.nets.q import make_q_network
from shoal.nets.targets import Drift, Target
from shoal.options import PIXELS, DuelingNetwork, EpsilonLadder, OffPolicy, Rewards
from shoal.program import Program
from shoal.replay import n_step
from shoal.state import Stateful


@config(grad_clip=40.0)
class Config(DuelingNetwork, OffPolicy, EpsilonLadder, Rewards):
    quantiles: Whole = 0
    """Of the return, per action; 0: only its mean."""
    kappa: Amount = 0.0
    """TD errors beyond it count linearly; 0: all are squared, or with quantiles as 1."""
    optimizer: Literal["adam", "rmsprop"] = "adam"
    """rmsprop: centred, as in the paper."""


ATARI: dict[str, Any] = {"envs_per_actor": 16, "reward_clip": 1.0, "hidden": ()}
PRESETS: dict[str, dict[str, Any]] = {
    "classic": {"reward_scale": 0.1, "n": 10, "target_every": 50, "samples_per_insert": 1.25},
    "pixels": PIXELS
    | {"batch": 64, "capacity": 50_000, "samples_per_insert": 4.0, "target_every": 100, "learning_rate": 5e-4},
    # Many small updates, for two cores and an hour.
    "atari": ATARI
    | {"stream": 256, "batch": 32, "rows": 8, "samples_per_insert": 4.0, "capacity": 100_000, "learning_starts": 5_000}
    | {"n": 5, "target_every": 500, "publish_every": 10, "learning_rate": 3e-4, "epsilon": 1e-5, "kappa": 1.0},
    # Horgan's figures; where it has 360 actors of one environment each, the ladder runs over all environments.
    "paper": ATARI
    | {"stream": 512, "rows": 25, "capacity": 2_000_000, "learning_starts": 50_000, "target_every": 2_500}
    | {"optimizer": "rmsprop", "learning_rate": 2.5e-4 / 4, "epsilon": 1.5e-7},
}


def make_policy(cfg: Config, env: Spaces, seed: int, greedy: bool = False) -> QPolicy:
    environments = cfg.actors * cfg.envs_per_actor
    ladder = epsilon_ladder(np.arange(environments), environments, cfg.ladder_base, cfg.ladder_exponent)
    return QPolicy(
        make_q_network(cfg, env, seed, cfg.quantiles),
        seed,
        epsilons=None if greedy else ladder,
        priorities=partial(first_priorities, cfg) if cfg.replay == "prioritized" and not greedy else None,
        device=cfg.acting_device,
    )


def targets_of(cfg: Config, items: Mapping[str, Tensor], values: Tensor) -> Tensor:
    """What n-step transitions should have been worth, from what their last states are worth."""
    return bootstrap(items["reward"] * cfg.reward_scale, items["discount"], values)


def priorities_of(q: Tensor, targets: Tensor) -> Tensor:
    """The priority law of actors and learners: |TD error|, of quantiles its mean over all pairs. [B] or [B, K]."""
    return as_priorities(targets - q if q.dim() == 1 else quantile_priorities(q.detach(), targets))


def first_priorities(cfg: Config, items: Mapping[str, Tensor]) -> Tensor:
    """Those of new items, by the values that were acted on."""
    return priorities_of(items["q"], targets_of(cfg, items, items["next_value"]))


class ApexDQN(Stateful):
    """The learner: batches of n-step transitions in, weights and priorities out."""

    def __init__(self, cfg: Config, env: Spaces, seed: int, peers: optim.Peers = optim.ALONE) -> None:
        self.cfg = cfg
        self.network = make_q_network(cfg, env, seed, cfg.quantiles).to(cfg.device)
        self.optimizer = optim.make(
            self.network.parameters(),
            peers,
            rate=cfg.learning_rate,
            kind=cfg.optimizer,
            decay=0.95 if cfg.optimizer == "rmsprop" else None,
            centred=True,
            epsilon=cfg.epsilon,
            epsilon_inside=True,
            clip_norm=cfg.grad_clip,
        )
        self.target = Target(self.network, cfg.target_every)

    def update(self, batch: Batch) -> Update:
        """One update from columns [B, ...] of n-step transitions and, if prioritised, "importance" [B]."""
        loss, priorities, metrics = self.loss(batch)
        step = self.optimizer.step(loss, torch.tensor(len(priorities)))
        self.target.follow(self.optimizer.updates)
        metrics |= {"grad_norm": step.grad_norm, "target_drift": Drift(self.target)}
        return Update(metrics, priorities=priorities if step.applied else None, applied=step.applied)

    def loss(self, batch: Batch) -> tuple[Tensor, Tensor, dict[str, Any]]:
        """The mean loss, weighted by importance, the items' priorities [B], and metrics."""
        cfg, following = self.cfg, batch["next_observation"]
        with torch.no_grad():
            ahead = self.network(following)
            preferred = ahead.mean(-1) if cfg.quantiles else ahead
            targets = targets_of(cfg, batch, double_q_values(preferred, self.target.network(following)))
        values = self.network(batch["observation"])
        q = chosen(values, batch["action"])
        if cfg.quantiles:
            losses, sizes = quantile_huber_loss(q, targets, cfg.kappa or 1.0)  # both in one go over the pairs
            priorities = as_priorities(sizes)
        else:
            losses = huber(targets - q, cfg.kappa) if cfg.kappa else 0.5 * (targets - q).square()
            priorities = priorities_of(q, targets)
        loss = importance_mean(losses, batch.get("importance"))
        return loss, priorities, {"loss": loss.detach(), **value_metrics(values, priorities)}


def program(cfg: Config, env: EnvSpec, settings: Settings) -> Program:
    """Actors fill a prioritised table, learners sample it and send back how surprising each transition was."""
    pattern = n_step(cfg.n, cfg.gamma, following=("observation", "value"), reward_clip=cfg.reward_clip)
    return experience_program(cfg, env, settings, learner=ApexDQN, policy=make_policy, pattern=pattern)
