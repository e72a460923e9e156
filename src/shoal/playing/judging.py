"""A policy judged by logged data, without an environment: what it would earn, within what, and how far to trust it."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from shoal import tree
from shoal.acting.actor_critic import ActorCriticPolicy
from shoal.acting.plain_gaussian import PlainGaussianPolicy
from shoal.acting.q import QPolicy
from shoal.acting.squashed import SquashedGaussianPolicy
from shoal.checkpoints.store import MANIFEST
from shoal.config import Count, Episodes, Seed, Share, validate
from shoal.data import Dataset, open_dataset, prepare
from shoal.data.fitting import difference
from shoal.envs import Environment
from shoal.envs.check import shown
from shoal.errors import UserError
from shoal.functional.distributions import DiagonalGaussian
from shoal.functional.evaluation import rank_correlation, weighted_importance_sampling
from shoal.functional.squashed import squashed_log_prob
from shoal.nets.weights import import_weights
from shoal.options import Learning
from shoal.playing.evaluation import checked_spec, environment_config, evaluate
from shoal.playing.fitted_q import Estimate, FittedQ
from shoal.playing.policy import TrainedPolicy, load
from shoal.runs.directory import CHECKPOINTS
from shoal.types import EXTERNAL, NO_ENV, Array, Columns

DRAWS = 1_000  # bootstraps of importance sampling
ROWS = 4_096  # that a policy is asked about at once
FEWEST = 4  # checkpoints that can be ordered well by chance no more than once in 24 times


@dataclass(frozen=True)
class Judged:
    """One set of weights."""

    weights: str  # the run, or the name of a checkpoint
    fitted_q: Estimate
    moved: float  # by how much the estimate changed over the last fifth of the updates
    played: float | None  # mean return of greedy episodes, not discounted; None: there is no environment


@dataclass(frozen=True)
class Judgement:
    run_dir: str
    algorithm: str
    data: str
    episodes: int  # of the data
    gamma: float
    data_value: float  # mean discounted return of the data's own episodes
    judged: tuple[Judged, ...]  # the run first, then its checkpoints
    importance: Estimate | None  # of the run
    effective: float | None  # episodes that count in it
    why_no_importance: str | None
    correlation: float | None  # of fitted Q with what was played, by ranks; None: too few, or no environment


@dataclass(frozen=True)
class _Asked:
    updates: Count
    episodes: Episodes
    gamma: Share | None
    seed: Seed


def judge(
    source: str | os.PathLike[str],
    data: str,
    *,
    env: Environment | None = None,
    updates: int = 3_000,
    episodes: int = 20,
    gamma: float | None = None,
    checkpoints: bool = True,
    seed: int = 0,
    trust: bool = False,
    tell: Callable[[str], None] = lambda _: None,
) -> Judgement:
    """What the policy of a run would earn, by the dataset `data`: fitted Q evaluation of its greedy policy, `updates`
    long, and importance sampling where the data have log-probabilities. With `env`, or where the run has one,
    `episodes` are played with it and with every checkpoint, and the estimates compared with what they earned.
    """
    validate(_Asked(updates, episodes, gamma, seed))
    policy = load(source, seed=seed, trust=trust)
    logged = open_dataset(prepare(data))
    _check(policy, logged)
    if gamma is None:
        gamma = policy.config.gamma if isinstance(policy.config, Learning) else 0.99
    here = env if env is not None else policy.config.env
    here = None if here == NO_ENV or (here == EXTERNAL and env is None) else here
    if here is not None:  # before the long part
        checked_spec(policy, environment_config(policy, env, trust=trust))
    found = [("run", policy)]
    if checkpoints and here is not None:
        folders = sorted(path for path in (policy.run / CHECKPOINTS).glob("*") if (path / MANIFEST).is_file())
        found += [(path.name, load(path, seed=seed, trust=trust)) for path in folders]
    judged = []
    for name, each in found:
        tell(f"judging {name}")
        fitted = FittedQ(logged, _greedy_actions(each, logged), gamma, seed)
        fitted.fit(updates - updates // 5)
        before = fitted.estimate()
        fitted.fit(updates // 5)
        estimate = fitted.estimate()
        played = None
        if here is not None:
            played = evaluate(each, episodes=episodes, env=env, seed=seed, trust=trust).eval_return
        judged.append(Judged(name, estimate, estimate.value - before.value, played))
    rewards, valid = _padded(logged, "reward")
    own = float((rewards * valid * gamma ** torch.arange(rewards.shape[1])).sum(1).mean())
    importance, effective, why = _importance(policy, logged, gamma, seed)
    return Judgement(
        run_dir=str(policy.run),
        algorithm=policy.algorithm,
        data=str(logged.path),
        episodes=len(logged),
        gamma=gamma,
        data_value=own,
        judged=tuple(judged),
        importance=importance,
        effective=effective,
        why_no_importance=why,
        correlation=_correlation(judged[1:]),
    )


def _check(policy: TrainedPolicy, data: Dataset) -> None:
    if policy.remembers:
        raise UserError(
            f"The policy of {policy.run} has a memory, or sees stacks of frames: data can judge only those without."
        )
    for what, ours, theirs in (
        ("observations", policy.observation_space, data.observation_space),
        ("actions", policy.action_space, data.manifest.native_action_space),
    ):
        if (noticed := difference(ours, theirs, bounds=what == "actions")) is not None:
            raise UserError(
                f"The policy of {policy.run} has the {what} {shown(ours)}, and {data.path} has {shown(theirs)} "
                f"({noticed})."
            )


def _pieces(data: Dataset) -> list[slice]:
    return [slice(begin, begin + ROWS) for begin in range(0, len(data.rows), ROWS)]


def _observation(data: Dataset, rows: slice) -> Any:
    names = tree.leaf_spaces(data.observation_space, "observation")
    flat: Columns = {name: np.ascontiguousarray(data.rows[name][rows]) for name in names}
    return tree.nest(data.observation_space, flat, "observation")


def _greedy_actions(policy: TrainedPolicy, data: Dataset) -> Array:
    """Of all rows, as they are stored."""
    found = []
    for rows in _pieces(data):
        count = len(data.rows[rows])
        found.append(np.asarray(policy.greedy.act(_observation(data, rows), {}, np.ones(count, np.bool_))[0]))
    return np.concatenate(found)


# ---- importance sampling


def _importance(
    policy: TrainedPolicy, data: Dataset, gamma: float, seed: int
) -> tuple[Estimate | None, float | None, str | None]:
    if "log_prob" not in (data.rows.dtype.names or ()):
        return None, None, "the data have no log-probabilities of who acted"
    density = _density(policy.greedy)
    if density is None:
        return None, None, f"the policy of {policy.algorithm} draws nothing: it has no density for continuous actions"
    logs = []
    with torch.inference_mode():
        for rows in _pieces(data):
            observation = tree.map(torch.from_numpy, _observation(data, rows))
            logs.append(density(observation, torch.from_numpy(np.ascontiguousarray(data.rows["action"][rows]))))
    behaviour, valid = _padded(data, "log_prob")
    if not bool(torch.isfinite(behaviour[valid]).all()):
        return None, None, "the data have log-probabilities of some actions only: those that were clipped have none"
    ours, _ = _padded(data, torch.cat(logs).double().numpy())
    rewards, _ = _padded(data, "reward")
    random = np.random.default_rng(seed)
    counts = random.multinomial(len(data), np.full(len(data), 1.0 / len(data)), size=DRAWS)
    drawn = torch.from_numpy(np.concatenate([np.ones((1, len(data))), counts]))
    log_ratios = (ours - behaviour).clamp(min=-1e4)  # an action it never takes counts as nothing, and stays a number
    found = weighted_importance_sampling(rewards=rewards, log_ratios=log_ratios, valid=valid, counts=drawn, gamma=gamma)
    low, high = np.quantile(found.value[1:].numpy(), [0.025, 0.975])
    return Estimate(float(found.value[0]), float(low), float(high)), float(found.effective), None


def _density(policy: Any) -> Callable[[Any, Tensor], Tensor] | None:
    """log π(a|s) of rows [N], as the policy draws; of values, whose greedy action is the only one."""
    if isinstance(policy, ActorCriticPolicy):

        def of_distribution(observation: Any, action: Tensor) -> Tensor:
            parameters, _, _ = policy.network(
                tree.map(lambda x: x.unsqueeze(0), observation), {}, torch.ones(1, len(action), dtype=torch.bool)
            )
            return policy.network.distribution.log_prob(parameters[0], action)

        _settle(policy)
        return of_distribution
    if isinstance(policy, PlainGaussianPolicy):
        units = policy.network.actor.units
        gaussian = DiagonalGaussian(tuple(units.centre.tolist()), tuple(units.half_width.tolist()), tuple(units.shape))

        def of_gaussian(observation: Any, action: Tensor) -> Tensor:
            parameters = torch.cat(policy.network.actor(policy.network.see(observation)), dim=-1)
            return gaussian.log_prob(parameters, action)

        return of_gaussian
    if isinstance(policy, SquashedGaussianPolicy):

        def of_squashed(observation: Any, action: Tensor) -> Tensor:
            units, networks = policy.network.actor.units, policy.network
            mean, log_std = networks.actor(networks.see(observation))
            log_prob = squashed_log_prob(mean=mean, log_std=log_std, action=units.to_units(action))
            width: Tensor = units.half_width.log().sum()
            return log_prob - width

        return of_squashed
    if isinstance(policy, QPolicy):
        _settle(policy)

        def of_greedy(observation: Any, action: Tensor) -> Tensor:
            preferred = policy.values(policy.network(observation)).argmax(-1)
            return torch.where(preferred == action, 0.0, -math.inf)

        return of_greedy
    return None


def _settle(policy: Any) -> None:
    """The torch network has the weights also where a numpy mirror acts in its place."""
    import_weights(policy.network, policy.state_dict()["weights"])


def _padded(data: Dataset, column: str | Array) -> tuple[Tensor, Tensor]:
    """A column's steps by episode, [E, T] with zeros behind, and which are steps."""
    values = np.asarray(data.rows[column] if isinstance(column, str) else column, np.float64)
    lengths = data.lengths
    steps = np.arange(int(lengths.max()))
    valid = steps < lengths[:, None]
    rows = np.minimum(data.index["first"][:, None] + steps, len(values) - 1)
    return torch.from_numpy(np.where(valid, values[rows], 0.0)), torch.from_numpy(valid)


