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
from shoal.config import Amount, Whole, config
from shoal.envs import EnvSpec
from shoal.functional.exploration import noise_ladder
from shoal.functional.n_step import bootstrap
from shoal.functional.q import importance_mean, value_metrics
from shoal.loops.wiring import Settings, Wiring
from shoal.nets.building import Spaces
from shoal.nets.control import Actor, ControlNetworks, TwinCritic, make_bodies
from shoal.nets.targets import Drift, Target, frozen
from shoal.options import Acting, ActorAndCritics, CentralInference, Experience, Learning, Noise, Rewards
from shoal.program import Program
from shoal.replay import n_step
from shoal.state import Stateful


@config(
    env="Pendulum-v1",
    envs_per_actor=8,
    rows=8,
    noise=0.1,
    replay="uniform",
    capacity=1_000_000,
    n=1,
    batch=256,
    target_every=2,  # updates of the critics between two of the actor and of the target networks
    target_rate=0.005,
    actor_rate=3e-4,
    critic_rate=3e-4,
    grad_clip=0.0,
)
class Config(ActorAndCritics, Learning, Experience, Noise, Rewards, CentralInference, Acting):
    random_steps: Whole = 1_000  # of all environments together, with uniform actions, before the actor acts
    target_noise: Amount = 0.2  # deviation of the noise on target actions, in units of half their range
    target_noise_clip: Amount = 0.5


PRESETS: dict[str, dict[str, Any]] = {
    "control": {"samples_per_insert": 64.0, "publish_every": 4, "capacity": 300_000, "reward_scale": 0.1},
}


def make_networks(cfg: Config, env: Spaces, seed: int) -> ControlNetworks:
    actor, *critics = make_bodies(cfg, env, seed, critics=2)
    return ControlNetworks(Actor(actor, env.action_space), TwinCritic(*critics))


def make_policy(cfg: Config, env: Spaces, seed: int, greedy: bool = False) -> DeterministicPolicy:
    count = cfg.actors * cfg.envs_per_actor
    deviations = noise_ladder(np.arange(count), count, cfg.noise, cfg.noise_smallest or cfg.noise)
    prioritized = cfg.replay == "prioritized" and not greedy
    return DeterministicPolicy(
        make_networks(cfg, env, seed),
        seed,
        noise=None if greedy else deviations,
        random_rows=-(-cfg.random_steps // count),
        priorities=partial(first_priorities, cfg) if prioritized else None,
        device=cfg.acting_device,
    )


def td_errors(cfg: Config, items: Mapping[str, Tensor], q: Tensor, next_value: Tensor) -> Tensor:
    """By how much n-step transitions [B] were worth more than q, [B] or of both critics [2, B]."""
    return bootstrap(items["reward"] * cfg.reward_scale, items["discount"], next_value) - q


def first_priorities(cfg: Config, items: Mapping[str, Tensor]) -> Tensor:
    """Those of new items: |TD error| by the values that were acted on, the smaller of both critics."""
    return td_errors(cfg, items, items["q"], items["next_value"]).abs()


class TD3(Stateful):
    """The learner: batches of n-step transitions in, weights and priorities out."""

    def __init__(self, cfg: Config, env: Spaces, seed: int, peers: optim.Peers = optim.ALONE) -> None:
        self.cfg = cfg
        self.network = make_networks(cfg, env, seed).to(cfg.device)
        self.target = Target(self.network, cfg.target_every, cfg.target_rate)
        step = partial(optim.make, peers=peers, epsilon=cfg.epsilon, clip_norm=cfg.grad_clip)
        self.actor_optimizer = step(self.network.actor.parameters(), rate=cfg.actor_rate)
        self.critic_optimizer = step(self.network.critic.parameters(), rate=cfg.critic_rate)
        self.noise = torch.Generator(cfg.device).manual_seed(seed)

    def update(self, batch: Batch) -> dict[str, Any]:
        """One update of the critics, and with every second one of the actor and the target networks."""
        loss, priorities, metrics = self.critic_loss(batch)
        items = torch.tensor(len(priorities))
        critic = self.critic_optimizer.step(loss, items)
        metrics |= {"critic_loss": loss.detach(), "critic_grad_norm": critic.grad_norm, "applied": critic.applied}
        if not critic.applied:
            return metrics
        if self.critic_optimizer.updates % self.cfg.target_every == 0:
            actor = self.actor_optimizer.step(self.actor_loss(batch["observation"]), items)
            self.target.follow(self.critic_optimizer.updates)
            metrics |= {"actor_grad_norm": actor.grad_norm, "applied": actor.applied}
        return metrics | {"priorities": priorities, "target_drift": Drift(self.target)}

    def critic_loss(self, batch: Batch) -> tuple[Tensor, Tensor, dict[str, Any]]:
        """The mean loss of both critics, weighted by importance, the items' priorities [B], and metrics."""
        following, target = batch["next_observation"], self.target.network
        with torch.no_grad():
            action = target.actor(following)
            noise = torch.randn(action.shape, generator=self.noise, device=action.device) * self.cfg.target_noise
            action = (action + noise.clamp(-self.cfg.target_noise_clip, self.cfg.target_noise_clip)).clamp(-1.0, 1.0)
            next_value = target.critic.expected_return(following, action)
        q = self.network.critic(batch["observation"], self.network.actor.units.to_units(batch["action"]))
        errors = td_errors(self.cfg, batch, q, next_value)
        loss = importance_mean(errors.square().sum(0), batch.get("importance"))
        return loss, errors.detach().abs().mean(0), value_metrics(q, errors)

    def actor_loss(self, observation: Any) -> Tensor:
        """Minus the mean value that the first critic gives to the actor's own actions."""
        critic = self.network.critic.first
        with frozen(critic):
            return -critic(observation, self.network.actor(observation)).mean()  # type: ignore[no-any-return]


def program(cfg: Config, env: EnvSpec, settings: Settings) -> Program:
    """Actors fill a table; learners sample it."""
    wiring = Wiring(cfg, env, settings)
    replay = wiring.add_experience("transitions", block=cfg.envs_per_actor * cfg.rows)
    wiring.add_learners(TD3, reads=replay, batch=cfg.batch, publish_every=cfg.publish_every)
    steps = n_step(cfg.n, cfg.gamma, following=("observation", "value"), reward_clip=cfg.reward_clip)
    wiring.add_actors(make_policy, writes=replay, pattern=steps, rows=cfg.rows)
    wiring.add_evaluator(make_policy)
    return wiring.program
