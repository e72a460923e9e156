"""Ape-X DQN (Horgan 2018): many actors at different ε fill a prioritised replay, one learner empties it of surprises.

Double, dueling, n-step Q-learning; `--quantiles N` learns N quantiles of the return instead of its mean (QR-DQN, Dabney
2018). Departures from the paper: `--samples-per-insert` can hold acting and learning to a ratio, where the paper lets
each run at its own pace; losses are means over a batch; the small preset uses Adam.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from shoal import optim
from shoal.config import remember_given
from shoal.envs import EnvSpec
from shoal.functional.distributional import quantile_huber_loss
from shoal.functional.exploration import epsilon_ladder
from shoal.functional.n_step import bootstrap
from shoal.functional.q import chosen, double_q_values, huber, td_errors
from shoal.loops.wiring import Settings, add_actors, add_evaluator, add_learners, add_replay, limiter, user_pattern
from shoal.nets.building import Spaces, export_weights, import_weights, named_tensors, to_tensor
from shoal.nets.encoder import nest
from shoal.nets.q import make_q_network
from shoal.nets.q_acting import QPolicy
from shoal.program import Program
from shoal.replay import Prioritized, Table, n_step
from shoal.services.metrics import Metrics
from shoal.services.weights import WeightStore

Array = npt.NDArray[Any]


@remember_given
@dataclass(frozen=True, kw_only=True)
class Config:
    env: str = "CartPole-v1"
    preset: str = "auto"  # auto: by the environment's kind

    # acting

    actors: int = 1
    envs_per_actor: int = 64
    vectorizer: str = "auto"  # native where the environment has one, else sync
    inference: str = "local"  # or central: actors own no network and ask an inference server
    inference_servers: int = 1
    inference_batch: int = 0  # environments answered at once; 0: all of a server's actors
    inference_wait: float = 0.002  # seconds a request waits for others to share its batch
    rows: int = 16  # steps of every environment between two messages to the replay, and two looks for new weights
    ladder_base: float = 0.4  # environment i of N explores with ε = base^(1 + exponent · i/(N−1))
    ladder_exponent: float = 7.0
    reward_scale: float = 1.0
    reward_clip: float = 0.0  # rewards are clipped to ± this before scaling; 0: not at all

    # replay

    shards: int = 1  # replay services
    capacity: int = 100_000  # transitions; a soft limit: what is over it goes every 100 updates, the oldest first
    learning_starts: int = 1_000  # transitions that are there before the first update
    samples_per_insert: float = 0.0  # 0: acting and learning go at their own pace
    priority_exponent: float = 0.6
    importance_exponent: float = 0.4
    n: int = 3  # steps of a return
    pattern: str | None = None  # module:factory of a pattern in place of n-step transitions; called with this config

    # learning

    learners: int = 1  # each takes its share of a batch; gradients are summed over all of them
    batch: int = 512  # transitions per update
    publish_every: int = 1  # updates between versions of the weights
    target_every: int = 200  # updates between copies of the network into the target network
    device: str = "cpu"
    gamma: float = 0.99
    quantiles: int = 0  # of the return, per action; 0: only its mean
    kappa: float = 0.0  # TD errors beyond it count linearly; 0: all are squared, or with quantiles as 1
    optimizer: str = "adam"  # or rmsprop, centred as in the paper
    learning_rate: float = 1e-3
    epsilon: float = 1e-8  # of the optimizer
    grad_clip: float = 40.0  # norm; 0: not at all

    # network

    network: str | None = None  # module:factory, see shoal.nets.user_q
    hidden: tuple[int, ...] = (256, 256)
    activation: str = "relu"
    stream: int = 0  # width of the hidden layers of value and advantage; 0: none


PRESETS: dict[str, dict[str, Any]] = {
    "classic": {"reward_scale": 0.1, "n": 10, "target_every": 50, "samples_per_insert": 1.25},
    # The paper's figures; where it has 360 actors of one environment each, the ladder runs over all environments.
    "atari": {
        "envs_per_actor": 16,
        "rows": 25,
        "reward_clip": 1.0,
        "capacity": 2_000_000,
        "learning_starts": 50_000,
        "target_every": 2_500,
        "optimizer": "rmsprop",
        "learning_rate": 2.5e-4 / 4,
        "epsilon": 1.5e-7,
        "hidden": (),
        "stream": 512,
    },
}


def build_network(cfg: Config, env_spec: Spaces, seed: int) -> nn.Module:
    return make_q_network(
        env_spec.observation_space,
        env_spec.action_space,
        seed=seed,
        network=cfg.network,
        quantiles=cfg.quantiles,
        hidden=cfg.hidden,
        activation=cfg.activation,
        stream=cfg.stream,
    )


def make_policy(cfg: Config, env_spec: Spaces, seed: int, greedy: bool = False) -> QPolicy:
    total = cfg.actors * cfg.envs_per_actor
    ladder = epsilon_ladder(np.arange(total), total, cfg.ladder_base, cfg.ladder_exponent)
    return QPolicy(
        build_network(cfg, env_spec, seed),
        seed,
        None if greedy else ladder,
        quantiles=cfg.quantiles,
        reward_scale=cfg.reward_scale,
    )


class ApexDQN:
    """The learner: batches of n-step transitions in, weights and priorities out."""

    def __init__(self, cfg: Config, env_spec: Spaces, seed: int, peers: optim.Peers = optim.ALONE) -> None:
        self.cfg = cfg
        self._device = torch.device(cfg.device)
        self._network = build_network(cfg, env_spec, seed).to(self._device)
        self._target = copy.deepcopy(self._network)
        self._observation_space = env_spec.observation_space
        self._optimizer = optim.make(
            self._network.parameters(),
            peers,
            rate=cfg.learning_rate,
            kind=cfg.optimizer,
            decay=0.95 if cfg.optimizer == "rmsprop" else None,
            centred=True,
            epsilon=cfg.epsilon,
            epsilon_inside=True,
            clip_norm=cfg.grad_clip,
        )
        self._tensors = named_tensors(self._network)
        self._target_flat = optim.flatten([weight for weight in self._target.parameters() if weight.requires_grad])

    def weights(self) -> dict[str, Array]:
        return export_weights(self._tensors)

    def load(self, weights: Mapping[str, Array]) -> None:
        import_weights(self._tensors, weights)
        self._target.load_state_dict(self._network.state_dict())

    def update(self, batch: Mapping[str, Array]) -> dict[str, Any]:
        """One update from columns [B, ...] of n-step transitions and "importance" [B]."""
        columns = {name: to_tensor(array, self._device) for name, array in batch.items()}
        loss, priorities, metrics = self.loss(columns)
        report = self._optimizer.step(loss, torch.tensor(len(priorities)))
        if self._optimizer.updates % self.cfg.target_every == 0:
            self._target.load_state_dict(self._network.state_dict())
        metrics |= {"grad_norm": report.grad_norm, "applied": float(report.applied), "target_drift": self._drift()}
        return {**metrics, "priorities": priorities.cpu().numpy()} if report.applied else metrics

    def loss(self, columns: Mapping[str, Tensor]) -> tuple[Tensor, Tensor, dict[str, Any]]:
        """The mean loss, weighted by importance, the items' priorities [B], and metrics."""
        cfg = self.cfg
        following = nest(self._observation_space, columns, "next_observation")
        with torch.no_grad():
            expected = self._network(following).mean(-1) if cfg.quantiles else self._network(following)
            values = double_q_values(expected, self._target(following))
            targets = bootstrap(columns["reward"] * cfg.reward_scale, columns["discount"], values)
        q = self._network(nest(self._observation_space, columns))
        if cfg.quantiles:
            losses, priorities = quantile_huber_loss(chosen(q, columns["action"]), targets, cfg.kappa or 1.0)
        else:
            errors = td_errors(q, columns["action"], targets)
            losses = huber(errors, cfg.kappa) if cfg.kappa else 0.5 * errors.square()
            priorities = errors.detach().abs()
        loss = (columns["importance"] * losses).mean()
        with torch.no_grad():
            metrics = {
                "loss": loss.detach(),
                "td_error": priorities.mean(),
                "q_mean": q.mean(),
                "q_min": q.min(),
                "q_max": q.max(),
            }
        return loss, priorities, metrics

    @torch.no_grad()
    def _drift(self) -> Tensor:
        """How far the network has moved since its last copy, in parts of its size."""
        now = self._optimizer.flat
        drift: Tensor = torch.linalg.vector_norm(now - self._target_flat) / torch.linalg.vector_norm(now)
        return drift


