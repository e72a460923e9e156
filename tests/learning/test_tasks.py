"""Every algorithm reaches the returns that its page promises: greedy, confirmed on fresh episodes, over seeds.

Times are for two cores that have nothing else to do.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from bench.learning import TASKS, train


@pytest.mark.slow
@pytest.mark.timeout(3 * 3600)
@pytest.mark.parametrize("name", TASKS)
def test_enough_seeds_reach_the_target_in_time(name: str, tmp_path: Path) -> None:
    task, figures = TASKS[name], train(name, None, tmp_path)
    assert figures["reached"] >= task.least, figures
    assert (figures["median_seconds"] or float("inf")) <= task.median, figures
