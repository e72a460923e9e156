"""Every Python block of the README and of the docs runs as it is printed, after those above it on its page."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import shoal
from saved_runs import saved_run
from shoal.replay import Replay, Table, Writer
from shoal.serving.server import Serving

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)
PAGES = {
    str(page.relative_to(ROOT)): blocks
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md")))
    if page.name != "tutorial.md"  # test_tutorial.py does it, commands included
    and (blocks := list(BLOCK.finditer(page.read_text(encoding="utf-8"))))
}
NEEDS = {"docs/environments.md": "ale_py", "docs/command-line.md": "pandas"}


@pytest.fixture
def briefly(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """In a folder with a run called NAME and the examples at hand; training and serving end soon."""
    train, sweep, evaluate = shoal.train, shoal.sweep, shoal.evaluate
    short = {"runtime": "inline", "stop_updates": 3}

    def shorter(cfg: Any, **options: Any) -> shoal.Result:
        return train(cfg, **{**options, **short, "quiet": True})

    monkeypatch.setattr(shoal, "train", shorter, raising=False)
    monkeypatch.setattr(shoal, "sweep", lambda spec: sweep({**spec, **short}), raising=False)
    monkeypatch.setattr(
        shoal, "evaluate", lambda policy, **how: evaluate(policy, **{**how, "episodes": 2}), raising=False
    )
    monkeypatch.setattr(Serving, "wait", lambda serving: None)
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    monkeypatch.chdir(tmp_path)
    import own_loops

    monkeypatch.setattr(own_loops, "UPDATES", 2)
    saved_run(tmp_path / "runs" / "NAME", env="CartPole-v1")
    yield
    sys.modules.pop("own_loops", None)


def run_page(name: str) -> ModuleType:
    page = ModuleType("page")
    source = (ROOT / name).read_text(encoding="utf-8")
    for block in PAGES[name]:
        above = "\n" * (source[: block.start(1)].count("\n"))  # so that an error names the line of the page
        exec(compile(above + block[1], str(ROOT / name), "exec", dont_inherit=True), vars(page))
    return page


@pytest.mark.parametrize("name", PAGES)
def test_the_blocks_of_a_page_run_in_order(name: str, briefly: None, tmp_path: Path) -> None:
    if name in NEEDS:
        pytest.importorskip(NEEDS[name])
    page = run_page(name)
    if found := CHECKS.get(name):
        assert found(page, tmp_path)


def remembers_starts(page: Any, folder: Path) -> bool:
    replay = Replay([Table("starts", 10)])
    writer = Writer(replay, {"starts": page.EpisodeStarts(3)})
    writer.append({"observation": np.arange(10.0)[:, None]})
    return replay.sample("starts", 1).data["observation"][:, 0].tolist() == [0.0, 1.0, 2.0]  # type: ignore[no-any-return]


def reads_what_was_published(page: Any, folder: Path) -> bool:
    here, there = page.network.state_dict(), page.reader.state_dict()
    return all(bool((here[name] == there[name]).all()) for name in here) and page.parameters.tolist() != [0.0] * 3


CHECKS = {
    "README.md": lambda page, folder: page.ended and page.result.learner_steps == 3,
    "docs/coming-from-sb3.md": lambda page, folder: page.result.stopped_by == "updates" and page.action in (0, 1),
    "docs/coming-from-rllib.md": lambda page, folder: (folder / "sweeps" / "learning-rates" / "best.toml").is_file(),
    "docs/coming-from-machin.md": lambda page, folder: page.result.learner_steps == 3,
    "docs/coming-from-reverb.md": lambda page, folder: page.loaded.info()["sequences"]["size"] > 0,
    "docs/environments.md": lambda page, folder: page.seen.shape == (16, 4, 84, 84),
    "docs/programs.md": lambda page, folder: page.sent,
    "docs/replay.md": remembers_starts,
    "docs/services.md": reads_what_was_published,
}
