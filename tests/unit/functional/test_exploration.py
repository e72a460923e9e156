"""Ladders over environments and noisy actions."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.functional.exploration import epsilon_greedy, epsilon_ladder, gaussian_noise, noise_ladder


def test_the_epsilon_ladder_is_the_papers_formula_over_all_environments() -> None:
    total = 9
    expected = [0.4 ** (1.0 + 7.0 * i / (total - 1)) for i in range(total)]
    np.testing.assert_allclose(epsilon_ladder(index=np.arange(total), total=total), expected, rtol=1e-6)
    parts = [epsilon_ladder(index=np.arange(first, first + 3), total=total) for first in (0, 3, 6)]
    np.testing.assert_array_equal(np.concatenate(parts), epsilon_ladder(index=np.arange(total), total=total))


def test_a_single_environment_has_the_ladders_first_rung() -> None:
    assert epsilon_ladder(index=np.arange(1), total=1).tolist() == pytest.approx([0.4])
    assert noise_ladder(index=np.arange(1), total=1, largest=0.5, smallest=0.1).tolist() == pytest.approx([0.5])


def test_the_noise_ladder_falls_in_equal_ratios_between_its_ends() -> None:
    scales = noise_ladder(index=np.arange(5), total=5, largest=0.8, smallest=0.05)
    assert (scales[0], scales[-1]) == pytest.approx((0.8, 0.05))
    np.testing.assert_allclose(scales[1:] / scales[:-1], 0.5, rtol=1e-6)


def test_epsilon_greedy_takes_the_best_action_except_with_probability_epsilon() -> None:
    count, actions = 40_000, 4
    q = np.tile(np.array([0.0, 3.0, 1.0, 2.0], np.float32), (count, 1))
    epsilon = np.repeat(np.array([0.0, 0.4], np.float32), count // 2)
    taken = epsilon_greedy(q, epsilon, np.random.default_rng(0))
    assert (taken[: count // 2] == 1).all()
    shares = np.bincount(taken[count // 2 :], minlength=actions) / (count // 2)
    np.testing.assert_allclose(shares, [0.1, 0.7, 0.1, 0.1], atol=0.01)


def test_gaussian_noise_has_each_environments_scale_and_stays_within_bounds() -> None:
    scale = np.array([0.0, 0.05, 0.2], np.float32)
    draws = np.stack(
        [gaussian_noise(np.zeros((3, 2), np.float32), scale, r) for r in [np.random.default_rng(0)] * 4000]
    )
    np.testing.assert_allclose(draws.std((0, 2)), scale, rtol=0.05)
    far = gaussian_noise(np.full((3, 2), 0.9, np.float32), np.full(3, 5.0, np.float32), np.random.default_rng(0))
    assert far.dtype == np.float32
    assert np.abs(far).max() == 1.0


def test_no_noise_at_all_is_a_ladder_too() -> None:
    assert noise_ladder(index=np.arange(3), total=3, largest=0.0, smallest=0.0).tolist() == [0.0, 0.0, 0.0]
