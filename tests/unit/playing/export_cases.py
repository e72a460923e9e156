"""Environments and networks of a user, and what of everything that can be trained is exported in the tests."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

HERE = "tests.unit.playing.export_cases"


class Sampled(gymnasium.Env[Any, Any]):
    """Observations out of a space, whatever is done."""

    def __init__(self, observation: spaces.Space[Any], action: spaces.Space[Any]) -> None:
        self.observation_space, self.action_space = observation, action

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Any:
        return self.observation_space.sample(), 1.0, False, False, {}


VECTOR = spaces.Box(-1.0, 1.0, (4,), np.float32)
REACH = spaces.Box(np.float32([-1, -3]), np.float32([2, 5]))


def parts() -> spaces.Dict:
    picture = spaces.Box(0, 255, (36, 36, 3), np.uint8)
    inner = spaces.Tuple((spaces.Discrete(3), spaces.MultiBinary(2)))
    return spaces.Dict({"vector": spaces.Box(-np.inf, np.inf, (3,), np.float64), "picture": picture, "inner": inner})


def dictionary() -> Sampled:
    return Sampled(parts(), spaces.Discrete(3))


def dictionary_reach() -> Sampled:
    return Sampled(parts(), REACH)


def counted_from_five() -> Sampled:
    return Sampled(VECTOR, spaces.Discrete(3, start=5))


def several_choices() -> Sampled:
    return Sampled(VECTOR, spaces.MultiDiscrete([2, 4, 3]))


def reach() -> Sampled:
    return Sampled(VECTOR, REACH)


# ---- networks --------------------------------------------------------------------------------------------------------


class Own(nn.Module):
    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.body, self.head, self.value = nn.Linear(4, 8), nn.Linear(8, outputs), nn.Linear(8, 1)

    def forward(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        features = nn.functional.silu(self.body(observation))
        return self.head(features), self.value(features)


class OwnRecurrent(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.cell, self.head = nn.GRUCell(inputs, 6), nn.Linear(6, outputs + 1)

    def initial_state(self, count: int) -> dict[str, Tensor]:
        return {"memory": torch.zeros(count, 6)}

    def forward(self, observation: Tensor, state: dict[str, Tensor]) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        memory = self.cell(observation, state["memory"])
        outputs = self.head(memory)
        return outputs[:, :-1], outputs[:, -1], {"memory": memory}


class OwnQ(Own):
    def forward(self, observation: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(observation)[0]


class OwnRecurrentQ(OwnRecurrent):
    def forward(self, observation: Tensor, action: Tensor, reward: Tensor, state: Any) -> Any:  # type: ignore[override]
        q, _, after = super().forward(torch.cat([observation, action, reward[:, None]], -1), state)
        return q, after


class OwnCore(OwnRecurrent):
    def forward(self, inputs: Tensor, state: Any) -> Any:
        outputs, _, after = super().forward(inputs, state)
        return outputs, after


class OwnCritic(nn.Module):
    def __init__(self, actions: int) -> None:
        super().__init__()
        self.layer = nn.Linear(4 + actions, 1)

    def forward(self, observation: Tensor, action: Tensor) -> Tensor:
        value: Tensor = self.layer(torch.cat([observation, action], -1))
        return value


def own(observation: Any, action: Any) -> nn.Module:
    return Own(int(action.n) if isinstance(action, spaces.Discrete) else action.shape[0])


class BySize(Own):
    """Does otherwise with a single observation than with several."""

    def forward(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        logits, value = super().forward(observation)
        return (-logits if observation.shape[0] == 1 else logits), value


def by_size(observation: Any, action: Any) -> nn.Module:
    return BySize(int(action.n))


def own_recurrent(observation: Any, action: Any) -> nn.Module:
    return OwnRecurrent(4, int(action.n))


def own_pair(observation: Any, action: Any) -> tuple[nn.Module, nn.Module]:
    return nn.Linear(4, int(action.n)), nn.Linear(4, 1)


def own_q(observation: Any, action: Any) -> nn.Module:
    return OwnQ(int(action.n))


def own_recurrent_q(observation: Any, action: Any) -> nn.Module:
    return OwnRecurrentQ(4 + int(action.n) + 1, int(action.n))


def own_core(inputs: int) -> nn.Module:
    return OwnCore(inputs, 6)


def own_control(observation: Any, action: Any) -> tuple[nn.Module, nn.Module]:
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, action.shape[0])), OwnCritic(action.shape[0])


def own_gaussian(observation: Any, action: Any) -> tuple[nn.Module, nn.Module]:
    return nn.Linear(4, 2 * action.shape[0]), OwnCritic(action.shape[0])


# ---- what is exported ------------------------------------------------------------------------------------------------


def mine(name: str) -> str:
    return f"{HERE}:{name}"


PIXELS = {"env": "shoal/Catch-v0", "frame_stack": 4}
DISCRETE = ("a3c", "apex_dqn", "appo", "bc", "discrete_cql", "impala", "ppo", "r2d2")
CONTINUOUS = ("apex_dpg", "cql", "d4pg", "iql", "sac", "td3", "td3_bc")
CASES: list[tuple[str, str, dict[str, Any]]] = [
    *((name, "plain", {"env": "CartPole-v1"}) for name in DISCRETE),
    *((name, "plain", {"env": "Pendulum-v1"}) for name in CONTINUOUS),
    *((name, "continuous", {"env": mine("reach")}) for name in ("a3c", "appo", "bc", "impala", "ppo")),
    *((name, "lstm", {"env": "CartPole-v1", "lstm": 8}) for name in ("a3c", "appo", "bc", "impala", "ppo")),
    *((name, "normalised", {"env": mine("reach"), "normalize_observations": True}) for name in ("appo", "ppo")),
    *(
        (name, "normalised", {"env": mine("dictionary_reach"), "normalize_observations": True})
        for name in ("cql", "iql")
    ),
    ("ppo", "normalised lstm", {"lstm": 8, "normalize_observations": True}),
    *((name, "pixels", PIXELS) for name in DISCRETE),
    ("impala", "pixels lstm", {**PIXELS, "lstm": 8}),
    ("impala", "pixels resnet", {**PIXELS, "encoder": "resnet"}),
    *((name, "dict", {"env": mine("dictionary")}) for name in DISCRETE),
    *((name, "dict", {"env": mine("dictionary_reach")}) for name in CONTINUOUS),
    ("ppo", "dict normalised", {"env": mine("dictionary"), "normalize_observations": True}),
    ("apex_dqn", "quantiles", {"quantiles": 5}),
    ("d4pg", "quantile critic", {"env": "Pendulum-v1", "critic": "quantile"}),
    ("d4pg", "layer norm", {"env": "Pendulum-v1", "layer_norm": True}),
    *((name, "counted from five", {"env": mine("counted_from_five")}) for name in ("impala", "apex_dqn", "r2d2")),
    *((name, "several choices", {"env": mine("several_choices")}) for name in ("impala", "ppo")),
    *((name, "own", {"network": mine("own")}) for name in ("a3c", "appo", "impala", "ppo")),
    ("impala", "own continuous", {"env": mine("reach"), "network": mine("own")}),
    ("impala", "own pair", {"network": mine("own_pair")}),
    ("ppo", "own recurrent", {"network": mine("own_recurrent")}),
    ("apex_dqn", "own", {"network": mine("own_q")}),
    ("r2d2", "own", {"env": "CartPole-v1", "network": mine("own_recurrent_q")}),
    ("r2d2", "own core", {"core": mine("own_core")}),
    *((name, "own", {"env": mine("reach"), "network": mine("own_control")}) for name in ("apex_dpg", "td3")),
    ("sac", "own", {"env": mine("reach"), "network": mine("own_gaussian")}),
]
QUICK = {
    ("impala", "plain"),
    ("r2d2", "plain"),
    ("ppo", "dict normalised"),
    ("sac", "own"),
    ("td3_bc", "dict"),
    ("iql", "plain"),
    ("apex_dqn", "pixels"),
}
