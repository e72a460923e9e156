"""Atari as it is usually played: ALE's games behind one protocol, as one native vector or game by game.

What a policy sees, whichever vectorizer steps the games: each action is repeated for `frameskip` frames, the last two
of which are pooled by their maximum, turned grey and scaled to 84 × 84 by area; `stack_num` says how many of these
frames make a stack, which is formed where it is needed (`EnvSpec.stacks`). A game begins with FIRE, where it has such
an action, and up to `noop_max` − 1 frames without one. Rewards are the game's own: clipping them is the learner's.

With `episodic_life` the loss of a life ends the learner's episode and the game goes on. ale-py's own option of that
name resets the emulator, so that only first lives would ever be played: here the count of lives is watched. The row
after a lost life, whose action is ignored like that of a reset, presses FIRE or nothing, as in the wrappers of Mnih
2015. Whole games of such a policy are judged with `fire_each_life`: where a life waits for FIRE, a policy that was
always given it would wait until the game is cut.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.envs import registration

from shoal.envs.lives import ENDED_AT_RESET, LIFE_LOST, RESET_REWARD
from shoal.errors import UserError
from shoal.types import Array

NOOP, FIRE = 0, 1  # among all of ALE's actions
_GAMES = "ale_py.env:AtariEnv"


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """Options of a game, with ale-py's names. The defaults are those of the papers; sticky actions are the id's: 0.25
    for ALE/…-v5 (Machado 2018), 0 for …NoFrameskip-v4."""

    frameskip: int = 4
    maxpool: bool = True
    grayscale: bool = True
    img_height: int = 84
    img_width: int = 84
    stack_num: int = 4
    noop_max: int = 30
    use_fire_reset: bool = True
    episodic_life: bool = True  # the evaluator plays whole games
    fire_each_life: bool = False  # without episodic_life: the step after a lost life is FIRE, where a game has it
    full_action_space: bool = False
    repeat_action_probability: float = 0.0
    max_num_frames_per_episode: int = 108_000  # half an hour of play
    num_threads: int = 1  # that step the games of one native vector
    render_mode: str | None = None

    @property
    def max_episode_steps(self) -> int:
        return -(-self.max_num_frames_per_episode // self.frameskip)

    def frame_space(self) -> spaces.Box:
        shape = (self.img_height, self.img_width) + (() if self.grayscale else (3,))
        return spaces.Box(0, 255, shape, np.uint8)


_BY_TYPE: dict[Any, tuple[Any, str]] = {  # as annotations are written
    "bool": (bool, "True or False"),
    "int": (int, "a whole number"),
    "float": ((int, float), "a number"),
}
_KINDS = {field.name: _BY_TYPE[field.type] for field in fields(Protocol) if field.type in _BY_TYPE}


def is_atari(registered: object) -> bool:
    return isinstance(registered, registration.EnvSpec) and registered.entry_point == _GAMES


def protocol_of(registered: registration.EnvSpec, options: dict[str, Any], limit: int | None = None) -> Protocol:
    """The protocol of an id with the user's options; of a `limit` in steps and the id's own in frames the smaller."""
    if "reward_clipping" in options:
        raise UserError(
            f"{registered.id}: rewards stay as the game gives them; clip what the learner sees with --reward-clip 1."
        )
    sticky = registered.kwargs.get("repeat_action_probability", 0.0)
    found = Protocol(**{"repeat_action_probability": sticky} | options)
    for name, (kind, wanted) in _KINDS.items():
        value = getattr(found, name)
        if not isinstance(value, kind) or isinstance(value, bool) != (kind is bool):
            raise UserError(f"{registered.id}: the option {name}={value!r} is no such value; give {wanted}.")
    for name in ("frameskip", "img_height", "img_width", "stack_num", "max_num_frames_per_episode", "num_threads"):
        value = getattr(found, name)
        if value < 1:
            raise UserError(f"{registered.id}: the option {name}={value!r} is no such value; give 1 or more.")
    if found.noop_max < 0 or not 0.0 <= found.repeat_action_probability <= 1.0:
        raise UserError(f"{registered.id}: noop_max is 0 or more, and repeat_action_probability from 0 to 1.")
    if limit is None:
        return found
    frames = min(found.max_num_frames_per_episode, limit * found.frameskip)
    return replace(found, max_num_frames_per_episode=frames)


class NativeGames:
    """Games in ale-py's own vector environment, which steps them without Python. They cannot give their state."""

    def __init__(self, game: str, count: int, protocol: Protocol) -> None:
        from ale_py.vector_env import AtariVectorEnv

        self.num_envs = count
        self._protocol = protocol
        self.single_observation_space: spaces.Space[Any] = protocol.frame_space()
        self.env = AtariVectorEnv(
            game,
            count,
            stack_num=1,
            episodic_life=False,
            reward_clipping=False,
            frameskip=protocol.frameskip,
            maxpool=protocol.maxpool,
            grayscale=protocol.grayscale,
            img_height=protocol.img_height,
            img_width=protocol.img_width,
            noop_max=protocol.noop_max,
            use_fire_reset=protocol.use_fire_reset,
            full_action_space=protocol.full_action_space,
            repeat_action_probability=protocol.repeat_action_probability,
            max_num_frames_per_episode=protocol.max_num_frames_per_episode,
            num_threads=protocol.num_threads,
        )
        self.ale = self.env.ale
        self.single_action_space = self.env.single_action_space
        self._next_life = life_action([action.value for action in self.ale.get_action_set()], protocol)
        self._lives = np.zeros(count, np.int32)
        self._lost = np.zeros(count, np.bool_)  # a life, with the last step

    def reset(self, *, seed: int | None = None) -> tuple[Array, dict[str, Any]]:
        seeds = None if seed is None else np.random.SeedSequence(seed).generate_state(self.num_envs) & 0x7FFFFFFF
        observation, info = self.env.reset(seed=None if seeds is None else seeds.astype(np.int64))
        self._lives, self._lost = info["lives"], np.zeros(self.num_envs, np.bool_)
        return observation[:, 0], {}

    def step(self, actions: Array, /) -> tuple[Array, Array, Array, Array, dict[str, Any]]:
        begins = self._lost
        if self._next_life is not None and begins.any():
            actions = np.where(begins, self._next_life, actions)
        observation, reward, terminated, truncated, info = self.env.step(actions)
        lives, ended = info["lives"], terminated | truncated
        given: dict[str, Any] = {}
        if self._next_life is not None:
            self._lost = (lives < self._lives) & (lives > 0) & ~ended & ~begins
        if self._protocol.episodic_life:
            if begins.any():
                given |= {RESET_REWARD: np.where(begins, reward, 0), ENDED_AT_RESET: begins & ended}
            if self._lost.any():
                given[LIFE_LOST] = self._lost
                terminated = terminated | self._lost
        self._lives = lives
        return observation[:, 0], reward, terminated, truncated, given

    def close(self) -> None:
        self.env.close()


def life_action(actions: list[int], protocol: Protocol) -> int | None:
    """What is played after a lost life, whatever the policy says: the place of FIRE among a game's actions, or of doing
    nothing; None where that is left to the policy."""
    if protocol.use_fire_reset and FIRE in actions and (protocol.episodic_life or protocol.fire_each_life):
        return actions.index(FIRE)
    return actions.index(NOOP) if protocol.episodic_life else None
