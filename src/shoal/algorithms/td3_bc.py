"""TD3+BC (Fujimoto 2021): TD3 on logged data, with an actor that climbs its critic and stays near the data's actions.

The actor earns λQ(s, π(s)) − (π(s) − a)², in units in which the bounds are −1 and 1, with λ = α / mean|Q|, so that one
α suits rewards of any size; observations are normalised by the data's mean and deviation, which belong to the policy.
All else is td3. `--online` goes on with actors: `--data-share` of each batch is the data's, the rest their own.
Departures: normalised observations are clipped to ± 10; targets are n-step returns where `--n` asks for them.
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
from shoal.config import Amount, Count, config
from shoal.data import open_dataset, prepare
from shoal.envs import EnvSpec
from shoal.functional.exploration import noise_ladder
from shoal.functional.n_step import bootstrap
from shoal.functional.offline import cloning_scale, cloning_sums
from shoal.functional.q import as_priorities, importance_mean, value_metrics
from shoal.learning import Measured, Update
from shoal.loops.wiring import Settings, data_program
from shoal.nets.building import Spaces
from shoal.nets.control import Actor, ControlNetworks, TwinCritic, make_bodies, make_normalizer
from shoal.nets.normalize import Spread
from shoal.nets.targets import Drift, Target, frozen
from shoal.options import ContinuousControl, Noise, NormalizedObservations, Online, RandomStart
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
    normalize_observations=True,
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
    target_every=2,
    target_rate=0.005,
    # exploration
    noise=0.1,
    noise_smallest=0.0,
    random_steps=0,
)
class Config(ContinuousControl, NormalizedObservations, Online, Noise, RandomStart):
    alpha: Amount = 2.5
    """How much values count against the data's actions."""
    policy_delay: Count = 2
    """Updates of the critics for each one of the actor."""
    target_noise: Amount = 0.2
    """Deviation of the noise on target actions, in units of half their range."""
    target_noise_clip: Amount = 0.5
    """Largest noise on target actions."""


PRESETS: dict[str, dict[str, Any]] = {}


def make_networks(cfg: Config, env: Spaces, seed: int) -> ControlNetworks:
    actor, *critics = make_bodies(cfg, env, seed, critics=2)
    return ControlNetworks(Actor(actor, env.action_space), TwinCritic(*critics), make_normalizer(cfg, env))


def make_policy(cfg: Config, env: Spaces, seed: int, greedy: bool = False) -> DeterministicPolicy:
    environments = cfg.actors * cfg.envs_per_actor
    ladder = partial(noise_ladder, largest=cfg.noise, smallest=cfg.noise_smallest or cfg.noise)
    return DeterministicPolicy(
        make_networks(cfg, env, seed),
        seed,
        noise=None if greedy else ladder,
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
    """|TD error| [B], of both critics the mean: the law of learners, and of actors, who know the smaller of both."""
    return as_priorities(td_errors(cfg, items).abs().reshape(-1, len(items["reward"])).mean(0))


class TD3BC(Stateful):
    """The learner: batches of n-step transitions in, weights and priorities out."""

    def __init__(
        self,
        cfg: Config,
        env: Spaces,
        seed: int,
        peers: optim.Peers = optim.ALONE,
        statistics: Mapping[str, Spread] | None = None,  # of the data
    ) -> None:
        self.cfg, self.peers = cfg, peers
        self.network = make_networks(cfg, env, seed).to(cfg.device)
        if self.network.normalizer is not None and statistics is not None:
            self.network.normalizer.settle(statistics)
        self.target = Target(self.network, cfg.target_every, cfg.target_rate)
        make_optimizer = partial(optim.make, peers=peers, epsilon=cfg.epsilon, clip_norm=cfg.grad_clip)
        self.critic_optimizer = make_optimizer(self.network.critic.parameters(), rate=cfg.critic_rate)
        self.actor_optimizer = make_optimizer(self.network.actor.parameters(), rate=cfg.actor_rate)
        self.noise = torch.Generator(cfg.device).manual_seed(seed)

    def update(self, batch: Batch) -> Update:
        """One step of the critics from columns [B, ...] of n-step transitions and, if prioritised, "importance" [B],
        and with every `policy_delay`-th one of the actor; then the target networks follow."""
        batch = self.network.seen(batch)
        critic_loss, priorities, critic_metrics = self.critic_loss(batch)
        count = torch.tensor(len(priorities))
        critic_step = self.critic_optimizer.step(critic_loss, count)
        metrics: Measured = {**critic_metrics, "critic_grad_norm": critic_step.grad_norm}
        if not critic_step.applied:
            return Update(metrics, applied=False)
        applied = True
        if self.critic_optimizer.updates % self.cfg.policy_delay == 0:
            actor_loss, cloning_error = self.actor_loss(batch["observation"], batch["action"])
            actor_step = self.actor_optimizer.step(actor_loss, count)
            metrics |= {"actor_loss": actor_loss.detach(), "actor_grad_norm": actor_step.grad_norm}
            metrics["cloning_error"] = cloning_error
            applied = actor_step.applied
        self.target.follow(self.critic_optimizer.updates)  # after both
        metrics["target_drift"] = Drift(self.target)
        return Update(metrics, priorities=priorities, applied=applied)

    def critic_loss(self, batch: Batch) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
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
        losses = errors.square().sum(0)
        loss = importance_mean(losses, importance=batch.get("importance"))
        metrics = {"critic_loss": loss.detach(), **value_metrics(q=q, errors=errors)}
        return loss, priorities_of(self.cfg, items), metrics

    def actor_loss(self, observation: Any, action: Tensor) -> tuple[Tensor, Tensor]:
        """Minus λ times the mean value that the first critic gives to the actor's own actions, plus their mean squared
        distance from the data's; and this distance, without gradient."""
        own = self.network.actor(observation)
        with frozen(self.network.critic):
            value: Tensor = self.network.critic.first(observation, own)
        scale = cloning_scale(self.peers.sum(cloning_sums(value)), alpha=self.cfg.alpha)
        distance = (own - self.network.actor.units.to_units(action)).square().mean()
        return distance - scale * value.mean(), distance.detach()


def program(cfg: Config, env: EnvSpec, settings: Settings) -> Program:
    """Learners read the data; online, actors fill a table beside it."""
    learner = partial(TD3BC, statistics=open_dataset(prepare(cfg.data)).statistics())
    pattern = n_step(cfg.n, cfg.gamma, following=("observation", "value"), reward_clip=cfg.reward_clip)
    return data_program(cfg, env, settings, learner=learner, policy=make_policy, pattern=pattern)
