"""What policies that act on a network share: its weights, its device, and their random numbers."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any, Generic, Protocol, Self, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from shoal import tree
from shoal.acting.policy import Acted, Choice, FirstPriorities, State
from shoal.functional.arrays import Random
from shoal.nets.images import compute_in
from shoal.nets.weights import export_weights, import_weights
from shoal.types import Array, Arrays, Columns, Values


class Ladder(Protocol):
    """How much environments `index` [B] of `total` explore: [B]."""

    def __call__(self, *, index: Array, total: int) -> Array: ...


Exploration = Ladder | Array  # or of a run whose size is known, how much each of its environments explores
Network = TypeVar("Network", bound=nn.Module)
PriorityLaw = Callable[[Mapping[str, Tensor]], Tensor]  # columns of items, with q and next_value → [items]


class Mirror(Protocol):
    """A small network computed without torch, whose overhead would be most of the time."""

    def load(self, weights: Arrays) -> None: ...


class NetworkPolicy(Generic[Network]):
    """Acts on the device it was given.

    A class of policies says what it does once, as functions of tensors: `greedy` and `explore`. Who gives arrays to
    `act` gets arrays; tensors of the policy's device stay there. On a CPU the `Mirror` that `mirror` makes of the
    network may stand in for it: then the same two functions work on arrays.
    """

    def __init__(
        self,
        network: Network,
        seed: int,
        *,
        greedy: bool = False,
        device: str = "cpu",
        mirror: Callable[[Any], Mirror] | None = None,
        priorities: FirstPriorities | None = None,
    ) -> None:
        self.network = compute_in(network.to(device).eval(), "float32")  # bfloat16 is learners'
        self.device = torch.device(device)
        self.random = np.random.default_rng(seed)
        self.first_priorities = priorities
        self.mirror: Any = mirror(network) if mirror is not None and self.device.type == "cpu" else None
        self._greedy, self._seed = greedy, seed
        self._generator: torch.Generator | None = None  # where tensors never meet an array
        self._weights: Arrays | None = None  # those that were loaded last
        self._behind = False  # only the mirror has them

    def greedy(self, observation: Any, state: State) -> Choice:
        """What it prefers: observation [B, ...], and a state that is zero where an episode begins."""
        raise NotImplementedError

    def explore(self, observation: Any, state: State, random: Random) -> Acted:
        """What it does to learn from. The network is in evaluation mode here too: layers that explore are switched on
        here, and draw from `random`."""
        raise NotImplementedError

    def initial_state(self, count: int) -> State:
        return {}

    def act(self, observation: Any, state: State, first: Values) -> Acted:
        if self.mirror is not None and isinstance(observation, np.ndarray):
            return self._act(observation, state, self.random)
        if self._behind and self._weights is not None:
            import_weights(self.network, self._weights)
            self._behind = False
        if self.network.training:  # whoever trains the same network has left it so
            self.network.eval()
        if isinstance(tree.leaf(observation), Tensor):
            with torch.no_grad():
                return self._act(observation, state, self._torch_random())
        with torch.inference_mode():
            seen, before = self.to_device((observation, state))
            return tree.map(to_array, self._act(seen, before, self.random))  # type: ignore[no-any-return]

    def _act(self, observation: Any, state: State, random: Random) -> Acted:
        if not self._greedy:
            return self.explore(observation, state, random)
        action, _, after = self.greedy(observation, state)
        return action, after, {}

    def load(self, weights: Arrays) -> None:
        if self.mirror is not None:
            self.mirror.load(weights)
        else:
            import_weights(self.network, weights)
        self._weights, self._behind = weights, self.mirror is not None

    def share(self, network: Network) -> Self:
        """Act with a network that is trained in this process, as it is at every moment. Who trains it says what it
        computes in."""
        self.network, self.mirror = network, None
        self._weights, self._behind = None, False
        return self

    def to_device(self, observation: Any) -> Any:
        """Arrays as tensors on the policy's device."""
        return tree.map(lambda array: torch.from_numpy(array).to(self.device), observation)

    def state_dict(self) -> dict[str, Any]:
        weights = export_weights(self.network) if self._weights is None else dict(self._weights)
        state = {"weights": weights, "random": copy.deepcopy(self.random.bit_generator.state)}
        return state if self._generator is None else state | {"generator": self._generator.get_state().numpy()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.load({name: np.asarray(array) for name, array in state["weights"].items()})  # as read, perhaps tensors
        self.random.bit_generator.state = copy.deepcopy(state["random"])
        if "generator" in state:
            self._torch_random().set_state(torch.as_tensor(state["generator"]))

    def _torch_random(self) -> torch.Generator:
        if self._generator is None:
            self._generator = torch.Generator(self.device).manual_seed(self._seed)
        return self._generator


class ExploringPolicy(NetworkPolicy[Network]):
    """One whose exploration differs from environment to environment, by its `ladder`. Until it is told its environments
    it explores by a law as the only one of a run does, by numbers as all of them do."""

    def __init__(self, network: Network, seed: int, *, ladder: Exploration | None = None, **options: Any) -> None:
        super().__init__(network, seed, **options)
        self._ladder = ladder
        self.exploration: Array | None = None  # of the environments that are acted for
        self.set_environments(np.arange(1 if callable(ladder) or ladder is None else len(ladder)), 1)

    def set_environments(self, environments: Array, total: int) -> None:
        """The rows of the coming calls of `act` are these environments, int [B], of the `total` of a run."""
        self._on_device: Tensor | None = None
        if callable(self._ladder):
            self.exploration = self._ladder(index=environments, total=total)
        elif self._ladder is not None:
            self.exploration = self._ladder[environments]

    def explores(self, like: Values) -> Values:
        """The number of each row's environment, [B], as what it acts on."""
        if self.exploration is None or not isinstance(like, Tensor):
            return self.exploration
        if self._on_device is None:
            self._on_device = torch.from_numpy(self.exploration).to(like.device)
        return self._on_device


def priorities_by(
    law: PriorityLaw | None, columns: tuple[str, ...], reads: tuple[str, ...], transient: tuple[str, ...]
) -> FirstPriorities | None:
    """First priorities by a law on tensors, which reads these columns of new items."""
    if law is None:
        return None

    def of_arrays(data: Columns) -> Array:
        return law({name: torch.from_numpy(data[name]) for name in reads}).numpy()

    return FirstPriorities(of_arrays, columns, transient)


def to_array(tensor: Tensor) -> Array:
    return tensor.cpu().numpy()
