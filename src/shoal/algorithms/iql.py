"""IQL (Kostrikov 2022): values of logged data that never ask what an action is worth which the data has not.

V(s) is an expectile of Q over the data's own actions: near what the better ones of them are worth. Q learns r + γV(s'),
and the actor imitates the data's actions, each weighted by exp(β · advantage), clipped. The actor is a Gaussian that
nothing squashes, with a deviation that sees no state. Rewards are scaled so that the data's best and worst episodes lie
half as far apart as the longest has steps, where the paper has 1,000 for 1,000 steps: on small data sharper weights
follow the critics' errors. `--online` goes on with actors: `--data-share` of each batch is the data's, the rest theirs.
Departures: log-deviations stay within −5 and 2; the actor's rate falls along a cosine only where `--anneal-updates`
says over how many updates; targets are n-step returns where `--n` asks for them.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from shoal import optim
from shoal.acting.plain_gaussian import PlainGaussianPolicy
from shoal.batches import Batch
from shoal.config import Amount, Positive, Share, Whole, config, replace
from shoal.data import open_dataset, prepare
from shoal.envs import EnvSpec
from shoal.functional.distributions import DiagonalGaussian
from shoal.functional.n_step import bootstrap
from shoal.functional.offline import advantage_weights, expectile_loss
from shoal.functional.q import as_priorities, importance_mean, value_metrics
from shoal.learning import Measured, Update
from shoal.loops.wiring import Settings, data_program
from shoal.nets.building import Spaces
from shoal.nets.control import (
    PlainGaussianActor,
    TwinCritic,
    ValuedNetworks,
    make_bodies,
    make_normalizer,
    make_value_body,
)
from shoal.nets.normalize import Spread
from shoal.nets.targets import Drift, Target
from shoal.options import ContinuousControl, NormalizedObservations, Online, RandomStart
from shoal.program import Program
from shoal.replay import n_step
from shoal.schedules import cosine
from shoal.state import Stateful

WITHIN = 1.0 - 1e-5  # of the actions' bounds


@config(
    # acting
    env="none",
    actors=1,
    envs_per_actor=8,
    # networks
    encoder="nature",
    actor_hidden=(256, 256),
    critic_hidden=(256, 256),
    activation="relu",
    layer_norm=False,
    # optimizers
    actor_rate=3e-4,
    critic_rate=3e-4,
    epsilon=1e-8,
    grad_clip=0.0,
    # returns
    gamma=0.99,
    n=1,
    reward_scale=1.0,
    reward_clip=0.0,
    normalize_observations=False,
    # data
    online=False,
    data_share=0.5,
    # replay
    rows=8,
    replay="uniform",
    capacity=1_000_000,
    learning_starts=1_000,
    samples_per_insert=256.0,
    priority_exponent=0.6,
    importance_exponent=0.4,
    # updates
    batch=256,
    publish_every=10,
    target_every=1,
    target_rate=0.005,
    # exploration
    random_steps=0,
)
class Config(ContinuousControl, NormalizedObservations, Online, RandomStart):
    expectile: Share = 0.7
    """Of what the data's actions are worth in a state: 0.5 is their mean, 1 the best of them."""
    sharpness: Amount = 3.0
    """How much more an action counts for the actor that is worth more; 0: all alike."""
    weight_clip: Positive = 100.0
    """The most that one action counts."""
    anneal_updates: Whole = 0
    """The actor's rate falls to 0 along a cosine over so many updates; 0: constant."""
    return_range: Amount | None = None
    """Rewards are scaled so that the data's best and worst episodes differ by this; None: by half the steps of
    the longest; 0: not at all."""


PRESETS: dict[str, dict[str, Any]] = {}


def make_networks(cfg: Config, env: Spaces, seed: int) -> ValuedNetworks:
    actor, *critics = make_bodies(cfg, env, seed, critics=2)
    return ValuedNetworks(
        PlainGaussianActor(actor, env.action_space),
        TwinCritic(*critics),
        make_value_body(cfg, env, seed),
        make_normalizer(cfg, env),
    )


