"""APPO: proximal policy optimisation with actors and learners out of step, put right by V-trace.

Targets and advantages come from V-trace with the ratio π_target/μ of a slowly moving target policy to the one that
acted; the clipped surrogate then limits the step away from the target policy, with the ratio min(2, μ/π_target)·π/μ
(Luo 2019, IMPACT). Every batch is gone over several times.

Departures: advantages carry V-trace's clipped ratio and are normalised over the batch of all learners; a truncated
episode bootstraps from its final observation; the target policy is copied, not averaged.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from shoal import optim
from shoal.acting.actor_critic import ActorCriticPolicy
from shoal.batches import Batch, minibatches, training_rows
from shoal.config import Count, config
from shoal.envs import EnvSpec
from shoal.functional.normalisation import masked_sums, normalise_advantages
from shoal.functional.policy_gradient import entropy_bonus, masked_mean, value_loss
from shoal.functional.returns import explained_variance
from shoal.functional.surrogate import approximate_kl, asynchronous_surrogate_loss, clipped_fraction
from shoal.functional.vtrace import vtrace
from shoal.learning import Update
from shoal.loops.wiring import Settings, rollout_program
from shoal.nets.building import Spaces, make_actor_critic
from shoal.nets.normalize import RewardNormalizer
from shoal.nets.targets import Target
from shoal.options import CentralInference, ImportanceClips, OnPolicy, Proximal, Rollouts
from shoal.program import Program
from shoal.replay import Table
from shoal.schedules import AnnealedBySteps
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
    lambda_=0.95,
    reward_scale=1.0,
    reward_clip=0.0,
    normalize_observations=False,
    normalize_rewards=False,
    # policy gradients
    value_cost=0.5,
    entropy_cost=0.01,
    clip_rho=1.0,
    clip_c=1.0,
    clip=0.2,
    epochs=4,
    minibatches=2,
    normalize_advantages=True,
    anneal_steps=0,
    # rollouts
    unroll=32,
    queue=64,
    # updates
    batch=64,
    publish_every=1,
)
class Config(OnPolicy, Proximal, ImportanceClips, Rollouts, CentralInference):
    target_every: Count = 2
    """Learner steps between two copies of the network into the target policy."""


PRESETS: dict[str, dict[str, Any]] = {
    "classic": {"envs_per_actor": 128, "reward_scale": 0.1, "queue": 128, "batch": 128},
    "control": {
        "shared_torso": False,
        "learning_rate": 3e-4,
        "normalize_observations": True,
        "normalize_rewards": True,
        "entropy_cost": 0.0,
    },
    # Updates as small as IMPALA's, and advantages as they are.
    "atari": {
        "envs_per_actor": 16,
        "hidden": (512,),
        "activation": "relu",
        "learning_rate": 4e-4,
        "reward_clip": 1.0,
        "epochs": 1,
        "minibatches": 2,
        "normalize_advantages": False,
        "unroll": 20,
        "queue": 16,
        "batch": 8,
        "target_every": 1,
    },
}


def make_policy(cfg: Config, env: Spaces, seed: int, greedy: bool = False) -> ActorCriticPolicy:
    return ActorCriticPolicy(make_actor_critic(cfg, env, seed), seed, greedy=greedy, device=cfg.acting_device)


class APPO(Stateful):
    """The learner: batches of unrolls in, weights out."""

    def __init__(self, cfg: Config, env: Spaces, seed: int, peers: optim.Peers = optim.ALONE) -> None:
        self.cfg, self.peers = cfg, peers
        self.network = make_actor_critic(cfg, env, seed).to(cfg.device)
        self.target = Target(self.network, cfg.target_every)
        self.updates = 0  # of this learner
        self.rewards = RewardNormalizer(
            normalize=cfg.normalize_rewards, scale=cfg.reward_scale, clip=cfg.reward_clip
        ).to(cfg.device)
        self.rate = AnnealedBySteps(cfg.learning_rate, cfg.anneal_steps)
        self.optimizer = optim.make(
            self.network.parameters(), peers, rate=self.rate, epsilon=cfg.epsilon, clip_norm=cfg.grad_clip
        )
        self.order = torch.Generator().manual_seed(seed)  # of minibatches

    def update(self, batch: Batch) -> Update:
        """One learner step from time-major columns [T+1, B, ...]; row T only bootstraps."""
        cfg = self.cfg
        copied = self.target.follow(self.updates)
        self.updates += 1
        rows, explained = self.prepare(batch, copied)
        applied = True
        for _ in range(cfg.epochs):
            for part in minibatches(rows, cfg.minibatches, self.order):
                loss, count, metrics = self.loss(part)
                step = self.optimizer.step(loss, count)
                applied &= step.applied
        if self.network.normalizer is not None:  # only now: the data was acted on with the statistics before
            self.network.normalizer.update(batch["observation"], batch["valid"], self.peers.sum)
        metrics |= {"explained_variance": explained}
        return Update(
            {**metrics, "grad_norm": step.grad_norm, "learning_rate": self.rate()},
            applied=applied,
        )

    @torch.no_grad()
    def prepare(self, batch: Batch, copied: bool = False) -> tuple[Batch, Tensor]:
        """Rows to learn from [T, B, ...] with their advantages and targets (the valid ones alone, [1, n, ...], where
        no state runs through them), and how much of the targets the values explain. `copied`: the target policy is the
        network's own now, and need not be asked."""
        cfg = self.cfg
        action, behaviour, reward, terminated, valid = (
            batch[name][:-1] for name in ("action", "log_prob", "reward", "terminated", "valid")
        )
        inputs = batch["observation"], batch["state"], batch["first"]
        parameters, values, _ = self.network(*inputs)
        if not copied:
            parameters, _, _ = self.target.network(*inputs)
        target_log_prob = self.network.distribution.log_prob(parameters[:-1], action)
        discounts = torch.where(terminated, 0.0, cfg.gamma)
        targets, advantages = vtrace(
            values=values,
            rewards=self.rewards(reward, discounts, valid, self.peers.sum),
            discounts=discounts,
            rho=torch.where(valid, torch.exp(target_log_prob - behaviour), 0.0),
            lambda_=cfg.lambda_,
            clip_rho=cfg.clip_rho,
            clip_c=cfg.clip_c,
        )
        count = valid.sum().clamp(min=1)
        squared_error = masked_mean((targets - values[:-1]).square(), valid=valid, count=count)
        explained = explained_variance(squared_error=squared_error, targets=targets, valid=valid, count=count)
        sums = self.peers.sum(masked_sums(advantages, valid=valid))
        self.rate.steps += int(sums[2])
        if cfg.normalize_advantages:
            advantages = normalise_advantages(advantages, valid=valid, sums=sums)
        return training_rows(batch, advantage=advantages, target=targets, target_log_prob=target_log_prob), explained

    def loss(self, rows: Batch) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """The mean loss over valid rows, their number, and metrics."""
        cfg, valid, target_log_prob = self.cfg, rows["valid"], rows["target_log_prob"]
        parameters, values, _ = self.network(rows["observation"], rows["state"], rows["first"])
        log_prob, entropy = self.network.distribution.log_prob_and_entropy(parameters, rows["action"])
        count = valid.sum()
        mean_over = count.clamp(min=1)
        policy_loss = asynchronous_surrogate_loss(
            log_prob=log_prob,
            target_log_prob=target_log_prob,
            behaviour_log_prob=rows["log_prob"],
            advantages=rows["advantage"],
            valid=valid,
            count=mean_over,
            clip=cfg.clip,
        )
        values_loss = value_loss(values=values, targets=rows["target"], valid=valid, count=mean_over)
        entropy_mean = entropy_bonus(entropy, valid=valid, count=mean_over)
        loss = policy_loss + cfg.value_cost * values_loss - cfg.entropy_cost * entropy_mean
        metrics = {"loss": loss, "policy_loss": policy_loss, "value_loss": values_loss, "entropy": entropy_mean}
        metrics["kl"] = approximate_kl(
            log_prob=log_prob, behaviour_log_prob=target_log_prob, valid=valid, count=mean_over
        )
        metrics["clipped"] = clipped_fraction(
            log_prob=log_prob, behaviour_log_prob=target_log_prob, valid=valid, count=mean_over, clip=cfg.clip
        )
        return loss, count, {name: value.detach() for name, value in metrics.items()}


def program(cfg: Config, env: EnvSpec, settings: Settings) -> Program:
    """Actors fill a queue of unrolls, learners empty it; nobody waits for a version of the weights."""
    return rollout_program(
        cfg,
        env,
        settings,
        learner=APPO,
        policy=make_policy,
        table=Table.queue("rollouts", cfg.queue),
        batch=cfg.batch,
        publish_every=cfg.publish_every,
        prefetch=0,  # what waits for the learner grows old
    )
