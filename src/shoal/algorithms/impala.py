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
from shoal.options import ATARI, PIXELS, CentralInference, ImportanceClips, OnPolicy, Rollouts
from shoal.program import Program
from shoal.replay import Table
from shoal.schedules import annealed
from shoal.state import Stateful


@config()
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
    "classic": {"envs_per_actor": 256, "unroll": 10, "batch": 256, "queue": 256, "reward_scale": 0.1},
    # Many small updates of a policy that is hardly older than they are: Pendulum needs ten thousand.
    "control": {"envs_per_actor": 8, "unroll": 8, "batch": 8, "queue": 8, "learning_rate": 5e-4, "gamma": 0.95}
    | {"normalize_observations": True, "normalize_rewards": True, "shared_torso": False}
    | {"lambda_": 0.9, "entropy_cost": 0.0},
    "pixels": PIXELS | {"unroll": 10, "batch": 32, "queue": 64, "gamma": 0.97},
    # Many small updates of frames as they come: Pong in an hour on two cores.
    "atari": ATARI | {"envs_per_actor": 16, "batch": 4, "queue": 16, "lambda_": 0.95, "learning_rate": 4e-4},
    # Espeholt's figures, for hundreds of actors; the losses are sums over a batch of 32 unrolls of 20 steps.
    "paper": ATARI
    | {"envs_per_actor": 16, "batch": 32, "queue": 64, "loss_scale": 640.0, "grad_clip": 40.0}
    | {"optimizer": "rmsprop", "learning_rate": 6e-4, "epsilon": 0.1},
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
        """One update from time-major columns [T+1, B, ...]; row T only bootstraps."""
        loss, rows, metrics = self.loss(batch)
        step = self.optimizer.step(loss * self.cfg.loss_scale, rows)
        if self.network.normalizer is not None:  # the next version's: this one's data was acted on without it
            self.network.normalizer.update(batch["observation"], batch["valid"], self.peers.sum)
        return Update(metrics | {"grad_norm": step.grad_norm}, applied=step.applied)

    def loss(self, batch: Batch) -> tuple[Tensor, Tensor, dict[str, Any]]:
        """The mean loss over valid rows, their number, and metrics."""
        cfg = self.cfg
        action, behaviour, reward, terminated, valid = (
            batch[name][:-1] for name in ("action", "log_prob", "reward", "terminated", "valid")
        )
        parameters, values, _ = self.network(batch["observation"], batch["state"], batch["first"])
        log_prob, entropy = self.network.distribution.log_prob_and_entropy(parameters[:-1], action)
        discounts = torch.where(terminated, 0.0, cfg.gamma)
        with torch.no_grad():
            rho = torch.where(valid, torch.exp(log_prob - behaviour), 0.0)
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
        rows = valid.sum()
        return loss, rows, metrics | {"rho": rho.sum() / rows.clamp(min=1)}


def program(cfg: Config, env: EnvSpec, settings: Settings) -> Program:
    """Actors fill a queue of unrolls, learners empty it: every step is trained on once."""
    queue = Table.queue("rollouts", cfg.queue)
    options: dict[str, Any] = {"table": queue, "batch": cfg.batch, "publish_every": cfg.publish_every}
    return rollout_program(cfg, env, settings, learner=Impala, policy=make_policy, **options)
