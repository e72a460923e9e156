"""PPO (Schulman 2017), distributed and synchronous: actors wait for the weights that their last rollouts have made.

Departures from the paper: advantages are normalised over the whole batch of all learners; a truncated episode
bootstraps from its final observation; rewards may be divided by the spread of returns, observations normalised. The
first row of an unroll was acted on with the weights before, which its stored log-probability accounts for; so are all
of its rows with `--act-ahead`, where actors do not wait for learners.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from shoal import optim
from shoal.acting.actor_critic import ActorCriticPolicy
from shoal.batches import Batch, minibatches, training_rows
from shoal.config import Amount, config
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
from shoal.options import OnPolicy, Outside, Proximal
from shoal.program import Program
from shoal.replay import Table
from shoal.schedules import AnnealedBySteps
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
    clip=0.2,
    epochs=4,
    minibatches=4,
    normalize_advantages=True,
    anneal_steps=0,
    # rollouts
    unroll=32,
)
class Config(OnPolicy, Proximal, Outside):
    value_clip: Amount = 0.0
    """How far values may move before they gain no more; 0: as far as they like."""
    target_kl: Amount = 0.0
    """No further pass once the policy has moved this far; 0: never."""
    act_ahead: bool = False
    """Actors go on while rollouts are learned from: each rollout was acted on with the weights before the newest, which
    its log-probabilities account for."""


PRESETS: dict[str, dict[str, Any]] = {
    "classic": {"envs_per_actor": 128, "learning_rate": 2e-3, "reward_scale": 0.1},
    "control": {
        "envs_per_actor": 8,
        "shared_torso": False,
        "learning_rate": 3e-4,
        "normalize_observations": True,
        "normalize_rewards": True,
        "entropy_cost": 0.0,
        "epochs": 10,
        "minibatches": 8,
        "unroll": 128,
    },
    # Small games, minutes on a CPU.
    "pixels": {"envs_per_actor": 16, "hidden": (128,), "activation": "relu", "gamma": 0.97, "unroll": 32},
    # Schulman 2017, table 5
    "atari": {
        "envs_per_actor": 4,
        "hidden": (512,),
        "activation": "relu",
        "learning_rate": 2.5e-4,
        "reward_clip": 1.0,
        "value_cost": 1.0,
        "clip": 0.1,
        "epochs": 3,
        "minibatches": 4,
        "unroll": 128,
    },
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
        self.rate = AnnealedBySteps(cfg.learning_rate, cfg.anneal_steps)
        self.optimizer = optim.make(
            self.network.parameters(), peers, rate=self.rate, epsilon=cfg.epsilon, clip_norm=cfg.grad_clip
        )
        self.order = torch.Generator().manual_seed(seed)  # of minibatches

    def update(self, batch: Batch) -> Update:
        """One iteration from time-major columns [T+1, B, ...]; row T only bootstraps."""
        cfg = self.cfg
        rows, explained = self.prepare(batch)
        applied, epochs = True, 0
        while epochs < cfg.epochs:
            moved = torch.zeros(2, device=cfg.device)
            measured = bool(cfg.target_kl) or epochs == cfg.epochs - 1
            for part in minibatches(rows, cfg.minibatches, self.order):
                loss, count, metrics = self.loss(part, measured)
                step = self.optimizer.step(loss, count)
                applied &= step.applied
                if measured:
                    moved += torch.stack([metrics["kl"] * count, count])
            epochs += 1
            if cfg.target_kl:  # a decision of all learners, or some would wait for others that have stopped
                moved = self.peers.sum(moved)
                if moved[0] > cfg.target_kl * moved[1]:
                    break
        if self.network.normalizer is not None:  # only now: the data was acted on with the statistics before
            self.network.normalizer.update(batch["observation"], batch["valid"], self.peers.sum)
        metrics |= {"kl": moved[0] / moved[1].clamp(min=1.0), "explained_variance": explained}
        return Update(
            {**metrics, "grad_norm": step.grad_norm, "learning_rate": self.rate(), "epochs": epochs},
            applied=applied,
        )

    @torch.no_grad()
    def prepare(self, batch: Batch) -> tuple[Batch, Tensor]:
        """Rows to learn from [T, B, ...] with their advantages and targets (the valid ones alone, [1, n, ...], where
        no state runs through them), and how much of the targets the values explain."""
        cfg = self.cfg
        reward, terminated, valid = (batch[name][:-1] for name in ("reward", "terminated", "valid"))
        _, values, _ = self.network(batch["observation"], batch["state"], batch["first"])
        discounts = torch.where(terminated, 0.0, cfg.gamma)
        advantages, targets = gae(
            values=values,
            rewards=self.rewards(reward, discounts, valid, self.peers.sum),
            discounts=discounts,
            valid=valid,
            lambda_=cfg.lambda_,
        )
        count = valid.sum().clamp(min=1)
        squared_error = masked_mean((targets - values[:-1]).square(), valid=valid, count=count)
        explained = explained_variance(squared_error=squared_error, targets=targets, valid=valid, count=count)
        sums = self.peers.sum(masked_sums(advantages, valid=valid))
        self.rate.steps += int(sums[2])
        if cfg.normalize_advantages:
            advantages = normalise_advantages(advantages, valid=valid, sums=sums)
        return training_rows(batch, advantage=advantages, target=targets, value=values[:-1]), explained

    def loss(self, rows: Batch, measured: bool = True) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """The mean loss over valid rows, their number, and metrics: where they are `measured` also how far the policy
        has moved."""
        cfg, valid, behaviour = self.cfg, rows["valid"], rows["log_prob"]
        parameters, values, _ = self.network(rows["observation"], rows["state"], rows["first"])
        log_prob, entropy = self.network.distribution.log_prob_and_entropy(parameters, rows["action"])
        count = valid.sum()
        mean_over = count.clamp(min=1)
        policy_loss = clipped_surrogate_loss(
            log_prob=log_prob,
            behaviour_log_prob=behaviour,
            advantages=rows["advantage"],
            valid=valid,
            count=mean_over,
            clip=cfg.clip,
        )
        values_loss = value_loss(values=values, targets=rows["target"], valid=valid, count=mean_over)
        if cfg.value_clip:
            values_loss = clipped_value_loss(
                values=values,
                old_values=rows["value"],
                targets=rows["target"],
                valid=valid,
                count=mean_over,
                clip=cfg.value_clip,
            )
        entropy_mean = entropy_bonus(entropy, valid=valid, count=mean_over)
        loss = policy_loss + cfg.value_cost * values_loss - cfg.entropy_cost * entropy_mean
        metrics = {"loss": loss, "policy_loss": policy_loss, "value_loss": values_loss, "entropy": entropy_mean}
        if measured:
            ratio = {"log_prob": log_prob.detach(), "behaviour_log_prob": behaviour}
            metrics["kl"] = approximate_kl(**ratio, valid=valid, count=mean_over)
            metrics["clipped"] = clipped_fraction(**ratio, valid=valid, count=mean_over, clip=cfg.clip)
        return loss, count, {name: value.detach() for name, value in metrics.items()}


def program(cfg: Config, env: EnvSpec, settings: Settings) -> Program:
    """Every actor brings its unrolls once per version of the weights; learners take them all and make the next."""
    environments = cfg.actors * cfg.envs_per_actor
    return rollout_program(
        cfg,
        env,
        settings,
        learner=PPO,
        policy=make_policy,
        table=Table.quota("rollouts", environments),
        batch=environments,
        synchronous=True,
        ahead=cfg.act_ahead,
        prefetch=1 if cfg.act_ahead else 0,  # else there is nothing to fetch before the next version
    )
