"""Every policy of the built-in networks: the protocol, its device, and a state that can be taken and given back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn

from network_options import NetworkOptions, SpacePair
from shoal import tree
from shoal.acting import Policy, network_policy
from shoal.acting import actor_critic as acting_actor_critic
from shoal.acting import recurrent_q as acting_recurrent_q
from shoal.acting.actor_critic import ActorCriticPolicy
from shoal.acting.deterministic import DeterministicPolicy
from shoal.acting.network_policy import NetworkPolicy
from shoal.acting.policy import Acted, Choice, State
from shoal.acting.q import QPolicy
from shoal.acting.recurrent_q import RecurrentQPolicy
from shoal.acting.squashed import SquashedGaussianPolicy
from shoal.functional.arrays import Random, normal
from shoal.nets.building import make_actor_critic
from shoal.nets.control import Actor, ControlNetworks, Critic, GaussianActor, TemperedNetworks, TwinCritic, make_bodies
from shoal.nets.dense import Dense
from shoal.nets.q import make_q_network, make_recurrent_q_network
from shoal.nets.weights import export_weights

COUNT = 4
VECTOR = spaces.Box(-1.0, 1.0, (3,), np.float32)
ACTIONS = spaces.Discrete(3)
CONTROLS = spaces.Box(-2.0, 2.0, (2,), np.float32)
SMALL: dict[str, Any] = {"hidden": (8,), "actor_hidden": (8,), "critic_hidden": (8,)}
EPSILONS = np.full(COUNT, 0.3)
Make = Callable[[int, str], NetworkPolicy[Any]]


def alike(items: Mapping[str, Tensor]) -> Tensor:
    return torch.ones(len(items["reward"]))


def actor_critic(seed: int, device: str, **options: Any) -> NetworkPolicy[Any]:
    network = make_actor_critic(NetworkOptions(**SMALL, **options), SpacePair(VECTOR, ACTIONS), seed)
    return ActorCriticPolicy(network, seed, device=device)


def q(seed: int, device: str) -> NetworkPolicy[Any]:
    network = make_q_network(NetworkOptions(**SMALL), SpacePair(VECTOR, ACTIONS), seed)
    return QPolicy(network, seed, epsilons=EPSILONS, priorities=alike, device=device)


def recurrent_q(seed: int, device: str) -> NetworkPolicy[Any]:
    network = make_recurrent_q_network(NetworkOptions(**SMALL, lstm=5), SpacePair(VECTOR, ACTIONS), seed)
    return RecurrentQPolicy(network, seed, epsilons=EPSILONS, priorities=alike, device=device)


def deterministic(seed: int, device: str) -> NetworkPolicy[Any]:
    actor, critic = make_bodies(NetworkOptions(**SMALL), SpacePair(VECTOR, CONTROLS), seed)
    networks = ControlNetworks(Actor(actor, CONTROLS), Critic(critic))
    return DeterministicPolicy(networks, seed, noise=EPSILONS, priorities=alike, random_rows=2, device=device)


def squashed(seed: int, device: str) -> NetworkPolicy[Any]:
    actor, *critics = make_bodies(
        NetworkOptions(**SMALL), SpacePair(VECTOR, CONTROLS), seed, actor_outputs=2, critics=2
    )
    networks = TemperedNetworks(GaussianActor(actor, CONTROLS), TwinCritic(*critics), 0.5)
    return SquashedGaussianPolicy(networks, seed, priorities=alike, random_rows=2, device=device)


POLICIES: dict[str, Make] = {
    "actor-critic": actor_critic,
    "recurrent actor-critic": lambda seed, device: actor_critic(seed, device, lstm=5),
    "q": q,
    "recurrent q": recurrent_q,
    "deterministic": deterministic,
    "squashed": squashed,
}


def observations(rows: int) -> Any:
    return np.random.default_rng(0).standard_normal((rows, COUNT, 3)).astype(np.float32)


def play(policy: Policy, seen: Any, state: Any = None) -> tuple[list[Any], Any]:
    state, found = policy.initial_state(COUNT) if state is None else state, []
    for observation in seen:
        action, state, extras = policy.act(observation, state, np.zeros(COUNT, np.bool_))
        found.append((action, extras))
    return found, state


@pytest.mark.parametrize("name", POLICIES)
def test_a_policy_gives_a_row_for_every_environment(name: str) -> None:
    policy = POLICIES[name](1, "cpu")
    state = policy.initial_state(COUNT)
    (action, after, extras) = policy.act(observations(1)[0], state, np.ones(COUNT, np.bool_))  # type: ignore[attr-defined]
    assert all(len(column) == COUNT for column in (action, *after.values(), *extras.values()))
    assert {key: (x.shape, x.dtype) for key, x in after.items()} == {
        key: (x.shape, x.dtype) for key, x in state.items()
    }
    assert ("recurrent" in name) == bool(state)


@pytest.mark.parametrize("name", POLICIES)
def test_a_policys_state_holds_weights_random_numbers_and_what_it_has_counted(name: str) -> None:
    seen = observations(6)
    policy, other = POLICIES[name](1, "cpu"), POLICIES[name](2, "cpu")
    policy.load(export_weights(POLICIES[name](3, "cpu").network))
    _, state = play(policy, seen[:1])  # type: ignore[arg-type]
    saved = policy.state_dict()
    expected, _ = play(policy, seen[1:], state)  # type: ignore[arg-type]
    other.load_state_dict(saved)
    found, _ = play(other, seen[1:], state)  # type: ignore[arg-type]
    for (action, extras), (expected_action, expected_extras) in zip(found, expected):
        np.testing.assert_array_equal(action, expected_action)
        assert extras.keys() == expected_extras.keys()
        for key in extras:
            np.testing.assert_array_equal(extras[key], expected_extras[key])


@pytest.mark.parametrize("name", POLICIES)
def test_a_policy_acts_on_the_device_it_was_given(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The device stands in for a GPU: a tensor that was left on the CPU cannot be computed with beside it."""
    brought_back: list[torch.device] = []

    def to_array(tensor: Tensor) -> Any:
        brought_back.append(tensor.device)
        return np.zeros(tuple(tensor.shape), torch.empty(0, dtype=tensor.dtype).numpy().dtype)

    for module in (network_policy, acting_actor_critic, acting_recurrent_q):
        monkeypatch.setattr(module, "to_array", to_array)
    policy = POLICIES[name](1, "meta")
    assert policy.mirror is None
    assert {tensor.device.type for tensor in (*policy.network.parameters(), *policy.network.buffers())} == {"meta"}
    policy.load(export_weights(POLICIES[name](3, "cpu").network))
    play(policy, observations(3))  # type: ignore[arg-type]
    assert {device.type for device in brought_back} == {"meta"}


