"""A run whose command is killed again and again, and goes on every time.

`SHOAL_KILLS` says how often (10 by default; 50 are the proof).
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from parent_kills import kill_again_and_again

KILLS = int(os.environ.get("SHOAL_KILLS", "10"))


@pytest.mark.slow
@pytest.mark.timeout(60 * KILLS + 600)
def test_a_run_that_is_killed_again_and_again_goes_on_and_solves_its_task(tmp_path: Path) -> None:
    outcome = kill_again_and_again(tmp_path / "run", KILLS)
    assert outcome.during_a_save >= KILLS // 5, "hardly any kill has hit a save"
    assert outcome.life >= 1
