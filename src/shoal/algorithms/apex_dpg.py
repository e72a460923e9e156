"""Ape-X DPG (Horgan 2018): actors with more and less noise fill a prioritised replay; an actor climbs a scalar critic.

Departures from the paper: `--samples-per-insert` can hold acting and learning to a ratio, where the paper lets each run
at its own pace; the oldest transitions are evicted, not those of low priority; losses are means over a batch; target
networks can follow slowly (`--target-rate`); saturated actions can cost something. Without a preset most settings are
the paper's.
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
from shoal.functional.exploration import noise_ladder
from shoal.functional.n_step import bootstrap
from shoal.functional.q import as_priorities, importance_mean, value_metrics
from shoal.learning import Measured, Update
from shoal.loops.wiring import Settings, experience_program
from shoal.nets.building import Spaces
from shoal.nets.control import Actor, ControlNetworks, Critic, make_bodies
from shoal.nets.targets import Drift, Target, frozen
from shoal.options import ContinuousControl, Noise, SlopeFollowing
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
    # following the critic
    slope_clip=1.0,
    saturation_cost=0.0,
    # exploration
    noise=0.8,
    noise_smallest=0.05,
)
class Config(ContinuousControl, SlopeFollowing, Noise):
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
    },
}


def make_networks(cfg: Config, env: Spaces, seed: int) -> ControlNetworks:
    actor, critic = make_bodies(cfg, env, seed)
    return ControlNetworks(Actor(actor, env.action_space), Critic(critic))


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


class ApexDPG(Stateful):
    """The learner: batches of n-step transitions in, weights and priorities out."""

    def __init__(self, cfg: Config, env: Spaces, seed: int, peers: optim.Peers = optim.ALONE) -> None:
        self.cfg = cfg
        self.network = make_networks(cfg, env, seed).to(cfg.device)
        self.target = Target(self.network, cfg.target_every, cfg.target_rate)
        make_optimizer = partial(optim.make, peers=peers, epsilon=cfg.epsilon, clip_norm=cfg.grad_clip)
        self.critic_optimizer = make_optimizer(self.network.critic.parameters(), rate=cfg.critic_rate)
        self.actor_optimizer = make_optimizer(self.network.actor.parameters(), rate=cfg.actor_rate)

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
        return Update(metrics, priorities=priorities, applied=actor_step.applied)

    def critic_loss(self, batch: Batch) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """The mean loss, weighted by importance, the items' priorities [B], and metrics."""
        following, target = batch["next_observation"], self.target.network
        with torch.no_grad():
            next_value = target.critic(following, target.actor(following))
        q = self.network.critic(batch["observation"], self.network.actor.units.to_units(batch["action"]))
        items = {**batch, "q": q, "next_value": next_value}
        errors = td_errors(self.cfg, items)
        losses = 0.5 * errors.square()
        loss = importance_mean(losses, importance=batch.get("importance"))
        metrics = {"critic_loss": loss.detach(), **value_metrics(q=q, errors=errors)}
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
    return experience_program(cfg, env, settings, learner=ApexDPG, policy=make_policy, pattern=pattern)
