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
from shoal.config import Amount, Whole, config
from shoal.envs import EnvSpec
from shoal.functional.n_step import bootstrap
from shoal.functional.q import importance_mean, value_metrics
from shoal.functional.squashed import Squashed, squashed_gaussian
from shoal.loops.wiring import Settings, Wiring
from shoal.nets.building import Spaces
from shoal.nets.control import GaussianActor, TemperedNetworks, TwinCritic, make_bodies
from shoal.nets.targets import Drift, Target, frozen
from shoal.options import Acting, ActorAndCritics, CentralInference, Experience, Learning, Rewards
from shoal.program import Program
from shoal.replay import n_step
from shoal.state import Stateful

PAPER: dict[str, Any] = {"replay": "uniform", "capacity": 1_000_000, "n": 1, "batch": 256, "grad_clip": 0.0}
PAPER |= {"target_every": 1, "target_rate": 0.005, "actor_rate": 3e-4, "critic_rate": 3e-4}


@config(env="Pendulum-v1", envs_per_actor=8, rows=8, **PAPER)
class Config(ActorAndCritics, Learning, Experience, Rewards, CentralInference, Acting):
    random_steps: Whole = 1_000  # of all environments together, with uniform actions, before the actor acts
    temperature_rate: Amount = 3e-4
    target_entropy: float | None = None  # nats; None: minus the number of action components


PRESETS: dict[str, dict[str, Any]] = {
    "control": {"samples_per_insert": 64.0, "publish_every": 4, "capacity": 300_000, "reward_scale": 0.1},
}


def make_networks(cfg: Config, env: Spaces, seed: int) -> TemperedNetworks:
    actor, *critics = make_bodies(cfg, env, seed, actor_outputs=2, critics=2)
    return TemperedNetworks(GaussianActor(actor, env.action_space), TwinCritic(*critics))


def make_policy(cfg: Config, env: Spaces, seed: int, greedy: bool = False) -> SquashedGaussianPolicy:
    return SquashedGaussianPolicy(
        make_networks(cfg, env, seed),
        seed,
        greedy=greedy,
        random_rows=-(-cfg.random_steps // (cfg.actors * cfg.envs_per_actor)),
        priorities=partial(first_priorities, cfg) if cfg.replay == "prioritized" and not greedy else None,
        device=cfg.acting_device,
    )


def soft_errors(cfg: Config, items: Mapping[str, Tensor], q: Tensor, soft_value: Tensor) -> Tensor:
    """TD errors with the soft value of what follows, [B] or of both critics [2, B]."""
    return bootstrap(items["reward"] * cfg.reward_scale, items["discount"], soft_value) - q


def first_priorities(cfg: Config, items: Mapping[str, Tensor]) -> Tensor:
    """Those of new items: |TD error| by the values that were acted on, the smaller of both critics."""
    return soft_errors(cfg, items, items["q"], items["next_value"]).abs()


class SAC(Stateful):
    """The learner: batches of n-step transitions in, weights and priorities out."""

    def __init__(self, cfg: Config, env: Spaces, seed: int, peers: optim.Peers = optim.ALONE) -> None:
        self.cfg = cfg
        self.network = make_networks(cfg, env, seed).to(cfg.device)
        self.target = Target(self.network.critic, cfg.target_every, cfg.target_rate)
        make = partial(optim.make, peers=peers, epsilon=cfg.epsilon, clip_norm=cfg.grad_clip)
        self.critic_optimizer = make(self.network.critic.parameters(), rate=cfg.critic_rate)
        self.actor_optimizer = make(self.network.actor.parameters(), rate=cfg.actor_rate)
        self.temperature_optimizer = make([self.network.log_temperature], rate=cfg.temperature_rate)
        size = self.network.actor.units.size
        self.target_entropy = -float(size) if cfg.target_entropy is None else cfg.target_entropy
        self.noise = torch.Generator(cfg.device).manual_seed(seed)

    def update(self, batch: Batch) -> dict[str, Any]:
        """One step of the critics, one of the actor, one of the temperature, and the target critics follow."""
        temperature = self.network.log_temperature.detach().exp()
        critic_loss, priorities, metrics = self.critic_loss(batch, temperature)
        items = torch.tensor(len(priorities))
        critic = self.critic_optimizer.step(critic_loss, items)
        metrics |= {"critic_loss": critic_loss.detach(), "critic_grad_norm": critic.grad_norm}
        if not critic.applied:
            return metrics | {"applied": False}
        actor_loss, entropy = self.actor_loss(batch["observation"], temperature)
        actor = self.actor_optimizer.step(actor_loss, items)
        self.temperature_optimizer.step(self.network.log_temperature * (entropy - self.target_entropy), items)
        self.target.follow(self.critic_optimizer.updates)
        metrics |= {"actor_loss": actor_loss.detach(), "entropy": entropy, "temperature": temperature}
        return metrics | {"priorities": priorities, "applied": actor.applied, "target_drift": Drift(self.target)}

    def critic_loss(self, batch: Batch, temperature: Tensor) -> tuple[Tensor, Tensor, dict[str, Any]]:
        """The mean loss of both critics, weighted by importance, the items' priorities [B], and metrics."""
        following = batch["next_observation"]
        with torch.no_grad():
            action, log_prob = self.draw(following)
            soft_value = self.target.network.expected_return(following, action) - temperature * log_prob
        q = self.network.critic(batch["observation"], self.network.actor.units.to_units(batch["action"]))
        errors = soft_errors(self.cfg, batch, q, soft_value)
        loss = importance_mean(0.5 * errors.square().sum(0), batch.get("importance"))
        return loss, errors.detach().abs().mean(0), value_metrics(q, errors)

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
    wiring = Wiring(cfg, env, settings)
    replay = wiring.add_experience("transitions", block=cfg.envs_per_actor * cfg.rows)
    wiring.add_learners(SAC, reads=replay, batch=cfg.batch, publish_every=cfg.publish_every)
    pattern = n_step(cfg.n, cfg.gamma, following=("observation", "value"), reward_clip=cfg.reward_clip)
    wiring.add_actors(make_policy, writes=replay, pattern=pattern, rows=cfg.rows)
    wiring.add_evaluator(make_policy)
    return wiring.program
