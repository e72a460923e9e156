"""The user's own network: the three forms that a factory may return, and one sentence for what does not fit."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn

from shoal.errors import UserError
from shoal.factories import load_factory
from shoal.nets.user import UserNetwork

VECTOR = spaces.Box(-1.0, 1.0, (4,), np.float32)
BOX = spaces.Box(-2.0, 2.0, (3,))
T, B = 6, 4


class FeedForward(nn.Module):
    def __init__(self, outputs: int, trailing: bool = True) -> None:
        super().__init__()
        self.linear = nn.Linear(4, outputs + 1)
        self.trailing = trailing

    def forward(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        out = self.linear(observation)
        return out[:, :-1], out[:, -1:] if self.trailing else out[:, -1]


class Recurrent(nn.Module):
    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.cell = nn.GRUCell(4, 5)
        self.linear = nn.Linear(5, outputs + 1)

    def initial_state(self, count: int) -> dict[str, Tensor]:
        return {"memory": torch.zeros(count, 5)}

    def forward(self, observation: Tensor, state: dict[str, Tensor]) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        memory = self.cell(observation, state["memory"])
        out = self.linear(memory)
        return out[:, :-1], out[:, -1], {"memory": memory}


def run(network: UserNetwork, first: Tensor | None = None) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    torch.manual_seed(0)
    first = torch.zeros(T, B, dtype=torch.bool) if first is None else first
    return network(torch.randn(T, B, 4), network.initial_state(B), first)  # type: ignore[no-any-return]


@pytest.mark.parametrize("trailing", [True, False])
def test_one_module_gives_parameters_and_value(trailing: bool) -> None:
    parameters, values, state = run(UserNetwork(FeedForward(2, trailing), VECTOR, spaces.Discrete(2), "mine"))
    assert parameters.shape == (T, B, 2)
    assert values.shape == (T, B)
    assert state == {}


def test_a_pair_of_modules_is_policy_and_value() -> None:
    policy, value = nn.Linear(4, 2), nn.Linear(4, 1)
    network = UserNetwork((policy, value), VECTOR, spaces.Discrete(2), "mine")
    torch.manual_seed(0)
    observation = torch.randn(T, B, 4)
    parameters, values, _ = run(network)
    torch.testing.assert_close(parameters, policy(observation))
    torch.testing.assert_close(values, value(observation).squeeze(-1))
    (through_value,) = torch.autograd.grad(values.sum(), policy.weight, allow_unused=True)
    assert through_value is None


@pytest.mark.parametrize("outputs", [3, 6])
def test_means_alone_get_a_learned_standard_deviation(outputs: int) -> None:
    network = UserNetwork(FeedForward(outputs), VECTOR, BOX, "mine")
    assert run(network)[0].shape == (T, B, 6)
    assert ("log_std.log_std" in dict(network.named_parameters())) == (outputs == 3)


def test_a_recurrent_module_is_stepped_and_its_state_zeroed_between_episodes() -> None:
    network = UserNetwork(Recurrent(2), VECTOR, spaces.Discrete(2), "mine")
    first = torch.zeros(T, B, dtype=torch.bool)
    first[3, 1] = True
    parameters, _, state = run(network, first)
    torch.manual_seed(0)
    observation = torch.randn(T, B, 4)
    fresh, _, end = network(observation[3:, 1:2], network.initial_state(1), first[4:, :1].new_zeros(T - 3, 1))
    torch.testing.assert_close(parameters[3:, 1:2], fresh)
    torch.testing.assert_close(state["memory"][1:2], end["memory"])
    kept, _, _ = run(network)
    torch.testing.assert_close(parameters[:, 0], kept[:, 0])
    assert not torch.allclose(parameters[3:, 1], kept[3:, 1])


class Sampling(nn.Module):
    """An actor as machin's tutorials have it: it draws actions itself, and can be asked about given ones."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.linear = nn.Linear(4, outputs)

    def forward(self, state: Tensor, action: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        drawn_by = torch.distributions.Categorical(torch.softmax(self.linear(state), dim=1))
        chosen = action if action is not None else drawn_by.sample()
        return chosen, drawn_by.log_prob(chosen.flatten()), drawn_by.entropy()


def test_a_policy_that_answers_with_log_probabilities_is_asked_about_every_action() -> None:
    actor = Sampling(3)
    network = UserNetwork((actor, nn.Linear(4, 1)), VECTOR, spaces.Discrete(3), "mine")
    parameters, values, _ = run(network)
    torch.manual_seed(0)
    observation = torch.randn(T, B, 4)
    torch.testing.assert_close(parameters, torch.log_softmax(actor.linear(observation), dim=-1))
    assert values.shape == (T, B)
    parameters.sum().backward()
    assert actor.linear.weight.grad is not None


@pytest.mark.parametrize(
    ("made", "action_space", "sentence"),
    [
        (FeedForward(3), spaces.Discrete(2), r"mine gave policy outputs of shape \[2, 3\].* needs \[2, 2\]"),
        (FeedForward(4), BOX, r"needs \[2, 3\] or \[2, 6\]"),
        ((nn.Linear(4, 2), nn.Linear(4, 2)), spaces.Discrete(2), r"mine gave values of shape \[2, 2\]"),
        (nn.Linear(4, 2), spaces.Discrete(2), r"mine must return \(parameters, value\), not Tensor"),
        ("a string", spaces.Discrete(2), "mine returned str"),
        ((Sampling(3), nn.Linear(4, 1)), BOX, "The policy of the network mine gave a tuple, not a tensor: return what"),
        (Sampling(3), spaces.Discrete(3), r"mine must return \(parameters, value\), not 3 values"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_sentence(
    made: Any, action_space: spaces.Space[Any], sentence: str
) -> None:
    with pytest.raises(UserError, match=sentence):
        UserNetwork(made, VECTOR, action_space, "mine")


def test_a_factory_that_is_not_there_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    with pytest.raises(UserError, match="module:factory"):
        load_factory("no_colon")
    with pytest.raises(UserError, match="no module 'not_a_module'"):
        load_factory("not_a_module:make")
    with pytest.raises(UserError, match="has no function 'nothing'"):
        load_factory("json:nothing")
    (tmp_path / "needs_more.py").write_text("import a_missing_dependency\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"needs the module 'a_missing_dependency'.*\(needs_more.py, line 1\)"):
        load_factory("needs_more:make")
