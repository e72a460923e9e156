"""Ape-X DQN (Horgan 2018): many actors at different ε fill a prioritised replay, one learner empties it of surprises.

Double, dueling, n-step Q-learning; `--quantiles N` learns N quantiles of the return instead of its mean (QR-DQN, Dabney
2018). Departures from the paper: `--samples-per-insert` can hold acting and learning to a ratio, where the paper lets
each run at its own pace; losses are means over a batch; the small preset uses Adam.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from shoal import optim
from shoal.acting.q import QPolicy
from shoal.batches import Batch
from shoal.config import Amount, Positive, Whole, config
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
from shoal.options import DuelingNetwork, EpsilonLadder, OffPolicy, Rewards
from shoal.program import Program
from shoal.replay import n_step
from shoal.state import Stateful


@config(
    # acting
    env="CartPole-v1",
    actors=1,
    envs_per_actor=64,
    # networks
    encoder="nature",
    hidden=(256, 256),
    activation="relu",
    stream=0,
    # optimizers
    learning_rate=1e-3,
    epsilon=1e-8,
    grad_clip=40.0,
    # returns
    gamma=0.99,
    n=3,
    reward_scale=1.0,
    reward_clip=0.0,
    # replay
    rows=16,
    replay="prioritized",
    capacity=100_000,
    learning_starts=1_000,
    samples_per_insert=0.0,
    priority_exponent=0.6,
    importance_exponent=0.4,
    # updates
    batch=512,
    publish_every=1,
    target_every=200,
    # exploration
    ladder_base=0.4,
    ladder_exponent=7.0,
)
class Config(DuelingNetwork, OffPolicy, EpsilonLadder, Rewards):
    huber: Amount = 0.0
    """TD errors beyond it count linearly; 0: all are squared."""
    quantiles: Whole = 0
    """Of the return, per action; 0: only its mean."""
    kappa: Positive = 1.0
    """Quantile errors beyond it count linearly."""
    optimizer: Literal["adam", "rmsprop"] = "adam"
    """rmsprop: centred, as in the paper."""


PRESETS: dict[str, dict[str, Any]] = {
    "classic": {"n": 10, "reward_scale": 0.1, "samples_per_insert": 1.25, "target_every": 50},
    "pixels": {
        "envs_per_actor": 16,
        "hidden": (128,),
        "activation": "relu",
        "learning_rate": 5e-4,
        "capacity": 50_000,
        "samples_per_insert": 4.0,
        "batch": 64,
        "target_every": 100,
    },
    # Many small updates, for two cores and an hour.
    "atari": {
        "envs_per_actor": 16,
        "hidden": (),
        "stream": 256,
        "learning_rate": 3e-4,
        "epsilon": 1e-5,
        "n": 5,
        "reward_clip": 1.0,
        "rows": 8,
        "capacity": 100_000,
        "learning_starts": 5_000,
        "samples_per_insert": 4.0,
        "batch": 32,
        "publish_every": 10,
        "target_every": 500,
        "huber": 1.0,
    },
    # Horgan's figures; where it has 360 actors of one environment each, the ladder runs over all environments.
    "paper": {
        "envs_per_actor": 16,
        "hidden": (),
        "stream": 512,
        "learning_rate": 6.25e-5,
        "epsilon": 1.5e-7,
        "reward_clip": 1.0,
        "rows": 25,
        "capacity": 2_000_000,
        "learning_starts": 50_000,
        "target_every": 2_500,
        "optimizer": "rmsprop",
    },
}


def make_policy(cfg: Config, env: Spaces, seed: int, greedy: bool = False) -> QPolicy:
    ladder = partial(epsilon_ladder, base=cfg.ladder_base, exponent=cfg.ladder_exponent)
    return QPolicy(
        make_q_network(cfg, env, seed, cfg.quantiles),
        seed,
        epsilons=None if greedy else ladder,
        priorities=partial(priorities_of, cfg) if cfg.replay == "prioritized" and not greedy else None,
        device=cfg.acting_device,
    )


def targets_of(cfg: Config, items: Mapping[str, Tensor]) -> Tensor:
    """What n-step transitions [B] should have been worth, with what follows worth "next_value": [B], or quantiles
    [B, K]."""
    returns, discounts = items["reward"] * cfg.reward_scale, items["discount"]
    return bootstrap(returns=returns, discounts=discounts, values=items["next_value"])


def priorities_of(cfg: Config, items: Mapping[str, Tensor]) -> Tensor:
    """|TD error| of "q" [B], of quantiles [B, K] its mean over all pairs: the law of learners, and of actors by the
    values they acted on."""
    q, targets = items["q"], targets_of(cfg, items)
    return as_priorities(quantile_priorities(predicted=q, targets=targets) if cfg.quantiles else targets - q)


class ApexDQN(Stateful):
    """The learner: batches of n-step transitions in, weights and priorities out."""

    def __init__(self, cfg: Config, env: Spaces, seed: int, peers: optim.Peers = optim.ALONE) -> None:
        self.cfg = cfg
        self.network = make_q_network(cfg, env, seed, cfg.quantiles).to(cfg.device)
        self.target = Target(self.network, cfg.target_every)
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

    def update(self, batch: Batch) -> Update:
        """One step from columns [B, ...] of n-step transitions and, if prioritised, "importance" [B]; then the target
        network follows."""
        loss, priorities, metrics = self.loss(batch)
        count = torch.tensor(len(priorities))
        step = self.optimizer.step(loss, count)
        self.target.follow(self.optimizer.updates)
        return Update(
            {**metrics, "grad_norm": step.grad_norm, "target_drift": Drift(self.target)},
            priorities=priorities if step.applied else None,
            applied=step.applied,
        )

    def loss(self, batch: Batch) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """The mean loss, weighted by importance, the items' priorities [B], and metrics."""
        cfg, following = self.cfg, batch["next_observation"]
        with torch.no_grad():
            next_values = self.network(following)
            preferred = next_values.mean(-1) if cfg.quantiles else next_values
            next_value = double_q_values(online=preferred, target=self.target.network(following))
        values = self.network(batch["observation"])
        q = chosen(values, actions=batch["action"])
        items = {**batch, "q": q, "next_value": next_value}
        targets = targets_of(cfg, items)
        if cfg.quantiles:
            losses = quantile_huber_loss(predicted=q, targets=targets, kappa=cfg.kappa)
        else:
            losses = huber(targets - q, kappa=cfg.huber) if cfg.huber else 0.5 * (targets - q).square()
        loss = importance_mean(losses, importance=batch.get("importance"))
        priorities = priorities_of(cfg, items)
        return loss, priorities, {"loss": loss.detach(), **value_metrics(q=values, errors=priorities)}


def program(cfg: Config, env: EnvSpec, settings: Settings) -> Program:
    """Actors fill a table, learners sample it and send back how surprising each transition was."""
    pattern = n_step(cfg.n, cfg.gamma, following=("observation", "value"), reward_clip=cfg.reward_clip)
    return experience_program(cfg, env, settings, learner=ApexDQN, policy=make_policy, pattern=pattern)
