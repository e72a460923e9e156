"""A trained policy out of a run directory: observations in, actions as the environment takes them out.

Nothing of the training machinery is needed for it, nor the environment: spaces are recorded with the run.
"""

from __future__ import annotations

import copy
import dataclasses
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt
from gymnasium import Space, spaces

from shoal import tree
from shoal.acting import PerEnvironment, Player, Policy
from shoal.acting.policy import LAST_REWARD
from shoal.config import Seed, replace, validate
from shoal.envs.check import image_stacks
from shoal.envs.space_records import from_record
from shoal.envs.vector import action_converter
from shoal.errors import UserError
from shoal.experiment.checks import check_device
from shoal.experiment.environments import describe_env
from shoal.options import Acting, Learning
from shoal.playing.observations import Observations
from shoal.runs import directory, records, registry
from shoal.runs.saved_weights import Found, find_weights, load_checked
from shoal.types import Array

RANDOM_ROWS = "random_rows"  # of a policy's state: uniform actions with which a run began


class Description(NamedTuple):
    """What is known of the environment without making it."""

    observation_space: Space[Any]  # as networks have it: of stacks of frames
    action_space: Space[Any]  # as networks have it
    native_action_space: Space[Any]  # as the environment has it
    stack: int  # frames in a stack


@dataclasses.dataclass(frozen=True)
class _Asked:
    seed: Seed | None
    device: str


def load(
    source: str | os.PathLike[str],
    *,
    device: str = "cpu",
    seed: int | None = None,
    network: Any = None,
    core: Any = None,
    trust: bool = False,
) -> TrainedPolicy:
    """The policy of a run (`runs/NAME`), of its best checkpoint (`runs/NAME:best`) or of one checkpoint's folder.

    `seed` is that of its exploration; `network` and `core` take the place of the user's own where those cannot be
    imported by name. A run that was not made on this account, and names code of its own (an algorithm's file, a
    network), runs that code only with `trust`. Raises `UserError` for what is no run, is damaged, or does not fit
    the network.
    """
    return rebuilt(
        find_weights(directory.named(source, "shoal.load()")),
        device=device,
        seed=seed,
        network=network,
        core=core,
        trust=trust,
    )


def rebuilt(
    found: Found,
    *,
    device: str = "cpu",
    seed: int | None = None,
    network: Any = None,
    core: Any = None,
    trust: bool = False,
) -> TrainedPolicy:
    """The policy of weights that were found: as `load`, which finds them itself."""
    validate(_Asked(seed, device))
    check_device("device", device)
    given = {name: value for name, value in (("network", network), ("core", core)) if value is not None}
    unneeded = (*records.OF_ENVIRONMENT, *records.NOT_PLAYED)
    name, algorithm, cfg = records.rebuild(found.run, given, unneeded, trust=trust)
    env = recorded_spaces(directory.read_config(found.run), found.run) or _spaces_of_environment(found.run, cfg, trust)
    cfg = dataclasses.replace(cfg, acting_device=device)
    if isinstance(cfg, Learning):
        cfg = replace(cfg, precision="float32")  # theirs is the learners', of their machine
    seed = int.from_bytes(os.urandom(4), "little") if seed is None else seed
    made = {explore: algorithm.make_policy(cfg, env, seed, greedy=not explore) for explore in (False, True)}
    for policy in made.values():
        load_checked(policy, found.weights, found.place)
    _begin_with_what_was_learned(made[True])
    return TrainedPolicy(made[False], made[True], env, registry.short_name(name), cfg, found.run)


