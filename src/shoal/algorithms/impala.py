"""IMPALA (Espeholt 2018): actors and a learner out of step, put right by V-trace.

Departures from the paper: losses are means over valid rows (the `paper` preset scales them back to its sum),
so that settings carry over between batch sizes; a truncated episode bootstraps from its final observation.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

from shoal import optim
from shoal.acting.actor_critic import ActorCriticPolicy
from shoal.batches import Batch
from shoal.config import Amount, Whole, config
from shoal.envs import EnvSpec
from shoal.functional.policy_gradient import actor_critic_loss
from shoal.functional.vtrace import vtrace
from shoal.learning import Update
from shoal.loops.wiring import Settings, rollout_program
from shoal.nets.building import Spaces, make_actor_critic
from shoal.nets.normalize import RewardNormalizer
from shoal.options import CentralInference, ImportanceClips, OnPolicy, Rollouts
from shoal.program import Program
from shoal.replay import Table
from shoal.schedules import annealed
from shoal.state import Stateful


@config(
    # acting
    env="CartPole-v1",
    actors=1,
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
    epsilon=1e-5,
    grad_clip=0.5,
    # returns
    gamma=0.99,
    lambda_=1.0,
    reward_scale=1.0,
    reward_clip=0.0,
    normalize_observations=False,
    normalize_rewards=False,
    # policy gradients
    value_cost=0.5,
    entropy_cost=0.01,
    clip_rho=1.0,
    clip_c=1.0,
    # rollouts
    unroll=20,
    queue=128,
    # updates
    batch=64,
    publish_every=1,
)
class Config(OnPolicy, ImportanceClips, Rollouts, CentralInference):
    clip_pg_rho: Amount = 1.0
    """Largest ratio in the policy's gradient."""
    loss_scale: float = 1.0
    """The loss is multiplied by this."""
    optimizer: Literal["adam", "rmsprop"] = "adam"
    """rmsprop: with the small number inside the root, as in the paper."""
    anneal_updates: Whole = 0
    """The learning rate falls linearly to 0 over so many updates; 0: constant."""


PRESETS: dict[str, dict[str, Any]] = {
    "classic": {"envs_per_actor": 256, "reward_scale": 0.1, "unroll": 10, "queue": 256, "batch": 256},
    # Many small updates of a policy that is hardly older than they are: Pendulum needs ten thousand.
    "control": {
        "envs_per_actor": 8,
        "shared_torso": False,
        "learning_rate": 5e-4,
        "gamma": 0.95,
        "lambda_": 0.9,
        "normalize_observations": True,
        "normalize_rewards": True,
        "entropy_cost": 0.0,
        "unroll": 8,
        "queue": 8,
        "batch": 8,
    },
    # Small games, minutes on a CPU.
    "pixels": {
        "envs_per_actor": 16,
        "hidden": (128,),
        "activation": "relu",
        "gamma": 0.97,
        "unroll": 10,
        "queue": 64,
        "batch": 32,
    },
    # Many small updates of frames as they come: Pong in an hour on two cores.
    "atari": {
        "envs_per_actor": 16,
        "hidden": (512,),
        "activation": "relu",
        "learning_rate": 4e-4,
        "lambda_": 0.95,
        "reward_clip": 1.0,
        "queue": 16,
        "batch": 4,
    },
    # Espeholt's figures, for hundreds of actors; the losses are sums over a batch of 32 unrolls of 20 steps.
    "paper": {
        "envs_per_actor": 16,
        "hidden": (512,),
        "activation": "relu",
        "learning_rate": 6e-4,
        "epsilon": 0.1,
        "grad_clip": 40.0,
        "reward_clip": 1.0,
        "queue": 64,
        "batch": 32,
        "loss_scale": 640.0,
        "optimizer": "rmsprop",
    },
}


def make_policy(cfg: Config, env: Spaces, seed: int, greedy: bool = False) -> ActorCriticPolicy:
    return ActorCriticPolicy(make_actor_critic(cfg, env, seed), seed, greedy=greedy, device=cfg.acting_device)


class Impala(Stateful):
    """The learner: batches of unrolls in, weights out."""

    def __init__(self, cfg: Config, env: Spaces, seed: int, peers: optim.Peers = optim.ALONE) -> None:
        self.cfg, self.peers = cfg, peers
        self.network = make_actor_critic(cfg, env, seed).to(cfg.device)
        self.rewards = RewardNormalizer(
            normalize=cfg.normalize_rewards, scale=cfg.reward_scale, clip=cfg.reward_clip
        ).to(cfg.device)
        self.optimizer = optim.make(
            self.network.parameters(),
            peers,
            rate=annealed(cfg.learning_rate, cfg.anneal_updates),
            kind=cfg.optimizer,
            epsilon=cfg.epsilon,
            epsilon_inside=True,
            clip_norm=cfg.grad_clip,
        )

    def update(self, batch: Batch) -> Update:
        """One learner step from time-major columns [T+1, B, ...]; row T only bootstraps."""
        loss, count, metrics = self.loss(batch)
        step = self.optimizer.step(loss * self.cfg.loss_scale, count)
        if self.network.normalizer is not None:  # only now: the data was acted on with the statistics before
            self.network.normalizer.update(batch["observation"], batch["valid"], self.peers.sum)
        return Update({**metrics, "grad_norm": step.grad_norm}, applied=step.applied)

    def loss(self, batch: Batch) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """The mean loss over valid rows, their number, and metrics."""
        cfg = self.cfg
        action, behaviour, reward, terminated, valid = (
            batch[name][:-1] for name in ("action", "log_prob", "reward", "terminated", "valid")
        )
        parameters, values, _ = self.network(batch["observation"], batch["state"], batch["first"])
        log_prob, entropy = self.network.distribution.log_prob_and_entropy(parameters[:-1], action)
        discounts = torch.where(terminated, 0.0, cfg.gamma)
        rho = torch.where(valid, torch.exp(log_prob.detach() - behaviour), 0.0)
        targets, advantages = vtrace(
            values=values,
            rewards=self.rewards(reward, discounts, valid, self.peers.sum),
            discounts=discounts,
            rho=rho,
            lambda_=cfg.lambda_,
            clip_rho=cfg.clip_rho,
            clip_c=cfg.clip_c,
            clip_pg_rho=cfg.clip_pg_rho,
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
        count = valid.sum()
        return loss, count, {**metrics, "rho": rho.sum() / count.clamp(min=1)}


def program(cfg: Config, env: EnvSpec, settings: Settings) -> Program:
    """Actors fill a queue of unrolls, learners empty it: every step is trained on once."""
    return rollout_program(
        cfg,
        env,
        settings,
        learner=Impala,
        policy=make_policy,
        table=Table.queue("rollouts", cfg.queue),
        batch=cfg.batch,
        publish_every=cfg.publish_every,
    )
