"""The guide's examples run as they are printed."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType

import numpy as np

from shoal.replay import Replay, Table, Writer

GUIDE = Path(__file__).parents[3] / "docs" / "replay.md"


def test_the_examples_of_the_guide_run_in_order() -> None:
    blocks = re.findall(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) >= 6
    guide = ModuleType("guide")
    for block in blocks:
        exec(compile(block, str(GUIDE), "exec", dont_inherit=True), vars(guide))
    replay = Replay([Table("starts", 10)])
    writer = Writer(replay, {"starts": guide.EpisodeStarts(3)})
    writer.append({"observation": np.arange(10.0)[:, None]})
    assert replay.sample("starts", 1).data["observation"][:, 0].tolist() == [0.0, 1.0, 2.0]
