"""D4PG (Barth-Maron 2018): a deterministic actor climbs a critic that learns distributions of n-step returns.

`--critic categorical` has atoms on a fixed support, `--critic quantile` learns quantiles (Dabney 2018) and needs none.
Departures from the paper: priorities are |errors of expected returns|, first given by the actors; dQ/da is clipped;
`--samples-per-insert` can hold acting and learning to a ratio; target networks can follow slowly (`--target-rate`),
noise can differ between environments, and saturated actions can cost something. Without a preset most settings are the
paper's.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from shoal import optim
from shoal.acting.deterministic import DeterministicPolicy
from shoal.batches import Batch
from shoal.config import config
from shoal.envs import EnvSpec
from shoal.functional.deterministic import squashed_policy_loss
from shoal.functional.distributional import categorical_loss, mass_outside, project, quantile_huber_loss
from shoal.functional.exploration import noise_ladder
from shoal.functional.n_step import bootstrap
from shoal.functional.q import as_priorities, importance_mean, value_metrics
from shoal.learning import Measured, Update
from shoal.loops.wiring import Settings, experience_program
from shoal.nets.building import Spaces
from shoal.nets.control import Actor, ControlNetworks, Critic, SupportWatch, make_bodies
from shoal.nets.targets import Drift, Target, frozen
from shoal.options import ContinuousControl, Noise, ReturnDistribution, SlopeFollowing
from shoal.program import Program
from shoal.replay import n_step
from shoal.state import Stateful


@config(
    # acting
    env="Pendulum-v1",
    actors=1,
    envs_per_actor=8,
    # networks
    encoder="nature",
    actor_hidden=(300, 200),
    critic_hidden=(400, 300),
    activation="relu",
    layer_norm=True,
    # optimizers
    actor_rate=1e-4,
    critic_rate=1e-4,
    epsilon=1e-8,
    grad_clip=40.0,
    # returns
    gamma=0.99,
    n=5,
    reward_scale=1.0,
    reward_clip=0.0,
    # replay
    rows=8,
    replay="prioritized",
    capacity=1_000_000,
    learning_starts=1_000,
    samples_per_insert=0.0,
    priority_exponent=0.6,
    importance_exponent=0.4,
    # updates
    batch=256,
    publish_every=1,
    target_every=100,
    target_rate=1.0,
    # distribution of returns
    critic="categorical",
    atoms=51,
    support_low=-150.0,
    support_high=150.0,
    quantiles=32,
    kappa=1.0,
    # following the critic
    slope_clip=1.0,
    saturation_cost=0.0,
    # exploration
    noise=0.3,
    noise_smallest=0.0,
)
class Config(ContinuousControl, ReturnDistribution, SlopeFollowing, Noise):
    """Only the groups' options."""


PRESETS: dict[str, dict[str, Any]] = {
    # Tasks that a thousand updates solve: many samples of each step, targets that follow.
    "control": {
        "actor_hidden": (128, 128),
        "critic_hidden": (128, 128),
        "layer_norm": True,
        "actor_rate": 1e-3,
        "critic_rate": 1e-3,
        "n": 5,
        "reward_scale": 0.1,
        "capacity": 300_000,
        "samples_per_insert": 64.0,
        "publish_every": 4,
        "target_every": 1,
        "target_rate": 0.01,
        "saturation_cost": 0.01,
        "atoms": 101,
        "support_low": -100.0,
        "support_high": 100.0,
    },
    # In the spirit of FastTD3 (Seo 2025): a thousand environments on a device, large batches, two updates for each step
    # of all of them, targets that follow fast, noise that differs between environments.
    "many": {
        "envs_per_actor": 1_024,
        "actor_hidden": (512, 256, 128),
        "critic_hidden": (1024, 512, 256),
        "actor_rate": 3e-4,
        "critic_rate": 3e-4,
        "n": 3,
        "replay": "uniform",
        "capacity": 10_000_000,
        "learning_starts": 10_240,
        "samples_per_insert": 16.0,
        "batch": 8_192,
        "publish_every": 20,
        "target_every": 1,
        "target_rate": 0.1,
        "noise": 0.4,
        "noise_smallest": 0.001,
        "atoms": 101,
        "support_low": -250.0,
        "support_high": 250.0,
    },
}


def make_networks(cfg: Config, env: Spaces, seed: int) -> ControlNetworks:
    outputs = cfg.quantiles if cfg.critic == "quantile" else cfg.atoms
    actor, body = make_bodies(cfg, env, seed, critic_outputs=outputs)
    critic = Critic(body, cfg.critic, outputs)
    if cfg.critic == "categorical":
        critic.set_support(cfg.support_low, cfg.support_high)
    return ControlNetworks(Actor(actor, env.action_space), critic)


