"""The pages for those who come from other libraries: their examples learn."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
ON_RAY = pytest.param("ray", marks=[pytest.mark.ray, pytest.mark.slow])
INLINE = pytest.param("inline", marks=pytest.mark.slow)  # the same examples on one thread


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[[str], Any]]:
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    monkeypatch.chdir(tmp_path)
    before = set(sys.modules)
    yield importlib.import_module
    for name in set(sys.modules) - before:
        if str(ROOT / "examples") in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


@pytest.mark.parametrize("runtime", [INLINE, "local", ON_RAY])
def test_r2d2_remembers_with_the_users_environment_network_and_adder(example: Any, runtime: str) -> None:
    result = example("r2d2_remote_actors").main(runtime, quiet=True)
    assert result.reached, "half of the answers are right without memory, which is a return of 0"


@pytest.mark.parametrize("runtime", [INLINE, "local", ON_RAY])
def test_a3c_with_the_users_actor_and_critic_learns(example: Any, runtime: str) -> None:
    assert example("a3c_actor_critic").main(runtime) > 60  # random actions last 22 steps


@pytest.mark.parametrize("runtime", [INLINE, "local", ON_RAY])
def test_own_loops_on_weights_gradients_and_replay_learn(example: Any, runtime: str) -> None:
    assert example("push_pull").main(runtime) > 40  # random actions last 22 steps


def test_the_adder_of_the_example_makes_an_item_of_each_episode(example: Any) -> None:
    import numpy as np

    from shoal.replay import Replay, Table, Writer

    replay = Replay([Table.queue("episodes", 10)])
    writer = Writer(replay, {"episodes": example("r2d2_user_modules").WholeEpisodes(4)})
    valid = np.array([1, 1, 0, 1, 1, 1, 0, 1, 1, 1, 1, 0], bool)[:, None]  # episodes of 2, 3 and 4 steps
    writer.append({"observation": np.arange(12.0)[:, None], "valid": valid})
    sample = replay.sample("episodes", 2)
    assert sample.data["observation"].T.tolist() == [[0, 1, 2, 0], [3, 4, 5, 6]], "the third does not fit"
    assert sample.data["mask"].T.tolist() == [[True, True, True, False], [True] * 4]
