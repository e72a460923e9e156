"""Discrete CQL (Kumar 2020): Q-learning on logged data that thinks little of actions which the data has not.

The double, dueling, n-step Q-learning of apex_dqn; to its losses comes, `--conservative-cost` times, log Σ exp Q(s, a)
− Q(s, a of the data). `--online` goes on with actors: `--data-share` of each batch is the data's, the rest their own.
Departures from the paper: no quantiles; the cost is 1 by default. For continuous actions there is cql.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from shoal import optim
from shoal.acting.q import QPolicy
from shoal.batches import Batch
from shoal.config import Amount, config
from shoal.envs import EnvSpec
from shoal.functional.exploration import epsilon_ladder
from shoal.functional.n_step import bootstrap
from shoal.functional.offline import discrete_conservative_gap
from shoal.functional.q import as_priorities, chosen, double_q_values, huber, importance_mean, value_metrics
from shoal.learning import Update
from shoal.loops.wiring import Settings, data_program
from shoal.nets.building import Spaces
from shoal.nets.q import make_q_network
from shoal.nets.targets import Drift, Target
from shoal.options import DuelingNetwork, EpsilonLadder, Online, Rewards
from shoal.program import Program
from shoal.replay import n_step
from shoal.state import Stateful


@config(
    # acting
    env="none",
    actors=1,
    envs_per_actor=8,
    # networks
    encoder="nature",
    hidden=(256, 256),
    activation="relu",
    stream=0,
    # optimizers
    learning_rate=3e-4,
    epsilon=1e-8,
    grad_clip=40.0,
    # returns
    gamma=0.99,
    n=1,
    reward_scale=1.0,
    reward_clip=0.0,
    # data
    online=False,
    data_share=0.5,
    # replay
    rows=16,
    replay="uniform",
    capacity=100_000,
    learning_starts=1_000,
    samples_per_insert=256.0,
    priority_exponent=0.6,
    importance_exponent=0.4,
    # updates
    batch=256,
    publish_every=10,
    target_every=200,
    # exploration
    ladder_base=0.4,
    ladder_exponent=7.0,
)
class Config(DuelingNetwork, Online, EpsilonLadder, Rewards):
    conservative_cost: Amount = 1.0
    """How much it counts that other actions look better than the data's."""
    huber: Amount = 0.0
    """TD errors beyond it count linearly; 0: all are squared."""


PRESETS: dict[str, dict[str, Any]] = {}


def make_policy(cfg: Config, env: Spaces, seed: int, greedy: bool = False) -> QPolicy:
    ladder = partial(epsilon_ladder, base=cfg.ladder_base, exponent=cfg.ladder_exponent)
    return QPolicy(
        make_q_network(cfg, env, seed),
        seed,
        epsilons=None if greedy else ladder,
        priorities=partial(priorities_of, cfg) if cfg.replay == "prioritized" and not greedy else None,
        device=cfg.acting_device,
    )


def td_errors(cfg: Config, items: Mapping[str, Tensor]) -> Tensor:
    """By how much n-step transitions [B] were worth more than "q", with what follows worth "next_value" [B]."""
    returns, discounts = items["reward"] * cfg.reward_scale, items["discount"]
    return bootstrap(returns=returns, discounts=discounts, values=items["next_value"]) - items["q"]


def priorities_of(cfg: Config, items: Mapping[str, Tensor]) -> Tensor:
    """|TD error| [B]: the law of learners, and of actors by the values they acted on."""
    return as_priorities(td_errors(cfg, items))


class DiscreteCQL(Stateful):
    """The learner: batches of n-step transitions in, weights and priorities out."""

    def __init__(self, cfg: Config, env: Spaces, seed: int, peers: optim.Peers = optim.ALONE) -> None:
        self.cfg = cfg
        self.network = make_q_network(cfg, env, seed).to(cfg.device)
        self.target = Target(self.network, cfg.target_every)
        self.optimizer = optim.make(
            self.network.parameters(), peers, rate=cfg.learning_rate, epsilon=cfg.epsilon, clip_norm=cfg.grad_clip
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
        """The mean loss with what the gaps cost, weighted by importance, the items' priorities [B], and metrics."""
        cfg, following = self.cfg, batch["next_observation"]
        with torch.no_grad():
            next_value = double_q_values(online=self.network(following), target=self.target.network(following))
        values = self.network(batch["observation"])
        q = chosen(values, actions=batch["action"])
        items = {**batch, "q": q, "next_value": next_value}
        errors = td_errors(cfg, items)
        gaps = discrete_conservative_gap(values, actions=batch["action"])
        losses = (huber(errors, kappa=cfg.huber) if cfg.huber else 0.5 * errors.square()) + cfg.conservative_cost * gaps
        loss = importance_mean(losses, importance=batch.get("importance"))
        metrics = {"loss": loss.detach(), **value_metrics(q=values, errors=errors), "gap": gaps.detach().mean()}
        return loss, priorities_of(cfg, items), metrics


def program(cfg: Config, env: EnvSpec, settings: Settings) -> Program:
    """Learners read the data; online, actors fill a table beside it."""
    pattern = n_step(cfg.n, cfg.gamma, following=("observation", "value"), reward_clip=cfg.reward_clip)
    return data_program(cfg, env, settings, learner=DiscreteCQL, policy=make_policy, pattern=pattern)
