"""Building a network from options, and moving arrays and weights in and out of it."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from gymnasium import spaces
from torch import Tensor, nn

from shoal.factories import load_factory
from shoal.nets.actor_critic import ActorCritic
from shoal.nets.normalize import ObservationNormalizer
from shoal.nets.user import UserNetwork

Array = npt.NDArray[Any]

# Arrays received from another process are often read-only; a batch is never written to, so that is no concern.
warnings.filterwarnings("ignore", message="The given NumPy array is not writable")


class Spaces(Protocol):
    """What is asked of a description of an environment."""

    @property
    def observation_space(self) -> spaces.Space[Any]: ...
    @property
    def action_space(self) -> spaces.Space[Any]: ...


def make_network(
    observation_space: spaces.Space[Any],
    action_space: spaces.Space[Any],
    *,
    seed: int,
    network: str | None = None,
    normalize_observations: bool = False,
    **options: Any,
) -> ActorCritic | UserNetwork:
    """The user's network when `network` names one as module:factory, else an `ActorCritic` with `options`.

    With `normalize_observations` it sees them through running statistics (`shoal.nets.normalize`). Initial weights
    depend on the seed alone; the global random state is left as it was.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        built: ActorCritic | UserNetwork
        if network is None:
            built = ActorCritic(observation_space, action_space, **options)
        else:
            made = load_factory(network)(observation_space, action_space)
            built = UserNetwork(made, observation_space, action_space, network)
    if normalize_observations:
        built.normalizer = ObservationNormalizer(observation_space)
    return built


class NetworkConfig(Protocol):
    """The fields of an algorithm's config that say what its network is."""

    @property
    def network(self) -> str | None: ...
    @property
    def hidden(self) -> tuple[int, ...]: ...
    @property
    def activation(self) -> str: ...
    @property
    def shared_torso(self) -> bool: ...
    @property
    def state_dependent_std(self) -> bool: ...
    @property
    def lstm(self) -> int: ...
    @property
    def normalize_observations(self) -> bool: ...


def network_of(cfg: NetworkConfig, env_spec: Spaces, seed: int) -> ActorCritic | UserNetwork:
    """The actor-critic that a config asks for."""
    return make_network(
        env_spec.observation_space,
        env_spec.action_space,
        seed=seed,
        network=cfg.network,
        normalize_observations=cfg.normalize_observations,
        hidden=cfg.hidden,
        activation=cfg.activation,
        lstm=cfg.lstm,
        shared=cfg.shared_torso,
        state_dependent_std=cfg.state_dependent_std,
    )


def to_tensor(array: Array, device: torch.device) -> Tensor:
    """A tensor on the array's own memory, or a copy on the device."""
    tensor = torch.from_numpy(array if array.flags.writeable else array.copy())  # of what is shared torch would warn
    if device.type == "cuda":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor


def named_tensors(network: nn.Module) -> dict[str, Tensor]:
    """Parameters and persistent buffers by name, sharing the network's memory."""
    return {name: tensor for name, tensor in network.state_dict().items() if isinstance(tensor, Tensor)}


def export_weights(tensors: Mapping[str, Tensor]) -> dict[str, Array]:
    """Copies as arrays."""
    return {name: np.array(tensor.cpu().numpy(), order="C") for name, tensor in tensors.items()}


@torch.no_grad()
def import_weights(tensors: Mapping[str, Tensor], weights: Mapping[str, Array]) -> None:
    """Copy weights into a network's tensors."""
    for name, tensor in tensors.items():
        tensor.copy_(torch.from_numpy(weights[name]))


def states_of(columns: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The recurrent state [B, ...] from before the first row of a batch, out of its columns."""
    return {name.removeprefix("state/"): x for name, x in columns.items() if name.startswith("state/")}
