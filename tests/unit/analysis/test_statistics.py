"""The interquartile mean and its stratified bootstrap, against values worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.analysis.statistics import interquartile_mean, interval, interval_of_curves, middle_of_curves


def test_the_interquartile_mean_leaves_out_a_quarter_at_each_end() -> None:
    assert interquartile_mean([100.0, 1.0, 2.0, -50.0]) == 1.5
    assert interquartile_mean([1.0, 2.0, 6.0]) == 3.0, "of fewer than four values, of all"
    assert interquartile_mean([9.0, 1.0, 2.0, 3.0, 4.0, 5.0, 0.0]) == 3.0, "a quarter of 7 is rounded down to 1"
    assert interquartile_mean([[0.0, 1.0], [2.0, 9.0]]) == 1.5, "runs and tasks together"


def test_the_interval_of_two_values_is_known() -> None:
    """A quarter of all draws has the lower one twice, a quarter the higher one."""
    assert interval([1.0, 3.0]) == (1.0, 3.0)
    assert interval([3.0]) == (3.0, 3.0)


def test_an_interval_leaves_out_one_draw_in_forty_at_each_end() -> None:
    """One draw in 27 has the lowest of three values three times: more than 2.5 %, and less than 5 %."""
    assert interval([0.0, 1.0, 2.0]) == (0.0, 2.0)


def test_an_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    source = np.random.default_rng(1)
    hits = sum(low <= 0.0 <= high for low, high in (interval(source.normal(size=20)) for _ in range(40)))
    assert 33 <= hits <= 40
    low, high = interval(source.normal(10.0, 1.0, 40))
    assert 0.3 < high - low < 1.5


def test_runs_are_drawn_within_their_task() -> None:
    """Between tasks that differ, and runs that do not, there is nothing to be uncertain of."""
    easy, hard = [1.0] * 5, [0.0] * 5
    assert interval(easy, hard) == (0.5, 0.5)
    low, high = interval([*easy, *hard])
    assert low < 0.2 < 0.8 < high, "not so where the tasks are not told apart"


def test_a_curve_has_at_every_point_what_a_value_has() -> None:
    curves = np.random.default_rng(2).normal(size=(6, 3))
    low, high = interval_of_curves(curves)
    for point in range(3):
        assert interval(curves[:, point]) == pytest.approx((low[point], high[point]))
        assert interquartile_mean(curves[:, point]) == pytest.approx(middle_of_curves(curves)[point])
