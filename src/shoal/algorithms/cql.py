"""CQL (Kumar 2020): SAC on logged data, with critics that think little of actions which the data has not.

To the critics' TD errors comes, `--conservative-cost` times, log ∫ exp Q(s, a) da − Q(s, a of the data): it falls as
actions of the data rise above all others. The integral is estimated from `--drawn-actions` uniform ones in [−1, 1],
and as many of the policy at s and at s', each divided by its density. All else is sac, but no entropy is in targets.
`--online` goes on with actors: `--data-share` of each batch is the data's, the rest their own. Departures: the cost is
a constant (the paper can learn it, by a Lagrange multiplier); targets are n-step returns where `--n` asks for them. For
discrete actions there is discrete_cql.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from shoal import optim, tree
from shoal.acting.squashed import SquashedGaussianPolicy
from shoal.batches import Batch
from shoal.config import Amount, Count, Positive, config
from shoal.data import open_dataset, prepare
from shoal.envs import EnvSpec
from shoal.functional.n_step import bootstrap
from shoal.functional.offline import conservative_gap
from shoal.functional.q import as_priorities, importance_mean, value_metrics
from shoal.functional.squashed import Squashed, squashed_gaussian
from shoal.learning import Measured, Update
from shoal.loops.wiring import Settings, data_program
from shoal.nets.building import Spaces
from shoal.nets.control import GaussianActor, TemperedNetworks, TwinCritic, make_bodies, make_normalizer
from shoal.nets.normalize import Spread
from shoal.nets.targets import Drift, Target, frozen
from shoal.options import ContinuousControl, NormalizedObservations, Online, RandomStart
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
    actor_hidden=(256, 256, 256),
    critic_hidden=(256, 256, 256),
    activation="relu",
    layer_norm=False,
    # optimizers
    actor_rate=3e-5,
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
    conservative_cost: Amount = 10.0
    """How much it counts that other actions look better than the data's."""
    drawn_actions: Count = 10
    """Uniform ones, of the policy, and of the policy one step later, which are compared with each of the data's."""
    temperature: Positive = 1.0
    """What entropy is worth at first, in units of scaled rewards."""
    temperature_rate: Amount = 3e-5
    """Learning rate of the temperature."""
    target_entropy: float | None = None
    """Nats; None: minus the number of action components."""


PRESETS: dict[str, dict[str, Any]] = {}


def make_networks(cfg: Config, env: Spaces, seed: int) -> TemperedNetworks:
    actor, *critics = make_bodies(cfg, env, seed, actor_outputs=2, critics=2)
    normalizer = make_normalizer(cfg, env)
    return TemperedNetworks(GaussianActor(actor, env.action_space), TwinCritic(*critics), cfg.temperature, normalizer)


