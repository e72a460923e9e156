"""TD3 (Fujimoto 2018): a deterministic actor climbs the first of two critics; targets are the smaller of both.

The three tricks of the paper: clipped double Q, target actions that are smoothed by noise, an actor and targets that
move only with every second update of the critics. Beside them, what the house gives: many actors, several learners,
n-step returns (`--n`), prioritised replay (`--replay prioritized`). Departures: noise can differ between environments;
`--samples-per-insert` holds acting and learning to a ratio, which the paper sets to one update per step.
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
from shoal.config import Amount, config
from shoal.envs import EnvSpec
from shoal.functional.exploration import noise_ladder
from shoal.functional.n_step import bootstrap
from shoal.functional.q import as_priorities, importance_mean, value_metrics
from shoal.learning import Update
from shoal.loops.wiring import Settings, experience_program
from shoal.nets.building import Spaces
from shoal.nets.control import Actor, ControlNetworks, TwinCritic, make_bodies
from shoal.nets.targets import Drift, Target, frozen
from shoal.options import SMALL_CONTROL, ContinuousControl, Noise, RandomStart
from shoal.program import Program
from shoal.replay import n_step
from shoal.state import Stateful

SLOW: dict[str, Any] = {"target_every": 2, "target_rate": 0.005}  # every second update of the critics


@config(noise=0.1, replay="uniform", n=1, actor_rate=3e-4, critic_rate=3e-4, grad_clip=0.0, **SLOW)
class Config(ContinuousControl, Noise, RandomStart):
    target_noise: Amount = 0.2
    """Deviation of the noise on target actions, in units of half their range."""
    target_noise_clip: Amount = 0.5
    """Largest noise on target actions."""


PRESETS: dict[str, dict[str, Any]] = {
    # Noise that differs between environments: with 0.2 in all of them a cheetah stayed at 1,200.
    "control": SMALL_CONTROL | {"noise": 0.5, "noise_smallest": 0.1},
}


def make_networks(cfg: Config, env: Spaces, seed: int) -> ControlNetworks:
    actor, *critics = make_bodies(cfg, env, seed, critics=2)
    return ControlNetworks(Actor(actor, env.action_space), TwinCritic(*critics))


def make_policy(cfg: Config, env: Spaces, seed: int, greedy: bool = False) -> DeterministicPolicy:
    count = cfg.actors * cfg.envs_per_actor
    deviations = noise_ladder(np.arange(count), count, cfg.noise, cfg.noise_smallest or cfg.noise)
    exploring: dict[str, Any] = {"noise": deviations, "random_rows": -(-cfg.random_steps // count)}
    if cfg.replay == "prioritized":
        exploring["priorities"] = partial(priorities_of, cfg)
    options = {"noise": None} if greedy else exploring
    return DeterministicPolicy(make_networks(cfg, env, seed), seed, device=cfg.acting_device, **options)


def td_errors(cfg: Config, items: Mapping[str, Tensor]) -> Tensor:
    """TD errors of n-step transitions, [B] or of both critics [2, B], by "q" and "next_value" """
    targets = bootstrap(items["reward"] * cfg.reward_scale, items["discount"], items["next_value"])
    return targets - items["q"]


def priorities_of(cfg: Config, items: Mapping[str, Tensor]) -> Tensor:
    """|TD error| [B], of both critics the mean; actors know the smaller of both values."""
    return as_priorities(td_errors(cfg, items).abs().reshape(-1, len(items["reward"])).mean(0))


class TD3(Stateful):
    """The learner: batches of n-step transitions in, weights and priorities out."""

    def __init__(self, cfg: Config, env: Spaces, seed: int, peers: optim.Peers = optim.ALONE) -> None:
        self.cfg = cfg
        self.network = make_networks(cfg, env, seed).to(cfg.device)
        self.target = Target(self.network, cfg.target_every, cfg.target_rate)
        make = partial(optim.make, peers=peers, epsilon=cfg.epsilon, clip_norm=cfg.grad_clip)
        self.actor_optimizer = make(self.network.actor.parameters(), rate=cfg.actor_rate)
        self.critic_optimizer = make(self.network.critic.parameters(), rate=cfg.critic_rate)
        self.noise = torch.Generator(cfg.device).manual_seed(seed)

    def update(self, batch: Batch) -> Update:
        """One update of the critics, and with every second one of the actor and the target networks."""
        loss, priorities, metrics = self.critic_loss(batch)
        count = torch.tensor(len(priorities))
        critic = self.critic_optimizer.step(loss, count)
        metrics |= {"critic_loss": loss.detach(), "critic_grad_norm": critic.grad_norm}
        if not critic.applied:
            return Update(metrics, applied=False)
        applied = True
        if self.critic_optimizer.updates % self.cfg.target_every == 0:
            actor_loss = self.actor_loss(batch["observation"])
            actor = self.actor_optimizer.step(actor_loss, count)
            self.target.follow(self.critic_optimizer.updates)
            metrics |= {"actor_loss": actor_loss.detach(), "actor_grad_norm": actor.grad_norm}
            applied = actor.applied
        metrics["target_drift"] = Drift(self.target)
        return Update(metrics, priorities=priorities, applied=applied)

    def critic_loss(self, batch: Batch) -> tuple[Tensor, Tensor, dict[str, Any]]:
        """The mean loss of both critics, weighted by importance, the items' priorities [B], and metrics."""
        following, target = batch["next_observation"], self.target.network
        with torch.no_grad():
            action = target.actor(following)
            noise = torch.randn(action.shape, generator=self.noise, device=action.device) * self.cfg.target_noise
            action = (action + noise.clamp(-self.cfg.target_noise_clip, self.cfg.target_noise_clip)).clamp(-1.0, 1.0)
            next_value = target.critic.expected_return(following, action)
        q = self.network.critic(batch["observation"], self.network.actor.units.to_units(batch["action"]))
        items = {**batch, "q": q, "next_value": next_value}
        errors = td_errors(self.cfg, items)
        loss = importance_mean(errors.square().sum(0), batch.get("importance"))
        return loss, priorities_of(self.cfg, items), value_metrics(q, errors)

    def actor_loss(self, observation: Any) -> Tensor:
        """Minus the mean value that the first critic gives to the actor's own actions."""
        critic = self.network.critic.first
        with frozen(critic):
            return -critic(observation, self.network.actor(observation)).mean()  # type: ignore[no-any-return]


def program(cfg: Config, env: EnvSpec, settings: Settings) -> Program:
    """Actors fill a table; learners sample it."""
    returns = n_step(cfg.n, cfg.gamma, following=("observation", "value"), reward_clip=cfg.reward_clip)
    return experience_program(cfg, env, settings, learner=TD3, policy=make_policy, pattern=returns)
