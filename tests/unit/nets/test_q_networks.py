"""Q networks: dueling heads, recurrence through episode ends, and the user's own networks and cores."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn

from network_options import NetworkOptions, SpacePair
from shoal import tree
from shoal.errors import UserError
from shoal.nets.q import (
    DuelingHead,
    QNetwork,
    RecurrentQNetwork,
    make_q_network,
    make_recurrent_q_network,
    previous,
    unroll,
)

VECTOR = spaces.Box(-1.0, 1.0, (4,), np.float32)
NESTED = spaces.Dict({"position": VECTOR, "goal": spaces.Discrete(3)})
DISCRETE = spaces.Discrete(3)
ENV = SpacePair(VECTOR, DISCRETE)
T, B = 7, 4

USER_CODE = """
import torch
from torch import nn

class FeedForward(nn.Module):
    def __init__(self, *shape):
        super().__init__()
        self.shape, self.linear = shape, nn.Linear(4, torch.Size(shape).numel())
    def forward(self, observation):
        return self.linear(observation).view(-1, *self.shape)

class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell, self.head = nn.GRUCell(4 + 3 + 1, 5), nn.Linear(5, 3)
    def initial_state(self, count):
        return {"memory": torch.zeros(count, 5)}
    def forward(self, observation, previous_action, previous_reward, state):
        x = torch.cat([observation, previous_action, previous_reward.unsqueeze(-1)], -1)
        memory = self.cell(x, state["memory"])
        return self.head(memory), {"memory": memory}

class Core(nn.Module):
    def __init__(self, inputs):
        super().__init__()
        self.cell = nn.GRUCell(inputs, 6)
    def initial_state(self, count):
        return {"memory": torch.zeros(count, 6)}
    def forward(self, x, state):
        memory = self.cell(x, state["memory"])
        return memory, {"memory": memory}

def plain(observation_space, action_space): return FeedForward(3)
def wrong(observation_space, action_space): return FeedForward(2)
def quantiles(observation_space, action_space): return FeedForward(3, 8)
def recurrent(observation_space, action_space): return Recurrent()
def number(observation_space, action_space): return 7
def core(inputs): return Core(inputs)
def bad_core(inputs): return nn.Linear(inputs, 6)
"""


@pytest.fixture
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "user_q_networks.py").write_text(USER_CODE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "user_q_networks", raising=False)
    return "user_q_networks"


def rows(space: spaces.Space[Any], *leading: int, seed: int = 0) -> Any:
    generator = torch.Generator().manual_seed(seed)
    if isinstance(space, spaces.Dict):
        return {key: rows(part, *leading, seed=seed) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Discrete):
        return torch.randint(int(space.n), leading, generator=generator)
    return torch.randn(*leading, *space.shape, generator=generator)


def history(seed: int = 1) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    first = torch.rand(T, B, generator=generator) < 0.25
    return torch.randint(3, (T, B), generator=generator), torch.randn(T, B, generator=generator), first


@pytest.mark.parametrize(("quantiles", "stream"), [(0, 0), (0, 8), (5, 0), (5, 8)])
def test_a_dueling_head_gives_value_plus_centred_advantages(quantiles: int, stream: int) -> None:
    head = DuelingHead(6, 3, quantiles=quantiles, stream=stream, activation="relu")
    features = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))
    q = head(features)
    assert q.shape == ((4, 3, quantiles) if quantiles else (4, 3))
    for_value, for_advantage = features, features
    if stream:
        both = torch.relu(features @ head.streams.weight.T + head.streams.bias)
        for_value, for_advantage = both[:, :stream], both[:, stream:]
    value, advantage = head.value(for_value), head.advantage(for_advantage).view(4, 3, quantiles or 1)
    for action in range(3):
        expected = value + advantage[:, action] - advantage.mean(1)
        torch.testing.assert_close(q[:, action].reshape(expected.shape), expected)


class Doubled(nn.Linear):
    """Of a linear layer's weights it makes something else, as a noisy layer does."""

    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


