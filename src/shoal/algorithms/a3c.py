"""A3C (Mnih 2016): workers act, compute gradients and push them; one shared RMSProp applies them as they arrive.

With `--synchronous` it is A2C: a step is made of one gradient of every worker, and all go on with the same weights.

Departures from the paper: a worker steps a vector of environments, where the paper's has one; losses are means over
valid rows (the `atari` preset scales them back to the paper's sum), so that settings carry over between batch sizes; a
truncated episode bootstraps from its final observation. Each worker's gradient is clipped before it is pushed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy.typing as npt
import torch
from gymnasium import spaces
from torch import Tensor

from shoal import optim
from shoal.config import remember_given
from shoal.envs import EnvSpec
from shoal.errors import UserError
from shoal.functional.policy_gradient import entropy_bonus, policy_gradient_loss, value_loss
from shoal.functional.returns import explained_variance
from shoal.functional.vtrace import vtrace
from shoal.loops.wiring import Settings, add_evaluator, make_envs
from shoal.loops.worker import Publisher, WorkerLoop
from shoal.nets.acting import ActorPolicy
from shoal.nets.actor_critic import ActorCritic
from shoal.nets.building import make_network, named_tensors
from shoal.nets.encoder import nest
from shoal.nets.user import UserNetwork
from shoal.program import Program
from shoal.services.gradients import GradientServer
from shoal.services.metrics import Metrics
from shoal.services.weights import WeightStore

Array = npt.NDArray[Any]


@remember_given
@dataclass(frozen=True, kw_only=True)
class Config:
    env: str = "CartPole-v1"
    preset: str = "auto"  # auto: by the environment's kind

    # acting

    actors: int = 2  # workers: each acts, and computes gradients with its own copy of the weights
    envs_per_actor: int = 64
    vectorizer: str = "auto"  # native where the environment has one, else sync
    unroll: int = 20  # rows of each environment per gradient
    reward_scale: float = 1.0
    reward_clip: float = 0.0  # rewards are clipped to ± this before scaling; 0: not at all

    # learning

    gamma: float = 0.99
    lambda_: float = 1.0  # 1: n-step returns as in the paper
    entropy_cost: float = 0.01
    value_cost: float = 0.5
    loss_scale: float = 1.0
    grad_clip: float = 0.5  # norm; 0: not at all

    # gradient service

    synchronous: bool = False  # A2C: every step waits for one gradient of each worker
    reduce: int = 1  # gradients per step, when asynchronous
    max_staleness: int = 0  # gradients older than so many steps are refused; 0: eight steps per worker
    shards: int = 1  # servers among which the parameters are divided
    publish_every: int = 10  # steps between versions of the weights for the evaluator
    learning_rate: float = 1e-3
    anneal_updates: int = 0  # the learning rate falls linearly to 0 over so many steps; 0: constant
    decay: float = 0.99
    epsilon: float = 1e-5  # inside the root

    # network

    network: str | None = None  # module:factory, see shoal.nets.user
    hidden: tuple[int, ...] = (64, 64)
    activation: str = "tanh"
    shared_torso: bool = True
    state_dependent_std: bool = False  # Box actions: the network gives the standard deviation too
    lstm: int = 0  # width of the recurrent core; 0: feed-forward


PRESETS: dict[str, dict[str, Any]] = {
    "classic": {"reward_scale": 0.1},
    "control": {
        "envs_per_actor": 16,
        "reward_scale": 0.1,
        "lambda_": 0.95,
        "entropy_cost": 0.001,
        "learning_rate": 2e-3,
        "shared_torso": False,
    },
    # The paper's figures; its losses are sums over the steps of a rollout.
    "atari": {
        "envs_per_actor": 16,
        "reward_clip": 1.0,
        "loss_scale": 20.0,
        "learning_rate": 7e-4,
        "epsilon": 0.1,
        "grad_clip": 40.0,
        "hidden": (512,),
        "activation": "relu",
    },
}


class Spaces(Protocol):
    """What is asked of a description of an environment."""

    @property
    def observation_space(self) -> spaces.Space[Any]: ...
    @property
    def action_space(self) -> spaces.Space[Any]: ...


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


def make_parameters(cfg: Config, env_spec: Spaces, seed: int) -> tuple[Array, list[int], dict[str, Array]]:
    """A network's parameters as one vector, the sizes of its parts, and its weights by name, on the same memory."""
    network = build_network(cfg, env_spec, seed)
    trained = [parameter for parameter in network.parameters() if parameter.requires_grad]
    flat = optim.flatten(trained).numpy()
    named = {name: tensor.numpy() for name, tensor in named_tensors(network).items()}
    return flat, [parameter.numel() for parameter in trained], named


