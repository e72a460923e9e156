"""A vector of tensors as those of arrays are stepped: for the evaluator, for films, and for whoever plays a policy."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from gymnasium.envs import registration
from gymnasium.vector import AutoresetMode
from torch import Tensor

from shoal import tree
from shoal.envs.state import NoState
from shoal.envs.tensor_vector import FINAL, TensorVector
from shoal.envs.tensors import TensorEnvs, checked_device
from shoal.types import Array


class OnHost:
    """Arrays in, arrays out. Whenever the vector resets, it says so in its metadata, and `Envs` goes by that."""

    def __init__(self, vector: TensorVector, name: str, spec: registration.EnvSpec | None = None) -> None:
        self.tensors = TensorEnvs(vector, name=name)  # who looks for a vector of tensors finds it here
        self.num_envs = vector.num_envs
        self.single_observation_space, self.single_action_space = (
            vector.single_observation_space,
            vector.single_action_space,
        )
        self.spec = spec if spec is not None else getattr(vector, "spec", None)
        same = self.tensors.autoreset == "same_step"
        own = getattr(vector, "metadata", None)
        self.metadata = {
            **(own if isinstance(own, Mapping) else {}),
            "autoreset_mode": AutoresetMode.SAME_STEP if same else AutoresetMode.NEXT_STEP,
        }
        self._vector, self._name = vector, name
        self._takes_seed = "seed" in inspect.signature(vector.reset).parameters
        self._device: torch.device | None = None

    def reset(self, *, seed: int | None = None) -> tuple[Any, dict[str, Any]]:
        """With a seed where the vector's `reset` takes one; else it was seeded when it was made."""
        vector: Any = self._vector
        observation, _ = vector.reset(seed=seed) if self._takes_seed and seed is not None else vector.reset()
        self._device = checked_device(observation, self.num_envs, self._name)
        return _to_arrays(observation), {}

    def step(self, actions: Array, /) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self._vector.step(
            torch.as_tensor(np.asarray(actions), device=self._device)
        )
        final = next((info[name] for name in FINAL if info.get(name) is not None), None)
        rows = [_to_arrays(part) for part in (reward, terminated, truncated)]
        rows[1:] = [np.asarray(row, np.bool_) for row in rows[1:]]
        return _to_arrays(observation), *rows, {} if final is None else {FINAL[0]: _to_arrays(final)}

    def state_dict(self) -> dict[str, Any]:
        vector: Any = self._vector
        if not callable(getattr(vector, "state_dict", None)):
            raise NoState(
                f"{self._name} cannot give its state, so that its open episodes are lost when a run is resumed: "
                "add the methods state_dict and load_state_dict."
            )
        state: dict[str, Any] = vector.state_dict()
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        vector: Any = self._vector
        vector.load_state_dict(state)

    def render(self) -> Any:
        vector: Any = self._vector
        return vector.render()

    def close(self) -> None:
        self.tensors.close()


def _to_arrays(values: tree.Tree) -> tree.Tree:
    return tree.map(lambda part: part.cpu().numpy() if isinstance(part, Tensor) else np.asarray(part), values)
