"""R2D2 (Kapturowski 2019): Ape-X for tasks that need memory, with a recurrent network trained on stored sequences.

Double, dueling, n-step Q-learning in a rescaled space, on sequences whose recurrent state is the actor's, refreshed by
a burn-in. Departures from the paper: a sequence that begins an episode needs no burn-in and is trained from its first
row; `--samples-per-insert` can hold acting and learning to a ratio; losses are sums over time and means over a batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from shoal import optim
from shoal.acting.policy import LAST_REWARD
from shoal.acting.recurrent_q import RecurrentQPolicy, core_state
from shoal.batches import Batch
from shoal.config import Share, config
from shoal.envs import EnvSpec
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
from shoal.options import EpsilonLadder, OffPolicy, RecurrentDuelingNetwork, Sequences
from shoal.program import Program
from shoal.replay import sequence
from shoal.state import Stateful


@config(
    # acting
    env="shoal/CartPoleHidden-v0",
    actors=1,
    envs_per_actor=64,
    # networks
    encoder="nature",
    hidden=(64,),
    activation="relu",
    stream=64,
    lstm=64,
    # optimizers
    learning_rate=1e-3,
    epsilon=1e-3,
    grad_clip=40.0,
    # returns
    gamma=0.997,
    n=5,
    # sequences
    burn_in=10,
    length=30,
    period=15,
    # replay
    rows=20,
    replay="prioritized",
    capacity=20_000,
    learning_starts=200,
    samples_per_insert=0.0,
    priority_exponent=0.9,
    importance_exponent=0.6,
    # updates
    batch=32,
    publish_every=1,
    target_every=200,
    # exploration
    ladder_base=0.4,
    ladder_exponent=7.0,
)
class Config(RecurrentDuelingNetwork, OffPolicy, Sequences, EpsilonLadder):
    mix: Share = 0.9
    """A sequence's priority is mix · max |δ| + (1 − mix) · mean |δ|."""


PRESETS: dict[str, dict[str, Any]] = {
    "classic": {"samples_per_insert": 1.0, "target_every": 50},
    "pixels": {
        "envs_per_actor": 16,
        "hidden": (128,),
        "activation": "relu",
        "gamma": 0.97,
        "burn_in": 0,
        "length": 10,
        "period": 5,
        "rows": 10,
        "capacity": 10_000,
        "samples_per_insert": 4.0,
        "batch": 16,
        "target_every": 50,
    },
    # For a laptop: half of the paper's sequences, a quarter of them in an update, and a replay of 10,000 times 20 new
    # frames, 1.4 GB where the paper's has 28. It was not trained on a game yet.
    "atari": {
        "envs_per_actor": 16,
        "hidden": (256,),
        "stream": 256,
        "lstm": 256,
        "learning_rate": 3e-4,
        "burn_in": 20,
        "length": 40,
        "period": 20,
        "capacity": 10_000,
        "samples_per_insert": 2.0,
        "batch": 16,
        "publish_every": 10,
        "target_every": 500,
    },
    # The paper's figures; where it has 256 actors of one environment each, the ladder runs over all environments.
    "paper": {
        "envs_per_actor": 16,
        "hidden": (512,),
        "stream": 512,
        "lstm": 512,
        "learning_rate": 1e-4,
        "burn_in": 40,
        "length": 80,
        "period": 40,
        "rows": 40,
        "capacity": 100_000,
        "learning_starts": 1_000,
        "batch": 64,
        "target_every": 2_500,
    },
}


def make_policy(cfg: Config, env: Spaces, seed: int, greedy: bool = False) -> RecurrentQPolicy:
    ladder = partial(epsilon_ladder, base=cfg.ladder_base, exponent=cfg.ladder_exponent)
    return RecurrentQPolicy(
        make_recurrent_q_network(cfg, env, seed),
        seed,
        epsilons=None if greedy else ladder,
        priorities=partial(priorities_of, cfg) if cfg.replay == "prioritized" and not greedy else None,
        device=cfg.acting_device,
    )