def _correlation(judged: list[Judged]) -> float | None:
    played = [each.played for each in judged if each.played is not None]
    if len(played) < FEWEST:
        return None
    found = rank_correlation(torch.tensor([each.fitted_q.value for each in judged]), other=torch.tensor(played))
    return None if math.isnan(float(found)) else float(found)


def trust_of(judgement: Judgement) -> str:
    """How far to trust it, in a sentence."""
    played = [each for each in judgement.judged[1:] if each.played is not None]
    first = judgement.judged[0]
    if abs(first.moved) > 0.5 * (first.fitted_q.high - first.fitted_q.low):
        moved = f"fitted Q has not settled, it moved by {first.moved:,.3g} in the last fifth of its updates"
        return f"{moved}: give more --updates"
    if judgement.judged[0].played is None:
        return "nobody knows how far to trust it: there is no environment to play in (--env)"
    if judgement.correlation is None:
        return (
            f"too little is known to trust it: {len(played)} checkpoints are too few, or do not differ (train with "
            "--keep 20 and --checkpoint-updates)"
        )
    told = (
        f"over {len(played)} checkpoints the rank correlation of fitted Q with returns is {judgement.correlation:.2f}"
    )
    if judgement.correlation >= 0.7:
        return f"{told}: it orders policies of this kind well"
    if judgement.correlation >= 0.3:
        return f"{told}: it orders them roughly"
    return f"{told}: do not choose by it"