@pytest.mark.parametrize("stream", [0, 8])
def test_layers_that_somebody_puts_into_a_head_are_asked_themselves(stream: int) -> None:
    head = DuelingHead(6, 3, stream=stream, activation="relu")
    features = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))
    before = head(features)
    for name in ("value", "advantage"):
        doubled = Doubled(stream or 6, 1 if name == "value" else 3)
        doubled.load_state_dict(getattr(head, name).state_dict())
        setattr(head, name, doubled)
    torch.testing.assert_close(head(features), 2 * before)


@pytest.mark.parametrize("space", [VECTOR, NESTED, spaces.Box(0, 255, (84, 84, 4), np.uint8)])
def test_q_networks_read_every_observation_space(space: spaces.Space[Any]) -> None:
    batch = rows(space, 2)
    if not isinstance(space, spaces.Dict):
        batch = batch.to(torch.uint8) if space.dtype == np.uint8 else batch
    assert QNetwork(space, DISCRETE, hidden=(16,))(batch).shape == (2, 3)
    assert QNetwork(space, DISCRETE, hidden=(), quantiles=7)(batch).shape == (2, 3, 7)


def test_only_discrete_actions_have_q_values() -> None:
    with pytest.raises(UserError, match="Discrete"):
        QNetwork(VECTOR, spaces.Box(-1.0, 1.0, (2,)))


def test_initial_weights_depend_on_the_seed_alone() -> None:
    torch.manual_seed(1)
    before = torch.random.get_rng_state()
    same = [make_q_network(NetworkOptions(hidden=(8,)), ENV, 5) for _ in range(2)]
    other = make_q_network(NetworkOptions(hidden=(8,)), ENV, 6)
    assert torch.equal(torch.random.get_rng_state(), before)
    x = rows(VECTOR, 3)
    assert torch.equal(same[0](x), same[1](x))
    assert not torch.equal(same[0](x), other(x))


def recurrent_networks(user: str) -> list[Any]:
    sizes: dict[str, Any] = {"hidden": (8,), "lstm": 6, "stream": 8}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        of_quantiles = RecurrentQNetwork(VECTOR, DISCRETE, **sizes, quantiles=5)
    return [
        make_recurrent_q_network(NetworkOptions(**sizes), ENV, 0),
        of_quantiles,
        make_recurrent_q_network(NetworkOptions(**sizes, core=f"{user}:core"), ENV, 0),
        make_recurrent_q_network(NetworkOptions(network=f"{user}:recurrent"), ENV, 0),
    ]


def test_a_recurrent_batch_equals_stepping_one_by_one_with_episode_ends_inside(user: str) -> None:
    action, reward, first = history()
    observation = rows(VECTOR, T, B)
    for network in recurrent_networks(user):
        state = {key: torch.randn_like(x) for key, x in network.initial_state(B).items()}
        together, after = network(observation, action, reward, state, first)
        for t in range(T):
            row = slice(t, t + 1)
            q, state = network(observation[row], action[row], reward[row], state, first[row])
            torch.testing.assert_close(q[0], together[t])
        torch.testing.assert_close(state, after)


def test_a_new_episode_remembers_nothing_of_the_last(user: str) -> None:
    action, reward, first = history()
    first[3] = True
    observation = rows(VECTOR, T, B)
    for network in recurrent_networks(user):
        state = network.initial_state(B)
        q, _ = network(observation, action, reward, state, first)
        spoiled = observation.clone()
        spoiled[:3] += 1.0
        action[:4] = (action[:4] + 1) % 3  # row 3's previous action and reward are those of the episode before
        reward[:4] += 1.0
        other, _ = network(spoiled, action, reward, {key: x + 1.0 for key, x in state.items()}, first)
        torch.testing.assert_close(other[3:], q[3:])
        assert not torch.allclose(other[:3], q[:3])


def test_previous_action_and_reward_reach_the_values(user: str) -> None:
    action, reward, _ = history()
    first = torch.zeros(T, B, dtype=torch.bool)
    observation = rows(VECTOR, T, B)
    for network in recurrent_networks(user):
        state = network.initial_state(B)
        q, _ = network(observation, action, reward, state, first)
        for changed in ((action + 1) % 3, reward), (action, reward + 1.0):
            assert not torch.allclose(network(observation, *changed, state, first)[0], q)


