"""D4PG (Barth-Maron 2018): a deterministic actor climbs a critic that learns distributions of n-step returns.

`--critic categorical` has atoms on a fixed support, `--critic quantile` learns quantiles (Dabney 2018) and needs none.
Departures from the paper: priorities are |errors of expected returns|, first given by the actors; dQ/da is clipped;
`--samples-per-insert` can hold acting and learning to a ratio; target networks can follow slowly (`--target-rate`),
noise can differ between environments, and saturated actions can cost something. Without a preset most settings are the
paper's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from shoal import optim
from shoal.config import remember_given
from shoal.control import Training
from shoal.envs import EnvSpec
from shoal.errors import UserError
from shoal.functional.distributional import categorical_loss, mass_outside, project, quantile_huber_loss
from shoal.functional.exploration import noise_ladder
from shoal.functional.n_step import bootstrap
from shoal.loops.wiring import Settings, add_actors, add_evaluator, add_learners, add_replay, limiter, user_pattern
from shoal.nets.building import Spaces, to_tensor
from shoal.nets.control import ControlNetworks, SupportWatch, make_control_networks
from shoal.nets.control_acting import DeterministicPolicy, ValuingPolicy
from shoal.nets.encoder import nest
from shoal.program import Program
from shoal.replay import Prioritized, Table, Uniform, n_step
from shoal.services.metrics import Metrics
from shoal.services.weights import WeightStore

Array = npt.NDArray[Any]


@remember_given
@dataclass(frozen=True, kw_only=True)
class Config:
    env: str = "Pendulum-v1"
    preset: str = "auto"  # auto: by the environment's kind

    # acting

    actors: int = 1
    envs_per_actor: int = 8
    vectorizer: str = "auto"  # native where the environment has one, else sync
    inference: str = "local"  # or central: actors own no network and ask an inference server
    inference_servers: int = 1
    inference_batch: int = 0  # environments answered at once; 0: all of a server's actors
    inference_wait: float = 0.002  # seconds a request waits for others to share its batch
    rows: int = 8  # steps of every environment between two messages to the replay, and two looks for new weights
    noise: float = 0.3  # deviation of the noise on actions, in units of half their range
    noise_smallest: float = 0.0  # deviations go down to this one over all environments; 0: the same for all
    reward_scale: float = 1.0
    reward_clip: float = 0.0  # rewards are clipped to ± this before scaling; 0: not at all

    # replay

    replay: Literal["prioritized", "uniform"] = "prioritized"
    shards: int = 1  # replay services
    capacity: int = 1_000_000  # transitions; a soft limit: what is over it goes every 100 updates, the oldest first
    learning_starts: int = 1_000  # transitions that are there before the first update
    samples_per_insert: float = 0.0  # 0: acting and learning go at their own pace
    priority_exponent: float = 0.6
    importance_exponent: float = 0.4
    n: int = 5  # steps of a return
    pattern: str | None = None  # module:factory of a pattern in place of n-step transitions; called with this config

    # learning

    learners: int = 1  # each takes its share of a batch; gradients are summed over all of them
    batch: int = 256  # transitions per update
    publish_every: int = 1  # updates between versions of the weights
    target_every: int = 100  # updates after which the target networks follow
    target_rate: float = 1.0  # how much of the way they go: 1 copies
    device: str = "cpu"
    gamma: float = 0.99
    critic: Literal["categorical", "quantile"] = "categorical"
    atoms: int = 51  # of the categorical distribution
    support_low: float = -150.0  # returns between which the categorical critic's atoms lie, after reward_scale
    support_high: float = 150.0
    quantiles: int = 32
    kappa: float = 1.0  # quantile errors beyond it count linearly
    slope_clip: float = 1.0  # dQ/da of each part of an action is clipped to ± this; 0: not at all
    saturation_cost: float = 0.0  # on squares of what tanh makes actions of: keeps them from sticking to their bounds
    actor_rate: float = 1e-4
    critic_rate: float = 1e-4
    epsilon: float = 1e-8  # of Adam
    grad_clip: float = 40.0  # norm, for actor and critic apart

    # networks

    network: str | None = None  # module:factory, see shoal.nets.control
    actor_hidden: tuple[int, ...] = (300, 200)
    critic_hidden: tuple[int, ...] = (400, 300)
    activation: str = "relu"


PRESETS: dict[str, dict[str, Any]] = {
    "control": {
        "reward_scale": 0.1,
        "capacity": 300_000,
        "samples_per_insert": 64.0,
        "publish_every": 4,
        "target_every": 1,
        "target_rate": 0.01,
        "atoms": 101,
        "support_low": -100.0,
        "support_high": 100.0,
        "saturation_cost": 0.01,
        "actor_rate": 1e-3,
        "critic_rate": 1e-3,
        "actor_hidden": (128, 128),
        "critic_hidden": (128, 128),
    },
}


def build_networks(cfg: Config, env_spec: Spaces, seed: int) -> ControlNetworks:
    if cfg.critic == "quantile" and (cfg.quantiles < 1 or cfg.kappa == 0):
        raise UserError(
            f"--critic quantile needs --quantiles and --kappa above 0, not {cfg.quantiles} and {cfg.kappa:g}."
        )
    actor, critic = make_control_networks(
        env_spec.observation_space,
        env_spec.action_space,
        seed=seed,
        network=cfg.network,
        critic=cfg.critic,
        atoms=cfg.quantiles if cfg.critic == "quantile" else cfg.atoms,
        actor_hidden=cfg.actor_hidden,
        critic_hidden=cfg.critic_hidden,
        activation=cfg.activation,
    )
    if cfg.critic == "categorical":
        critic.set_support(cfg.support_low, cfg.support_high)
    return ControlNetworks(actor, critic)


def make_policy(cfg: Config, env_spec: Spaces, seed: int, greedy: bool = False) -> DeterministicPolicy:
    networks = build_networks(cfg, env_spec, seed)
    if greedy:
        return DeterministicPolicy(networks, seed)
    total = cfg.actors * cfg.envs_per_actor
    scales = noise_ladder(np.arange(total), total, cfg.noise, cfg.noise_smallest or cfg.noise)
    if cfg.replay == "uniform":
        return DeterministicPolicy(networks, seed, scales)
    return ValuingPolicy(networks, seed, scales, reward_scale=cfg.reward_scale)


class D4PG:
    """The learner: batches of n-step transitions in, weights and priorities out."""

    def __init__(self, cfg: Config, env_spec: Spaces, seed: int, peers: optim.Peers = optim.ALONE) -> None:
        self.cfg = cfg
        self._device = torch.device(cfg.device)
        self._observation_space = env_spec.observation_space
        self._training = Training(build_networks(cfg, env_spec, seed).to(self._device), cfg, peers)
        self._watch = SupportWatch(self._training.critic) if cfg.critic == "categorical" else None

    def weights(self) -> dict[str, Array]:
        return self._training.weights()

    def load(self, weights: Mapping[str, Array]) -> None:
        self._training.load(weights)

    def update(self, batch: Mapping[str, Array]) -> dict[str, Any]:
        """One update of both networks from columns [B, ...] of n-step transitions and, if prioritised, "importance"."""
        columns = {name: to_tensor(array, self._device) for name, array in batch.items()}
        loss, priorities, metrics = self.critic_loss(columns)
        metrics |= self._training.step(loss, nest(self._observation_space, columns), len(priorities))
        if self._watch is not None:
            metrics["note"] = self._watch(metrics["outside_support"])
        prioritized = self.cfg.replay == "prioritized"
        return {**metrics, "priorities": priorities.cpu().numpy()} if prioritized and metrics["applied"] else metrics

    def critic_loss(self, columns: Mapping[str, Tensor]) -> tuple[Tensor, Tensor, dict[str, Any]]:
        """The mean loss, weighted by importance, the items' priorities [B], and metrics."""
        cfg, actor, critic, target = self.cfg, self._training.actor, self._training.critic, self._training.target
        following = nest(self._observation_space, columns, "next_observation")
        rewards, discounts = columns["reward"] * cfg.reward_scale, columns["discount"]
        outputs = critic(nest(self._observation_space, columns), actor.units.to_units(columns["action"]))
        metrics: dict[str, Any] = {}
        with torch.no_grad():
            ahead = target.critic(following, target.actor(following))
            q = critic.expected(outputs)
            errors = bootstrap(rewards, discounts, target.critic.expected(ahead)) - q
        if cfg.critic == "categorical":
            law = torch.softmax(ahead, dim=-1), rewards, discounts, critic.support
            losses = categorical_loss(outputs, project(*law))
            metrics["outside_support"] = mass_outside(*law).mean()
        else:
            losses, _ = quantile_huber_loss(outputs, bootstrap(rewards, discounts, ahead), cfg.kappa)
        loss = (columns["importance"] * losses).mean() if "importance" in columns else losses.mean()
        priorities = errors.abs()
        metrics |= {"td_error": priorities.mean(), "q_mean": q.mean(), "q_min": q.min(), "q_max": q.max()}
        return loss, priorities, metrics


