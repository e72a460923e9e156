"""What to train an environment with, and the reasons: from its kind, its speed, its rewards, its observations."""

from __future__ import annotations

import math
import os
import shlex
from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from shoal.config import NO_PRESET, option
from shoal.diagnosis.environment import LARGE, Environment
from shoal.diagnosis.findings import Suggestion
from shoal.envs import EnvSpec
from shoal.errors import name_of
from shoal.options import Acting, Learning, Normalization, ReturnDistribution, Rewards

CHEAP = 2_000.0  # steps per second on one core, from which on using each step once is the faster way
RARE = 0.005  # of rewards that are not 0
SMALLEST, LARGEST = 0.02, 5.0  # of what learners should see as rewards
SLOW = 1_000.0  # steps per second below which more actors are worth their cores
STOP_STEPS = 1_000_000


def choose_algorithm(spec: EnvSpec, measured: Mapping[str, Any]) -> tuple[str, str]:
    """The algorithm to begin with, and why."""
    rate = float(measured.get("steps_per_second") or CHEAP)
    cheap, speed = rate >= CHEAP, f"{rate:,.0f} steps/s on one core"
    match spec.action_space:
        case spaces.Box() as space if not np.all(np.isfinite(space.low) & np.isfinite(space.high)):
            return "ppo", "continuous actions without bounds: algorithms with a critic of actions need bounds"
        case spaces.Box() if cheap:
            return "ppo", f"continuous actions, and steps are cheap ({speed}): the least tuning and computing per step"
        case spaces.Box():
            return "sac", f"continuous actions, and steps are dear ({speed}): a replay uses each of them many times"
        case spaces.MultiDiscrete() if not cheap:
            return "ppo", f"several choices at once, and steps are dear ({speed}): each is trained on several times"
        case spaces.MultiDiscrete():
            return "impala", f"several choices at once, and steps are cheap ({speed})"
    if measured.get("reward_share", 1.0) < RARE:
        return "apex_dqn", "rewards are rare: a prioritised replay samples what carries news more often"
    if cheap or spec.kind == "atari":
        return "impala", f"discrete actions, and steps are cheap ({speed}): the shortest time to a return"
    return "apex_dqn", f"discrete actions, and steps are dear ({speed}): a replay uses each of them many times"


def suggest(
    name: str, why: str, cfg: Acting, env: Environment, given: Mapping[str, Any], cores: int | None = None
) -> Suggestion:
    """Settings for an algorithm whose `cfg` has its preset's values; `given` is what the user gave, which stays."""
    spec, measured = env.spec, env.measured
    cores = cores or len(os.sched_getaffinity(0))
    options: dict[str, Any] = {}
    reasons = [f"{name}: {why}"]
    preset = cfg.preset
    if preset != NO_PRESET:
        reasons.append(f"preset {preset}: the environment's kind is {spec.kind}")
    else:
        reasons.append(f"no preset: {name} has none for the kind {spec.kind}; its defaults are where to begin")
    for changes, reason in (
        _reward_scale(cfg, measured, given),
        _support(cfg, measured),
        _normalization(cfg, env.seen.largest_observation),
        _actors(measured, cores),
    ):
        options |= {field: value for field, value in changes.items() if field not in given}
        reasons += [reason] if reason else []
    if spec.vectorizer_note is not None:
        reasons.append(spec.vectorizer_note)
    if spec.reward_threshold is not None:
        reasons.append(f"no stop is needed: it counts as solved at a return of {spec.reward_threshold:g}")
    else:
        options["stop_steps"] = STOP_STEPS
        reasons.append("no return is registered at which it is solved: without a stop rule a run goes on until Ctrl-C")
    return Suggestion(name, preset, options, tuple(reasons), _command(name, {**given, **options}))


def _reward_scale(cfg: Acting, measured: Mapping[str, Any], given: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    size = float(measured.get("reward_size") or 0.0)
    if not size or not isinstance(cfg, Rewards):
        return {}, ""
    scale = cfg.reward_scale
    if isinstance(cfg, Normalization) and cfg.normalize_rewards:
        return {}, f"rewards of about {size:.3g} are normalised (--normalize-rewards)"
    if clip := cfg.reward_clip:
        return {}, f"rewards of about {size:.3g} are clipped to ± {clip:g} (--reward-clip)"
    if SMALLEST <= size * scale <= LARGEST:
        return {}, f"rewards of about {size:.3g} become {size * scale:.3g} with reward_scale {scale:g}, a good size"
    largest = max(size, *(abs(float(measured.get(name) or 0.0)) for name in ("reward_lowest", "reward_highest")))
    if size * scale < SMALLEST <= largest * scale <= LARGEST:  # a small cost of steps, and something larger at the end
        return {}, f"rewards of about {size:.3g} and up to {largest:.3g} have a good size with reward_scale {scale:g}"
    size = size if size * scale > LARGEST else largest
    wanted = float(f"{10.0 ** -round(math.log10(size)):.0e}")
    said = f"rewards of about {size:.3g} are {'large' if size * scale > LARGEST else 'small'} for value functions"
    if "reward_scale" in given:
        return {}, f"{said} with your --reward-scale {scale:g}: {wanted:g} would make them about 1"
    return {"reward_scale": wanted}, f"{said}: reward_scale {wanted:g} makes them about {size * wanted:.2g}"


def _support(cfg: Acting, measured: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """Of a categorical critic: it can learn no return that is outside."""
    if not isinstance(cfg, ReturnDistribution) or cfg.critic != "categorical":
        return {}, ""
    scale = cfg.reward_scale if isinstance(cfg, Rewards) else 1.0
    gamma = cfg.gamma if isinstance(cfg, Learning) else 0.0
    bound = float(measured.get("reward_mean", 0.0)) * scale / max(1.0 - gamma, 1e-4)
    if bound <= max(abs(cfg.support_low), abs(cfg.support_high)):
        return {}, ""
    return {"critic": "quantile"}, (
        f"discounted returns of random play reach ± {bound:.3g}, beyond the support from {cfg.support_low:g} to "
        f"{cfg.support_high:g}: --critic quantile needs none"
    )


def _normalization(cfg: Acting, largest: float) -> tuple[dict[str, Any], str]:
    said = f"observations are as large as {largest:.3g}"
    if largest <= LARGE or (isinstance(cfg, Normalization) and cfg.normalize_observations):
        return {}, ""
    if isinstance(cfg, Normalization):
        return {"normalize_observations": True}, f"{said}: networks learn best from numbers around 1"
    return {}, f"{said}: divide them in the environment, or train ppo or appo with --normalize-observations"


def _actors(measured: Mapping[str, Any], cores: int) -> tuple[dict[str, Any], str]:
    rate = float(measured.get("steps_per_second") or SLOW)
    if rate >= SLOW or cores <= 2:
        return {}, ""
    return {"actors": cores - 1}, f"{cores} cores, and the environment is slow: all but the learner's act"


def _command(name: str, options: Mapping[str, Any]) -> str:
    words = ["shoal", "train", name]
    for field, value in options.items():
        if value is None:
            continue
        if isinstance(value, bool):
            words.append(option(field if value else f"no_{field}"))
        elif isinstance(value, Mapping):
            words += [word for key, part in value.items() for word in (option(field), f"{key}={part}")]
        elif isinstance(value, tuple):
            words += [option(field), *map(str, value)]
        else:
            words += [option(field), name_of(value) if callable(value) else f"{value}"]
    return shlex.join(words)
