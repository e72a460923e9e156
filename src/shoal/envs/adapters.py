"""Vectors of tensors as other libraries have them, in the one form that `TensorEnvs` steps."""

from __future__ import annotations

from typing import Any

from gymnasium.vector import VectorEnv

from shoal.envs.tensor_vector import TensorVector

_NEEDED = ("num_envs", "single_observation_space", "single_action_space", "reset", "step")


def as_tensors(made: Any) -> TensorVector | None:
    """What a factory made, if it is a vector of tensors: one of Gymnasium's says so by having a `device`, any other
    object by having what a vector has."""
    if not all(hasattr(made, part) for part in _NEEDED):
        return None
    if isinstance(made, VectorEnv) and not hasattr(made, "device"):
        return None
    return made  # type: ignore[no-any-return]
