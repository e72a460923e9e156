"""`--pattern module:factory`: a user's pattern takes the place of an algorithm's own."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

from shoal import envs
from shoal.errors import UserError
from shoal.loops.wiring import Settings
from shoal.replay import Pattern, n_step, sequence

TASKS = {"apex_dqn": "CartPole-v1", "apex_dpg": "Pendulum-v1", "d4pg": "Pendulum-v1", "r2d2": "CartPole-v1"}
made: list[Pattern] = []


def make(cfg: Any) -> Pattern:
    made.append(sequence(7) if hasattr(cfg, "burn_in") else n_step(cfg.n + 1, cfg.gamma))
    return made[-1]


def program(name: str, pattern: str) -> Any:
    algorithm = importlib.import_module(f"shoal.algorithms.{name}")
    cfg = algorithm.Config(env=TASKS[name], pattern=pattern)
    return algorithm.program(cfg, envs.describe(cfg.env), Settings(evaluate=False))


@pytest.mark.parametrize("name", TASKS)
def test_actors_write_what_the_users_pattern_says(name: str) -> None:
    nodes = program(name, f"{__name__}:make").nodes
    assert any(
        made[-1] in argument.values() for node in nodes.values() for argument in node.args if isinstance(argument, dict)
    )


def test_a_pattern_that_is_not_there_is_named() -> None:
    with pytest.raises(UserError, match="The pattern 'nowhere:make': there is no module 'nowhere'"):
        program("apex_dqn", "nowhere:make")