def test_the_gradient_of_a_recurrent_q_network_is_that_of_finite_differences() -> None:
    action, reward, first = history()
    # a smooth torso: a kink would spoil the differences
    network = RecurrentQNetwork(VECTOR, DISCRETE, hidden=(3,), activation="tanh", lstm=3)
    observation, state = rows(VECTOR, T, B), network.initial_state(B)
    weight = network.core.cell.weight_hh

    def loss() -> Tensor:
        return network(observation, action, reward, state, first)[0].square().sum()

    (gradient,) = torch.autograd.grad(loss(), weight)
    direction = torch.randn(weight.shape, generator=torch.Generator().manual_seed(3))
    step = 1e-2
    with torch.no_grad():
        weight += step * direction
        above = float(loss())
        weight -= 2 * step * direction
        below = float(loss())
    assert float((gradient * direction).sum()) == pytest.approx((above - below) / (2 * step), rel=1e-2)


@pytest.mark.parametrize("burn_in", [0, 3])
def test_unrolling_with_a_burn_in_gives_the_values_of_one_call(user: str, burn_in: int) -> None:
    action, reward, _ = history()
    first = torch.zeros(T, B, dtype=torch.bool)
    first[0, 1] = True
    observation = rows(VECTOR, T, B)
    for network in recurrent_networks(user):
        state = {key: x + 0.5 for key, x in network.initial_state(B).items()}
        q, _ = network(observation, action, reward, state, first)
        torch.testing.assert_close(unroll(network, (observation, action, reward), state, first, burn_in), q)


def test_previous_shifts_a_column_by_one_row() -> None:
    column = torch.arange(6).view(3, 2)
    assert previous(column, torch.tensor([8, 9])).tolist() == [[8, 9], [0, 1], [2, 3]]


def test_the_users_feed_forward_network_is_called_as_the_built_in_one(user: str) -> None:
    x = rows(VECTOR, 5)
    assert make_q_network(NetworkOptions(network=f"{user}:plain"), ENV, 0)(x).shape == (5, 3)
    assert make_q_network(NetworkOptions(network=f"{user}:quantiles"), ENV, 0, quantiles=8)(x).shape == (5, 3, 8)


def test_what_does_not_fit_is_said_in_one_sentence(user: str) -> None:
    with pytest.raises(UserError, match=r"\[2, 2\].*\[2, 3\]"):
        make_q_network(NetworkOptions(network=f"{user}:wrong"), ENV, 0)
    with pytest.raises(UserError, match=r"\[2, 3\].*\[2, 3, 8\]"):
        make_q_network(NetworkOptions(network=f"{user}:plain"), ENV, 0, quantiles=8)
    with pytest.raises(UserError, match="recurrent"):
        make_q_network(NetworkOptions(network=f"{user}:recurrent"), ENV, 0)
    with pytest.raises(UserError, match="returned int"):
        make_q_network(NetworkOptions(network=f"{user}:number"), ENV, 0)
    with pytest.raises(UserError, match="initial_state"):
        make_recurrent_q_network(NetworkOptions(network=f"{user}:plain"), ENV, 0)
    with pytest.raises(UserError, match=r"core.*initial_state"):
        make_recurrent_q_network(NetworkOptions(core=f"{user}:bad_core", lstm=6), ENV, 0)


def test_nested_observations_go_through_a_recurrent_network() -> None:
    action, reward, first = history()
    observation = rows(NESTED, T, B)
    network = RecurrentQNetwork(NESTED, DISCRETE, hidden=(8,), lstm=6)
    q, state = network(observation, action, reward, network.initial_state(B), first)
    again, _ = network(
        tree.map(lambda x: x[:3], observation), action[:3], reward[:3], network.initial_state(B), first[:3]
    )
    torch.testing.assert_close(q[:3], again)
    assert {key: tuple(x.shape) for key, x in state.items()} == {"hidden": (B, 6), "cell": (B, 6)}