def make_policy(cfg: Config, env: Spaces, seed: int, greedy: bool = False) -> DeterministicPolicy:
    ladder = partial(noise_ladder, largest=cfg.noise, smallest=cfg.noise_smallest or cfg.noise)
    return DeterministicPolicy(
        make_networks(cfg, env, seed),
        seed,
        noise=None if greedy else ladder,
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


class D4PG(Stateful):
    """The learner: batches of n-step transitions in, weights and priorities out."""

    def __init__(self, cfg: Config, env: Spaces, seed: int, peers: optim.Peers = optim.ALONE) -> None:
        self.cfg = cfg
        self.network = make_networks(cfg, env, seed).to(cfg.device)
        self.target = Target(self.network, cfg.target_every, cfg.target_rate)
        make_optimizer = partial(optim.make, peers=peers, epsilon=cfg.epsilon, clip_norm=cfg.grad_clip)
        self.critic_optimizer = make_optimizer(self.network.critic.parameters(), rate=cfg.critic_rate)
        self.actor_optimizer = make_optimizer(self.network.actor.parameters(), rate=cfg.actor_rate)
        self.watch = SupportWatch(self.network.critic) if cfg.critic == "categorical" else None

    def update(self, batch: Batch) -> Update:
        """One step of critic and actor from columns [B, ...] of n-step transitions and, if prioritised, "importance"
        [B]; then the target networks follow."""
        critic_loss, priorities, critic_metrics = self.critic_loss(batch)
        count = torch.tensor(len(priorities))
        critic_step = self.critic_optimizer.step(critic_loss, count)
        metrics: Measured = {**critic_metrics, "critic_grad_norm": critic_step.grad_norm}
        if not critic_step.applied:
            return Update(metrics, applied=False)
        actor_loss, slopes = self.actor_loss(batch["observation"])
        actor_step = self.actor_optimizer.step(actor_loss, count)
        metrics |= {"actor_loss": actor_loss.detach(), "actor_grad_norm": actor_step.grad_norm, "slope": slopes.mean()}
        self.target.follow(self.critic_optimizer.updates)  # after both
        metrics["target_drift"] = Drift(self.target)
        note = None if self.watch is None else self.watch(critic_metrics["outside_support"])
        return Update(metrics, priorities=priorities, applied=actor_step.applied, note=note)

    def critic_loss(self, batch: Batch) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """The mean loss, weighted by importance, the items' priorities [B], and metrics."""
        following, target = batch["next_observation"], self.target.network
        with torch.no_grad():
            next_outputs = target.critic(following, target.actor(following))
            next_value = target.critic.expected(next_outputs)
        outputs = self.network.critic(batch["observation"], self.network.actor.units.to_units(batch["action"]))
        q = self.network.critic.expected(outputs.detach())
        items = {**batch, "q": q, "next_value": next_value}
        errors = td_errors(self.cfg, items)
        returns, discounts = batch["reward"] * self.cfg.reward_scale, batch["discount"]
        outside: dict[str, Tensor] = {}
        if self.cfg.critic == "categorical":
            support, probabilities = self.network.critic.support, torch.softmax(next_outputs, dim=-1)
            targets = project(probabilities=probabilities, returns=returns, discounts=discounts, support=support)
            losses = categorical_loss(logits=outputs, targets=targets)
            mass = mass_outside(probabilities=probabilities, returns=returns, discounts=discounts, support=support)
            outside["outside_support"] = mass.mean()
        else:
            targets = bootstrap(returns=returns, discounts=discounts, values=next_outputs)
            losses = quantile_huber_loss(predicted=outputs, targets=targets, kappa=self.cfg.kappa)
        loss = importance_mean(losses, importance=batch.get("importance"))
        metrics = {"critic_loss": loss.detach(), **value_metrics(q=q, errors=errors), **outside}
        return loss, priorities_of(self.cfg, items), metrics

    def actor_loss(self, observation: Any) -> tuple[Tensor, Tensor]:
        """Minus the mean return that the critic expects of the actor's actions, what their saturation costs, and norms
        of dQ/da before clipping [B]."""
        with frozen(self.network.critic):
            return squashed_policy_loss(
                raw=self.network.actor.raw(observation),
                critic=partial(self.network.critic.expected_return, observation),
                clip=self.cfg.slope_clip,
                saturation_cost=self.cfg.saturation_cost,
            )


def program(cfg: Config, env: EnvSpec, settings: Settings) -> Program:
    """Actors fill a table, learners sample it and send back how surprising each transition was."""
    pattern = n_step(cfg.n, cfg.gamma, following=("observation", "value"), reward_clip=cfg.reward_clip)
    return experience_program(cfg, env, settings, learner=D4PG, policy=make_policy, pattern=pattern)
