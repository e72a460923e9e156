"""Modules on the weight service: state_dict in, state_dict out."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from shoal import optim
from shoal.services.modules import SharedModule
from shoal.services.weights import WeightStore


def network() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 2, 2), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(8, 1))


def same(one: nn.Module, other: nn.Module) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one.state_dict().values(), other.state_dict().values()))


def test_what_one_node_publishes_another_has_after_a_refresh() -> None:
    store, here, there = WeightStore(), network(), network()
    one, other = SharedModule(store, here), SharedModule(store, there)
    assert not other.refresh()
    one.publish(score=3.5)
    assert not same(here, there)
    assert other.refresh()
    assert same(here, there)
    assert (other.version, float(other.notes["score"])) == (0, 3.5)
    assert not other.refresh()


def test_steps_of_an_optimizer_that_is_made_later_are_published() -> None:
    store, here, there = WeightStore(), network(), network()
    one, other = SharedModule(store, here), SharedModule(store, there)
    optimizer = optim.Local(here.parameters(), rate=0.1)
    one.publish()
    optimizer.step(here(torch.randn(4, 1, 3, 3)).square().mean())
    one.publish()
    assert other.refresh()
    assert other.version == 1
    assert same(here, there)


def test_only_who_has_seen_the_newest_replaces_it() -> None:
    store = WeightStore()
    one, other = (SharedModule(store, network()) for _ in range(2))
    assert one.publish_if_newest(error=2.0)
    assert not other.publish_if_newest(error=1.0)
    assert other.look()
    assert float(other.notes["error"]) == 2.0
    assert other.publish_if_newest(error=1.0)
    assert store.version() == 1
    np.testing.assert_array_equal(store.newer(0)[1]["note/error"], 1.0)  # type: ignore[index]


def test_who_published_the_newest_has_seen_it_and_may_replace_it_again() -> None:
    store = WeightStore()
    one = SharedModule(store, network())
    for version, error in enumerate((3.0, 2.0, 1.0)):
        assert one.publish_if_newest(error=error)
        assert (one.version, float(one.notes["error"]), store.version()) == (version, error, version)
        assert not one.look()  # its own is nothing new to it


def test_weights_of_another_module_are_refused() -> None:
    store = WeightStore()
    SharedModule(store, network()).publish()
    with pytest.raises(RuntimeError, match="Missing key"):
        SharedModule(store, nn.Linear(1, 1)).refresh()
