"""A run with callbacks and a log: told of everything, ended by a callback in order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import shoal
from shoal.algorithms import impala

CONFIG = impala.Config(envs_per_actor=4, batch=4, queue=8, unroll=5, hidden=(8,))


def test_a_callback_hears_of_evaluations_and_checkpoints_and_ends_the_run(tmp_path: Path) -> None:
    loading = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    pytest.importorskip("pandas")
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
    assert result.metrics.frame()["env_steps"].iloc[-1] == result.env_steps
    assert list(result.evaluations.frame()["eval_return"]) == result.evaluations["eval_return"]
    written = loading.EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    written.Reload()
    shown = [(event.step, event.value) for event in written.Scalars("eval_return")]
    assert shown == list(zip(result.evaluations["env_steps"], result.evaluations["eval_return"]))
    assert {event.value for event in written.Scalars("evaluation/episodes")} == set(result.evaluations["episodes"])
    assert written.Scalars("episodes")[-1].value == result.metrics["episodes"][-1]
    assert written.Scalars("learner_steps")[-1].value == result.learner_steps
    assert shoal.load(result.run_dir).act([0.0] * 4) in (0, 1)


def test_what_a_callback_raises_ends_the_run_in_order_and_is_raised(tmp_path: Path) -> None:
    def fail(row: dict[str, Any]) -> None:
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        shoal.train(
            CONFIG, quiet=True, on_evaluation=fail, runtime="inline", run_dir=str(tmp_path / "run"), stop_updates=500
        )
    assert (tmp_path / "run" / "summary.json").is_file()


@pytest.mark.parametrize("kind", ["progress", "checkpoint"])
def test_each_callback_may_end_the_run(kind: str, tmp_path: Path) -> None:
    result = shoal.train(
        CONFIG,
        quiet=True,
        runtime="inline",
        run_dir=str(tmp_path / "run"),
        eval_episodes=1,
        checkpoint_updates=5,
        stop_updates=5000,
        **{f"on_{kind}": lambda row: True},
    )
    assert result.stopped_by == "callback"
    assert result.learner_steps < 5000
