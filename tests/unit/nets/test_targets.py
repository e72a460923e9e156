"""Slow copies of a network, and the same network without gradients."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from shoal.nets.targets import Drift, Target, frozen


def network() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


def move(made: nn.Module) -> None:
    with torch.no_grad():
        for tensor in [*made.parameters(), *made.buffers()]:
            tensor += 1


def test_a_copy_keeps_its_values_until_it_follows() -> None:
    made = network()
    target = Target(made, every=2)
    before = [parameter.clone() for parameter in target.network.parameters()]
    move(made)
    target.follow(1)
    assert all(torch.equal(a, b) for a, b in zip(target.network.parameters(), before))
    target.follow(2)
    assert all(torch.equal(a, b) for a, b in zip(target.network.parameters(), made.parameters()))


def test_buffers_are_copied_whatever_the_rate() -> None:
    made = network()
    target = Target(made, every=1, rate=0.1)
    move(made)
    target.follow(1)
    assert all(torch.equal(a, b) for a, b in zip(target.network.buffers(), made.buffers()))


def test_the_drift_is_the_distance_in_parts_of_the_networks_size() -> None:
    made = network()
    target = Target(made, every=1)
    assert target.drift() == 0.0
    with torch.no_grad():
        for parameter in made.parameters():
            parameter *= 1.25
    assert target.drift() == pytest.approx(0.2)
    measured = Drift(target)
    target.approach(1.0)
    assert target.drift() == 0.0
    assert float(measured) == 0.0  # as it is when it is read


def test_a_copy_goes_a_part_of_the_way() -> None:
    made = network()
    target = Target(made, every=1, rate=0.25)
    before = [parameter.clone() for parameter in target.network.parameters()]
    move(made)
    target.follow(1)
    torch.testing.assert_close(list(target.network.parameters()), [parameter + 0.25 for parameter in before])


def test_a_copys_state_is_its_own_and_comes_back() -> None:
    made = network()
    target = Target(made, every=10)
    move(made)
    state = target.state_dict()
    restored = Target(made, every=10)
    restored.load_state_dict(state)
    assert restored.drift() == target.drift() > 0.0


def test_a_copy_asks_for_no_gradient_and_leaves_the_network_its_own() -> None:
    made = network()
    target = Target(made, every=1)
    assert not any(parameter.requires_grad for parameter in target.network.parameters())
    assert all(parameter.requires_grad for parameter in made.parameters())


def test_a_frozen_network_gives_the_slope_by_its_input_and_none_by_its_parameters() -> None:
    made = network()
    made[0].bias.requires_grad_(False)  # type: ignore[index]
    asked = [parameter.requires_grad for parameter in made.parameters()]
    x = torch.randn(5, 3, requires_grad=True)
    with frozen(made):
        made(x).sum().backward()
    assert x.grad is not None
    assert all(parameter.grad is None for parameter in made.parameters())
    assert [parameter.requires_grad for parameter in made.parameters()] == asked


def test_a_network_asks_for_gradients_again_also_after_a_failure() -> None:
    made = network()
    with pytest.raises(ZeroDivisionError), frozen(made):
        raise ZeroDivisionError
    assert all(parameter.requires_grad for parameter in made.parameters())
