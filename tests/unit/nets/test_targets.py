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
    target.reset()
    assert target.drift() == 0.0
    assert float(measured) == 0.0  # as it is when it is read


def test_a_copy_asks_for_no_gradient_and_leaves_the_network_its_own() -> None:
    made = network()
    for other in (Target(made, every=1).network, frozen(made)):
        assert not any(parameter.requires_grad for parameter in other.parameters())
    assert all(parameter.requires_grad for parameter in made.parameters())


def test_a_frozen_network_changes_with_the_one_it_was_made_of() -> None:
    made = network()
    twin = frozen(made)
    move(made)
    assert all(
        torch.equal(a, b) for a, b in zip([*twin.parameters(), *twin.buffers()], [*made.parameters(), *made.buffers()])
    )
