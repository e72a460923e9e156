"""What a user's factory or module gets wrong is one sentence that says what and where."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn

from shoal.algorithms import apex_dqn, d4pg, impala, r2d2, sac
from shoal.errors import UserError

OBSERVATIONS = spaces.Box(-1.0, 1.0, (3,))


class Spec:
    def __init__(self, action_space: spaces.Space[Any]) -> None:
        self.observation_space, self.action_space = OBSERVATIONS, action_space


DISCRETE, CONTINUOUS = Spec(spaces.Discrete(2)), Spec(spaces.Box(-1.0, 1.0, (2,)))


class Broken(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(7, 2)  # there are 3 observations

    def forward(self, observation: Tensor) -> Any:
        return self.layer(observation), self.layer(observation)


class NoParameters(nn.Module):
    def forward(self, observation: Tensor) -> Any:
        return torch.zeros(len(observation), 2), torch.zeros(len(observation))


def raises(observation_space: object, action_space: object) -> nn.Module:
    raise KeyError("hidden")


def no_arguments() -> nn.Module:
    return Broken()


def broken(observation_space: object, action_space: object) -> nn.Module:
    return Broken()


def broken_pair(observation_space: object, action_space: object) -> tuple[nn.Module, nn.Module]:
    return nn.Linear(7, 2), nn.Linear(7, 2)


def double(observation_space: object, action_space: object) -> nn.Module:
    return nn.Linear(3, 2).double()


def untrainable(observation_space: object, action_space: object) -> nn.Module:
    return NoParameters()


class Sick(nn.Module):
    """What a forward should not do; else a network with a policy and a value, or a value for each action."""

    def __init__(self, how: str, q: bool) -> None:
        super().__init__()
        self.how, self.layer, self.value = how, nn.Linear(3, 2), None if q else nn.Linear(3, 1)
        if how == "begun":
            self.layer.weight.data[0, 0] = float("inf")

    def forward(self, observation: Tensor) -> Any:
        if self.how == "input":
            observation /= 255.0
        if self.how == "weights":
            self.layer.weight.data *= 0.5
        outputs = self.layer(observation)
        if self.how == "nan":
            outputs = outputs * (observation - observation).mean().log() * 0.0
        if self.how == "well":  # no number for zeros alone
            outputs = outputs + (observation / observation.norm()).sum() * 0.0
        return outputs if self.value is None else (outputs, self.value(observation))


@pytest.mark.parametrize(
    ("how", "sentence"),
    [
        ("input", "overwrites its input, which others read after it: compute in a new tensor"),
        ("weights", "changes its own parameter layer.weight in forward"),
        ("nan", "gives numbers that are none (nan)"),
        ("begun", "has numbers in its parameter layer.weight that are not finite"),
    ],
)
@pytest.mark.parametrize("algorithm", [impala, apex_dqn], ids=["impala", "apex_dqn"])
def test_a_sick_network_is_refused_at_the_start(algorithm: Any, how: str, sentence: str) -> None:
    cfg = algorithm.Config(network=lambda *spaces: Sick(how, algorithm is apex_dqn))
    with pytest.raises(UserError) as told:
        algorithm.make_policy(cfg, DISCRETE, seed=1)
    assert sentence in str(told.value)


@pytest.mark.parametrize("algorithm", [impala, apex_dqn], ids=["impala", "apex_dqn"])
def test_a_network_that_zeros_alone_are_too_much_for_is_taken(algorithm: Any) -> None:
    cfg = algorithm.Config(network=lambda *spaces: Sick("well", algorithm is apex_dqn))
    algorithm.make_policy(cfg, DISCRETE, seed=1)


CASES = [
    (raises, "could not be made: KeyError: 'hidden' (", "test_user_module.py, line"),
    (no_arguments, "could not be made: TypeError: no_arguments() takes 0 positional", ""),
    (broken, "failed on a batch of float32 [2, 3]: RuntimeError: mat1 and mat2", "test_user_module.py, line"),
    (double, "has a parameter weight of torch.float64: it is trained in torch.float32", ".float()"),
    (untrainable, "has no parameters to train", "nn.Parameters"),
]


@pytest.mark.parametrize(("factory", "sentence", "where"), CASES)
@pytest.mark.parametrize("algorithm", [impala, apex_dqn], ids=["impala", "apex_dqn"])
def test_a_factory_or_module_that_fails_is_told_in_one_sentence(
    algorithm: Any, factory: Any, sentence: str, where: str
) -> None:
    cfg = algorithm.Config(network=f"{__name__}:{factory.__name__}")
    with pytest.raises(UserError) as told:
        algorithm.make_policy(cfg, DISCRETE, seed=1)
    assert sentence in str(told.value)
    assert where in str(told.value)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize("algorithm", [d4pg, sac], ids=["d4pg", "sac"])
def test_so_is_a_pair_of_modules(algorithm: Any) -> None:
    with pytest.raises(UserError, match=r"The actor of .*broken_pair failed on a batch of float32 \[2, 3\]"):
        algorithm.make_policy(algorithm.Config(network=f"{__name__}:broken_pair"), CONTINUOUS, seed=1)


def test_and_a_recurrent_core() -> None:
    with pytest.raises(UserError, match=r"The core .*raises_core could not be made: ValueError: too wide"):
        r2d2.make_policy(r2d2.Config(core=f"{__name__}:raises_core"), DISCRETE, seed=1)


def raises_core(inputs: int) -> nn.Module:
    raise ValueError("too wide")
