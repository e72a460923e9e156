"""The tutorial is done as it is written, from the first command to the last, with less training."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from shoal.cli.main import main

PAGE = Path(__file__).parents[2] / "docs" / "tutorial.md"
BLOCK = re.compile(r"(?:`(?P<file>\w+\.\w+)`:\n\n)?```(?P<kind>\w*)\n(?P<text>.*?)```", re.DOTALL)
LESS = {
    "train": ["--stop-updates", "2", "--runtime", "inline", "--eval-every", "100"],
    "resume": ["--stop-updates", "3"],
    "eval": ["--episodes", "2"],
}


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def test_the_tutorial_can_be_followed(folder: Path) -> None:
    for needed in ("matplotlib", "imageio", "pygame"):
        pytest.importorskip(needed)
    commands, page = 0, ModuleType("page")
    for block in BLOCK.finditer(PAGE.read_text(encoding="utf-8")):
        text = block["text"].replace("stop_seconds = 30", 'stop_updates = 2\neval_every = 100.0\nruntime = "inline"')
        if block["file"]:
            (folder / block["file"]).write_text(text)
        elif block["kind"] == "python":
            exec(compile(text, str(PAGE), "exec", dont_inherit=True), vars(page))
        else:
            for line in text.splitlines():
                if line.startswith("shoal "):
                    words = shlex.split(line)[1:]
                    assert main([*words, *LESS.get(words[0], [])]) in (0, 3), line  # 3: the return was not reached
                    commands += 1
    assert commands == 15
    assert page.total >= 1.0
    for made in ("first.png", "first.gif", "both.png", "my_ppo.py", "runs/mine/weights.npz", "sweeps/rates/best.toml"):
        assert (folder / made).is_file(), made
