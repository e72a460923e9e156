"""Behavioural cloning (Pomerleau 1991): a policy that does what the data did, and asks for no rewards.

The likelihood of the data's actions is made as large as possible: of discrete ones a softmax's, of continuous ones a
Gaussian's with a deviation that is learned. It is the baseline of every method that learns from data, and as good as
the data is. The network is that of ppo, impala and appo, which can go on from it (`--restore`). With a memory
(`--lstm`) it learns from stretches of `--unroll` steps, each from a zero state; half of each lies in the next one.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from torch import Tensor

from shoal import optim
from shoal.acting.actor_critic import ActorCriticPolicy
from shoal.batches import Batch, one_row
from shoal.config import Amount, config
from shoal.data import open_dataset, prepare
from shoal.envs import EnvSpec
from shoal.functional.policy_gradient import masked_mean
from shoal.learning import Update
from shoal.loops.wiring import Settings, offline_program
from shoal.nets.building import Spaces, make_actor_critic
from shoal.nets.normalize import Spread
from shoal.options import Data, Learning, NormalizedObservations, PolicyAndValue, Unrolls
from shoal.program import Program
from shoal.replay import n_step, sequence
from shoal.state import Stateful


@config(
    # acting
    env="none",
    actors=1,
    envs_per_actor=8,
    # networks
    encoder="nature",
    hidden=(256, 256),
    activation="relu",
    shared_torso=True,
    state_dependent_std=False,
    lstm=0,
    # optimizers
    epsilon=1e-8,
    grad_clip=0.0,
    # returns
    gamma=0.99,
    normalize_observations=True,
    # rollouts
    unroll=32,
    # updates
    batch=256,
    publish_every=10,
)
class Config(PolicyAndValue, NormalizedObservations, Unrolls, Learning, Data):
    learning_rate: Amount = 1e-3
    """Of the optimizer."""


PRESETS: dict[str, dict[str, Any]] = {}


def make_policy(cfg: Config, env: Spaces, seed: int, greedy: bool = False) -> ActorCriticPolicy:
    return ActorCriticPolicy(make_actor_critic(cfg, env, seed), seed, greedy=greedy, device=cfg.acting_device)


class BC(Stateful):
    """The learner: batches of transitions, or of stretches of episodes, in, weights out."""

    def __init__(
        self,
        cfg: Config,
        env: Spaces,
        seed: int,
        peers: optim.Peers = optim.ALONE,
        statistics: Mapping[str, Spread] | None = None,  # of the data
    ) -> None:
        self.cfg = cfg
        self.network = make_actor_critic(cfg, env, seed).to(cfg.device)
        if self.network.normalizer is not None and statistics is not None:
            self.network.normalizer.settle(statistics)
        self.optimizer = optim.make(
            self.network.parameters(), peers, rate=cfg.learning_rate, epsilon=cfg.epsilon, clip_norm=cfg.grad_clip
        )

    def update(self, batch: Batch) -> Update:
        """One step from columns [B, ...] of transitions, or [T+1, B, ...] of stretches."""
        loss, count, metrics = self.loss(batch)
        step = self.optimizer.step(loss, count)
        return Update({**metrics, "grad_norm": step.grad_norm}, applied=step.applied)

    def loss(self, batch: Batch) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Minus the mean log-likelihood of the data's actions over valid rows, their number, and metrics."""
        rows = batch if "first" in batch else one_row(batch)
        valid = rows["valid"]
        state = self.network.initial_state(valid.shape[1])
        parameters, _, _ = self.network(rows["observation"], state, rows["first"])
        log_prob, entropy = self.network.distribution.log_prob_and_entropy(parameters, rows["action"])
        count = valid.sum()
        mean = partial(masked_mean, valid=valid, count=count.clamp(min=1))
        loss = -mean(log_prob)
        return loss, count, {"loss": loss.detach(), "entropy": mean(entropy.detach())}


def program(cfg: Config, env: EnvSpec, settings: Settings) -> Program:
    """Learners read transitions, or stretches of episodes where the network has a memory."""
    learner = partial(BC, statistics=open_dataset(prepare(cfg.data)).statistics())
    recurrent = bool(make_actor_critic(cfg, env, seed=0).initial_state(1))
    pattern = sequence(cfg.unroll, period=-(-cfg.unroll // 2)) if recurrent else n_step(1, cfg.gamma)
    return offline_program(cfg, env, settings, learner=learner, policy=make_policy, pattern=pattern)
