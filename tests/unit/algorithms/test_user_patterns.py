"""`--pattern module:factory`: a user's pattern takes the place of an algorithm's own."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

from shoal import envs
from shoal.errors import UserError
from shoal.loops.wiring import Settings
from shoal.program import Handle
from shoal.replay import Pattern, n_step, sequence
from shoal.runtime import launch
from shoal.versions import make_version

TASKS = {"apex_dqn": "CartPole-v1", "r2d2": "CartPole-v1"} | dict.fromkeys(
    ("apex_dpg", "d4pg", "sac", "td3"), "Pendulum-v1"
)
TABLES = {"r2d2": "sequences"}
made: list[Pattern] = []


def make(cfg: Any) -> Pattern:
    made.append(sequence(17, end="drop") if hasattr(cfg, "burn_in") else n_step(cfg.n + 1, cfg.gamma))
    return made[-1]


def short(cfg: Any) -> Pattern:
    return sequence(5)


def program(name: str, pattern: str, **chosen: Any) -> Any:
    algorithm = importlib.import_module(f"shoal.algorithms.{name}")
    small = {"envs_per_actor": 2, "learning_starts": 8, "batch": 4}
    cfg = algorithm.Config(env=TASKS[name], pattern=pattern, **small, **chosen)
    return algorithm.program(cfg, envs.describe(cfg.env), Settings(evaluate=False, max_updates=3))


@pytest.mark.parametrize("name", TASKS)
def test_a_run_learns_from_what_the_users_pattern_makes(name: str) -> None:
    with launch(program(name, f"{__name__}:make"), "inline") as run:
        weights = run.client(Handle("weights"))
        while weights.newer(make_version(0, 1)) is None:
            run.wait(0.1)
        sample = run.client(Handle("replay")).sample(TABLES.get(name, "transitions"), 1)
    if name == "r2d2":
        assert len(sample.data["reward"]) == made[-1].rows == 18
    else:
        assert "next_observation" in sample.data


def test_a_pattern_of_another_kind_of_items_is_refused() -> None:
    with pytest.raises(UserError, match="makes sequences, and the learner reads transitions"):
        program("apex_dqn", f"{__name__}:short")


def test_a_pattern_of_sequences_that_burn_in_uses_up_is_refused() -> None:
    with pytest.raises(UserError, match="items of 6 rows, of which --burn-in 10 leaves nothing to train"):
        program("r2d2", f"{__name__}:short")


def test_a_pattern_of_sequences_must_leave_one_transition_after_burn_in() -> None:
    program("r2d2", f"{__name__}:short", burn_in=4)  # of the five transitions in six rows
    with pytest.raises(UserError, match="items of 6 rows, of which --burn-in 5 leaves nothing to train"):
        program("r2d2", f"{__name__}:short", burn_in=5)


def test_a_pattern_that_is_not_there_is_named() -> None:
    with pytest.raises(UserError, match="The pattern 'nowhere:make': there is no module 'nowhere'"):
        program("apex_dqn", "nowhere:make")
