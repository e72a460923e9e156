"""The sum-tree's laws."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.replay.sumtree import SumTree


@pytest.mark.parametrize("size", [1, 2, 3, 1000, 4096, 4097, 50_000])
def test_every_node_is_the_sum_of_its_children(size: int) -> None:
    generator = np.random.default_rng(size)
    tree, weights = SumTree(size), np.zeros(size)
    for _ in range(30):
        indices = generator.integers(0, size, 64)
        values = generator.random(64)
        tree.set(indices, values)
        weights[indices] = values
        first = int(generator.integers(0, size))
        end = int(generator.integers(first, size)) + 1
        values = generator.random(end - first)
        tree.set_range(first, end, values)
        weights[first:end] = values
    np.testing.assert_array_equal(tree.leaves[:size], weights)
    for below, above in zip(tree._levels, tree._levels[1:]):
        np.testing.assert_array_equal(above, below[::2] + below[1::2])
    assert tree.total == pytest.approx(weights.sum(), rel=1e-12)


def test_ten_million_updates_leave_no_drift() -> None:
    generator = np.random.default_rng(0)
    tree = SumTree(1 << 15)
    for _ in range(10_000_000 // 20_000):
        tree.set(generator.integers(0, 1 << 15, 20_000), generator.random(20_000) * 10.0 ** generator.integers(-6, 7))
    for below, above in zip(tree._levels, tree._levels[1:]):
        np.testing.assert_array_equal(above, below[::2] + below[1::2])
    assert tree.total == pytest.approx(float(np.sum(tree.leaves)), rel=1e-12)
    tree.set(np.arange(1 << 15), 0.0)
    assert tree.total == 0.0


def test_a_weight_of_zero_is_never_drawn() -> None:
    generator = np.random.default_rng(0)
    tree = SumTree(20_000)
    some = generator.choice(20_000, 50, replace=False)
    tree.set(some, 10.0 ** generator.uniform(-300, 0, 50))
    for _ in range(200):
        drawn, weights = tree.draw(500, generator)
        assert set(drawn) <= set(some)
        np.testing.assert_array_equal(weights, tree.leaves[drawn])


def test_draws_at_the_very_edges_stay_inside() -> None:
    tree = SumTree(5000)
    tree.set(np.array([7]), 1e-300)
    edges = np.array([0.0, np.nextafter(1.0, 0.0)])
    assert tree._descend(edges).tolist() == [7, 7]