class A3C:
    """A worker: acts with the weights it trains. Blocks of rows in, gradients out, newest weights back."""

    def __init__(self, cfg: Config, env_spec: Spaces, seed: int, servers: Sequence[GradientServer]) -> None:
        self.cfg = cfg
        self._network = build_network(cfg, env_spec, seed)
        self._observation_space = env_spec.observation_space
        self._optimizer = optim.Remote(self._network.parameters(), servers, clip_norm=cfg.grad_clip)
        self.policy = ActorPolicy(self._network, seed)  # after the optimizer, which has moved the parameters

    def finished(self) -> bool:
        return self._optimizer.finished

    def update(self, batch: Mapping[str, Array]) -> dict[str, Tensor | float]:
        """Push the gradient of one block: observations [T+1, B, ...], other columns [T, B, ...], "state/…" [B, ...]."""
        loss, count, metrics = self.loss({name: torch.from_numpy(array) for name, array in batch.items()})
        report = self._optimizer.step(loss * self.cfg.loss_scale, count)
        self.policy.refresh()
        return metrics | {"grad_norm": report.grad_norm, "applied": float(report.applied), "waited": report.waited}

    def loss(self, columns: Mapping[str, Tensor]) -> tuple[Tensor, Tensor, dict[str, Tensor | float]]:
        """The mean loss over valid rows, their number, and metrics."""
        cfg = self.cfg
        valid, terminated = columns["valid"], columns["terminated"]
        count = valid.sum().clamp(min=1)
        state = {name.removeprefix("state/"): x for name, x in columns.items() if name.startswith("state/")}
        # An invalid row is the end of an episode: the row after it is the first of the next.
        first = torch.cat([torch.zeros_like(valid[:1]), ~valid])
        parameters, values, _ = self._network(nest(self._observation_space, columns), state, first)
        log_prob, entropy = self._network.distribution.log_prob_and_entropy(parameters[:-1], columns["action"])

        rewards = columns["reward"]
        if cfg.reward_clip:
            rewards = rewards.clamp(-cfg.reward_clip, cfg.reward_clip)
        targets, advantages = vtrace(  # on-policy, so the ratio is 1; 0 where a row is no transition cuts the return
            values=values,
            rewards=rewards * cfg.reward_scale,
            discounts=torch.where(terminated, 0.0, cfg.gamma),
            rho=valid.to(values.dtype),
            lambda_=cfg.lambda_,
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
                "explained_variance": explained_variance(2.0 * for_value, targets, valid, count),
            }
        return loss, count, metrics


def program(cfg: Config, env: EnvSpec, settings: Settings) -> Program:
    """Workers push to the gradient service; the learner starts it, publishes what it has, and ends the run."""
    if cfg.synchronous and cfg.reduce > 1:
        raise UserError("--synchronous makes each step of one gradient per worker: leave out --reduce.")
    p = Program()
    metrics = p.add("metrics", Metrics)
    weights = p.add("weights", WeightStore)
    names = [f"gradients/{index}" for index in range(cfg.shards)] if cfg.shards > 1 else ["gradients"]
    servers = [
        p.add(
            name,
            GradientServer,
            rate=optim.linear(cfg.learning_rate, cfg.anneal_updates) if cfg.anneal_updates else cfg.learning_rate,
            decay=cfg.decay,
            epsilon=cfg.epsilon,
            reduce=cfg.reduce,
            max_staleness=cfg.max_staleness or 8 * cfg.actors,
            synchronous=cfg.actors if cfg.synchronous else 0,
            max_steps=settings.max_updates,
        )
        for name in names
    ]
    p.add(
        "learner",
        Publisher,
        partial(make_parameters, cfg, env),
        servers,
        weights,
        metrics,
        publish_every=cfg.publish_every,
        max_updates=settings.max_updates,
    )
    build: Any = partial(make_envs, env, cfg.envs_per_actor, cfg.vectorizer)
    for index in range(cfg.actors):
        p.add(f"worker/{index}", WorkerLoop, build, partial(A3C, cfg, env), cfg.unroll, servers, metrics)
    add_evaluator(p, settings, cfg, env, partial(make_policy, cfg, env, greedy=True), weights, metrics)
    return p
