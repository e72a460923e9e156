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
from typing import Annotated, Any, Literal

import numpy as np
import torch
from torch import Tensor

from shoal import optim
from shoal.acting.deterministic import DeterministicPolicy
from shoal.batches import Batch
from shoal.config import Amount, AtLeast, Whole, config
from shoal.envs import EnvSpec
from shoal.errors import UserError
from shoal.functional.deterministic import squashed_policy_loss
from shoal.functional.distributional import categorical_loss, mass_outside, project, quantile_huber_loss
from shoal.functional.exploration import noise_ladder
from shoal.functional.n_step import bootstrap
from shoal.functional.q import as_priorities, importance_mean, value_metrics
from shoal.learning import Update
from shoal.loops.wiring import Settings, experience_program
from shoal.nets.building import Spaces
from shoal.nets.control import Actor, ControlNetworks, Critic, SupportWatch, make_bodies
from shoal.nets.targets import Drift, Target, frozen
from shoal.options import SMALL_SLOPES, ContinuousControl, Noise, SlopeFollowing
from shoal.program import Program
from shoal.replay import n_step
from shoal.state import Stateful

RATES: dict[str, Any] = {"actor_rate": 1e-4, "critic_rate": 1e-4, "grad_clip": 40.0}  # a norm for each
NETWORKS: dict[str, Any] = {"actor_hidden": (300, 200), "critic_hidden": (400, 300), "layer_norm": True}


@config(n=5, target_every=100, **RATES, **NETWORKS)
class Config(ContinuousControl, SlopeFollowing, Noise):
    critic: Literal["categorical", "quantile"] = "categorical"
    """What the critic learns of the distribution of returns."""
    atoms: Annotated[int, AtLeast(2)] = 51
    """Of the categorical critic."""
    support_low: float = -150.0
    """Lowest return on the categorical critic's support, after reward_scale."""
    support_high: float = 150.0
    """Highest return on it."""
    quantiles: Whole = 32
    """Of the quantile critic."""
    kappa: Amount = 1.0
    """Quantile errors beyond it count linearly."""


PRESETS: dict[str, dict[str, Any]] = {
    "control": SMALL_SLOPES | {"atoms": 101, "support_low": -100.0, "support_high": 100.0},
}


def make_networks(cfg: Config, env: Spaces, seed: int) -> ControlNetworks:
    if cfg.critic == "quantile" and (cfg.quantiles < 1 or cfg.kappa == 0):
        raise UserError(
            f"--critic quantile needs --quantiles and --kappa above 0, not {cfg.quantiles} and {cfg.kappa:g}."
        )
    atoms = cfg.quantiles if cfg.critic == "quantile" else cfg.atoms
    bodies = make_bodies(cfg, env, seed, critic_outputs=atoms)
    critic = Critic(bodies[1], cfg.critic, atoms)
    if cfg.critic == "categorical":
        critic.set_support(cfg.support_low, cfg.support_high)
    return ControlNetworks(Actor(bodies[0], env.action_space), critic)


def make_policy(cfg: Config, env: Spaces, seed: int, greedy: bool = False) -> DeterministicPolicy:
    networks = make_networks(cfg, env, seed)
    if greedy:
        return DeterministicPolicy(networks, seed, noise=None, device=cfg.acting_device)
    count = cfg.actors * cfg.envs_per_actor
    noise = noise_ladder(np.arange(count), count, cfg.noise, cfg.noise_smallest or cfg.noise)
    law = partial(priorities_of, cfg) if cfg.replay == "prioritized" else None
    return DeterministicPolicy(networks, seed, noise=noise, priorities=law, device=cfg.acting_device)


