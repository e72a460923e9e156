"""The pages for those who come from other libraries: their code runs as it is printed, their examples learn."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import shoal

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


def run_page(name: str) -> ModuleType:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / name).read_text(encoding="utf-8"), re.DOTALL)
    assert blocks
    page = ModuleType("page")
    for block in blocks:
        exec(compile(block, name, "exec", dont_inherit=True), vars(page))
    return page


@pytest.fixture
def briefly(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Training of the pages, ended after a few updates on the inline runtime."""
    train, sweep = shoal.train, shoal.sweep
    short = {"runtime": "inline", "stop_updates": 3}

    def shorter(cfg: Any, **options: Any) -> shoal.Result:
        return train(cfg, **{**options, **short, "quiet": True})

    monkeypatch.setattr(shoal, "train", shorter, raising=False)
    monkeypatch.setattr(shoal, "sweep", lambda spec: sweep({**spec, **short}), raising=False)
    monkeypatch.chdir(tmp_path)


def test_what_the_page_for_users_of_sb3_shows_runs(briefly: None) -> None:
    page = run_page("coming-from-sb3.md")
    assert page.result.stopped_by in ("updates", "callback")
    assert page.action in (0, 1)
    assert len(page.found.returns) == 20


def test_what_the_page_for_users_of_rllib_shows_runs(briefly: None, tmp_path: Path) -> None:
    page = run_page("coming-from-rllib.md")
    assert page.found.best_parameters["learning_rate"] in (3e-4, 1e-3)
    assert (tmp_path / "sweeps" / "learning-rates" / "best.toml").is_file()


def test_what_the_page_for_users_of_machin_shows_runs(briefly: None) -> None:
    assert run_page("coming-from-machin.md").result.learner_steps == 3


def test_what_the_page_for_users_of_reverb_shows_runs(capfd: pytest.CaptureFixture[str]) -> None:
    run_page("coming-from-reverb.md")
    assert int(capfd.readouterr().out) >= 1
