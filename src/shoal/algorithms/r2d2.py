"""R2D2 (Kapturowski 2019): Ape-X for tasks that need memory, with a recurrent network trained on stored sequences.

Double, dueling, n-step Q-learning in a rescaled space, on sequences whose recurrent state is the actor's, refreshed by
a burn-in. Departures from the paper: a sequence that begins an episode needs no burn-in and is trained from its first
row; `--samples-per-insert` can hold acting and learning to a ratio; losses are sums over time and means over a batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from shoal import optim
from shoal.acting.policy import LAST_REWARD
from shoal.acting.recurrent_q import RecurrentQPolicy, core_state
from shoal.batches import Batch
from shoal.config import Share, config
from shoal.envs import EnvSpec
from shoal.errors import UserError
from shoal.functional.exploration import epsilon_ladder
from shoal.functional.q import (
    as_priorities,
    chosen,
    double_q_values,
    importance_mean,
    r2d2_targets,
    sequence_losses,
    sequence_priorities,
    value_metrics,
)
from shoal.functional.rescaling import inverse_rescale
from shoal.learning import Update
from shoal.loops.wiring import Settings, experience_program
from shoal.nets.building import Spaces
from shoal.nets.q import make_recurrent_q_network, previous, unroll
from shoal.nets.targets import Drift, Target
from shoal.options import PIXELS, EpsilonLadder, OffPolicy, RecurrentDuelingNetwork, Sequences
from shoal.program import Program
from shoal.replay import sequence
from shoal.state import Stateful


@config(
    env="shoal/CartPoleHidden-v0",
    rows=20,
    capacity=20_000,
    learning_starts=200,
    priority_exponent=0.9,
    importance_exponent=0.6,
    n=5,
    batch=32,
    gamma=0.997,
    epsilon=1e-3,
    grad_clip=40.0,
    hidden=(64,),
    stream=64,
)
class Config(RecurrentDuelingNetwork, OffPolicy, Sequences, EpsilonLadder):
    mix: Share = 0.9
    """A sequence's priority is mix · max |δ| + (1 − mix) · mean |δ|."""


PRESETS: dict[str, dict[str, Any]] = {
    "classic": {"samples_per_insert": 1.0, "target_every": 50},
    "pixels": PIXELS
    | {"rows": 10, "burn_in": 0, "length": 10, "period": 5, "batch": 16, "capacity": 10_000}
    | {"samples_per_insert": 4.0, "target_every": 50, "gamma": 0.97},
    # The paper's figures; where it has 256 actors of one environment each, the ladder runs over all environments.
    "atari": {"envs_per_actor": 16, "rows": 40, "burn_in": 40, "length": 80, "period": 40}
    | {"capacity": 100_000, "learning_starts": 1_000, "batch": 64, "target_every": 2_500, "learning_rate": 1e-4}
    | {"hidden": (512,), "lstm": 512, "stream": 512},
}


def make_policy(cfg: Config, env: Spaces, seed: int, greedy: bool = False) -> RecurrentQPolicy:
    total = cfg.actors * cfg.envs_per_actor
    epsilons = epsilon_ladder(np.arange(total), total, cfg.ladder_base, cfg.ladder_exponent)
    law = partial(first_priorities, cfg) if cfg.replay == "prioritized" and not greedy else None
    return RecurrentQPolicy(
        make_recurrent_q_network(cfg, env, seed),
        seed,
        epsilons=None if greedy else epsilons,
        priorities=law,
        device=cfg.acting_device,
    )