@pytest.mark.parametrize("name", ["actor-critic", "q", "recurrent q"])
def test_on_a_cpu_a_small_network_acts_without_torch(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = POLICIES[name](1, "cpu")
    assert policy.mirror is not None
    monkeypatch.setattr(policy.network, "forward", None)
    play(policy, observations(2))  # type: ignore[arg-type]


def as_tensors(nested: Any) -> Any:
    return tree.map(torch.from_numpy, nested)


@pytest.mark.parametrize("name", POLICIES)
def test_given_tensors_a_policy_answers_in_tensors_and_nothing_is_an_array_on_the_way(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = POLICIES[name](1, "cpu")
    state, seen = as_tensors(policy.initial_state(COUNT)), torch.from_numpy(observations(3))
    first = torch.zeros(COUNT, dtype=torch.bool)
    for _ in range(3):  # what it needs of its own it may fetch with the first rows, of which two are random
        policy.act(seen[0], state, first)

    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("a copy between arrays and tensors")

    with monkeypatch.context() as patched:
        for owner, method in ((torch, "from_numpy"), (Tensor, "numpy"), (Tensor, "cpu"), (Tensor, "item")):
            patched.setattr(owner, method, refuse)
        for observation in seen:
            action, state, extras = policy.act(observation, state, first)
            assert all(isinstance(x, Tensor) and len(x) == COUNT for x in (action, *state.values(), *extras.values()))
            assert not any(x.is_inference() for x in (action, *state.values())), "an environment may write into it"


@pytest.mark.parametrize("name", POLICIES)
def test_on_tensors_its_draws_follow_its_seed_and_its_state(name: str) -> None:
    seen, nowhere = torch.from_numpy(observations(6)), torch.zeros(COUNT, dtype=torch.bool)

    def acts(policy: NetworkPolicy[Any], rows: Tensor, state: Any = None) -> tuple[list[Any], Any]:
        state, actions = as_tensors(policy.initial_state(COUNT)) if state is None else state, []
        for observation in rows:
            action, state, _ = policy.act(observation, state, nowhere)
            actions.append(action)
        return actions, state

    one, other = (POLICIES[name](1, "cpu") for _ in range(2))
    expected, _ = acts(one, seen)
    begun, state = acts(other, seen[:3])
    third = POLICIES[name](9, "cpu")
    third.load_state_dict(other.state_dict())
    found, _ = acts(third, seen[3:], state)
    torch.testing.assert_close(torch.stack(expected), torch.stack(begun + found))
    another, _ = acts(POLICIES[name](2, "cpu"), seen)
    assert not torch.equal(torch.stack(expected), torch.stack(another))


@pytest.mark.parametrize("name", ["actor-critic", "q", "recurrent q"])
def test_a_mirror_does_what_the_policy_says_in_torch(name: str) -> None:
    """Greedy and exploring, by the same random numbers; the torch network gets what the mirror has loaded."""
    mirrored, plain = POLICIES[name](1, "cpu"), POLICIES[name](1, "cpu")
    plain.mirror = None
    weights = export_weights(POLICIES[name](3, "cpu").network)
    mirrored.load(weights)
    plain.load(weights)
    found, state = play(mirrored, observations(8))  # type: ignore[arg-type]
    expected, expected_state = play(plain, observations(8))  # type: ignore[arg-type]
    for (action, extras), (expected_action, expected_extras) in zip(found, expected):
        np.testing.assert_array_equal(action, expected_action)
        for key in expected_extras:
            np.testing.assert_allclose(extras[key], expected_extras[key], rtol=1e-4, atol=1e-5)
    for key in expected_state:
        np.testing.assert_allclose(state[key], expected_state[key], rtol=1e-4, atol=1e-5)
    seen, before = observations(1)[0], mirrored.initial_state(COUNT)
    choice, wanted = mirrored.greedy(seen, before), plain.greedy(*as_tensors((seen, before)))
    np.testing.assert_array_equal(choice.action, wanted.action.numpy())
    np.testing.assert_allclose(choice.scores, wanted.scores.detach().numpy(), rtol=1e-4, atol=1e-5)


class NoisyDense(Dense):
    """A layer of the user's own that is derived from a known one and computes something else."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + 1.0


@pytest.mark.parametrize("name", ["actor-critic", "q", "recurrent q"])
def test_a_network_with_a_layer_that_a_mirror_does_not_know_acts_by_torch(name: str) -> None:
    known = POLICIES[name](1, "cpu").network
    known.torso[0] = NoisyDense(3, 8, "tanh")
    arguments: dict[str, Any] = {} if name == "actor-critic" else {"epsilons": np.zeros(COUNT), "priorities": alike}
    kind: Any = {"actor-critic": ActorCriticPolicy, "q": QPolicy, "recurrent q": RecurrentQPolicy}[name]
    policy = kind(known, 1, **arguments)
    assert policy.mirror is None
    play(policy, observations(1))


class NoisyLayer(nn.Linear):
    """Explores by what it adds; it is told when."""

    random: Random | None = None

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        return y if self.random is None else y + normal(self.random, y)


class NoisyPolicy(NetworkPolicy[NoisyLayer]):
    def greedy(self, observation: Any, state: State) -> Choice:
        assert not self.network.training
        values = self.network(observation)
        return Choice(values.argmax(-1), values, state)

    def explore(self, observation: Any, state: State, random: Random) -> Acted:
        self.network.random = random
        values, self.network.random = self.network(observation), None
        assert not self.network.training
        return values.argmax(-1), state, {"q": values}


@pytest.mark.parametrize("kind", ["arrays", "tensors"])
def test_noise_within_a_network_is_drawn_where_it_explores_and_goes_on_with_its_state(kind: str) -> None:
    seen = observations(1)[0]
    seen = torch.from_numpy(seen) if kind == "tensors" else seen
    network = NoisyLayer(3, 3)

    def values(policy: NoisyPolicy) -> np.ndarray[Any, Any]:
        return np.asarray(policy.act(seen, {}, np.ones(COUNT, np.bool_))[2]["q"])

    exploring, again, greedy = (NoisyPolicy(network, seed, greedy=seed == 2) for seed in range(3))
    first = values(exploring)
    state = exploring.state_dict()
    second = values(exploring)
    assert not np.array_equal(first, second)
    again.load_state_dict(state)
    np.testing.assert_array_equal(values(again), second)
    chosen = [greedy.act(seen, {}, np.ones(COUNT, np.bool_))[0] for _ in range(3)]
    preferred = greedy.greedy(torch.as_tensor(seen), {}).action.numpy()
    assert all(np.array_equal(action, preferred) for action in chosen)