def td_errors(cfg: Config, items: Mapping[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """By how much rows of sequences were worth more than "q" [T+1, B], with "value" [T+1, B] to bootstrap from: errors
    [T, B], which rows are trained [T, B] (where a sequence does not begin an episode, after the burn-in), and the
    sequences' priorities [B]."""
    reward, terminated, valid = (items[name][:-1] for name in ("reward", "terminated", "valid"))
    discounts = torch.where(terminated, 0.0, cfg.gamma)
    targets = r2d2_targets(values=items["value"], rewards=reward, discounts=discounts, valid=valid, n=cfg.n)
    errors = targets - items["q"][:-1]
    after_burn_in = torch.arange(len(valid), device=valid.device).unsqueeze(-1) >= cfg.burn_in
    trained = valid & (after_burn_in | (items["state/last_action"][0] == 0))
    return errors, trained, as_priorities(sequence_priorities(errors, valid=trained, mix=cfg.mix))


def priorities_of(cfg: Config, items: Mapping[str, Tensor]) -> Tensor:
    """Mixed |TD errors| of sequences [B]: the law of learners, and of actors by the values they acted on."""
    return td_errors(cfg, items)[2]


class R2D2(Stateful):
    """The learner: batches of sequences in, weights and priorities out."""

    def __init__(self, cfg: Config, env: Spaces, seed: int, peers: optim.Peers = optim.ALONE) -> None:
        self.cfg = cfg
        self.network = make_recurrent_q_network(cfg, env, seed).to(cfg.device)
        self.target = Target(self.network, cfg.target_every)
        self.optimizer = optim.make(
            self.network.parameters(),
            peers,
            rate=cfg.learning_rate,
            epsilon=cfg.epsilon,
            clip_norm=cfg.grad_clip,
        )

    def update(self, batch: Batch) -> Update:
        """One step from time-major columns [T+1, B, ...] of sequences and, if prioritised, "importance" [B]; then the
        target network follows."""
        loss, priorities, metrics = self.loss(batch)
        count = torch.tensor(len(priorities))
        step = self.optimizer.step(loss, count)
        self.target.follow(self.optimizer.updates)
        return Update(
            {**metrics, "grad_norm": step.grad_norm, "target_drift": Drift(self.target)},
            priorities=priorities if step.applied else None,
            applied=step.applied,
        )

    def loss(self, batch: Batch) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """The mean over sequences of half the summed squared errors, weighted by importance, the items' priorities [B],
        and metrics."""
        cfg, action, before = self.cfg, batch["action"], batch["state"]
        last_action, core = before["last_action"], core_state(before)
        begins = (last_action == 0).unsqueeze(0)
        first = torch.cat([begins, torch.zeros_like(batch["valid"][1:])])  # no sequence crosses episodes
        inputs = batch["observation"], previous(action, last_action - 1), previous(batch["reward"], before[LAST_REWARD])
        values = unroll(self.network, inputs, core, first, cfg.burn_in)
        with torch.no_grad():
            value = double_q_values(online=values, target=self.target.network(*inputs, core, first)[0])
        q = chosen(values, actions=action)
        items = {**batch, "q": q, "value": value, "state/last_action": last_action.unsqueeze(0)}
        errors, trained, priorities = td_errors(cfg, items)
        losses = sequence_losses(errors, valid=trained)
        loss = importance_mean(losses, importance=batch.get("importance"))
        seen = inverse_rescale(values.detach()[batch["mask"]] if "mask" in batch else values.detach())
        return loss, priorities, {"loss": loss.detach(), **value_metrics(q=seen, errors=errors[trained])}


def program(cfg: Config, env: EnvSpec, settings: Settings) -> Program:
    """Actors fill a table, learners sample it and send back how surprising each sequence was."""
    pattern = sequence(cfg.length, period=cfg.period, burn_in=cfg.burn_in, end="shift")
    return experience_program(
        cfg, env, settings, learner=R2D2, policy=make_policy, pattern=pattern, table="sequences", period=cfg.period
    )
