"""One Atari game as a Gymnasium environment that can give its state: the protocol of `atari.py` in numpy.

Frames are those of ale-py's native vector, bit by bit; tests compare both with Gymnasium's AtariPreprocessing.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import gymnasium
import numpy as np

from shoal.envs.atari import FIRE, NOOP, Protocol, life_action
from shoal.envs.lives import ENDED_AT_RESET, LIFE_LOST, RESET_REWARD
from shoal.types import Array


class AtariGame(gymnasium.Wrapper[Any, Any, Any, Any]):
    """A game of `ale_py.env.AtariEnv`, of which only the emulator is used."""

    def __init__(self, game: str, protocol: Protocol) -> None:
        from ale_py.env import AtariEnv

        super().__init__(
            AtariEnv(
                game,
                frameskip=1,
                repeat_action_probability=protocol.repeat_action_probability,
                full_action_space=protocol.full_action_space,
                render_mode=protocol.render_mode,  # type: ignore[arg-type]
            )
        )
        self.observation_space = protocol.frame_space()
        self.ale = self.unwrapped.ale  # type: ignore[attr-defined]
        self._protocol = _Constant(protocol)
        self._actions = _Constant(list(self.unwrapped._action_set))  # type: ignore[attr-defined]
        self._next_life = life_action([action.value for action in self._actions.value], protocol)
        raw = self.ale.getScreenDims() + (() if protocol.grayscale else (3,))
        self._last = np.zeros((2, *raw), np.uint8)  # the newest frame and the one before, to be pooled
        self._frames = 0  # of this game
        self._lives = 0
        self._lost = False  # a life, with the last step

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        """A new game; after a lost life, unless a seed is given, the next one of the same game."""
        if self._lost and seed is None and self._protocol.value.episodic_life:
            return self._begin_life()
        protocol: Protocol = self._protocol.value
        self.env.reset(seed=seed)
        fires = protocol.use_fire_reset and any(action.value == FIRE for action in self._actions.value)
        if fires:
            self.ale.act(FIRE)
        nothing = int(self.np_random.integers(protocol.noop_max)) if protocol.noop_max else 0
        for _ in range(nothing - fires):
            self.ale.act(NOOP)
            if self.ale.game_over():
                self.ale.reset_game()
        self._look(0)
        self._last[1] = 0
        self._frames, self._lives, self._lost = 0, self.ale.lives(), False
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        protocol: Protocol = self._protocol.value
        begins, self._lost = self._lost, False
        if begins:
            action = self._next_life
        chosen, reward, over = self._actions.value[int(action)], 0, False
        for left in range(protocol.frameskip, 0, -1):
            reward += self.ale.act(chosen)
            self._frames += 1
            over = self.ale.game_over()
            if over or self._frames >= protocol.max_num_frames_per_episode:
                break
            if left <= 2:
                self._look(left - 1)
        lives = self.ale.lives()
        cut = not over and self._frames >= protocol.max_num_frames_per_episode
        lost = 0 < lives < self._lives and not (over or cut or begins)
        self._lost = lost and self._next_life is not None
        self._lives = lives
        info = {LIFE_LOST: True} if lost and protocol.episodic_life else {}
        return self._observe(), float(reward), over or bool(info), cut, info

    def _begin_life(self) -> tuple[Array, dict[str, Any]]:
        observation, reward, over, cut, _ = self.step(self._next_life)
        return observation, {RESET_REWARD: reward, ENDED_AT_RESET: over or cut}

    def _look(self, place: int) -> None:
        read = self.ale.getScreenGrayscale if self._protocol.value.grayscale else self.ale.getScreenRGB
        read(self._last[place])

    def _observe(self) -> Array:
        protocol: Protocol = self._protocol.value
        if protocol.maxpool:
            np.maximum(self._last[0], self._last[1], out=self._last[0])
        return scaled(self._last[0], protocol.img_height, protocol.img_width)


class _Constant:
    """What is set when a game is made, and no part of its state."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Any) -> None:
        """Nothing: it is as it was made."""


def scaled(frame: Array, height: int, width: int) -> Array:
    """A frame uint8 [H, W] or [H, W, 3] made smaller by area, as OpenCV's INTER_AREA does: in the same order, since its
    sums of 32 bits are rounded to bytes in the end."""
    if frame.shape[:2] == (height, width):
        return frame.copy()
    rows, row_weights = _areas(frame.shape[0], height)
    columns, column_weights = _areas(frame.shape[1], width)
    inner = (1,) * (frame.ndim - 2)
    wide = frame.astype(np.float32)
    narrow = np.zeros((frame.shape[0], width, *frame.shape[2:]), np.float32)
    for which, weight in zip(columns, column_weights):
        narrow += wide[:, which] * weight.reshape(-1, *inner)
    small = np.zeros((height, *narrow.shape[1:]), np.float32)
    for which, weight in zip(rows, row_weights):
        small += narrow[which] * weight.reshape(-1, 1, *inner)
    return np.rint(small).astype(np.uint8)


@lru_cache(maxsize=8)
def _areas(there: int, wanted: int) -> tuple[Array, Array]:
    """Which of `there` pixels each of `wanted` covers, and how much of it they are: int and float [k, wanted]."""
    scale = there / wanted
    covered: list[list[tuple[int, float]]] = []
    for pixel in range(wanted):
        begin, end = pixel * scale, (pixel + 1) * scale
        cell = min(scale, there - begin)
        last = min(int(np.floor(end)), there - 1)
        first = min(int(np.ceil(begin)), last)
        parts = [(first - 1, (first - begin) / cell)] if first - begin > 1e-3 else []
        parts += [(whole, 1.0 / cell) for whole in range(first, last)]
        parts += [(last, min(min(end - last, 1.0), cell) / cell)] if end - last > 1e-3 else []
        covered.append(parts)
    most = max(map(len, covered))
    which, weight = np.zeros((most, wanted), np.intp), np.zeros((most, wanted), np.float32)
    for pixel, parts in enumerate(covered):
        for place, (source, share) in enumerate(parts):
            which[place, pixel], weight[place, pixel] = source, share
    return which, weight
