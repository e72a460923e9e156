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

import numpy as np
import torch
from torch import Tensor

from shoal import optim
from shoal.acting.deterministic import DeterministicPolicy
from shoal.batches import Batch
from shoal.config import config
from shoal.envs import EnvSpec
from shoal.errors import UserError
from shoal.functional.deterministic import squashed_policy_loss
from shoal.functional.exploration import noise_ladder
from shoal.functional.n_step import bootstrap
from shoal.functional.q import as_priorities, importance_mean, value_metrics
from shoal.learning import Update
from shoal.loops.wiring import Settings, experience_program
from shoal.nets.building import Spaces
from shoal.nets.control import Actor, ControlNetworks, Critic, make_bodies
from shoal.nets.targets import Drift, Target, frozen
from shoal.options import SMALL_SLOPES, ContinuousControl, Noise, SlopeFollowing
from shoal.program import Program
from shoal.replay import n_step
from shoal.state import Stateful

PAPER: dict[str, Any] = {"actor_rate": 1e-4, "critic_rate": 1e-4}
PAPER |= {"actor_hidden": (300, 200), "critic_hidden": (400, 300)}


@config(noise=0.8, noise_smallest=0.05, n=5, target_every=100, grad_clip=40.0, layer_norm=True, **PAPER)
class Config(ContinuousControl, SlopeFollowing, Noise):
    """Only the groups' options."""


PRESETS: dict[str, dict[str, Any]] = {"control": SMALL_SLOPES}


def make_networks(cfg: Config, env: Spaces, seed: int) -> ControlNetworks:
    actor, critic = make_bodies(cfg, env, seed)
    return ControlNetworks(Actor(actor, env.action_space), Critic(critic))


def make_policy(cfg: Config, env: Spaces, seed: int, greedy: bool = False) -> DeterministicPolicy:
    environments = cfg.actors * cfg.envs_per_actor
    ladder = noise_ladder(np.arange(environments), environments, cfg.noise, cfg.noise_smallest)
    prioritized = cfg.replay == "prioritized" and not greedy
    return DeterministicPolicy(
        make_networks(cfg, env, seed),
        seed,
        noise=None if greedy else ladder,
        priorities=partial(priorities_of, cfg) if prioritized else None,
        device=cfg.acting_device,
    )


def td_errors(cfg: Config, items: Mapping[str, Tensor]) -> Tensor:
    """By how much n-step transitions [B] were worth more than "q", with what follows worth "next_value"."""
    return bootstrap(items["reward"] * cfg.reward_scale, items["discount"], items["next_value"]) - items["q"]


def priorities_of(cfg: Config, items: Mapping[str, Tensor]) -> Tensor:
    """|TD error|: the learner's, and the actors' by the values they acted on."""
    return as_priorities(td_errors(cfg, items))


class ApexDPG(Stateful):
    """The learner: batches of n-step transitions in, weights and priorities out."""

    def __init__(self, cfg: Config, env: Spaces, seed: int, peers: optim.Peers = optim.ALONE) -> None:
        self.cfg = cfg
        self.network = make_networks(cfg, env, seed).to(cfg.device)
        make = partial(optim.make, peers=peers, epsilon=cfg.epsilon, clip_norm=cfg.grad_clip)
        self.actor_optimizer = make(self.network.actor.parameters(), rate=cfg.actor_rate)
        self.critic_optimizer = make(self.network.critic.parameters(), rate=cfg.critic_rate)
        self.target = Target(self.network, cfg.target_every, cfg.target_rate)

    def update(self, batch: Batch) -> Update:
        """One update of both networks from columns [B, ...] of n-step transitions and "importance" [B]."""
        critic_loss, priorities, metrics = self.critic_loss(batch)
        items = torch.tensor(len(priorities))
        critic = self.critic_optimizer.step(critic_loss, items)
        metrics |= {"critic_loss": critic_loss.detach(), "critic_grad_norm": critic.grad_norm}
        if not critic.applied:
            return Update(metrics, applied=False)
        actor_loss, slopes = self.actor_loss(batch["observation"])
        actor = self.actor_optimizer.step(actor_loss, items)
        self.target.follow(self.critic_optimizer.updates)
        metrics |= {"actor_loss": actor_loss.detach(), "actor_grad_norm": actor.grad_norm, "slope": slopes.mean()}
        metrics["target_drift"] = Drift(self.target)
        return Update(metrics, priorities=priorities, applied=actor.applied)

    def critic_loss(self, batch: Batch) -> tuple[Tensor, Tensor, dict[str, Any]]:
        """The mean loss, weighted by importance, the items' priorities [B], and metrics."""
        following, network, target = batch["next_observation"], self.network, self.target.network
        with torch.no_grad():
            next_value = target.critic(following, target.actor(following))
        q = network.critic(batch["observation"], network.actor.units.to_units(batch["action"]))
        items = {**batch, "q": q, "next_value": next_value}
        errors = td_errors(self.cfg, items)
        loss = importance_mean(0.5 * errors.square(), batch.get("importance"))
        return loss, priorities_of(self.cfg, items), value_metrics(q, errors)

    def actor_loss(self, observation: Any) -> tuple[Tensor, Tensor]:
        """Minus the mean return that the critic expects of the actor's actions, what their saturation costs, and norms
        of dQ/da before clipping [B]."""
        critic, cfg = partial(self.network.critic, observation), self.cfg
        with frozen(self.network.critic):
            raw = self.network.actor.raw(observation)
            return squashed_policy_loss(raw, critic, clip=cfg.slope_clip, saturation_cost=cfg.saturation_cost)


def program(cfg: Config, env: EnvSpec, settings: Settings) -> Program:
    """Actors fill a prioritised table, learners sample it and send back how surprising each transition was."""
    if cfg.noise_smallest == 0 < cfg.noise:
        raise UserError(
            f"--noise-smallest 0 leaves all environments but the first without noise: give a number above 0, or "
            f"--noise {cfg.noise:g} for no ladder."
        )
    transitions = n_step(cfg.n, cfg.gamma, following=("observation", "value"), reward_clip=cfg.reward_clip)
    return experience_program(cfg, env, settings, learner=ApexDPG, policy=make_policy, pattern=transitions)