def make_policy(cfg: Config, env: Spaces, seed: int, greedy: bool = False) -> PlainGaussianPolicy:
    environments = cfg.actors * cfg.envs_per_actor
    return PlainGaussianPolicy(
        make_networks(cfg, env, seed),
        seed,
        greedy=greedy,
        random_rows=-(-cfg.random_steps // environments),
        priorities=partial(priorities_of, cfg) if cfg.replay == "prioritized" and not greedy else None,
        device=cfg.acting_device,
    )


def td_errors(cfg: Config, items: Mapping[str, Tensor]) -> Tensor:
    """By how much n-step transitions were worth more than "q", [B] or of both critics [2, B], with what follows worth
    "next_value" [B]."""
    returns, discounts = items["reward"] * cfg.reward_scale, items["discount"]
    return bootstrap(returns=returns, discounts=discounts, values=items["next_value"]) - items["q"]


def priorities_of(cfg: Config, items: Mapping[str, Tensor]) -> Tensor:
    """|TD error| [B], of both critics the mean: the law of learners, and of actors, who take the smaller of both for
    the value of what follows."""
    return as_priorities(td_errors(cfg, items).abs().reshape(-1, len(items["reward"])).mean(0))


class IQL(Stateful):
    """The learner: batches of n-step transitions in, weights and priorities out."""

    def __init__(
        self,
        cfg: Config,
        env: Spaces,
        seed: int,
        peers: optim.Peers = optim.ALONE,
        statistics: Mapping[str, Spread] | None = None,  # of the data
    ) -> None:
        self.cfg = cfg
        self.network = make_networks(cfg, env, seed).to(cfg.device)
        if self.network.normalizer is not None and statistics is not None:
            self.network.normalizer.settle(statistics)
        self.target = Target(self.network.critic, cfg.target_every, cfg.target_rate)
        make_optimizer = partial(optim.make, peers=peers, epsilon=cfg.epsilon, clip_norm=cfg.grad_clip)
        self.value_optimizer = make_optimizer(self.network.value.parameters(), rate=cfg.critic_rate)
        self.critic_optimizer = make_optimizer(self.network.critic.parameters(), rate=cfg.critic_rate)
        actor_rate = cosine(cfg.actor_rate, cfg.anneal_updates)
        self.actor_optimizer = make_optimizer(self.network.actor.parameters(), rate=actor_rate)
        size = self.network.actor.units.size
        self.distribution = DiagonalGaussian((0.0,) * size, (1.0,) * size, (size,))  # of actions in units

    def update(self, batch: Batch) -> Update:
        """One step of the value, the critics and the actor from columns [B, ...] of n-step transitions and, if
        prioritised, "importance" [B]; then the target critics follow."""
        batch = self.network.seen(batch)
        value_loss, advantage = self.value_loss(batch)
        critic_loss, priorities, critic_metrics = self.critic_loss(batch)
        actor_loss, weights = self.actor_loss(batch, advantage)
        count = torch.tensor(len(priorities))
        value_step = self.value_optimizer.step(value_loss, count)
        critic_step = self.critic_optimizer.step(critic_loss, count)
        actor_step = self.actor_optimizer.step(actor_loss, count)
        self.target.follow(self.critic_optimizer.updates)  # after all
        metrics: Measured = {**critic_metrics, "value_loss": value_loss.detach(), "actor_loss": actor_loss.detach()}
        metrics |= {"critic_grad_norm": critic_step.grad_norm, "actor_grad_norm": actor_step.grad_norm}
        metrics |= {"advantage": advantage.mean(), "weight": weights.mean(), "target_drift": Drift(self.target)}
        applied = value_step.applied and critic_step.applied and actor_step.applied
        return Update(metrics, priorities=priorities if applied else None, applied=applied)

    def value_loss(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """The mean loss of the value, weighted by importance, and the advantages of the data's actions [B], without
        gradient: by how much the target critics think more of them."""
        with torch.no_grad():
            q = self.target.network.expected_return(batch["observation"], self.units(batch["action"]))
        errors = q - self.network.value(batch["observation"]).squeeze(-1)
        losses = expectile_loss(errors, expectile=self.cfg.expectile)
        return importance_mean(losses, importance=batch.get("importance")), errors.detach()

    def critic_loss(self, batch: Batch) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """The mean loss of both critics, weighted by importance, the items' priorities [B], and metrics."""
        with torch.no_grad():
            next_value = self.network.value(batch["next_observation"]).squeeze(-1)
        q = self.network.critic(batch["observation"], self.units(batch["action"]))
        items = {**batch, "q": q, "next_value": next_value}
        errors = td_errors(self.cfg, items)
        losses = errors.square().sum(0)
        loss = importance_mean(losses, importance=batch.get("importance"))
        metrics = {"critic_loss": loss.detach(), **value_metrics(q=q, errors=errors)}
        return loss, priorities_of(self.cfg, items), metrics

    def actor_loss(self, batch: Batch, advantage: Tensor) -> tuple[Tensor, Tensor]:
        """Minus the mean log-likelihood of the data's actions, each weighted by its advantage, and the weights [B]."""
        parameters = torch.cat(self.network.actor(batch["observation"]), dim=-1)
        log_prob = self.distribution.log_prob(parameters, self.units(batch["action"]))
        weights = advantage_weights(advantage, sharpness=self.cfg.sharpness, clip=self.cfg.weight_clip)
        return importance_mean(-weights * log_prob, importance=batch.get("importance")), weights

    def units(self, action: Tensor) -> Tensor:
        """Actions of the data, within the bounds: a mean that tanh gives never comes quite to them."""
        units: Tensor = self.network.actor.units.to_units(action)
        return units.clamp(-WITHIN, WITHIN)


def program(cfg: Config, env: EnvSpec, settings: Settings) -> Program:
    """Learners read the data; online, actors fill a table beside it."""
    data = open_dataset(prepare(cfg.data))
    spread = float(data.returns.max() - data.returns.min())
    wanted = data.lengths.max() / 2.0 if cfg.return_range is None else cfg.return_range
    if wanted and spread:
        cfg = replace(cfg, reward_scale=cfg.reward_scale * wanted / spread)
    learner = partial(IQL, statistics=data.statistics())
    pattern = n_step(cfg.n, cfg.gamma, following=("observation", "value"), reward_clip=cfg.reward_clip)
    return data_program(cfg, env, settings, learner=learner, policy=make_policy, pattern=pattern)
