"""IMPALA (Espeholt 2018): actors and a learner out of step, put right by V-trace.

Departures from the paper: losses are means over valid rows (the `atari` preset scales them back to the paper's sum),
so that settings carry over between batch sizes; a truncated episode bootstraps from its final observation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor

from shoal import optim
from shoal.config import remember_given
from shoal.envs import EnvSpec
from shoal.functional.policy_gradient import entropy_bonus, policy_gradient_loss, value_loss
from shoal.functional.returns import explained_variance
from shoal.functional.vtrace import vtrace
from shoal.loops.wiring import Settings, add_actors, add_evaluator, add_learners
from shoal.nets.acting import ActorPolicy
from shoal.nets.actor_critic import ActorCritic
from shoal.nets.building import (
    Spaces,
    export_weights,
    import_weights,
    make_network,
    named_tensors,
    states_of,
    to_tensor,
)
from shoal.nets.encoder import nest
from shoal.nets.user import UserNetwork
from shoal.program import Program
from shoal.replay import Replay, Table, rollout
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
    unroll: int = 20  # transitions per item; one more observation is kept to bootstrap
    queue: int = 128  # items that may wait for the learner; actors block when it is full
    reward_scale: float = 1.0
    reward_clip: float = 0.0  # rewards are clipped to ± this before scaling; 0: not at all

    # learning

    learners: int = 1  # each takes its share of a batch; gradients are summed over all of them
    batch: int = 64  # items per update
    publish_every: int = 1  # updates between versions of the weights
    device: str = "cpu"
    gamma: float = 0.99
    lambda_: float = 1.0
    clip_rho: float = 1.0
    clip_c: float = 1.0
    clip_pg_rho: float = 1.0
    entropy_cost: float = 0.01
    value_cost: float = 0.5
    loss_scale: float = 1.0
    optimizer: str = "adam"  # or rmsprop, with the small number inside the root as in the paper
    learning_rate: float = 1e-3
    anneal_updates: int = 0  # the learning rate falls linearly to 0 over so many updates; 0: constant
    epsilon: float = 1e-5
    grad_clip: float = 0.5  # norm; 0: not at all

    # network

    network: str | None = None  # module:factory, see shoal.nets.user
    hidden: tuple[int, ...] = (64, 64)
    activation: str = "tanh"
    shared_torso: bool = True
    state_dependent_std: bool = False  # Box actions: the network gives the standard deviation too
    lstm: int = 0  # width of the recurrent core; 0: feed-forward


PRESETS: dict[str, dict[str, Any]] = {
    "classic": {"envs_per_actor": 256, "unroll": 10, "batch": 256, "queue": 256, "reward_scale": 0.1},
    # Many small updates: Pendulum needs thousands, and its episodes all reset together.
    "control": {
        "envs_per_actor": 16,
        "unroll": 8,
        "batch": 16,
        "queue": 32,
        "gamma": 0.95,
        "lambda_": 0.9,
        "entropy_cost": 0.0,
        "reward_scale": 0.1,
        "shared_torso": False,
    },
    # The paper's figures; its losses are sums over a batch of 32 unrolls of 20 steps.
    "atari": {
        "envs_per_actor": 16,
        "batch": 32,
        "queue": 64,
        "reward_clip": 1.0,
        "loss_scale": 640.0,
        "optimizer": "rmsprop",
        "learning_rate": 6e-4,
        "epsilon": 0.1,
        "grad_clip": 40.0,
        "hidden": (512,),
        "activation": "relu",
    },
}


def build_network(cfg: Config, env_spec: Spaces, seed: int) -> ActorCritic | UserNetwork:
    return make_network(
        env_spec.observation_space,
        env_spec.action_space,
        seed=seed,
        network=cfg.network,
        hidden=cfg.hidden,
        activation=cfg.activation,
        lstm=cfg.lstm,
        shared=cfg.shared_torso,
        state_dependent_std=cfg.state_dependent_std,
    )


def make_policy(cfg: Config, env_spec: Spaces, seed: int, greedy: bool = False) -> ActorPolicy:
    return ActorPolicy(build_network(cfg, env_spec, seed), seed, greedy)


class Impala:
    """The learner: batches of unrolls in, weights out."""

    def __init__(self, cfg: Config, env_spec: Spaces, seed: int, peers: optim.Peers = optim.ALONE) -> None:
        self.cfg = cfg
        self._device = torch.device(cfg.device)
        self._network = build_network(cfg, env_spec, seed).to(self._device)
        self._observation_space = env_spec.observation_space
        self._updates = torch.zeros((), dtype=torch.float64)  # goes with the weights, so that a schedule goes on
        self._optimizer = optim.make(
            self._network.parameters(),
            peers,
            rate=self._rate,
            kind=cfg.optimizer,
            epsilon=cfg.epsilon,
            epsilon_inside=True,
            clip_norm=cfg.grad_clip,
        )
        self._tensors = named_tensors(self._network) | {"learner.updates": self._updates}

    def weights(self) -> dict[str, Array]:
        return export_weights(self._tensors)

    def load(self, weights: Mapping[str, Array]) -> None:
        import_weights(self._tensors, weights)

    def update(self, batch: Mapping[str, Array]) -> dict[str, Tensor | float]:
        """One update from time-major columns [T+1, B, ...] and "state/…" [B, ...]; row T only bootstraps."""
        columns = {name: to_tensor(array, self._device) for name, array in batch.items()}
        loss, rows, metrics = self.loss(columns)
        report = self._optimizer.step(loss * self.cfg.loss_scale, rows)
        self._updates += report.applied
        return metrics | {"grad_norm": report.grad_norm, "applied": float(report.applied)}

    def loss(self, columns: Mapping[str, Tensor]) -> tuple[Tensor, Tensor, dict[str, Tensor | float]]:
        """The mean loss over valid rows, their number, and metrics."""
        cfg = self.cfg
        valid, terminated = columns["valid"][:-1], columns["terminated"][:-1]
        rows = valid.sum()
        count = rows.clamp(min=1)
        # An invalid row is the end of an episode: the row after it is the first of the next.
        first = torch.cat([torch.zeros_like(valid[:1]), ~valid])
        parameters, values, _ = self._network(nest(self._observation_space, columns), states_of(columns), first)
        log_prob, entropy = self._network.distribution.log_prob_and_entropy(parameters[:-1], columns["action"][:-1])

        with torch.no_grad():
            rho = torch.where(valid, torch.exp(log_prob - columns["log_prob"][:-1]), 0.0)
            rewards = columns["reward"][:-1]
            if cfg.reward_clip:
                rewards = rewards.clamp(-cfg.reward_clip, cfg.reward_clip)
            targets, advantages = vtrace(
                values=values,
                rewards=rewards * cfg.reward_scale,
                discounts=torch.where(terminated, 0.0, cfg.gamma),
                rho=rho,
                lambda_=cfg.lambda_,
                clip_rho=cfg.clip_rho,
                clip_c=cfg.clip_c,
                clip_pg_rho=cfg.clip_pg_rho,
            )

        for_policy = policy_gradient_loss(log_prob, advantages, valid, count)
        for_value = value_loss(values[:-1], targets, valid, count)
        bonus = entropy_bonus(entropy, valid, count)
        loss = for_policy + cfg.value_cost * for_value - cfg.entropy_cost * bonus
        with torch.no_grad():
            metrics: dict[str, Tensor | float] = {
                "loss": loss.detach(),
                "policy_loss": for_policy.detach(),
                "value_loss": for_value.detach(),
                "entropy": bonus.detach(),
                "rho": rho.sum() / count,
                "explained_variance": explained_variance(2.0 * for_value, targets, valid, count),
            }
        return loss, rows, metrics

    def _rate(self, _: int) -> float:
        rate, over = self.cfg.learning_rate, self.cfg.anneal_updates
        return optim.linear(rate, over)(int(self._updates)) if over else rate


def program(cfg: Config, env: EnvSpec, settings: Settings) -> Program:
    """Actors fill a queue of unrolls, learners empty it: every step is trained on once."""
    p = Program()
    metrics = p.add("metrics", Metrics)
    weights = p.add("weights", WeightStore)
    replay = p.add("replay", Replay, [Table.queue("rollouts", cfg.queue)])
    add_learners(
        p,
        cfg.learners,
        partial(Impala, cfg, env),
        "rollouts",
        cfg.batch,
        replay,
        weights,
        metrics,
        publish_every=cfg.publish_every,
        max_updates=settings.max_updates,
    )
    policy = partial(make_policy, cfg, env)
    patterns = {"rollouts": rollout(cfg.unroll)}
    add_actors(p, cfg, env, policy, patterns, cfg.unroll, replay, weights, metrics)
    add_evaluator(p, settings, cfg, env, partial(make_policy, cfg, env, greedy=True), weights, metrics)
    return p
