"""What checkpoints cost: updates per second with them and without, in turns; and how soon a resumed run learns.

Two runs are measured: impala with a network of 1.7 million parameters, and apex_dqn whose replay, of a million
transitions, is part of every checkpoint. With checkpoints every few seconds their cost is large enough to be seen; at
the default interval it is that much smaller.
"""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from shoal.experiment.training import train
from shoal.options import Acting, Experience
from shoal.runs import directory, registry
from shoal.runs.options import RunOptions

WARM_UP = 3.0  # seconds from the first update, and for apex_dqn from when its replay is full
WIDE = (1280, 1280)  # with CartPole's four numbers, two actions and a value, 1.65 million parameters
TRANSITIONS = 1_000_000


def cases() -> dict[str, tuple[Acting, dict[str, Any]]]:
    """By name, the config and the options of a run."""
    impala: Callable[..., Acting] = registry.load("impala").Config
    apex: Callable[..., Acting] = registry.load("apex_dqn").Config
    replay = {"capacity": TRANSITIONS, "samples_per_insert": 0.0, "envs_per_actor": 64}
    return {
        "1.7M parameters (impala)": (impala(env="CartPole-v1", hidden=WIDE, envs_per_actor=8), {}),
        "1M transitions (apex_dqn)": (apex(env="CartPole-v1", **replay), {"checkpoint_replay": True}),
    }


def checkpoints(seconds: float, repeat: int, every: float, show: Callable[[str], None]) -> dict[str, Any]:
    """Measure everything; `every` are the seconds between checkpoints of the runs that take them."""
    report: dict[str, Any] = {"bench": "checkpoints", "seconds": seconds, "every": every}
    usual = RunOptions().checkpoint_every
    for name, (cfg, options) in cases().items():
        rates: dict[bool, list[float]] = {True: [], False: []}
        for _ in range(repeat):
            for taken in (False, True):  # in turns: a machine's pace changes over minutes
                chosen = {"checkpoint_every": every, **options} if taken else {"checkpoint_every": 0.0}
                rates[taken].append(_updates_per_second(cfg, seconds, chosen))
                show(f"{name}: {rates[taken][-1]:10,.1f} updates/s with{'' if taken else 'out'} checkpoints")
        off, on = statistics.median(rates[False]), statistics.median(rates[True])
        cost = 1.0 - on / off
        report[name] = {"off": off, "on": on, "cost": cost, "cost_at_default": cost * every / usual, "rates": rates}
    report["resume_seconds"] = [_resume_seconds() for _ in range(repeat)]
    return report


def lines(report: dict[str, Any]) -> list[str]:
    told = []
    for name in cases():
        one = report[name]
        told.append(
            f"{name}: {one['on']:,.1f} against {one['off']:,.1f} updates/s with a checkpoint every "
            f"{report['every']:g} s: {one['cost']:.1%}, which is {one['cost_at_default']:.2%} at the default interval"
        )
    resumed = report["resume_seconds"]
    told.append(f"resume to the first update: {statistics.median(resumed):.2f} s (median of {len(resumed)})")
    return told


class Stretch:
    """A callback that measures updates per second over so many seconds of a run that is warm, its replay full."""

    def __init__(self, seconds: float, filled: int) -> None:
        self._seconds, self._filled = seconds, filled
        self._warm: float | None = None
        self._begin: tuple[float, float] | None = None
        self.rate = 0.0

    def __call__(self, row: dict[str, Any]) -> bool:
        now, updates = row["seconds"], row.get("learner_steps", 0)
        if self._warm is None:
            self._warm = now + WARM_UP if updates and row.get("env_steps", 0) >= self._filled else None
        elif self._begin is None:
            self._begin = (now, updates) if now >= self._warm else None
        else:
            self.rate = (updates - self._begin[1]) / max(1e-9, now - self._begin[0])
            return bool(now - self._begin[0] >= self._seconds)
        return False


def _updates_per_second(cfg: Acting, seconds: float, options: dict[str, Any]) -> float:
    folder = Path(tempfile.mkdtemp(prefix="shoal-bench-"))
    stretch = Stretch(seconds, TRANSITIONS if isinstance(cfg, Experience) else 0)
    given = {"stop_seconds": 3600.0, "eval_every": 3600.0, "eval_episodes": 1, **options}
    try:
        train(cfg, quiet=True, run_dir=str(folder / "run"), on_progress=stretch, **given)
        return stretch.rate
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _resume_seconds() -> float:
    """From the start of the command to the first update of a run that goes on, on CartPole."""
    folder = Path(tempfile.mkdtemp(prefix="shoal-bench-"))
    run = folder / "run"
    try:
        train(registry.load("impala").Config(env="CartPole-v1"), quiet=True, run_dir=str(run), stop_updates=200)
        done = json.loads((run / directory.SUMMARY).read_text(encoding="utf-8"))["learner_steps"]
        words: Sequence[str] = ("resume", str(run), "--stop-updates", str(done + 200), "--json")
        told = subprocess.run([sys.executable, "-m", "shoal", *words], capture_output=True, text=True, check=True)
        return float(json.loads(told.stdout.splitlines()[-1])["first_update_seconds"])
    finally:
        shutil.rmtree(folder, ignore_errors=True)
