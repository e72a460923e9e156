"""Playing fresh episodes with a trained policy, from nothing but its run directory."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from shoal import envs, tree
from shoal.config import Episodes, Seed, validate
from shoal.envs import Environment, check
from shoal.errors import UserError, name_of
from shoal.experiment.environments import describe_env
from shoal.loops.evaluator import AT_ONCE
from shoal.loops.evaluator import evaluate as play
from shoal.options import Acting
from shoal.playing.policy import TrainedPolicy, load
from shoal.playing.watching import Onlooker
from shoal.runs import directory, records


@dataclass(frozen=True)
class _Asked:
    episodes: Episodes
    seed: Seed | None


@dataclass(frozen=True)
class Evaluation:
    run_dir: str
    algorithm: str
    env: str
    seed: int
    episodes: int
    eval_return: float
    spread: float  # standard deviation over the episodes
    lowest: float
    highest: float
    returns: tuple[float, ...] = dataclasses.field(repr=False)


def evaluate(
    source: TrainedPolicy | str | os.PathLike[str],
    *,
    episodes: int = 50,
    env: Environment | None = None,
    env_options: dict[str, Any] | None = None,
    seed: int | None = None,
    network: Any = None,
    core: Any = None,
    trust: bool = False,
    tell: Callable[[str], None] = lambda _: None,
) -> Evaluation:
    """Greedy, fresh episodes of a policy or a run; the seed is drawn anew when none is given.

    Plays in the run's own environment as its evaluator did, or in `env`: an id, `module:factory` or a function, which
    gets none of the run's options. `env_options` are added to those of the run, and go before them. `tell`
    hears of it where it takes long. `trust` as for `shoal.load`.
    """
    validate(_Asked(episodes, seed))
    if not isinstance(source, TrainedPolicy):
        directory.named(source, "shoal.evaluate()")
    policy = source if isinstance(source, TrainedPolicy) else load(source, network=network, core=core, trust=trust)
    seed = int.from_bytes(os.urandom(4), "little") if seed is None else seed
    cfg = environment_config(policy, env, env_options, trust)
    made = envs.make(checked_spec(policy, cfg).for_evaluation(), min(episodes, AT_ONCE), seed=seed, replaces=True)
    try:
        onlooker = Onlooker(tell, made.count)
        returns = play(made, policy.greedy, episodes, onlooker.give_up, onlooker.see)
    except envs.EnvFault as fault:
        raise UserError(str(fault)) from fault
    finally:
        made.close()
    if losses := made.losses():
        tell(f"{len(losses)} episodes were lost and count as far as they went: {losses[0]}")
    return Evaluation(
        run_dir=str(policy.run),
        algorithm=policy.algorithm,
        env=name_of(cfg.env),
        seed=seed,
        episodes=episodes,
        eval_return=float(np.mean(returns)),
        spread=float(np.std(returns)),
        lowest=float(np.min(returns)),
        highest=float(np.max(returns)),
        returns=tuple(returns),
    )


def environment_config(
    policy: TrainedPolicy, env: Environment | None, env_options: dict[str, Any] | None = None, trust: bool = False
) -> Any:
    """The policy's config with the environment in which it is to play. The run's options are those of its own."""
    given: dict[str, Any] = {"env": env, "env_options": env_options}
    changes = {name: value for name, value in given.items() if value is not None}
    recorded = [name for name in records.OF_ENVIRONMENT if name != "env" or env is None]
    if env is not None and records.recorded_value(env) != records.recorded_value(policy.config.env):
        changes, recorded = dict.fromkeys(records.OF_ENVIRONMENT) | changes, []
    elif env_options is not None and "env_options" in (directory.read_config(policy.run).get("lost") or []):
        recorded.remove("env_options")  # what no file could hold is given again, as it was asked for
    elif env_options is not None:
        changes["env_options"] = {**(policy.config.env_options or {}), **env_options}
    records.admit_fields(policy.run, recorded, trust)
    return dataclasses.replace(policy.config, **changes) if changes else policy.config


def checked_spec(policy: TrainedPolicy, cfg: Acting) -> envs.EnvSpec:
    """The environment's description, whose spaces are those that the policy was trained on."""
    spec = describe_env(cfg)
    for what, found, trained in (
        ("observations", spec.observation_space, policy.seen_space),
        ("actions", spec.native_action_space or spec.action_space, policy.action_space),
    ):
        if _layout(found) != _layout(trained):
            raise UserError(
                f"{name_of(cfg.env)} has the {what} {check.shown(found)}, and the policy of {policy.run} was trained "
                f"on {check.shown(trained)}."
            )
    return spec


def _layout(space: Any) -> Any:
    """What a network depends on; bounds may differ."""
    leaves = tree.leaf_spaces(space, "space")
    return {name: (type(leaf), leaf.shape, leaf.dtype, _choices(leaf)) for name, leaf in leaves.items()}


def _choices(leaf: Any) -> Any:
    """How many there are, of a space of choices."""
    return getattr(leaf, "nvec", np.asarray(getattr(leaf, "n", 0))).tolist()
