"""A3C (Mnih 2016): workers act, compute gradients and push them; one shared RMSProp applies them as they arrive.

With `--synchronous` it is A2C: a step is made of one gradient of every worker, and all go on with the same weights.

Departures from the paper: a worker steps a vector of environments, where the paper's has one; losses are means over
valid rows (the `atari` preset scales them back to the paper's sum), so that settings carry over between batch sizes; a
truncated episode bootstraps from its final observation. Each worker's gradient is clipped before it is pushed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from shoal import optim
from shoal.acting.actor_critic import ActorCriticPolicy
from shoal.batches import Batch
from shoal.config import Amount, Count, Share, Whole, config
from shoal.envs import EnvSpec
from shoal.errors import UserError
from shoal.functional.policy_gradient import actor_critic_loss
from shoal.functional.returns import learned_rewards
from shoal.functional.vtrace import vtrace
from shoal.learning import Update
from shoal.loops.wiring import Settings, Wiring
from shoal.nets.building import Spaces, make_actor_critic
from shoal.options import Acting, GradientService, PolicyAndValue, PolicyGradient, Rewards, Unrolls
from shoal.program import Program
from shoal.schedules import annealed
from shoal.services.gradients import GradientServer
from shoal.state import Stateful


@config(
    # acting
    env="CartPole-v1",
    actors=2,
    envs_per_actor=64,
    # networks
    encoder="nature",
    hidden=(64, 64),
    activation="tanh",
    shared_torso=True,
    state_dependent_std=False,
    lstm=0,
    # optimizers
    learning_rate=1e-3,
    # returns
    lambda_=1.0,
    reward_scale=1.0,
    reward_clip=0.0,
    # policy gradients
    value_cost=0.5,
    entropy_cost=0.01,
    # gradient service
    synchronous=False,
    reduce=1,
    max_staleness=0,
    publish_every=10,
)
class Config(PolicyAndValue, PolicyGradient, GradientService, Unrolls, Rewards, Acting):
    unroll: Count = 20
    """Rows of each environment per gradient."""
    gamma: Share = 0.99
    """Discount of each step."""
    loss_scale: float = 1.0
    """The loss is multiplied by this."""
    grad_clip: Amount = 0.5
    """Largest norm of a gradient; 0: not clipped."""
    anneal_updates: Whole = 0
    """The learning rate falls linearly to 0 over so many steps; 0: constant."""
    decay: Share = 0.99
    """Of RMSProp's mean of squares."""
    epsilon: Amount = 1e-5
    """RMSProp's small number, inside the root."""


PRESETS: dict[str, dict[str, Any]] = {
    "classic": {"reward_scale": 0.1},
    # Gradients of 64 rows: Pendulum needs ten thousand of them.
    "control": {
        "envs_per_actor": 8,
        "shared_torso": False,
        "learning_rate": 7e-4,
        "gamma": 0.95,
        "lambda_": 0.9,
        "reward_scale": 0.1,
        "entropy_cost": 0.0,
        "unroll": 8,
    },
    # The paper's figures; its losses are sums over the steps of a rollout.
    "atari": {
        "envs_per_actor": 16,
        "hidden": (512,),
        "activation": "relu",
        "learning_rate": 7e-4,
        "epsilon": 0.1,
        "grad_clip": 40.0,
        "reward_clip": 1.0,
        "loss_scale": 20.0,
    },
}


def make_policy(cfg: Config, env: Spaces, seed: int, greedy: bool = False) -> ActorCriticPolicy:
    return ActorCriticPolicy(make_actor_critic(cfg, env, seed), seed, greedy=greedy, device=cfg.acting_device)


class A3C(Stateful):
    """A worker: acts with the weights it trains. Rollouts in, gradients out, newest weights back."""

    def __init__(self, cfg: Config, env: Spaces, seed: int, servers: Sequence[GradientServer]) -> None:
        self.cfg = cfg
        self.policy = make_policy(cfg, env, seed)
        self.network = self.policy.network
        self.optimizer = optim.Remote(self.network.parameters(), servers, clip_norm=cfg.grad_clip)
        self.policy.refresh()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self.policy.refresh()

    def finished(self) -> bool:
        return self.optimizer.finished

    def update(self, batch: Batch) -> Update:
        """Push the gradient of one rollout [T+1, B, ...]; row T only bootstraps."""
        if not self.network.training:  # it has acted
            self.network.train()
        loss, count, metrics = self.loss(batch)
        step = self.optimizer.step(loss * self.cfg.loss_scale, count)
        self.policy.refresh()
        return Update({**metrics, "grad_norm": step.grad_norm}, applied=step.applied, waited=step.waited)

    def loss(self, batch: Batch) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """The mean loss over valid rows, their number, and metrics."""
        cfg = self.cfg
        action, reward, terminated, valid = (batch[name][:-1] for name in ("action", "reward", "terminated", "valid"))
        parameters, values, _ = self.network(batch["observation"], batch["state"], batch["first"])
        log_prob, entropy = self.network.distribution.log_prob_and_entropy(parameters[:-1], action)
        discounts = torch.where(terminated, 0.0, cfg.gamma)
        targets, advantages = vtrace(
            values=values,
            rewards=learned_rewards(reward, scale=cfg.reward_scale, clip=cfg.reward_clip),
            discounts=discounts,
            rho=valid.to(values.dtype),  # on-policy, so the ratio is 1; 0 where a row is no transition cuts the return
            lambda_=cfg.lambda_,
        )
        loss, metrics = actor_critic_loss(
            log_prob=log_prob,
            entropy=entropy,
            values=values[:-1],
            advantages=advantages,
            targets=targets,
            valid=valid,
            value_cost=cfg.value_cost,
            entropy_cost=cfg.entropy_cost,
        )
        count = valid.sum().clamp(min=1)
        return loss, count, metrics


def program(cfg: Config, env: EnvSpec, settings: Settings) -> Program:
    """Workers push to the gradient service; the learner starts it, publishes what it has, and ends the run."""
    if cfg.shards > 1:
        parts = sum(1 for _ in make_actor_critic(cfg, env, seed=0).parameters())
        if cfg.shards > parts:
            raise UserError(f"--shards {cfg.shards} cannot share {parts} tensors of parameters: give {parts} or less.")
    wiring = Wiring(cfg, env, settings)
    servers = wiring.add_gradient_servers(
        cfg.shards,
        rate=annealed(cfg.learning_rate, cfg.anneal_updates),
        decay=cfg.decay,
        epsilon=cfg.epsilon,
        reduce=cfg.reduce,
        max_staleness=cfg.max_staleness or 8 * cfg.actors,
        for_workers=0 if cfg.max_staleness else cfg.actors,
        synchronous=cfg.actors if cfg.synchronous else 0,
    )
    wiring.add_publisher(make_actor_critic, servers, publish_every=cfg.publish_every)
    wiring.add_workers(A3C, servers, rows=cfg.unroll)
    wiring.add_evaluator(make_policy)
    return wiring.program
