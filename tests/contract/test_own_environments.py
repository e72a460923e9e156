"""An environment may be a function or class itself, on every runtime, also one that no other process can import."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from starting import Start
from test_programs import run_tiny

import shoal
from conftest import SLOW_RAY
from shoal.algorithms import impala


def test_a_function_is_an_environment_on_every_runtime(start: Start) -> None:
    def make_env() -> gymnasium.Env[Any, Any]:  # as in a notebook: nobody can import it
        return gymnasium.make("CartPole-v1", max_episode_steps=9)

    run_tiny(start, "impala", env=make_env)


PROGRAM = """
import sys
import gymnasium, shoal
from torch import nn
from shoal.algorithms import apex_dqn
from shoal.replay import n_step

class Network(nn.Module):
    def __init__(self, observations, actions):
        super().__init__()
        self.layer = nn.Linear(observations.shape[0], int(actions.n))

    def forward(self, observation):
        return self.layer(observation)

class Env(gymnasium.Wrapper):
    def __init__(self):
        super().__init__(gymnasium.make("CartPole-v1", max_episode_steps=9))

def pattern(cfg):
    return n_step(2, cfg.gamma)

if __name__ == "__main__":
    sizes = {"actors": 1, "envs_per_actor": 2, "batch": 8, "learning_starts": 16, "capacity": 100, "rows": 4}
    cfg = apex_dqn.Config(env=Env, network=Network, pattern=pattern, **sizes)
    result = shoal.train(cfg, runtime=sys.argv[1], stop_updates=3, run_dir="run", quiet=True)
    assert (result.learner_steps, result.restarts) == (3, 0) and 0 < result.eval_return <= 9
"""


@pytest.mark.slow
@pytest.mark.parametrize("runtime", ["inline", "local", SLOW_RAY])
def test_environment_network_and_pattern_may_be_defined_in_the_program_that_is_run(
    runtime: str, tmp_path: Path
) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    command = [sys.executable, "program.py", runtime]
    done = subprocess.run(command, cwd=tmp_path, env=os.environ, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


class Stumbling(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Raises at every seventh step that any of its kind makes in a process, after the first few."""

    steps = 0

    def __init__(self) -> None:
        super().__init__(gymnasium.make("CartPole-v1", max_episode_steps=9))

    def step(self, action: Any) -> Any:
        type(self).steps += 1
        if type(self).steps > 30 and type(self).steps % 7 == 0:
            raise RuntimeError("no convergence")
        return super().step(action)


def test_a_run_learns_on_with_environments_that_raise_and_says_how_much_was_lost(tmp_path: Path) -> None:
    told = io.StringIO()
    cfg = impala.Config(env=Stumbling, actors=1, envs_per_actor=2, batch=2, queue=4, unroll=4, hidden=(8,))
    with contextlib.redirect_stderr(told):
        result = shoal.train(cfg, runtime="inline", stop_updates=40, run_dir=str(tmp_path / "run"))
    assert (result.learner_steps, result.restarts, result.exit_code) == (40, 0, 0)
    assert result.lost_environments > 20
    assert result.lost_share is not None
    assert result.lost_share > 0.2
    said = told.getvalue()
    assert "environment number 0 raised RuntimeError: no convergence" in said
    assert said.count("it was replaced and its episode truncated") <= 10, "five of each node"
    assert "of the episodes were lost by faults of the environment" in said
    assert result.too_many_lost is not None
