"""Where metrics go beside the run directory: TensorBoard, Weights & Biases. What fails there never ends a run."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from shoal.config import unknown
from shoal.errors import UserError

FOLDER = "tensorboard"  # in the run directory


class Sink(Protocol):
    def write(self, scalars: Mapping[str, float], step: int) -> None: ...
    def close(self) -> None: ...


class TensorBoard:
    """Event files in the run directory: `tensorboard --logdir runs`."""

    def __init__(self, run: Path, record: Mapping[str, Any], step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        # what was written after the checkpoint from which a run goes on is not shown
        self._writer: Any = SummaryWriter(str(run / FOLDER), purge_step=step or None)

    def write(self, scalars: Mapping[str, float], step: int) -> None:
        for name, value in scalars.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()


class WandB:
    """A run of Weights & Biases with the run directory's name; where and how is said by its own environment variables
    (`WANDB_PROJECT`, `WANDB_MODE=offline`, …)."""

    def __init__(self, run: Path, record: Mapping[str, Any], step: int) -> None:
        import os

        import wandb

        project = os.environ.get("WANDB_PROJECT", "shoal")
        config = {**record.get("config", {}), "algorithm": record.get("algorithm"), "seed": record.get("seed")}
        name = run.resolve().name
        self._run: Any = wandb.init(
            project=project,
            name=name,
            id=name,
            resume="allow",
            dir=str(run),
            config=config,
            settings=wandb.Settings(console="off"),  # the live view is no log
        )
        # its own counter of steps must not fall, and an evaluation is of steps that are past when it comes
        self._run.define_metric("env_steps")
        self._run.define_metric("*", step_metric="env_steps")

    def write(self, scalars: Mapping[str, float], step: int) -> None:
        self._run.log({**scalars, "env_steps": step})

    def close(self) -> None:
        self._run.finish()


KINDS: dict[str, tuple[Callable[[Path, Mapping[str, Any], int], Sink], tuple[str, ...]]] = {
    "tensorboard": (TensorBoard, ("tensorboard",)),
    "wandb": (WandB, ("wandb",)),
}


def named(log: str | None) -> list[str]:
    """The sinks that `--log` names; refuses others, and those whose packages are not installed."""
    names = [name.strip() for name in log.split(",")] if log is not None else []
    for name in names:
        if name not in KINDS:
            raise UserError(unknown("--log", name, KINDS))
        if any(importlib.util.find_spec(package) is None for package in KINDS[name][1]):
            raise UserError(f"--log {name} needs a package that is not installed; run: pip install 'shoal[{name}]'")
    return names


class Sinks:
    """All of a run; one that fails is told of and left out from then on."""

    def __init__(
        self, names: Sequence[str], run: Path, record: Mapping[str, Any], step: int, warn: Callable[[str], None]
    ) -> None:
        self._warn = warn
        self._sinks: dict[str, Sink] = {}
        for name in names:
            with _Guarded(self, name):
                self._sinks[name] = KINDS[name][0](run, record, step)

    def write(self, row: Mapping[str, Any]) -> None:
        """The numbers of a flat row, over steps; over updates in a run that makes none."""
        step = row.get("env_steps") or row.get("learner_steps", row.get("evaluation/version", row.get("env_steps")))
        if not self._sinks or step is None:
            return
        scalars = {
            name: float(value)
            for name, value in row.items()
            if isinstance(value, int | float) and math.isfinite(value) and name != "env_steps"
        }
        for name, sink in list(self._sinks.items()):
            with _Guarded(self, name):
                sink.write(scalars, int(step))

    def close(self) -> None:
        for name, sink in list(self._sinks.items()):
            with _Guarded(self, name):
                sink.close()
        self._sinks = {}

    def lose(self, name: str, error: Exception) -> None:
        self._sinks.pop(name, None)
        said = " ".join(str(error).split()) or type(error).__name__
        self._warn(f"--log {name}: nothing more is written there ({said}); training goes on")


class _Guarded:
    def __init__(self, sinks: Sinks, name: str) -> None:
        self._sinks, self._name = sinks, name

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> bool:
        if isinstance(error, Exception):
            self._sinks.lose(self._name, error)
            return True
        return False