def program(cfg: Config, env: EnvSpec, settings: Settings) -> Program:
    """Actors fill a table, learners sample it and send back how surprising each transition was."""
    p = Program()
    metrics = p.add("metrics", Metrics)
    weights = p.add("weights", WeightStore)
    prioritized = cfg.replay == "prioritized"
    table = Table(
        "transitions",
        cfg.capacity,
        sampler=Prioritized(cfg.priority_exponent) if prioritized else Uniform(),
        limiter=limiter(cfg.samples_per_insert, cfg.learning_starts, cfg.batch, cfg.envs_per_actor * cfg.rows),
        soft_capacity=True,
    )
    replay = add_replay(p, [table], cfg.shards, cfg.actors)
    add_learners(
        p,
        cfg.learners,
        partial(D4PG, cfg, env),
        "transitions",
        cfg.batch,
        replay,
        weights,
        metrics,
        publish_every=cfg.publish_every,
        max_updates=settings.max_updates,
        beta=cfg.importance_exponent if prioritized else None,
        trim_every=100,
    )
    steps = n_step(cfg.n, cfg.gamma, following=("observation", "value"), reward_clip=cfg.reward_clip)
    pattern = user_pattern(cfg, steps)
    policy = partial(make_policy, cfg, env)
    add_actors(p, cfg, env, policy, {"transitions": pattern}, cfg.rows, replay, weights, metrics)
    add_evaluator(p, settings, cfg, env, partial(make_policy, cfg, env, greedy=True), weights, metrics)
    return p
