"""Curves over seeds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from shoal.errors import UserError
from shoal.experiment import directory, plots


def run(path: Path, seed: int, returns: list[float]) -> Path:
    made = directory.RunDirectory.create(str(path), "impala", "CartPole-v1", seed, print)
    made.write_config({"algorithm": "impala", "config": {}, "env": "CartPole-v1", "options": {"stop_return": 475.0}})
    for index, value in enumerate(returns):
        row = {"eval_return": value, "spread": 1.0, "env_steps": index * 100, "seconds": index * 0.5}
        made.write_row("evaluation", row)
    made.close()
    return path


def rows(returns: list[float], every: float) -> list[dict[str, float]]:
    return [{"eval_return": value, "spread": 2.0, "seconds": index * every} for index, value in enumerate(returns)]


def test_runs_that_were_evaluated_at_other_times_meet_on_a_common_grid() -> None:
    x, mean, spread = plots.over_seeds([rows([0, 10, 20], 1.0), rows([10, 30], 2.0)], "seconds")
    assert (x[0], x[-1]) == (0.0, 2.0)
    np.testing.assert_allclose(mean, 5.0 + 10.0 * x)
    np.testing.assert_allclose(spread, 5.0)


def test_a_run_that_ended_keeps_its_last_value_until_the_longest_ends() -> None:
    x, mean, _ = plots.over_seeds([rows([0, 1, 2, 3], 1.0), rows([0, 1], 1.0)], "seconds")
    assert (x[-1], mean[-1]) == (3.0, 2.0)


def test_one_run_is_drawn_with_the_spread_of_its_episodes() -> None:
    x, mean, spread = plots.over_seeds([rows([1, 2], 1.0)], "seconds")
    assert (x.tolist(), mean.tolist(), spread.tolist()) == ([0, 1], [1, 2], [2, 2])


def test_runs_of_one_kind_become_one_curve_in_a_picture(tmp_path: Path) -> None:
    paths = [run(tmp_path / str(seed), seed, [10.0 * seed, 20.0, 400.0]) for seed in range(3)]
    assert plots.draw(paths, tmp_path / "curve.png") == ["impala on CartPole-v1"]
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")


def test_runs_without_evaluations_cannot_be_drawn(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nothing to plot"):
        plots.draw([run(tmp_path / "run", 0, [])], tmp_path / "curve.png")