def program(cfg: Config, env: EnvSpec, settings: Settings) -> Program:
    """Actors fill a prioritised table, learners sample it and send back how surprising each transition was."""
    p = Program()
    metrics = p.add("metrics", Metrics)
    weights = p.add("weights", WeightStore)
    table = Table(
        "transitions",
        cfg.capacity,
        sampler=Prioritized(cfg.priority_exponent),
        limiter=limiter(cfg.samples_per_insert, cfg.learning_starts, cfg.batch, cfg.envs_per_actor * cfg.rows),
        soft_capacity=True,
    )
    replay = add_replay(p, [table], cfg.shards, cfg.actors)
    add_learners(
        p,
        cfg.learners,
        partial(ApexDQN, cfg, env),
        "transitions",
        cfg.batch,
        replay,
        weights,
        metrics,
        publish_every=cfg.publish_every,
        max_updates=settings.max_updates,
        beta=cfg.importance_exponent,
        trim_every=100,
    )
    steps = n_step(cfg.n, cfg.gamma, following=("observation", "value"), reward_clip=cfg.reward_clip)
    pattern = user_pattern(cfg, steps)
    policy = partial(make_policy, cfg, env)
    add_actors(p, cfg, env, policy, {"transitions": pattern}, cfg.rows, replay, weights, metrics)
    add_evaluator(p, settings, cfg, env, partial(make_policy, cfg, env, greedy=True), weights, metrics)
    return p