class TrainedPolicy:
    """Acts on one observation or on a batch of them.

    A policy that is recurrent, or sees stacks of frames, remembers its episode: call `reset()` where a new one begins.
    Any thread may call it; threads or clients with episodes of their own take a `copy()` each, sharing the network.
    """

    def __init__(
        self, greedy: Policy, exploring: Policy, env: Description, algorithm: str, config: Any, run: Path
    ) -> None:
        self.seen_space = env.observation_space  # as the network sees it, with frames in stacks
        self.stacks = image_stacks(env.observation_space, env.stack, stacked=True)
        self.observation_space, self.action_space = one_frame(self.seen_space, self.stacks), env.native_action_space
        self.algorithm, self.config, self.run = algorithm, config, run
        self.greedy, self.exploring = greedy, exploring
        self.observations = Observations(self.observation_space)
        self.to_environment = action_converter(env.native_action_space)
        self._scalar = env.native_action_space.shape == ()
        carried = greedy.initial_state(1)
        self.recurrent = bool(carried)
        self.remembers = self.recurrent or bool(self.stacks)
        self.wants_reward = LAST_REWARD in carried
        self._lock = threading.Lock()
        self.reset()

    def __repr__(self) -> str:
        kind = "recurrent policy" if self.recurrent else "policy"
        return f"<{self.algorithm} {kind} of {self.run}: {self.observation_space} → {self.action_space}>"

    def act(
        self, observation: Any, *, reward: npt.ArrayLike | None = None, explore: bool = False
    ) -> int | npt.NDArray[Any]:
        """The action for one observation as its space says, or actions [B, ...] for a batch [B, ...].

        Greedy, or with the exploration of the run's actors. `reward` is what the last action gave, for a policy that
        `wants_reward` (R2D2); at the beginning of an episode it is not looked at.
        """
        batch, single = self.observations.take(observation)
        policy = self.exploring if explore else self.greedy
        if not self.remembers:
            first = np.ones(len(tree.leaf(batch)), np.bool_)
            if explore:
                self._spread(len(first))
            action, _, _ = policy.act(batch, {}, first)
        else:
            with self._lock:
                action = self._remembering(policy, batch, reward, explore)
        action = self.to_environment(action)
        if not single:
            return action
        return int(action[0]) if self._scalar else cast(Array, action[0])

    def reset(self, where: npt.ArrayLike | None = None) -> None:
        """A new episode begins: everywhere, or in those rows of the batch where a mask, bool [B], is true."""
        if where is None:
            self._player: Player | None = None  # made with the first batch, whose size it has
            return
        mask, player = np.asarray(where, np.bool_), self._player
        if player is None:
            return
        if mask.shape != (player.count,):
            raise UserError(f"reset() was given a mask {list(mask.shape)} for a batch of {player.count}.")
        player.first = player.first | mask

    def copy(self) -> TrainedPolicy:
        """Another one with the same network and an episode of its own."""
        other = copy.copy(self)
        other._lock = threading.Lock()
        other.reset()
        return other

    def _remembering(self, policy: Policy, batch: Any, reward: npt.ArrayLike | None, explore: bool) -> Array:
        count, player = len(tree.leaf(batch)), self._player
        if player is None:
            player = self._player = Player(policy, count, self.stacks)
        elif player.count != count:
            raise UserError(
                f"The policy remembers {player.count} episodes and was given {count} observations: call reset() "
                "before a batch of another size."
            )
        if self.wants_reward:
            player.told(self._rewards(reward, player.first))
        if explore:
            self._spread(count)
        player.policy = policy
        action: Array = player.act(batch)
        player.first = np.zeros(count, np.bool_)
        return action

    def _rewards(self, reward: npt.ArrayLike | None, first: Array) -> Array:
        if reward is None:
            if not first.all():
                raise UserError(
                    f"A policy of {self.algorithm} looks at what its last action gave: call act(observation, "
                    "reward=…), or reset() where an episode begins."
                )
            return np.zeros(len(first), np.float32)
        try:
            rewards = np.asarray(reward, np.float32).reshape(-1)
        except (TypeError, ValueError):
            raise UserError(f"act() was given the reward {reward!r}: give a number for each observation.") from None
        if not np.isfinite(rewards).all():
            raise UserError(
                "act() was given a reward that is not finite: no environment of a run may give such, either."
            )
        if rewards.shape != first.shape:
            raise UserError(f"act() was given {len(rewards)} rewards for {len(first)} observations: give one for each.")
        return rewards

    def _spread(self, count: int) -> None:
        """Rows explore as the run's environments do, from the first on."""
        if isinstance(self.exploring, PerEnvironment):
            environments = getattr(self.config, "actors", 1) * getattr(self.config, "envs_per_actor", 1)
            self.exploring.set_environments(np.arange(count) % environments, environments)


def recorded_spaces(record: dict[str, Any], run: Path) -> Description | None:
    """Of a run's config; None for a run of a version that recorded none."""
    recorded = record.get("spaces")
    if recorded is None:
        return None
    try:
        seen, action, native = (from_record(recorded[name]) for name in ("observation", "action", "native_action"))
        return Description(seen, action, native, int(recorded.get("stack", 1)))
    except (ValueError, KeyError, TypeError):
        raise UserError(f"{run / directory.CONFIG} is damaged: its spaces cannot be read.") from None


def _spaces_of_environment(run: Path, cfg: Acting, trust: bool) -> Description:
    records.admit_fields(run, records.OF_ENVIRONMENT, trust)
    spec = describe_env(cfg)
    native = spec.native_action_space or spec.action_space
    return Description(spec.observation_space, spec.action_space, native, spec.stack)


def one_frame(space: Space[Any], stacks: Mapping[str, int], name: str = "observation") -> Space[Any]:
    """The space of what an environment gives: one frame where the network sees a stack of them."""
    match space:
        case spaces.Dict():
            return spaces.Dict({key: one_frame(part, stacks, f"{name}/{key}") for key, part in space.items()})
        case spaces.Tuple():
            return spaces.Tuple(one_frame(part, stacks, f"{name}/{i}") for i, part in enumerate(space.spaces))
        case spaces.Box() if name in stacks:
            return spaces.Box(space.low[0], space.high[0], dtype=np.uint8)
    return space


def _begin_with_what_was_learned(policy: Any) -> None:
    """The uniform actions with which a run begins are over."""
    state = policy.state_dict() if hasattr(policy, "state_dict") else {}
    if state.get(RANDOM_ROWS):
        policy.load_state_dict({**state, RANDOM_ROWS: 0})
