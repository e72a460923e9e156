"""A run with callbacks and a log: told of everything, ended by a callback in order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import shoal
from shoal.algorithms import impala

CONFIG = impala.Config(envs_per_actor=4, batch=4, queue=8, unroll=5, hidden=(8,))


def test_a_callback_hears_of_evaluations_and_checkpoints_and_ends_the_run(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    heard: dict[str, list[Any]] = {"evaluation": [], "progress": [], "checkpoint": []}

    def on_evaluation(row: dict[str, Any]) -> bool:
        heard["evaluation"].append(row)
        return len(heard["evaluation"]) >= 3 and bool(heard["checkpoint"])

    options = {"runtime": "inline", "run_dir": str(tmp_path / "run"), "eval_episodes": 2, "eval_every": 0.01}
    result = shoal.train(
        CONFIG,
        quiet=True,
        on_evaluation=on_evaluation,
        on_progress=heard["progress"].append,
        on_checkpoint=heard["checkpoint"].append,
        checkpoint_updates=5,
        stop_return=1e9,
        log="tensorboard",
        **options,
    )
    assert result.stopped_by == "callback"
    assert result.exit_code == 0
    assert Path(heard["checkpoint"][0]["path"]).is_dir()
    assert heard["progress"][0].keys() >= {"seconds", "restarts"}
    assert result.evaluations["eval_return"][:3] == [row["eval_return"] for row in heard["evaluation"][:3]]
    assert result.metrics["env_steps"][-1] == result.env_steps
    assert list((tmp_path / "run" / "tensorboard").iterdir())
    assert shoal.load(result.run_dir).act([0.0] * 4) in (0, 1)


def test_what_a_callback_raises_ends_the_run_in_order_and_is_raised(tmp_path: Path) -> None:
    def fail(row: dict[str, Any]) -> None:
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        shoal.train(
            CONFIG, quiet=True, on_evaluation=fail, runtime="inline", run_dir=str(tmp_path / "run"), stop_updates=500
        )
    assert (tmp_path / "run" / "summary.json").is_file()
