"""What a vector of environments that live on a device is; this file does without torch, which takes long to import.

Like Gymnasium's vectors they have `num_envs`, `single_observation_space`, `single_action_space`, `reset()`, which gives
(observation, info), and `step(actions)`, which gives (observation, reward, terminated, truncated, info); but all of it
in tensors [B, ...] of one device, observations also in dicts and tuples.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Protocol

from gymnasium import Space

from shoal.errors import UserError

Autoreset = Literal["next_step", "same_step"]
FINAL = ("final_obs", "final_observation")  # names under which infos hold it


class TensorVector(Protocol):
    """What `TensorEnvs` needs of a vector. It may have `state_dict` and `load_state_dict` beside it, so that a run goes
    on in the middle of episodes, `close`, and a `reset` that takes a `seed`."""

    num_envs: int
    single_observation_space: Space[Any]
    single_action_space: Space[Any]

    def reset(self) -> tuple[Any, dict[str, Any]]: ...
    def step(self, actions: Any, /) -> tuple[Any, Any, Any, Any, dict[str, Any]]: ...


def stated(vector: TensorVector) -> Autoreset:
    metadata = getattr(vector, "metadata", None)
    mode = metadata.get("autoreset_mode") if isinstance(metadata, Mapping) else None
    match str(getattr(mode, "value", mode)).lower():
        case "nextstep" | "next_step":
            return "next_step"
        case "samestep" | "same_step":
            return "same_step"
    raise UserError(
        f"{type(vector).__name__} does not say when it resets an environment: give autoreset='next_step' or "
        "'same_step', or put Gymnasium's AutoresetMode into its metadata as 'autoreset_mode'."
    )
