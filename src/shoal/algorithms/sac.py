"""SAC (Haarnoja 2018): a stochastic actor that earns returns and entropy, two critics, and a learned temperature.

A squashed Gaussian acts; the temperature is learned so that the policy's entropy stays near `--target-entropy` (minus
the number of action components, with actions in units of −1…1). Beside it, what the house gives: many actors, several
learners, n-step returns, prioritised replay. Entropies of the steps inside an n-step return are left out, which biases
it, so n is 1 by default; `--samples-per-insert` holds acting and learning to a ratio, in the paper one update per step.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from shoal import optim
from shoal.acting.squashed import SquashedGaussianPolicy
from shoal.batches import Batch
from shoal.config import Amount, Positive, config
from shoal.envs import EnvSpec
from shoal.functional.n_step import bootstrap
from shoal.functional.q import as_priorities, importance_mean, value_metrics
from shoal.functional.squashed import Squashed, squashed_gaussian
from shoal.learning import Update
from shoal.loops.wiring import Settings, experience_program
from shoal.nets.building import Spaces
from shoal.nets.control import GaussianActor, TemperedNetworks, TwinCritic, make_bodies
from shoal.nets.targets import Drift, Target, frozen
from shoal.options import SMALL_CONTROL, ContinuousControl, RandomStart
from shoal.program import Program
from shoal.replay import n_step
from shoal.state import Stateful

RATES = {"actor_rate": 3e-4, "critic_rate": 3e-4, "target_rate": 0.005}


@config(replay="uniform", n=1, target_every=1, grad_clip=0.0, **RATES)
class Config(ContinuousControl, RandomStart):
    temperature: Positive = 1.0
    """What entropy is worth at first, in units of scaled rewards."""
    temperature_rate: Amount = 3e-4
    """Learning rate of the temperature."""
    target_entropy: float | None = None
    """Nats; None: minus the number of action components."""


PRESETS: dict[str, dict[str, Any]] = {"control": SMALL_CONTROL | {"temperature": 0.1, "temperature_rate": 1e-3}}


def make_networks(cfg: Config, env: Spaces, seed: int) -> TemperedNetworks:
    actor, *critics = make_bodies(cfg, env, seed, actor_outputs=2, critics=2)
    return TemperedNetworks(GaussianActor(actor, env.action_space), TwinCritic(*critics), cfg.temperature)


def make_policy(cfg: Config, env: Spaces, seed: int, greedy: bool = False) -> SquashedGaussianPolicy:
    return SquashedGaussianPolicy(
        make_networks(cfg, env, seed),
        seed,
        greedy=greedy,
        random_rows=-(-cfg.random_steps // (cfg.actors * cfg.envs_per_actor)),
        priorities=partial(priorities_of, cfg) if cfg.replay == "prioritized" and not greedy else None,
        device=cfg.acting_device,
    )


def td_errors(cfg: Config, items: Mapping[str, Tensor]) -> Tensor:
    """TD errors of "q", [B] or of both critics [2, B], with the soft value of what follows as "next_value" [B]."""
    rewards, discounts = items["reward"] * cfg.reward_scale, items["discount"]
    return bootstrap(rewards, discounts, items["next_value"]) - items["q"]


def priorities_of(cfg: Config, items: Mapping[str, Tensor]) -> Tensor:
    """Priorities of both sides: |TD error| [B], of both critics the mean; actors know the smaller of both values."""
    return as_priorities(td_errors(cfg, items).abs().reshape(-1, len(items["reward"])).mean(0))


class SAC(Stateful):
    """The learner: batches of n-step transitions in, weights and priorities out."""

    def __init__(self, cfg: Config, env: Spaces, seed: int, peers: optim.Peers = optim.ALONE) -> None:
        self.cfg = cfg
        self.network = make_networks(cfg, env, seed).to(cfg.device)
        self.target = Target(self.network.critic, cfg.target_every, cfg.target_rate)
        adam = partial(optim.make, peers=peers, epsilon=cfg.epsilon, clip_norm=cfg.grad_clip)
        self.critic_optimizer = adam(self.network.critic.parameters(), rate=cfg.critic_rate)
        self.actor_optimizer = adam(self.network.actor.parameters(), rate=cfg.actor_rate)
        self.temperature_optimizer = adam([self.network.log_temperature], rate=cfg.temperature_rate)
        size = self.network.actor.units.size
        self.target_entropy = -float(size) if cfg.target_entropy is None else cfg.target_entropy
        self.noise = torch.Generator(cfg.device).manual_seed(seed)

    def update(self, batch: Batch) -> Update:
        """One step of the critics, one of the actor, one of the temperature, and the target critics follow."""
        temperature = self.network.log_temperature.detach().exp()
        critic_loss, priorities, metrics = self.critic_loss(batch, temperature)
        size = torch.tensor(len(priorities))
        critic = self.critic_optimizer.step(critic_loss, size)
        metrics |= {"critic_loss": critic_loss.detach(), "critic_grad_norm": critic.grad_norm}
        if not critic.applied:
            return Update(metrics, applied=False)
        actor_loss, entropy = self.actor_loss(batch["observation"], temperature)
        actor = self.actor_optimizer.step(actor_loss, size)
        self.temperature_optimizer.step(self.network.log_temperature * (entropy - self.target_entropy), size)
        self.target.follow(self.critic_optimizer.updates)
        metrics |= {"actor_loss": actor_loss.detach(), "entropy": entropy, "temperature": temperature}
        metrics["target_drift"] = Drift(self.target)
        return Update(metrics, priorities=priorities, applied=actor.applied)

    def critic_loss(self, batch: Batch, temperature: Tensor) -> tuple[Tensor, Tensor, dict[str, Any]]:
        """The mean loss of both critics, weighted by importance, the items' priorities [B], and metrics."""
        following = batch["next_observation"]
        with torch.no_grad():
            action, log_prob = self.draw(following)
            soft_value = self.target.network.expected_return(following, action) - temperature * log_prob
        q = self.network.critic(batch["observation"], self.network.actor.units.to_units(batch["action"]))
        items = {**batch, "q": q, "next_value": soft_value}
        errors = td_errors(self.cfg, items)
        loss = importance_mean(0.5 * errors.square().sum(0), batch.get("importance"))
        return loss, priorities_of(self.cfg, items), value_metrics(q, errors)

    def actor_loss(self, observation: Any, temperature: Tensor) -> tuple[Tensor, Tensor]:
        """Minus the mean soft value of the actor's own draws, and their mean entropy, without gradient."""
        action, log_prob = self.draw(observation)
        with frozen(self.network.critic):
            value = self.network.critic.expected_return(observation, action)
        return (temperature * log_prob - value).mean(), -log_prob.detach().mean()

    def draw(self, observation: Any) -> Squashed:
        """Actions of the policy as it is now, through which gradients flow."""
        mean, log_std = self.network.actor(observation)
        return squashed_gaussian(mean, log_std, torch.randn(mean.shape, generator=self.noise, device=mean.device))


def program(cfg: Config, env: EnvSpec, settings: Settings) -> Program:
    """Actors fill a table; learners sample it."""
    items = n_step(cfg.n, cfg.gamma, following=("observation", "value"), reward_clip=cfg.reward_clip)
    return experience_program(cfg, env, settings, learner=SAC, policy=make_policy, pattern=items)
