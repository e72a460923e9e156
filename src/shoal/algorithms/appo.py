"""APPO: proximal policy optimisation with actors and learners out of step, put right by V-trace.

Targets and advantages come from V-trace with the ratio π_target/μ of a slowly moving target policy to the one that
acted; the clipped surrogate then limits the step away from the target policy, with the ratio min(2, μ/π_target)·π/μ
(Luo 2019, IMPACT). Every batch is gone over several times.

Departures: advantages carry V-trace's clipped ratio and are normalised over the batch of all learners; a truncated
episode bootstraps from its final observation; the target policy is copied, not averaged.
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
from shoal.functional.minibatches import minibatches, valid_rows
from shoal.functional.normalisation import masked_sums, normalise_advantages
from shoal.functional.policy_gradient import entropy_bonus, value_loss
from shoal.functional.surrogate import approximate_kl, asynchronous_surrogate_loss
from shoal.functional.vtrace import vtrace
from shoal.loops.wiring import Settings, add_actors, add_evaluator, add_learners
from shoal.nets.acting import ActorPolicy
from shoal.nets.building import Spaces, export_weights, import_weights, named_tensors, network_of, states_of, to_tensor
from shoal.nets.encoder import nest
from shoal.nets.normalize import RewardNormalizer
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
    unroll: int = 32  # transitions per item; one more observation is kept to bootstrap
    queue: int = 64  # items that may wait for the learner; actors block when it is full

    # learning

    learners: int = 1  # each takes its share of every minibatch; gradients are summed over all of them
    batch: int = 64  # items per learner step
    epochs: int = 4  # passes over a batch
    minibatches: int = 2  # updates per pass
    target_every: int = 2  # learner steps between two copies of the network into the target policy
    device: str = "cpu"
    gamma: float = 0.99
    lambda_: float = 0.95
    clip: float = 0.2  # how far the ratio of probabilities may move before it gains no more
    clip_rho: float = 1.0
    clip_c: float = 1.0
    entropy_cost: float = 0.01
    value_cost: float = 0.5
    normalize_advantages: bool = True
    normalize_observations: bool = False
    normalize_rewards: bool = False  # by the spread of discounted returns
    reward_scale: float = 1.0
    reward_clip: float = 0.0  # rewards are clipped to ± this before scaling; 0: not at all
    learning_rate: float = 1e-3
    anneal_steps: int = 0  # the learning rate falls linearly to 0 over so many environment steps; 0: constant
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
    "classic": {"reward_scale": 0.1, "envs_per_actor": 128, "batch": 128, "queue": 128},
    "control": {
        "normalize_observations": True,
        "normalize_rewards": True,
        "shared_torso": False,
        "entropy_cost": 0.0,
        "learning_rate": 3e-4,
    },
    "atari": {
        "envs_per_actor": 16,
        "batch": 16,
        "queue": 32,
        "unroll": 64,
        "learning_rate": 2.5e-4,
        "reward_clip": 1.0,
        "hidden": (512,),
        "activation": "relu",
    },
}


def make_policy(cfg: Config, env_spec: Spaces, seed: int, greedy: bool = False) -> ActorPolicy:
    return ActorPolicy(network_of(cfg, env_spec, seed), seed, greedy)


class Appo:
    """The learner: batches of unrolls in, weights out."""

    def __init__(self, cfg: Config, env_spec: Spaces, seed: int, peers: optim.Peers = optim.ALONE) -> None:
        self.cfg = cfg
        self._peers = peers
        self._device = torch.device(cfg.device)
        self._network = network_of(cfg, env_spec, seed).to(self._device)
        self._target = network_of(cfg, env_spec, seed).to(self._device)
        self._rewards = RewardNormalizer().to(self._device)
        self._trained = torch.zeros((), dtype=torch.float64)  # environment steps, of all learners
        self._steps = 0
        self._space = env_spec.observation_space
        self._recurrent = bool(self._network.initial_state(1))
        self._order = torch.Generator().manual_seed(seed)
        self._optimizer = optim.make(
            self._network.parameters(), peers, rate=self._rate, epsilon=cfg.epsilon, clip_norm=cfg.grad_clip
        )
        self._tensors = named_tensors(self._network)
        self._tensors |= {f"learner.{name}": x for name, x in named_tensors(self._rewards).items()}
        self._tensors["learner.trained"] = self._trained

    def weights(self) -> dict[str, Array]:
        return export_weights(self._tensors)

    def load(self, weights: Mapping[str, Array]) -> None:
        import_weights(self._tensors, weights)
        self._target.load_state_dict(self._network.state_dict())

    def update(self, batch: Mapping[str, Array]) -> dict[str, Tensor | float]:
        """One learner step from time-major columns [T+1, B, ...] and "state/…" [B, ...]; row T only bootstraps."""
        cfg, network = self.cfg, self._network
        if self._steps % cfg.target_every == 0:
            self._target.load_state_dict(network.state_dict())
        self._steps += 1
        columns = {name: to_tensor(array, self._device) for name, array in batch.items()}
        rows = self._prepare(columns)
        refused = 0
        for _ in range(cfg.epochs):
            for part in minibatches(rows, cfg.minibatches, self._order):
                loss, count, metrics = self._loss(part)
                report = self._optimizer.step(loss, count)
                refused += not report.applied
        if network.normalizer is not None:
            rows = {name: x[:-1] for name, x in columns.items()}
            network.normalizer.update(nest(self._space, rows), rows["valid"], self._peers.sum)
        return metrics | {"grad_norm": report.grad_norm, "learning_rate": self._rate(0), "applied": not refused}

    @torch.no_grad()
    def _prepare(self, columns: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Rows to learn from [T, B, ...] with their advantages and targets; the valid ones alone, [1, n, ...], where
        no state runs through them."""
        cfg = self.cfg
        valid, rewards = columns["valid"][:-1], columns["reward"][:-1]
        # An invalid row is the end of an episode: the row after it is the first of the next.
        first = torch.cat([torch.zeros_like(valid[:1]), ~valid])
        observation, states = nest(self._space, columns), states_of(columns)
        _, values, _ = self._network(observation, states, first)
        parameters, _, _ = self._target(observation, states, first)
        slow = self._target.distribution.log_prob(parameters[:-1], columns["action"][:-1])
        discounts = torch.where(columns["terminated"][:-1], 0.0, cfg.gamma)
        if cfg.reward_clip:
            rewards = rewards.clamp(-cfg.reward_clip, cfg.reward_clip)
        if cfg.normalize_rewards:
            self._rewards.update(rewards, discounts, valid, self._peers.sum)
            rewards = self._rewards(rewards)
        targets, advantages = vtrace(
            values=values,
            rewards=rewards * cfg.reward_scale,
            discounts=discounts,
            rho=torch.where(valid, torch.exp(slow - columns["log_prob"][:-1]), 0.0),
            lambda_=cfg.lambda_,
            clip_rho=cfg.clip_rho,
            clip_c=cfg.clip_c,
        )
        sums = self._peers.sum(masked_sums(advantages, valid))
        self._trained += sums[2].cpu()
        if cfg.normalize_advantages:
            advantages = normalise_advantages(advantages, valid, sums)
        rows = {name: x[:-1] for name, x in columns.items() if name.startswith(("observation", "action", "log_prob"))}
        rows |= {"advantage": advantages, "target": targets, "slow": slow, "first": first[:-1], "valid": valid}
        if not self._recurrent:
            return valid_rows(rows, valid)
        return rows | {name: x for name, x in columns.items() if name.startswith("state/")}

    def _loss(self, rows: Mapping[str, Tensor]) -> tuple[Tensor, Tensor, dict[str, Any]]:
        """The mean loss over valid rows, their number, and metrics."""
        cfg, valid = self.cfg, rows["valid"]
        parameters, values, _ = self._network(nest(self._space, rows), states_of(rows), rows["first"])
        log_prob, entropy = self._network.distribution.log_prob_and_entropy(parameters, rows["action"])
        count = valid.sum()
        over = valid, count.clamp(min=1)
        for_policy = asynchronous_surrogate_loss(
            log_prob, rows["slow"], rows["log_prob"], rows["advantage"], *over, cfg.clip
        )
        for_value = value_loss(values, rows["target"], *over)
        bonus = entropy_bonus(entropy, *over)
        loss = for_policy + cfg.value_cost * for_value - cfg.entropy_cost * bonus
        metrics = {"loss": loss, "policy_loss": for_policy, "value_loss": for_value, "entropy": bonus}
        metrics["kl"] = approximate_kl(log_prob, rows["slow"], *over)
        return loss, count, {name: value.detach() for name, value in metrics.items()}

    def _rate(self, updates: int) -> float:
        cfg = self.cfg
        left = 1.0 - float(self._trained) / cfg.anneal_steps if cfg.anneal_steps else 1.0
        return cfg.learning_rate * max(0.0, left)


def program(cfg: Config, env: EnvSpec, settings: Settings) -> Program:
    """Actors fill a queue of unrolls, learners empty it; nobody waits for a version of the weights."""
    p = Program()
    metrics = p.add("metrics", Metrics)
    weights = p.add("weights", WeightStore)
    replay = p.add("replay", Replay, [Table.queue("rollouts", cfg.queue)])
    add_learners(
        p,
        cfg.learners,
        partial(Appo, cfg, env),
        "rollouts",
        cfg.batch,
        replay,
        weights,
        metrics,
        prefetch=0,  # what waits for the learner grows old
        max_updates=settings.max_updates,
    )
    policy, patterns = partial(make_policy, cfg, env), {"rollouts": rollout(cfg.unroll)}
    add_actors(p, cfg, env, policy, patterns, cfg.unroll, replay, weights, metrics)
    add_evaluator(p, settings, cfg, env, partial(policy, greedy=True), weights, metrics)
    return p
