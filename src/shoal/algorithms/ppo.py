"""PPO (Schulman 2017), distributed and synchronous: actors wait for the weights that their last rollouts have made.

Departures from the paper: advantages are normalised over the whole batch of all learners; a truncated episode
bootstraps from its final observation; rewards may be divided by the spread of returns, observations normalised. The
first row of an unroll was acted on with the weights before, which its stored log-probability accounts for.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from shoal import optim
from shoal.acting.actor_critic import ActorCriticPolicy
from shoal.batches import Batch, minibatches, training_rows
from shoal.config import Amount, Count, config
from shoal.envs import EnvSpec
from shoal.functional.gae import gae
from shoal.functional.normalisation import masked_sums, normalise_advantages
from shoal.functional.policy_gradient import entropy_bonus, masked_mean, value_loss
from shoal.functional.returns import explained_variance
from shoal.functional.surrogate import approximate_kl, clipped_fraction, clipped_surrogate_loss, clipped_value_loss
from shoal.learning import Update
from shoal.loops.wiring import Settings, rollout_program
from shoal.nets.building import Spaces, make_actor_critic
from shoal.nets.normalize import RewardNormalizer
from shoal.options import ATARI, PIXELS, OnPolicy, Proximal
from shoal.program import Program
from shoal.replay import Table
from shoal.schedules import AnnealedBySteps
from shoal.state import Stateful


@config(actors=2, lambda_=0.95)
class Config(OnPolicy, Proximal):
    unroll: Count = 32
    """Transitions of each environment per iteration."""
    value_clip: Amount = 0.0
    """How far values may move before they gain no more; 0: as far as they like."""
    target_kl: Amount = 0.0
    """No further pass once the policy has moved this far; 0: never."""


PRESETS: dict[str, dict[str, Any]] = {
    "classic": {"reward_scale": 0.1, "learning_rate": 2e-3, "envs_per_actor": 128},
    "control": {"normalize_observations": True, "normalize_rewards": True, "shared_torso": False, "entropy_cost": 0.0}
    | {"envs_per_actor": 8, "unroll": 128, "epochs": 10, "minibatches": 8, "learning_rate": 3e-4},
    "pixels": PIXELS | {"unroll": 32, "gamma": 0.97},
    # Schulman 2017, table 5
    "atari": ATARI
    | {"envs_per_actor": 4, "unroll": 128, "epochs": 3, "minibatches": 4}
    | {"clip": 0.1, "value_cost": 1.0, "learning_rate": 2.5e-4},
}


def make_policy(cfg: Config, env: Spaces, seed: int, greedy: bool = False) -> ActorCriticPolicy:
    return ActorCriticPolicy(make_actor_critic(cfg, env, seed), seed, greedy=greedy, device=cfg.acting_device)


class PPO(Stateful):
    """The learner: an iteration's unrolls in, weights out."""

    def __init__(self, cfg: Config, env: Spaces, seed: int, peers: optim.Peers = optim.ALONE) -> None:
        self.cfg, self.peers = cfg, peers
        self.network = make_actor_critic(cfg, env, seed).to(cfg.device)
        self.rewards = RewardNormalizer(
            normalize=cfg.normalize_rewards, scale=cfg.reward_scale, clip=cfg.reward_clip
        ).to(cfg.device)
        self.order = torch.Generator().manual_seed(seed)  # of minibatches
        self.rate = AnnealedBySteps(cfg.learning_rate, cfg.anneal_steps)
        self.optimizer = optim.make(
            self.network.parameters(), peers, rate=self.rate, epsilon=cfg.epsilon, clip_norm=cfg.grad_clip
        )

    def update(self, batch: Batch) -> Update:
        """One iteration from time-major columns [T+1, B, ...]; row T only bootstraps."""
        cfg, total = self.cfg, self.peers.sum
        rows, explained = self.prepare(batch)
        refused, epochs = 0, 0
        while epochs < cfg.epochs:
            moved = torch.zeros(2, device=cfg.device)
            for part in minibatches(rows, cfg.minibatches, self.order):
                loss, count, metrics = self.loss(part)
                step = self.optimizer.step(loss, count)
                refused += not step.applied
                moved += torch.stack([metrics["kl"] * count, count])
            epochs += 1
            if cfg.target_kl:  # a decision of all learners, or some would wait for others that have stopped
                moved = total(moved)
                if moved[0] > cfg.target_kl * moved[1]:
                    break
        if self.network.normalizer is not None:  # only now: the data was acted on with the statistics before
            self.network.normalizer.update(batch["observation"], batch["valid"], total)
        metrics |= {"kl": moved[0] / moved[1].clamp(min=1.0), "explained_variance": explained}
        metrics |= {"grad_norm": step.grad_norm, "learning_rate": self.rate(), "epochs": epochs}
        return Update(metrics, applied=not refused)

    @torch.no_grad()
    def prepare(self, batch: Batch) -> tuple[Batch, Tensor]:
        """Rows to learn from [T, B, ...] with their advantages and targets (the valid ones alone, [1, n, ...], where
        no state runs through them), and how much of the returns the values explain."""
        cfg, valid = self.cfg, batch["valid"][:-1]
        _, values, _ = self.network(batch["observation"], batch["state"], batch["first"])
        discounts = torch.where(batch["terminated"][:-1], 0.0, cfg.gamma)
        rewards = self.rewards(batch["reward"][:-1], discounts, valid, self.peers.sum)
        advantages, targets = gae(values=values, rewards=rewards, discounts=discounts, valid=valid, lambda_=cfg.lambda_)
        count = valid.sum().clamp(min=1)
        explained = explained_variance(masked_mean(advantages.square(), valid, count), targets, valid, count)
        sums = self.peers.sum(masked_sums(advantages, valid))
        self.rate.steps += int(sums[2])
        if cfg.normalize_advantages:
            advantages = normalise_advantages(advantages, valid, sums)
        return training_rows(batch, advantage=advantages, target=targets, value=values[:-1]), explained

    def loss(self, rows: Batch) -> tuple[Tensor, Tensor, dict[str, Any]]:
        """The mean loss over valid rows, their number, and metrics."""
        cfg, valid, before = self.cfg, rows["valid"], rows["log_prob"]
        parameters, values, _ = self.network(rows["observation"], rows["state"], rows["first"])
        log_prob, entropy = self.network.distribution.log_prob_and_entropy(parameters, rows["action"])
        count = valid.sum()
        over = valid, count.clamp(min=1)
        for_policy = clipped_surrogate_loss(log_prob, before, rows["advantage"], *over, cfg.clip)
        if cfg.value_clip:
            for_value = clipped_value_loss(values, rows["value"], rows["target"], *over, cfg.value_clip)
        else:
            for_value = value_loss(values, rows["target"], *over)
        bonus = entropy_bonus(entropy, *over)
        loss = for_policy + cfg.value_cost * for_value - cfg.entropy_cost * bonus
        metrics = {"loss": loss, "policy_loss": for_policy, "value_loss": for_value, "entropy": bonus}
        metrics["kl"] = approximate_kl(log_prob, before, *over)
        metrics["clipped"] = clipped_fraction(log_prob, before, *over, cfg.clip)
        return loss, count, {name: value.detach() for name, value in metrics.items()}


def program(cfg: Config, env: EnvSpec, settings: Settings) -> Program:
    """Every actor brings its unrolls once per version of the weights; learners take them all and make the next."""
    items = cfg.actors * cfg.envs_per_actor
    quota = Table.quota("rollouts", items)
    parts: dict[str, Any] = {"learner": PPO, "policy": make_policy, "table": quota, "batch": items}
    return rollout_program(cfg, env, settings, **parts, synchronous=True, prefetch=0)