def td_errors(
    cfg: Config, q: Tensor, values: Tensor, rows: Mapping[str, Tensor], whole: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """TD errors [T, B] of sequences, which rows are trained [T, B], and priorities [B]: the law of both sides.

    `q` [T, B] of the actions taken, `values` [T+1, B] to bootstrap from, rows [T+1, B] as they were stored. `whole` [B]
    says which sequences begin an episode: of the others, the rows of the burn-in are not trained.
    """
    reward, terminated, valid = (rows[name][:-1] for name in ("reward", "terminated", "valid"))
    discounts = cfg.gamma * (~terminated).float()
    errors = r2d2_targets(values=values, rewards=reward, discounts=discounts, valid=valid, n=cfg.n) - q
    after_burn_in = torch.arange(len(valid), device=valid.device).unsqueeze(-1) >= cfg.burn_in
    trained = valid & (after_burn_in | whole)
    return errors, trained, as_priorities(sequence_priorities(errors, trained, cfg.mix))


def first_priorities(cfg: Config, rows: Mapping[str, Tensor]) -> Tensor:
    """Priorities of new sequences [items] by the values that were acted on: those of a learner with these weights."""
    return td_errors(cfg, rows["q"][:-1], rows["value"], rows, rows["state/last_action"][0] == 0)[2]


class R2D2(Stateful):
    """The learner: batches of sequences in, weights and priorities out."""

    def __init__(self, cfg: Config, env: Spaces, seed: int, peers: optim.Peers = optim.ALONE) -> None:
        self.cfg = cfg
        self.network = make_recurrent_q_network(cfg, env, seed).to(cfg.device)
        self.target = Target(self.network, cfg.target_every)
        self.optimizer = optim.make(
            self.network.parameters(), peers, rate=cfg.learning_rate, epsilon=cfg.epsilon, clip_norm=cfg.grad_clip
        )

    def update(self, batch: Batch) -> Update:
        """One update from time-major columns [T+1, B, ...] and, if prioritised, "importance" [B]."""
        loss, priorities, metrics = self.loss(batch)
        report = self.optimizer.step(loss, torch.tensor(len(priorities)))
        self.target.follow(self.optimizer.updates)
        metrics |= {"grad_norm": report.grad_norm, "target_drift": Drift(self.target)}
        return Update(metrics, priorities=priorities if report.applied else None, applied=report.applied)

    def loss(self, batch: Batch) -> tuple[Tensor, Tensor, dict[str, Any]]:
        """The mean over sequences of half the summed squared errors, by importance; their priorities [B]; metrics."""
        before, action = batch["state"], batch["action"]
        whole = before["last_action"] == 0
        first = torch.cat([whole.unsqueeze(0), torch.zeros_like(batch["valid"][1:])])  # no sequence crosses episodes
        inputs = (
            batch["observation"],
            previous(action, before["last_action"] - 1),
            previous(batch["reward"], before[LAST_REWARD]),
        )
        core = core_state(before)
        q = unroll(self.network, inputs, core, first, self.cfg.burn_in)
        with torch.no_grad():
            values = double_q_values(q, self.target.network(*inputs, core, first)[0])
        errors, trained, priorities = td_errors(self.cfg, chosen(q[:-1], action[:-1]), values, batch, whole)
        loss = importance_mean(sequence_losses(errors, trained), batch.get("importance"))
        seen = inverse_rescale(q.detach()[batch["mask"]] if "mask" in batch else q.detach())
        return loss, priorities, {"loss": loss.detach(), **value_metrics(seen, errors[trained])}


def program(cfg: Config, env: EnvSpec, settings: Settings) -> Program:
    """Actors fill a prioritised table, learners sample it and send back how surprising each sequence was."""
    if cfg.period > cfg.length:
        raise UserError(f"--period {cfg.period} leaves gaps between sequences: give at most --length {cfg.length}.")
    if not (cfg.lstm or cfg.core or cfg.network):
        raise UserError("--lstm 0 leaves r2d2 without a memory: give the LSTM's width, a --core or a --network.")
    slices = sequence(cfg.length, period=cfg.period, burn_in=cfg.burn_in, end="shift")
    parts: dict[str, Any] = {"learner": R2D2, "policy": make_policy, "pattern": slices}
    return experience_program(cfg, env, settings, **parts, table="sequences", period=cfg.period)
