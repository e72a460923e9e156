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
from shoal.functional.policy_gradient import entropy_bonus, value_loss
from shoal.functional.surrogate import approximate_kl, asynchronous_surrogate_loss, clipped_fraction
from shoal.functional.vtrace import vtrace
from shoal.learning import Update
from shoal.loops.wiring import Settings, rollout_program
from shoal.nets.building import Spaces, make_actor_critic
from shoal.nets.normalize import RewardNormalizer
from shoal.nets.targets import Target
from shoal.options import ATARI, CentralInference, ImportanceClips, OnPolicy, Proximal, Rollouts
from shoal.program import Program
from shoal.replay import Table
from shoal.schedules import AnnealedBySteps
from shoal.state import Stateful


@config(unroll=32, queue=64, minibatches=2, lambda_=0.95)
class Config(OnPolicy, Proximal, ImportanceClips, Rollouts, CentralInference):
    target_every: Count = 2
    """Learner steps between two copies of the network into the target policy."""


PRESETS: dict[str, dict[str, Any]] = {
    "classic": {"reward_scale": 0.1, "envs_per_actor": 128, "batch": 128, "queue": 128},
    "control": {"normalize_observations": True, "normalize_rewards": True, "shared_torso": False}
    | {"entropy_cost": 0.0, "learning_rate": 3e-4},
    # Updates as small as IMPALA's, and advantages as they are.
    "atari": ATARI
    | {"envs_per_actor": 16, "unroll": 20, "batch": 8, "queue": 16, "epochs": 1, "minibatches": 2, "target_every": 1}
    | {"normalize_advantages": False, "learning_rate": 4e-4},
}


def make_policy(cfg: Config, env: Spaces, seed: int, greedy: bool = False) -> ActorCriticPolicy:
    return ActorCriticPolicy(make_actor_critic(cfg, env, seed), seed, greedy=greedy, device=cfg.acting_device)


class APPO(Stateful):
    """The learner: batches of unrolls in, weights out."""

    def __init__(self, cfg: Config, env: Spaces, seed: int, peers: optim.Peers = optim.ALONE) -> None:
        self.cfg, self.total = cfg, peers.sum
        network = make_actor_critic(cfg, env, seed).to(cfg.device)
        self.network, self.target = network, Target(network, cfg.target_every)
        scaling: dict[str, Any] = {"normalize": cfg.normalize_rewards, "scale": cfg.reward_scale}
        self.rewards = RewardNormalizer(clip=cfg.reward_clip, **scaling).to(cfg.device)
        self.steps = torch.zeros((), dtype=torch.int64)  # of this learner
        self.order = torch.Generator().manual_seed(seed)
        self.schedule = AnnealedBySteps(cfg.learning_rate, cfg.anneal_steps)
        options: dict[str, Any] = {"rate": self.schedule, "epsilon": cfg.epsilon, "clip_norm": cfg.grad_clip}
        self.optimizer = optim.make(network.parameters(), peers, **options)

    def update(self, batch: Batch) -> Update:
        """One learner step from time-major columns [T+1, B, ...]; row T only bootstraps."""
        copied = self.target.follow(int(self.steps))
        self.steps += 1
        rows = self.prepare(batch, copied)
        applied = True
        for _ in range(self.cfg.epochs):
            for part in minibatches(rows, self.cfg.minibatches, self.order):
                loss, count, metrics = self.loss(part)
                report = self.optimizer.step(loss, count)
                applied &= report.applied
        if self.network.normalizer is not None:
            self.network.normalizer.update(batch["observation"], batch["valid"], self.total)
        metrics |= {"grad_norm": report.grad_norm, "learning_rate": self.schedule()}
        return Update(metrics, applied=applied)

    @torch.no_grad()
    def prepare(self, batch: Batch, copied: bool = False) -> Batch:
        """Rows to learn from, with advantages, targets, and the log-probabilities of the target policy; `copied`: it is
        the network's own now, and need not be asked."""
        cfg = self.cfg
        action, behaviour, reward, terminated, valid = (
            batch[name][:-1] for name in ("action", "log_prob", "reward", "terminated", "valid")
        )
        inputs = batch["observation"], batch["state"], batch["first"]
        outputs, values, _ = self.network(*inputs)
        if not copied:
            outputs = self.target.network(*inputs)[0]
        slow = self.network.distribution.log_prob(outputs[:-1], action)
        discounts = torch.where(terminated, 0.0, cfg.gamma)
        targets, advantages = vtrace(
            values=values,
            rewards=self.rewards(reward, discounts, valid, self.total),
            discounts=discounts,
            rho=torch.where(valid, torch.exp(slow - behaviour), 0.0),
            lambda_=cfg.lambda_,
            clip_rho=cfg.clip_rho,
            clip_c=cfg.clip_c,
        )
        sums = self.total(masked_sums(advantages, valid))
        self.schedule.steps += int(sums[2])
        if cfg.normalize_advantages:
            advantages = normalise_advantages(advantages, valid, sums)
        return training_rows(batch, advantage=advantages, target=targets, slow=slow)

    def loss(self, rows: Batch) -> tuple[Tensor, Tensor, dict[str, Any]]:
        """The mean loss over valid rows, their number, and metrics."""
        costs, valid, slow = self.cfg, rows["valid"], rows["slow"]
        outputs, values, _ = self.network(rows["observation"], rows["state"], rows["first"])
        log_prob, entropy = self.network.distribution.log_prob_and_entropy(outputs, rows["action"])
        count = valid.sum()
        mean = valid, count.clamp(min=1)
        surrogate = asynchronous_surrogate_loss(
            log_prob, slow, rows["log_prob"], rows["advantage"], *mean, self.cfg.clip
        )
        squared, bonus = value_loss(values, rows["target"], *mean), entropy_bonus(entropy, *mean)
        loss = surrogate + costs.value_cost * squared - costs.entropy_cost * bonus
        metrics = {"loss": loss, "policy_loss": surrogate, "value_loss": squared, "entropy": bonus}
        metrics["kl"] = approximate_kl(log_prob, slow, *mean)
        metrics["clipped"] = clipped_fraction(log_prob, slow, *mean, self.cfg.clip)
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