def make_policy(cfg: Config, env: Spaces, seed: int, greedy: bool = False) -> SquashedGaussianPolicy:
    environments = cfg.actors * cfg.envs_per_actor
    return SquashedGaussianPolicy(
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
    """|TD error| [B], of both critics the mean: the law of learners, and of actors, who know the smaller of both."""
    return as_priorities(td_errors(cfg, items).abs().reshape(-1, len(items["reward"])).mean(0))


class CQL(Stateful):
    """The learner: batches of n-step transitions in, weights and priorities out."""

    not_state = ("target_entropy",)  # an option, which may be another one when a run goes on

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
        self.critic_optimizer = make_optimizer(self.network.critic.parameters(), rate=cfg.critic_rate)
        self.actor_optimizer = make_optimizer(self.network.actor.parameters(), rate=cfg.actor_rate)
        self.temperature_optimizer = make_optimizer([self.network.log_temperature], rate=cfg.temperature_rate)
        size = self.network.actor.units.size
        self.target_entropy = -float(size) if cfg.target_entropy is None else cfg.target_entropy
        self.noise = torch.Generator(cfg.device).manual_seed(seed)

    def update(self, batch: Batch) -> Update:
        """One step of the critics, the actor and the temperature from columns [B, ...] of n-step transitions and, if
        prioritised, "importance" [B]; then the target critics follow."""
        batch = self.network.seen(batch)
        temperature = self.network.log_temperature.detach().exp()
        critic_loss, priorities, critic_metrics = self.critic_loss(batch)
        count = torch.tensor(len(priorities))
        critic_step = self.critic_optimizer.step(critic_loss, count)
        metrics: Measured = {**critic_metrics, "critic_grad_norm": critic_step.grad_norm}
        if not critic_step.applied:
            return Update(metrics, applied=False)
        actor_loss, entropy = self.actor_loss(batch["observation"], temperature)
        actor_step = self.actor_optimizer.step(actor_loss, count)
        metrics |= {"actor_loss": actor_loss.detach(), "actor_grad_norm": actor_step.grad_norm}
        self.temperature_optimizer.step(self.network.log_temperature * (entropy - self.target_entropy), count)
        metrics |= {"entropy": entropy, "temperature": temperature}
        self.target.follow(self.critic_optimizer.updates)  # after all
        metrics["target_drift"] = Drift(self.target)
        return Update(metrics, priorities=priorities, applied=actor_step.applied)

    def critic_loss(self, batch: Batch) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """The mean loss of both critics with what their gaps cost, weighted by importance, the items' priorities [B],
        and metrics."""
        following, target = batch["next_observation"], self.target.network
        with torch.no_grad():
            next_value = target.expected_return(following, self.draw(following).action)
        q = self.network.critic(batch["observation"], self.network.actor.units.to_units(batch["action"]))
        items = {**batch, "q": q, "next_value": next_value}
        errors = td_errors(self.cfg, items)
        gaps = self.gaps(batch, q)
        losses = (errors.square() + self.cfg.conservative_cost * gaps).sum(0)
        loss = importance_mean(losses, importance=batch.get("importance"))
        metrics = {"critic_loss": loss.detach(), **value_metrics(q=q, errors=errors), "gap": gaps.detach().mean()}
        return loss, priorities_of(self.cfg, items), metrics

    def gaps(self, batch: Batch, q: Tensor) -> Tensor:
        """By how much other actions look better to each critic than the data's, which are worth q: both [2, B]."""
        draws, rows, size = self.cfg.drawn_actions, q.shape[1], self.network.actor.units.size
        often = partial(tree.map, lambda part: part.repeat(draws, *[1] * (part.dim() - 1)))
        with torch.no_grad():
            uniform = torch.rand(draws * rows, size, generator=self.noise, device=q.device) * 2.0 - 1.0
            here, later = (self.draw(often(batch[name])) for name in ("observation", "next_observation"))
            action = torch.cat([uniform, here.action, later.action])
            log_density = torch.cat(
                [torch.full_like(here.log_prob, size * math.log(0.5)), here.log_prob, later.log_prob]
            )
        seen = tree.map(lambda part: torch.cat([part] * 3), often(batch["observation"]))
        drawn = self.network.critic(seen, action)
        return conservative_gap(
            drawn=drawn.view(len(q), 3 * draws, rows), log_density=log_density.view(3 * draws, rows), data=q
        )

    def actor_loss(self, observation: Any, temperature: Tensor) -> tuple[Tensor, Tensor]:
        """Minus the mean soft value of the actor's own draws, and their mean entropy, without gradient."""
        action, log_prob = self.draw(observation)
        with frozen(self.network.critic):
            value = self.network.critic.expected_return(observation, action)
        return (temperature * log_prob - value).mean(), -log_prob.detach().mean()

    def draw(self, observation: Any) -> Squashed:
        """Actions of the policy as it is now, through which gradients flow."""
        mean, log_std = self.network.actor(observation)
        noise = torch.randn(mean.shape, generator=self.noise, device=mean.device)
        return squashed_gaussian(mean=mean, log_std=log_std, noise=noise)


def program(cfg: Config, env: EnvSpec, settings: Settings) -> Program:
    """Learners read the data; online, actors fill a table beside it."""
    learner = partial(CQL, statistics=open_dataset(prepare(cfg.data)).statistics())
    pattern = n_step(cfg.n, cfg.gamma, following=("observation", "value"), reward_clip=cfg.reward_clip)
    return data_program(cfg, env, settings, learner=learner, policy=make_policy, pattern=pattern)
