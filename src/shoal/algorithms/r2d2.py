"""R2D2 (Kapturowski 2019): Ape-X for tasks that need memory, with a recurrent network trained on stored sequences.

Double, dueling, n-step Q-learning in a rescaled space, on sequences whose recurrent state is the actor's, refreshed by
a burn-in. Departures from the paper: a sequence that begins an episode needs no burn-in and is trained from its first
row; `--samples-per-insert` can hold acting and learning to a ratio; losses are sums over time and means over a batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from shoal import optim
from shoal.config import remember_given
from shoal.envs import EnvSpec
from shoal.errors import UserError
from shoal.functional.exploration import epsilon_ladder
from shoal.functional.q import chosen, double_q_values, r2d2_targets, sequence_losses, sequence_priorities
from shoal.functional.rescaling import inverse_rescale
from shoal.loops.wiring import Settings, add_actors, add_evaluator, add_learners, add_replay, limiter, user_pattern
from shoal.nets.building import Spaces, export_weights, import_weights, named_tensors, states_of, to_tensor
from shoal.nets.encoder import nest
from shoal.nets.q import RecurrentQNetwork, make_recurrent_q_network, previous, unroll
from shoal.nets.recurrent_q_acting import RecurrentQPolicy
from shoal.nets.targets import Drift, Target
from shoal.nets.user_q import UserRecurrentQ
from shoal.program import Program
from shoal.replay import Prioritized, Table, sequence
from shoal.services.metrics import Metrics
from shoal.services.weights import WeightStore

Array = npt.NDArray[Any]
Network = RecurrentQNetwork | UserRecurrentQ


@remember_given
@dataclass(frozen=True, kw_only=True)
class Config:
    env: str = "shoal/CartPoleHidden-v0"
    preset: str = "auto"  # auto: by the environment's kind

    # acting

    actors: int = 1
    envs_per_actor: int = 64
    vectorizer: str = "auto"  # native where the environment has one, else sync
    inference: str = "local"  # or central: actors own no network and ask an inference server
    inference_servers: int = 1
    inference_batch: int = 0  # environments answered at once; 0: all of a server's actors
    inference_wait: float = 0.002  # seconds a request waits for others to share its batch
    rows: int = 20  # steps of every environment between two messages to the replay, and two looks for new weights
    ladder_base: float = 0.4  # environment i of N explores with ε = base^(1 + exponent · i/(N−1))
    ladder_exponent: float = 7.0

    # replay

    burn_in: int = 10  # steps before a sequence that only bring its recurrent state up to date
    pattern: str | None = None  # module:factory of a pattern in place of these sequences; called with this config
    length: int = 30  # steps of a sequence that are trained
    period: int = 15  # steps from the beginning of one sequence to that of the next
    shards: int = 1  # replay services
    capacity: int = 20_000  # sequences; a soft limit: what is over it goes every 100 updates, the oldest first
    learning_starts: int = 200  # sequences that are there before the first update
    samples_per_insert: float = 0.0  # 0: acting and learning go at their own pace
    priority_exponent: float = 0.9
    importance_exponent: float = 0.6
    mix: float = 0.9  # a sequence's priority is mix · max |δ| + (1 − mix) · mean |δ|
    n: int = 5  # steps of a return

    # learning

    learners: int = 1  # each takes its share of a batch; gradients are summed over all of them
    batch: int = 32  # sequences per update
    publish_every: int = 1  # updates between versions of the weights
    target_every: int = 200  # updates between copies of the network into the target network
    device: str = "cpu"
    gamma: float = 0.997
    learning_rate: float = 1e-3
    epsilon: float = 1e-3  # of Adam
    grad_clip: float = 40.0  # norm; 0: not at all

    # network

    network: str | None = None  # module:factory, see shoal.nets.user_q
    core: str | None = None  # module:factory of a recurrent core in place of the LSTM, see shoal.nets.user_q
    lstm: int = 64  # its width
    hidden: tuple[int, ...] = (64,)  # layers before it
    activation: str = "relu"
    stream: int = 64  # width of the hidden layers of value and advantage; 0: none


PRESETS: dict[str, dict[str, Any]] = {
    "classic": {"samples_per_insert": 1.0, "target_every": 50},
    # The paper's figures; where it has 256 actors of one environment each, the ladder runs over all environments.
    "atari": {
        "envs_per_actor": 16,
        "rows": 40,
        "burn_in": 40,
        "length": 80,
        "period": 40,
        "capacity": 100_000,
        "learning_starts": 1_000,
        "batch": 64,
        "target_every": 2_500,
        "learning_rate": 1e-4,
        "hidden": (512,),
        "lstm": 512,
        "stream": 512,
    },
}


def build_network(cfg: Config, env_spec: Spaces, seed: int) -> Network:
    return make_recurrent_q_network(
        env_spec.observation_space,
        env_spec.action_space,
        seed=seed,
        network=cfg.network,
        core=cfg.core,
        lstm=cfg.lstm,
        hidden=cfg.hidden,
        activation=cfg.activation,
        stream=cfg.stream,
    )


def make_policy(cfg: Config, env_spec: Spaces, seed: int, greedy: bool = False) -> RecurrentQPolicy:
    total = cfg.actors * cfg.envs_per_actor
    ladder = epsilon_ladder(np.arange(total), total, cfg.ladder_base, cfg.ladder_exponent)
    network = build_network(cfg, env_spec, seed)
    return RecurrentQPolicy(network, seed, partial(first_priorities, cfg), None if greedy else ladder)


def judged(
    cfg: Config, q: Tensor, values: Tensor, columns: Mapping[str, Tensor], whole: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """TD errors [T, B] of sequences, which rows are trained [T, B], and priorities [B].

    `q` [T, B] of the actions taken, `values` [T+1, B] to bootstrap from, columns [T+1, B] as they were stored. `whole`
    [B] says which sequences begin an episode: of the others, the rows of the burn-in are not trained.
    """
    reward, terminated, valid = (columns[name][:-1] for name in ("reward", "terminated", "valid"))
    discounts = cfg.gamma * (~terminated).float()
    errors = r2d2_targets(values=values, rewards=reward, discounts=discounts, valid=valid, n=cfg.n) - q
    after_burn_in = torch.arange(len(valid), device=valid.device).unsqueeze(-1) >= cfg.burn_in
    trained = valid & (after_burn_in | whole)
    return errors, trained, sequence_priorities(errors, trained, cfg.mix)


def first_priorities(cfg: Config, data: Mapping[str, Array]) -> Array:
    """Priorities of new sequences [items] by the values that were acted on: those of a learner with these weights."""
    names = ("q", "value", "reward", "terminated", "valid", "state/last_action")
    columns = {name: torch.from_numpy(data[name]) for name in names}
    whole = columns["state/last_action"][0] == 0
    return judged(cfg, columns["q"][:-1], columns["value"], columns, whole)[2].numpy()


class R2D2:
    """The learner: batches of sequences in, weights and priorities out."""

    def __init__(self, cfg: Config, env_spec: Spaces, seed: int, peers: optim.Peers = optim.ALONE) -> None:
        self.cfg = cfg
        self._device = torch.device(cfg.device)
        self._network = build_network(cfg, env_spec, seed).to(self._device)
        self._observation_space = env_spec.observation_space
        self._optimizer = optim.make(
            self._network.parameters(), peers, rate=cfg.learning_rate, epsilon=cfg.epsilon, clip_norm=cfg.grad_clip
        )
        self._target = Target(self._network, cfg.target_every)
        self._tensors = named_tensors(self._network)

    def weights(self) -> dict[str, Array]:
        return export_weights(self._tensors)

    def load(self, weights: Mapping[str, Array]) -> None:
        import_weights(self._tensors, weights)
        self._target.reset()

    def update(self, batch: Mapping[str, Array]) -> dict[str, Any]:
        """One update from time-major columns [T+1, B, ...], "state/…" [B, ...] and "importance" [B]."""
        columns = {name: to_tensor(array, self._device) for name, array in batch.items()}
        loss, priorities, metrics = self.loss(columns)
        report = self._optimizer.step(loss, torch.tensor(len(priorities)))
        self._target.follow(self._optimizer.updates)
        metrics |= {"grad_norm": report.grad_norm, "applied": report.applied, "target_drift": Drift(self._target)}
        return {**metrics, "priorities": priorities.cpu().numpy()} if report.applied else metrics

    def loss(self, columns: Mapping[str, Tensor]) -> tuple[Tensor, Tensor, dict[str, Any]]:
        """The mean over sequences of half the summed squared errors, by importance; their priorities [B]; metrics."""
        rows = (
            nest(self._observation_space, columns),
            previous(columns["action"], columns["state/last_action"] - 1),
            previous(columns["reward"], columns["state/last_reward"]),
        )
        state = {name.removeprefix("core/"): x for name, x in states_of(columns).items() if name.startswith("core/")}
        first = torch.zeros_like(columns["valid"])
        first[0] = whole = columns["state/last_action"] == 0
        q = unroll(self._network, rows, state, first, self.cfg.burn_in)
        with torch.no_grad():
            target, _ = self._target.network(*rows, state, first)
            values = double_q_values(q, target)
        taken = chosen(q[:-1], columns["action"][:-1])
        errors, trained, priorities = judged(self.cfg, taken, values, columns, whole)
        loss = (columns["importance"] * sequence_losses(errors, trained)).mean()
        with torch.no_grad():
            seen = inverse_rescale(q[columns["mask"]] if "mask" in columns else q)
            metrics = {"loss": loss.detach(), "td_error": errors[trained].abs().mean()}
            metrics |= {"q_mean": seen.mean(), "q_min": seen.min(), "q_max": seen.max()}
        return loss, priorities, metrics


def program(cfg: Config, env: EnvSpec, settings: Settings) -> Program:
    """Actors fill a prioritised table, learners sample it and send back how surprising each sequence was."""
    if cfg.period > cfg.length:
        raise UserError(f"--period {cfg.period} leaves gaps between sequences: give at most --length {cfg.length}.")
    if not (cfg.lstm or cfg.core or cfg.network):
        raise UserError("--lstm 0 leaves r2d2 without a memory: give the LSTM's width, a --core or a --network.")
    p = Program()
    metrics = p.add("metrics", Metrics)
    weights = p.add("weights", WeightStore)
    block = -(-cfg.envs_per_actor * cfg.rows // cfg.period)
    table = Table(
        "sequences",
        cfg.capacity,
        sampler=Prioritized(cfg.priority_exponent),
        limiter=limiter(cfg.samples_per_insert, cfg.learning_starts, cfg.batch, block),
        soft_capacity=True,
    )
    replay = add_replay(p, [table], cfg.shards, cfg.actors)
    add_learners(
        p,
        cfg.learners,
        partial(R2D2, cfg, env),
        "sequences",
        cfg.batch,
        replay,
        weights,
        metrics,
        publish_every=cfg.publish_every,
        max_updates=settings.max_updates,
        beta=cfg.importance_exponent,
        trim_every=100,
    )
    pattern = user_pattern(cfg, sequence(cfg.length, period=cfg.period, burn_in=cfg.burn_in, end="shift"))
    add_actors(p, cfg, env, partial(make_policy, cfg, env), {"sequences": pattern}, cfg.rows, replay, weights, metrics)
    add_evaluator(p, settings, cfg, env, partial(make_policy, cfg, env, greedy=True), weights, metrics)
    return p
