"""What `shoal bench checkpoints` counts: updates over a stretch of a run that is warm and whose replay is full."""

from __future__ import annotations

from shoal.bench.checkpoints import WARM_UP, Stretch, cases, lines


def test_updates_are_counted_from_when_the_run_is_warm_and_its_replay_full() -> None:
    stretch = Stretch(4.0, filled=100)
    ended = [
        stretch({"seconds": second, "learner_steps": 10 * second, "env_steps": 50 * second})
        for second in map(float, range(12))
    ]
    full = 2  # seconds
    assert ended.index(True) == full + WARM_UP + 4
    assert stretch.rate == 10.0


def test_nothing_is_counted_before_the_first_update() -> None:
    stretch = Stretch(1.0, filled=0)
    assert not any(stretch({"seconds": float(second)}) for second in range(60))
    assert stretch.rate == 0.0


def test_the_cost_is_told_for_the_default_interval_too() -> None:
    one = {"off": 100.0, "on": 94.0, "cost": 0.06, "cost_at_default": 0.01}
    told = lines({"every": 10.0, "resume_seconds": [3.0, 5.0, 4.0], **dict.fromkeys(cases(), one)})
    assert all("94.0 against 100.0 updates/s" in line and "6.0%, which is 1.00%" in line for line in told[:2])
    assert told[2] == "resume to the first update: 4.00 s (median of 3)"
