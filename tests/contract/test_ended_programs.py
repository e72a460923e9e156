"""The end of a run tells what environments have counted themselves and what the saved weights play."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from counting_envs import Counting
from shoal.algorithms import a3c, impala, ppo
from shoal.experiment.training import train
from shoal.program import current
from shoal.runs.directory import read_rows, read_weights

UNROLL, ENVS, ACTORS = 5, 4, 2
BLOCK = (UNROLL + 1) * ENVS  # of an actor, the first


def counted(directory: Path) -> Callable[[], Any]:
    """Environments that write down how many steps each has made for an actor."""
    place = str(directory)

    def make() -> Any:
        class Counted(Counting):
            def __init__(self) -> None:
                super().__init__()
                name = current().name.replace("/", "-")
                self._file = None if name == "evaluator" else open(f"{place}/{name}-{id(self)}", "w")  # noqa: SIM115

            def step(self, action: Any) -> Any:
                found = super().step(action)
                if self._file is not None:
                    self._file.write(".")
                    self._file.flush()
                return found

        return Counted()

    return make


def small(page: Any, directory: Path) -> Any:
    options: dict[str, Any] = {"env": counted(directory), "actors": ACTORS, "envs_per_actor": ENVS, "unroll": UNROLL}
    if page is not a3c:
        options |= {"preset": "none"}
    if page is impala:
        options |= {"batch": 4, "queue": 8}
    return page.Config(**options)


RUNTIMES = ["inline", "local", pytest.param("ray", marks=[pytest.mark.ray, pytest.mark.slow])]


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("page", [impala, ppo, a3c])
@pytest.mark.parametrize("stop", [{"stop_steps": 400}, {"stop_updates": 7}], ids=["steps", "updates"])
def test_counts_are_exact_and_all_numbers_are_of_the_saved_weights(
    page: Any, runtime: str, stop: dict[str, int], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if runtime == "ray":
        request.getfixturevalue("ray_cluster")
    counts, run = tmp_path / "counts", tmp_path / "run"
    counts.mkdir()
    result = train(small(page, counts), quiet=True, runtime=runtime, run_dir=str(run), eval_episodes=4, **stop)
    made = sum(len(file.read_text()) for file in counts.iterdir() if not file.name.startswith("main"))
    assert result.env_steps == made
    if "stop_steps" in stop:
        assert 400 <= made < 400 + ACTORS * BLOCK
    else:
        assert result.learner_steps == 7
    assert result.learner_steps == result.saved_version == result.eval_version
    assert 0 < result.trained_steps <= made
    evaluation, progress = read_rows(run, "evaluation")[-1], read_rows(run, "progress")[-1]
    assert (evaluation["eval_return"], evaluation["version"]) == (result.eval_return, result.saved_version)
    assert (progress["counts"]["env_steps"], progress["counts"]["learner_steps"]) == (made, result.learner_steps)
    summary = json.loads((run / "summary.json").read_text())
    assert (summary["env_steps"], summary["eval_return"]) == (made, result.eval_return)
    assert all(np.isfinite(value).all() for value in read_weights(run).values())


def test_the_closing_evaluation_stands_at_the_stop_and_not_beyond_it(tmp_path: Path) -> None:
    result = train(
        impala.Config(env="CartPole-v1"), stop_updates=10, run_dir=str(tmp_path / "run"), quiet=True, eval_episodes=200
    )
    assert result.eval_version == result.saved_version == 10
    assert result.evaluations["seconds"][-1] <= result.train_seconds + 1e-3
