"""SAC (Haarnoja 2018): a stochastic actor that earns returns and entropy, two critics, and a learned temperature.

A squashed Gaussian acts; the temperature is learned so that the policy's entropy stays near `--target-entropy` (minus
the number of action components, with actions in units of −1…1). Beside it, what the house gives: many actors, several
learners, n-step returns, prioritised replay. Entropies of the steps inside an n-step return are left out, which biases
it, so n is 1 by default; `--samples-per-insert` holds acting and learning to a ratio, in the paper one update per step.
With logged data (`--data`) `--data-share` of each batch is the data's; with several critics, of which a few are drawn
for each target, and layer normalisation this is RLPD (Ball 2023, `--preset rlpd`).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any

import torch
from torch import Tensor

from shoal import optim
from shoal.acting.squashed import SquashedGaussianPolicy
from shoal.batches import Batch
from shoal.config import Amount, AtLeast, Constraint, Count, Positive, config
from shoal.envs import EnvSpec
from shoal.errors import UserError
from shoal.functional.n_step import bootstrap
from shoal.functional.q import as_priorities, importance_mean, value_metrics
from shoal.functional.squashed import Squashed, squashed_gaussian
from shoal.learning import Measured, Update
from shoal.loops.wiring import Settings, experience_program
from shoal.nets.building import Spaces
from shoal.nets.control import GaussianActor, TemperedNetworks, TwinCritic, make_bodies
from shoal.nets.targets import Drift, Target, frozen
from shoal.options import ContinuousControl, DataShare, RandomStart
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
    # data
    data_share=0.5,
    # replay
    rows=8,
    replay="uniform",
    capacity=1_000_000,
    learning_starts=1_000,
    samples_per_insert=0.0,
    priority_exponent=0.6,
    importance_exponent=0.4,
    # updates
    batch=256,
    publish_every=1,
    target_every=1,
    target_rate=0.005,
    # exploration
    random_steps=1_000,
)
class Config(ContinuousControl, DataShare, RandomStart):
    critics: Annotated[int, AtLeast(2)] = 2
    """That learn apart."""
    drawn_critics: Count = 2
    """Of these, drawn for each target, which takes the smallest; where not all are, the actor climbs the mean."""

    @Constraint
    def _there_are_enough_critics(self) -> None:
        if self.drawn_critics > self.critics:
            raise UserError(
                f"--drawn-critics {self.drawn_critics} cannot be drawn of --critics {self.critics}: give fewer."
            )

    temperature: Positive = 1.0
    """What entropy is worth at first, in units of scaled rewards."""
    temperature_rate: Amount = 3e-4
    """Learning rate of the temperature."""
    target_entropy: float | None = None
    """Nats; None: minus the number of action components."""


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
        "target_rate": 0.01,
        "temperature": 0.1,
        "temperature_rate": 1e-3,
    },
    # Ball 2023, for --data: twenty updates for each step, of whose batches the table has half.
    "rlpd": {
        "layer_norm": True,
        "samples_per_insert": 2_560.0,
        "publish_every": 20,
        "random_steps": 0,
        "critics": 10,
    },
}


def make_networks(cfg: Config, env: Spaces, seed: int) -> TemperedNetworks:
    actor, *critics = make_bodies(cfg, env, seed, actor_outputs=2, critics=cfg.critics)
    return TemperedNetworks(GaussianActor(actor, env.action_space), TwinCritic(*critics), cfg.temperature)


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
    """By how much n-step transitions were worth more than "q", [B] or of all critics [critics, B], with what follows
    worth "next_value" [B]."""
    returns, discounts = items["reward"] * cfg.reward_scale, items["discount"]
    return bootstrap(returns=returns, discounts=discounts, values=items["next_value"]) - items["q"]


def priorities_of(cfg: Config, items: Mapping[str, Tensor]) -> Tensor:
    """|TD error| [B], of all critics the mean: the law of learners, and of actors, who know the smallest of them."""
    return as_priorities(td_errors(cfg, items).abs().reshape(-1, len(items["reward"])).mean(0))


class SAC(Stateful):
    """The learner: batches of n-step transitions in, weights and priorities out."""

    not_state = ("target_entropy",)  # an option, which may be another one when a run goes on

    def __init__(self, cfg: Config, env: Spaces, seed: int, peers: optim.Peers = optim.ALONE) -> None:
        self.cfg = cfg
        self.network = make_networks(cfg, env, seed).to(cfg.device)
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
        temperature = self.network.log_temperature.detach().exp()
        critic_loss, priorities, critic_metrics = self.critic_loss(batch, temperature)
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

    def critic_loss(self, batch: Batch, temperature: Tensor) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """The mean loss of all critics, weighted by importance, the items' priorities [B], and metrics."""
        following, target = batch["next_observation"], self.target.network
        with torch.no_grad():
            action, log_prob = self.draw(following)
            next_value = self.smallest(target(following, action)) - temperature * log_prob
        q = self.network.critic(batch["observation"], self.network.actor.units.to_units(batch["action"]))
        items = {**batch, "q": q, "next_value": next_value}
        errors = td_errors(self.cfg, items)
        losses = 0.5 * errors.square().sum(0)
        loss = importance_mean(losses, importance=batch.get("importance"))
        metrics = {"critic_loss": loss.detach(), **value_metrics(q=q, errors=errors)}
        return loss, priorities_of(self.cfg, items), metrics

    def actor_loss(self, observation: Any, temperature: Tensor) -> tuple[Tensor, Tensor]:
        """Minus the mean soft value of the actor's own draws, and their mean entropy, without gradient."""
        action, log_prob = self.draw(observation)
        with frozen(self.network.critic):
            values = self.network.critic(observation, action)
        value = values.amin(0) if self.cfg.drawn_critics == self.cfg.critics else values.mean(0)
        return (temperature * log_prob - value).mean(), -log_prob.detach().mean()

    def smallest(self, values: Tensor) -> Tensor:
        """Of what critics say [critics, B] the least, [B], among those that are drawn now."""
        if self.cfg.drawn_critics < len(values):
            drawn = torch.randperm(len(values), generator=self.noise, device=values.device)[: self.cfg.drawn_critics]
            values = values[drawn]
        return values.amin(0)

    def draw(self, observation: Any) -> Squashed:
        """Actions of the policy as it is now, through which gradients flow."""
        mean, log_std = self.network.actor(observation)
        noise = torch.randn(mean.shape, generator=self.noise, device=mean.device)
        return squashed_gaussian(mean=mean, log_std=log_std, noise=noise)


def program(cfg: Config, env: EnvSpec, settings: Settings) -> Program:
    """Actors fill a table, learners sample it and send back how surprising each transition was."""
    pattern = n_step(cfg.n, cfg.gamma, following=("observation", "value"), reward_clip=cfg.reward_clip)
    return experience_program(cfg, env, settings, learner=SAC, policy=make_policy, pattern=pattern)
