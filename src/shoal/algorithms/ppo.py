"""PPO (Schulman 2017), distributed and synchronous: actors wait for the weights that their last rollouts have made.

Departures from the paper: advantages are normalised over the whole batch of all learners; a truncated episode
bootstraps from its final observation; rewards may be divided by the spread of returns, observations normalised. The
first row of an unroll was acted on with the weights before, which its stored log-probability accounts for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy.typing as npt
import torch
from torch import Tensor

from shoal import optim
from shoal.config import remember_given
from shoal.envs import EnvSpec
from shoal.functional.gae import gae
from shoal.functional.minibatches import minibatches, valid_rows
from shoal.functional.normalisation import masked_sums, normalise_advantages
from shoal.functional.policy_gradient import entropy_bonus, masked_mean, value_loss
from shoal.functional.returns import explained_variance
from shoal.functional.surrogate import approximate_kl, clipped_fraction, clipped_surrogate_loss, clipped_value_loss
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

    actors: int = 2
    envs_per_actor: int = 64
    vectorizer: str = "auto"  # native where the environment has one, else sync
    unroll: int = 32  # transitions of each environment per iteration

    # learning

    learners: int = 1  # each takes its share of every minibatch; gradients are summed over all of them
    epochs: int = 4  # passes over an iteration's data
    minibatches: int = 4  # updates per pass
    device: str = "cpu"
    gamma: float = 0.99
    lambda_: float = 0.95
    clip: float = 0.2  # how far the ratio of probabilities may move before it gains no more
    value_clip: float = 0.0  # the same for values; 0: not at all
    target_kl: float = 0.0  # no further pass once the policy has moved this far; 0: never
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

    # actors hold the policy themselves

    inference: ClassVar[str] = "local"
    inference_servers: ClassVar[int] = 0
    inference_batch: ClassVar[int] = 0
    inference_wait: ClassVar[float] = 0.0


PRESETS: dict[str, dict[str, Any]] = {
    "classic": {"reward_scale": 0.1, "learning_rate": 2e-3, "envs_per_actor": 128},
    "control": {
        "normalize_observations": True,
        "normalize_rewards": True,
        "shared_torso": False,
        "entropy_cost": 0.0,
        "envs_per_actor": 8,
        "unroll": 128,
        "epochs": 10,
        "minibatches": 8,
        "learning_rate": 3e-4,
    },
    # Schulman 2017, table 5
    "atari": {
        "envs_per_actor": 4,
        "unroll": 128,
        "epochs": 3,
        "minibatches": 4,
        "clip": 0.1,
        "value_cost": 1.0,
        "learning_rate": 2.5e-4,
        "reward_clip": 1.0,
        "hidden": (512,),
        "activation": "relu",
    },
}


def make_policy(cfg: Config, env_spec: Spaces, seed: int, greedy: bool = False) -> ActorPolicy:
    return ActorPolicy(network_of(cfg, env_spec, seed), seed, greedy)


class Ppo:
    """The learner: an iteration's unrolls in, weights out."""

    def __init__(self, cfg: Config, env_spec: Spaces, seed: int, peers: optim.Peers = optim.ALONE) -> None:
        self.cfg = cfg
        self._peers = peers
        self._device = torch.device(cfg.device)
        self._network = network_of(cfg, env_spec, seed).to(self._device)
        self._rewards = RewardNormalizer().to(self._device)
        self._trained = torch.zeros((), dtype=torch.float64)  # environment steps, of all learners
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

    def update(self, batch: Mapping[str, Array]) -> dict[str, Tensor | float]:
        """One iteration from time-major columns [T+1, B, ...] and "state/…" [B, ...]; row T only bootstraps."""
        cfg, network, total = self.cfg, self._network, self._peers.sum
        columns = {name: to_tensor(array, self._device) for name, array in batch.items()}
        rows, explained = self._prepare(columns)
        refused, epochs = 0, 0
        while epochs < cfg.epochs:
            moved = torch.zeros(2, device=self._device)
            for part in minibatches(rows, cfg.minibatches, self._order):
                loss, count, metrics = self._loss(part)
                report = self._optimizer.step(loss, count)
                refused += not report.applied
                moved += torch.stack([metrics["kl"] * count, count])
            epochs += 1
            if cfg.target_kl:  # a decision of all learners, or some would wait for others that have stopped
                moved = total(moved)
                if moved[0] > cfg.target_kl * moved[1]:
                    break
        if network.normalizer is not None:  # only now: the data was acted on with the statistics before
            rows = {name: x[:-1] for name, x in columns.items()}
            network.normalizer.update(nest(self._space, rows), rows["valid"], total)
        metrics |= {"kl": moved[0] / moved[1].clamp(min=1.0), "explained_variance": explained}
        metrics |= {"grad_norm": report.grad_norm, "learning_rate": self._rate(0), "epochs": epochs}
        return metrics | {"applied": not refused}

    @torch.no_grad()
    def _prepare(self, columns: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], Tensor]:
        """Rows to learn from [T, B, ...] with their advantages and targets (the valid ones alone, [1, n, ...], where
        no state runs through them), and how much of the returns the values explain."""
        cfg = self.cfg
        valid, rewards = columns["valid"][:-1], columns["reward"][:-1]
        # An invalid row is the end of an episode: the row after it is the first of the next.
        first = torch.cat([torch.zeros_like(valid[:1]), ~valid])
        _, values, _ = self._network(nest(self._space, columns), states_of(columns), first)
        discounts = torch.where(columns["terminated"][:-1], 0.0, cfg.gamma)
        if cfg.reward_clip:
            rewards = rewards.clamp(-cfg.reward_clip, cfg.reward_clip)
        if cfg.normalize_rewards:
            self._rewards.update(rewards, discounts, valid, self._peers.sum)
            rewards = self._rewards(rewards)
        rewards = rewards * cfg.reward_scale
        advantages, targets = gae(values=values, rewards=rewards, discounts=discounts, valid=valid, lambda_=cfg.lambda_)
        count = valid.sum().clamp(min=1)
        explained = explained_variance(masked_mean(advantages.square(), valid, count), targets, valid, count)
        sums = self._peers.sum(masked_sums(advantages, valid))
        self._trained += sums[2].cpu()
        if cfg.normalize_advantages:
            advantages = normalise_advantages(advantages, valid, sums)
        rows = {name: x[:-1] for name, x in columns.items() if name.startswith(("observation", "action", "log_prob"))}
        rows |= {"advantage": advantages, "target": targets, "value": values[:-1], "first": first[:-1], "valid": valid}
        if not self._recurrent:
            return valid_rows(rows, valid), explained
        return rows | {name: x for name, x in columns.items() if name.startswith("state/")}, explained

    def _loss(self, rows: Mapping[str, Tensor]) -> tuple[Tensor, Tensor, dict[str, Any]]:
        """The mean loss over valid rows, their number, and metrics."""
        cfg, valid, before = self.cfg, rows["valid"], rows["log_prob"]
        parameters, values, _ = self._network(nest(self._space, rows), states_of(rows), rows["first"])
        log_prob, entropy = self._network.distribution.log_prob_and_entropy(parameters, rows["action"])
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

    def _rate(self, updates: int) -> float:
        cfg = self.cfg
        left = 1.0 - float(self._trained) / cfg.anneal_steps if cfg.anneal_steps else 1.0
        return cfg.learning_rate * max(0.0, left)


def program(cfg: Config, env: EnvSpec, settings: Settings) -> Program:
    """Every actor brings its unrolls once per version of the weights; learners take them all and make the next."""
    p = Program()
    items = cfg.actors * cfg.envs_per_actor
    metrics = p.add("metrics", Metrics)
    weights = p.add("weights", WeightStore)
    replay = p.add("replay", Replay, [Table.quota("rollouts", items)])
    add_learners(
        p,
        cfg.learners,
        partial(Ppo, cfg, env),
        "rollouts",
        items,
        replay,
        weights,
        metrics,
        prefetch=0,
        synchronous=True,
        max_updates=settings.max_updates,
    )
    policy, patterns = partial(make_policy, cfg, env), {"rollouts": rollout(cfg.unroll)}
    add_actors(p, cfg, env, policy, patterns, cfg.unroll, replay, weights, metrics, synchronous=True)
    add_evaluator(p, settings, cfg, env, partial(policy, greedy=True), weights, metrics)
    return p
