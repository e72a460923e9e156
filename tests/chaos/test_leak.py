"""A training that goes on and on needs no more memory than after its replay was full."""

from __future__ import annotations

from pathlib import Path

import pytest
from bench.leak import growth, watch


def test_growth_is_what_the_last_minute_is_above_the_first() -> None:
    steady, leaking = [100.0] * 60, [100.0 + second for second in range(60)]
    found = growth({"steady": steady, "leaking": leaking})
    assert found["steady"] == 0.0
    assert found["leaking"] == pytest.approx(48 / 105.5)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_memory_of_every_process_stays_within_one_percent(tmp_path: Path) -> None:
    found = growth(watch(15.0, tmp_path / "run"))
    assert {"learner", "replay", "actor/0"} <= found.keys()
    assert max(found.values()) < 0.01, found
