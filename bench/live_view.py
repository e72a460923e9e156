"""The picture of the live view in the README: a real run, and what its terminal showed last, as an SVG.

python -m bench.live_view docs/live-view.svg
"""

from __future__ import annotations

import io
import re
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

import shoal
from shoal.algorithms import impala
from shoal.experiment import view
from shoal.experiment.progress import Progress

WIDTH = 80
COMMAND = "shoal train impala --env CartPole-v1"


class Kept(view.Quiet):
    """Keeps what the live view would have drawn last."""

    def __init__(self) -> None:
        self.lines: Sequence[str] = []
        self.last: Progress | None = None

    def begin(self, lines: Sequence[str]) -> None:
        self.lines = lines

    def update(self, progress: Progress) -> None:
        self.last = progress


def picture(kept: Kept, command: str) -> str:
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True)
    assert kept.last is not None
    console.print(view.panel(kept.lines[0], kept.last))
    drawn = console.export_svg(title=command, unique_id="live-view")
    return re.sub(r"@font-face \{.*?\}\s*", "", drawn, flags=re.DOTALL)  # the reader's own monospace font will do


def main(path: str) -> None:
    kept = Kept()
    view.choose = lambda quiet, json: kept
    with tempfile.TemporaryDirectory() as folder:
        shoal.train(impala.Config(env="CartPole-v1"), run_dir=f"{folder}/run")  # what COMMAND does
    Path(path).write_text(picture(kept, COMMAND), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
