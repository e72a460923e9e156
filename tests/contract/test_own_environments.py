"""An environment may be a function or class itself, on every runtime, also one that no other process can import."""

from __future__ import annotations

from typing import Any

import gymnasium
from starting import Start
from test_programs import run_tiny


def test_a_function_is_an_environment_on_every_runtime(start: Start) -> None:
    def make_env() -> gymnasium.Env[Any, Any]:  # as in a notebook: nobody can import it
        return gymnasium.make("CartPole-v1", max_episode_steps=9)

    run_tiny(start, "impala", env=make_env)
