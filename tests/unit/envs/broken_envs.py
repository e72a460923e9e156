"""Environments of users who got something wrong, each in one way; `test_env_trial.py` says what they are told."""

from __future__ import annotations

import os
import signal
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv

BOX = spaces.Box(-1.0, 1.0, (3,), np.float32)
ZEROS = np.zeros(3, np.float32)


class Works(gymnasium.Env[Any, Any]):
    def __init__(self) -> None:
        self.observation_space, self.action_space = BOX, spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return ZEROS, {}

    def step(self, action: Any) -> Any:
        return ZEROS, 1.0, False, False, {}


class RaisesWhenMade(Works):
    def __init__(self) -> None:
        raise ValueError("no such map:\n 'desert'")


class Exits(Works):
    def __init__(self) -> None:
        raise SystemExit(3)


class EndsItsProcess(Works):
    def __init__(self) -> None:
        os._exit(0)


class Crashes(Works):
    def reset(self, **options: Any) -> Any:
        os.kill(os.getpid(), signal.SIGSEGV)


class NoSpaces(gymnasium.Env[Any, Any]):
    pass


class NoActionSpace(Works):
    def __init__(self) -> None:
        self.observation_space = BOX


class ShapeForASpace(Works):
    def __init__(self) -> None:
        super().__init__()
        self.observation_space = (3,)  # type: ignore[assignment]


class NeedsASize(Works):
    def __init__(self, size: int) -> None:
        super().__init__()


def forgets_to_return() -> None:
    Works()


class FourValues(Works):
    def step(self, action: Any) -> Any:
        return ZEROS, 1.0, False, {}


class OnlyAnObservation(Works):
    def reset(self, **options: Any) -> Any:
        return ZEROS


class NoSeed(Works):
    def reset(self) -> Any:  # type: ignore[override]
        return ZEROS, {}


class RaisesWhenStepped(Works):
    def step(self, action: Any) -> Any:
        return ZEROS[7], 1.0, False, False, {}


class NoReward(Works):
    def step(self, action: Any) -> Any:
        return ZEROS, None, False, False, {}


class RewardIsNan(Works):
    def step(self, action: Any) -> Any:
        return ZEROS, float("nan"), False, False, {}


class EndIsANumber(Works):
    def step(self, action: Any) -> Any:
        return ZEROS, 1.0, 0, False, {}


class OtherShape(Works):
    def step(self, action: Any) -> Any:
        return ZEROS[:2], 1.0, False, False, {}


class Ragged(Works):
    def reset(self, **options: Any) -> Any:
        return [[1.0], [1.0, 2.0], 3.0], {}


class RaisesWhenClosed(Works):
    def close(self) -> None:
        raise OSError("already gone")


class TorchVector(VectorEnv[Any, Any, Any]):
    """What a simulator on a GPU returns: tensors, from the first observation on or only for the rest."""

    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012 - Gymnasium reads it from the class

    def __init__(self, num_envs: int, observation: bool = True) -> None:
        import torch

        self.num_envs = num_envs
        self.single_observation_space, self.single_action_space = BOX, spaces.Discrete(2)
        self._observation: Any = torch.zeros(num_envs, 3) if observation else np.zeros((num_envs, 3), np.float32)
        self._reward, self._end = torch.zeros(num_envs), torch.zeros(num_envs, dtype=torch.bool)

    def reset(self, **options: Any) -> Any:
        return self._observation, {}

    def step(self, actions: Any) -> Any:
        return self._observation, self._reward, self._end, self._end, {}


def torch_rows(num_envs: int) -> TorchVector:
    return TorchVector(num_envs, observation=False)


class Panic(BaseException):
    """As those of Rust extensions: no `Exception`."""


class Panics(Works):
    def step(self, action: Any) -> Any:
        raise Panic("index out of bounds")


class Parallel:
    """As PettingZoo's parallel_env gives them."""

    possible_agents = ("first", "second")

    def observation_space(self, agent: str) -> Any:
        return BOX

    def action_space(self, agent: str) -> Any:
        return spaces.Discrete(2)


class Turns:
    """As an AEC environment, after its reset."""

    agents = ("first", "second")


class ManyInOne(Works):
    """A gymnasium.Env by its base alone."""

    possible_agents = ("first", "second")


OldGym = type("OldGym", (), {"__module__": "gym.envs.classic"})


class MaskInInfo(Works):
    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return ZEROS, {"action_mask": np.ones(2, np.int8)}


class MaskInStep(Works):
    def step(self, action: Any) -> Any:
        return ZEROS, 1.0, False, False, {"legal_actions": [0]}


class MaskMethod(Works):
    def action_masks(self) -> Any:
        return np.ones(2, bool)


class MaskSeen(Works):
    def __init__(self) -> None:
        super().__init__()
        self.observation_space = spaces.Dict({"board": BOX, "action_mask": spaces.MultiBinary(2)})

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return {"board": ZEROS, "action_mask": np.ones(2, np.int8)}, {}

    def step(self, action: Any) -> Any:
        return self.reset()[0], 1.0, False, False, {}