def returns_of(cfg: Config, items: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """n-step returns as they are learned from, and the discounts of what follows: both [B]."""
    return items["reward"] * cfg.reward_scale, items["discount"]


def priorities_of(cfg: Config, items: Mapping[str, Tensor]) -> Tensor:
    """Priorities of both sides: |error of the expected return| [B], of "q" before and "next_value" after n steps."""
    return as_priorities(bootstrap(*returns_of(cfg, items), items["next_value"]) - items["q"])


class D4PG(Stateful):
    """The learner: batches of n-step transitions in, weights and priorities out."""

    def __init__(self, cfg: Config, env: Spaces, seed: int, peers: optim.Peers = optim.ALONE) -> None:
        self.cfg = cfg
        self.network = make_networks(cfg, env, seed).to(cfg.device)
        options: dict[str, Any] = {"epsilon": cfg.epsilon, "clip_norm": cfg.grad_clip}
        self.actor_optimizer = optim.make(self.network.actor.parameters(), peers, rate=cfg.actor_rate, **options)
        self.critic_optimizer = optim.make(self.network.critic.parameters(), peers, rate=cfg.critic_rate, **options)
        self.target = Target(self.network, cfg.target_every, cfg.target_rate)
        self.watch = SupportWatch(self.network.critic) if cfg.critic == "categorical" else None

    def update(self, batch: Batch) -> Update:
        """One update of both networks from columns [B, ...] of n-step transitions and, if prioritised, "importance"."""
        loss, priorities, metrics = self.critic_loss(batch)
        items = torch.tensor(len(priorities))
        step = self.critic_optimizer.step(loss, items)
        metrics |= {"critic_loss": loss.detach(), "critic_grad_norm": step.grad_norm}
        if not step.applied:
            return Update(metrics, applied=False)
        loss, slopes = self.actor_loss(batch["observation"])
        step = self.actor_optimizer.step(loss, items)
        self.target.follow(self.critic_optimizer.updates)  # after both
        metrics |= {"actor_loss": loss.detach(), "actor_grad_norm": step.grad_norm, "slope": slopes.mean()}
        metrics["target_drift"] = Drift(self.target)
        note = None if self.watch is None else self.watch(metrics["outside_support"])
        return Update(metrics, priorities=priorities, applied=step.applied, note=note)

    def critic_loss(self, batch: Batch) -> tuple[Tensor, Tensor, dict[str, Any]]:
        """The mean loss, weighted by importance, the items' priorities [B], and metrics."""
        actor, critic, target = self.network.actor, self.network.critic, self.target.network
        following, (returns, discounts) = batch["next_observation"], returns_of(self.cfg, batch)
        outputs = critic(batch["observation"], actor.units.to_units(batch["action"]))
        metrics: dict[str, Any] = {}
        with torch.no_grad():
            ahead = target.critic(following, target.actor(following))
            values = {"q": critic.expected(outputs), "next_value": target.critic.expected(ahead)}
            priorities = priorities_of(self.cfg, batch | values)
        if self.cfg.critic == "categorical":
            moved = torch.softmax(ahead, dim=-1), returns, discounts, critic.support
            losses = categorical_loss(outputs, project(*moved))
            metrics["outside_support"] = mass_outside(*moved).mean()
        else:
            losses, _ = quantile_huber_loss(outputs, bootstrap(returns, discounts, ahead), self.cfg.kappa)
        loss = importance_mean(losses, batch.get("importance"))
        return loss, priorities, metrics | value_metrics(values["q"], priorities)

    def actor_loss(self, observation: Any) -> tuple[Tensor, Tensor]:
        """Minus the mean return that the critic expects of the actor's actions, what their saturation costs, and norms
        of dQ/da before clipping [B]."""
        options = {"clip": self.cfg.slope_clip, "saturation_cost": self.cfg.saturation_cost}
        critic = self.network.critic
        with frozen(critic):
            expected = partial(critic.expected_return, observation)
            return squashed_policy_loss(self.network.actor.raw(observation), expected, **options)


def program(cfg: Config, env: EnvSpec, settings: Settings) -> Program:
    """Actors fill a table, learners sample it and send back how surprising each transition was."""
    steps = n_step(cfg.n, cfg.gamma, following=("observation", "value"), reward_clip=cfg.reward_clip)
    return experience_program(cfg, env, settings, learner=D4PG, policy=make_policy, pattern=steps)
