"""The run directory: everything that is needed to know what was run, to plot it, and to rebuild the policy.

config.json    algorithm, config, options, preset, command, versions, git revision
metrics.jsonl  a row per second, per evaluation, per lost node and per note to the user, each with its "kind"
metrics.cut.jsonl  rows that a run has repeated, as it went on from before them (`shoal.runs.metrics_file`)
weights.npz    the last weights
summary.json   the result, as `--json` prints it
checkpoints/   the last few, and the best (`shoal.checkpoints`)
curve.png      the evaluations, where matplotlib is installed
"""

from __future__ import annotations

import json
import math
import os
import platform
import re
import shutil
import subprocess
import time
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from shoal.checkpoints import Checkpoint, Checkpoints
from shoal.checkpoints.lock import LOCK
from shoal.checkpoints.own_files import Replacing
from shoal.checkpoints.state_files import plain
from shoal.errors import UserError
from shoal.runs import metrics_file, tables
from shoal.types import Arrays

CONFIG, METRICS, WEIGHTS = "config.json", tables.METRICS, "weights.npz"
SUMMARY, CURVE, PRINTS = "summary.json", "curve.png", "prints.log"
CHECKPOINTS = "checkpoints"
TUPLE = "()"  # {"()": [1, 2]} in config.json is the tuple (1, 2)
FILMS = "films"
BROKEN = (  # what a damaged archive raises
    *(OSError, ValueError, TypeError, EOFError, AttributeError, LookupError, RuntimeError),
    *(zlib.error, zipfile.BadZipFile),
)
RECORDED: dict[str, tuple[type, str]] = {  # what a config may have beside what it must have
    "seed": (int, "a whole number"),
    "life": (int, "a whole number"),
    "options": (dict, "options by their names"),
    "versions": (dict, "versions by their names"),
    "folders": (list, "a list of folders"),
    "lost": (list, "a list of options"),
}


class RunDirectory:
    """The writing side, used by the run itself."""

    def __init__(self, path: Path, warn: Callable[[str], None]) -> None:
        self.path = path
        self._warn, self._warned = warn, False
        self._metrics: metrics_file.MetricsFile | None = None
        self._goes_on: tuple[int, int] | None = None  # at this offset of the metrics, in this life: when they are cut
        self.listener: Callable[[str, Mapping[str, Any]], None] | None = None  # is told every row

    @staticmethod
    def create(given: str | None, algorithm: str, env: str, seed: int, warn: Callable[[str], None]) -> RunDirectory:
        """The directory the user gave, which must be new or empty, or a new one in `runs/`."""
        path = Path(given) if given is not None else _default(algorithm, env, seed)
        try:
            if given is None:
                path = _make_new(path)
            else:
                path.mkdir(parents=True, exist_ok=True)
                if not all(_left_by_a_kill(file) for file in path.iterdir()):
                    raise UserError(f"--run-dir {path} holds files already: give a new or empty folder.")
            made = RunDirectory(path, warn)
            made._metrics = metrics_file.MetricsFile(path)
        except OSError as error:
            raise UserError(
                f"The run directory {path} cannot be written ({error.strerror}): give another one with --run-dir."
            ) from None
        return made

    @staticmethod
    def reopen(path: Path, offset: int, life: int, warn: Callable[[str], None]) -> RunDirectory:
        """The directory of a run that goes on. Its metrics are cut back to where its checkpoint was when the first row
        is written, or `go_on` is called: a run that cannot even start leaves what it had."""
        made = RunDirectory(path, warn)
        made._goes_on = offset, life
        try:
            made._metrics = metrics_file.MetricsFile(path)
        except OSError as error:
            raise UserError(f"{path / METRICS} cannot be written ({error.strerror}): a run needs it.") from None
        return made

    def go_on(self) -> None:
        """Have every row once, from here on."""
        goes_on, self._goes_on = self._goes_on, None
        if self._metrics is not None and goes_on is not None:
            try:
                told = self._metrics.go_on_at(*goes_on)
            except OSError as error:
                told = [f"{self.path}: rows of before are kept, and some are there twice now ({error.strerror})"]
            for text in told:
                self._warn(text)

    def offset(self) -> int:
        """How many bytes of metrics there are."""
        try:
            return (self.path / METRICS).lstat().st_size
        except OSError:
            return 0

    def write_config(self, record: Mapping[str, Any]) -> None:
        values = record.get("config", {}).items()
        config = {name: in_json(value) if isinstance(value, dict) else value for name, value in values}
        self._write_json(CONFIG, {**record, "config": config, "versions": versions(), "git": git_revision()})

    def write_row(self, kind: str, row: Mapping[str, Any]) -> None:
        """Append to the metrics. A full disk must not end a run: one warning, and what follows is tried again."""
        if self.listener is not None:
            self.listener(kind, row)
        self.go_on()
        if self._metrics is None:
            return
        try:
            self._metrics.write(_finite({"kind": kind, **row}))
        except OSError as error:
            if not self._warned:
                self._warn(f"{self.path}: metrics cannot be written ({error.strerror}); rows are lost until they can")
            self._warned = True

    def write_weights(self, weights: Arrays) -> None:
        """Complete or absent: written under another name, then renamed. Raises OSError."""
        with Replacing(self.path / WEIGHTS) as file:
            np.savez(file, **dict(weights))  # type: ignore[arg-type]

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        self._write_json(SUMMARY, summary)

    def close(self) -> None:
        if self._metrics is not None:
            self._metrics.close()
            self._metrics = None

    def discard(self) -> None:
        """Remove what this run has written: it did not even start."""
        self.close()
        shutil.rmtree(self.path / CHECKPOINTS, ignore_errors=True)
        for name in (CONFIG, METRICS, LOCK, PRINTS):
            (self.path / name).unlink(missing_ok=True)
        try:
            self.path.rmdir()
        except OSError:
            pass

    def _write_json(self, name: str, record: Mapping[str, Any]) -> None:
        try:
            with Replacing(self.path / name) as file:
                file.write((json.dumps(_finite(record), indent=2, default=str) + "\n").encode())
        except OSError as error:
            self._warn(f"{self.path}: {name} could not be written ({error.strerror})")


def _left_by_a_kill(file: Path) -> bool:
    """Whether it is of a run that was killed before it could even say what it is; who is about to has its lock."""
    empty = file.name == METRICS and file.lstat().st_size == 0
    return empty or file.name == LOCK or file.name.startswith(f".{CONFIG}.")


# ---- reading ---------------------------------------------------------------------------------------------------------


def named(given: Any, call: str) -> str:
    """The folder that a call was given, as its path; refuses what is none."""
    if isinstance(given, str) or (isinstance(given, os.PathLike) and isinstance(os.fspath(given), str)):
        return os.fspath(given)
    raise UserError(f"{call} was given {given!r}: give a run's folder, such as 'runs/NAME'.")


def read_config(path: Path) -> dict[str, Any]:
    if not path.is_dir():
        raise UserError(
            f"There is no run directory {path}: give the folder that a training run has printed; shoal runs lists them."
        )
    try:
        record: Any = json.loads(plain(path / CONFIG).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path} is not a run directory: it has no {CONFIG}.") from None
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path / CONFIG} cannot be read ({error}): the run cannot be rebuilt from it.") from None
    if not isinstance(record, dict):
        raise UserError(f"{path / CONFIG} is damaged: it holds no run's config.")
    if missing := [key for key in ("algorithm", "config", "env") if key not in record]:
        raise UserError(f"{path / CONFIG} lacks {', '.join(missing)}: the run cannot be rebuilt from it.")
    kinds = {"algorithm": str, "env": str, "config": dict}
    if not all(isinstance(record[key], kind) for key, kind in kinds.items()):
        raise UserError(f"{path / CONFIG} is damaged: algorithm and env must be names, and config their options.")
    if strange := [key for key in ("algorithm", "env") if not record[key].isprintable()]:
        raise UserError(f"{path / CONFIG} is damaged: {strange[0]} holds characters that no name has.")
    for key, (kind, said) in RECORDED.items():
        if key in record and not isinstance(record[key], kind):
            raise UserError(f"{path / CONFIG} is damaged: {key} must be {said}.")
    values = record["config"].items()
    try:
        record["config"] = {name: out_of_json(part) if isinstance(part, dict) else part for name, part in values}
    except RecursionError:
        raise UserError(f"{path / CONFIG} is damaged: its options are nested too deeply.") from None
    return record


def in_json(value: Any) -> Any:
    """An environment's options as JSON can hold them: it has no tuples, and some environments want them."""
    if isinstance(value, tuple):
        return {TUPLE: [in_json(part) for part in value]}
    if isinstance(value, dict):
        return {name: in_json(part) for name, part in value.items()}
    return [in_json(part) for part in value] if isinstance(value, list) else value


def out_of_json(value: Any) -> Any:
    if isinstance(value, dict):
        found = {name: out_of_json(part) for name, part in value.items()}
        return tuple(found[TUPLE]) if found.keys() == {TUPLE} and isinstance(found[TUPLE], list) else found
    return [out_of_json(part) for part in value] if isinstance(value, list) else value


class Saved(NamedTuple):
    """Weights, and where they were found."""

    weights: dict[str, npt.NDArray[Any]]
    place: Path  # of the file, or of the checkpoint
    checkpoint: Checkpoint | None = None
    complaints: Sequence[str] = ()  # a sentence for each newer checkpoint that is damaged


def read_weights(path: Path) -> dict[str, npt.NDArray[Any]]:
    """The last ones: where a run has gone on and was killed, those of its newest checkpoint."""
    return newest_weights(path).weights


def newest_weights(path: Path) -> Saved:
    """What `read_weights` reads, and where it lies."""
    if _went_on(path) or not os.path.lexists(path / WEIGHTS):
        return _checkpointed_weights(path)
    return Saved(load_archive(path / WEIGHTS), path / WEIGHTS)


def load_archive(path: Path) -> dict[str, npt.NDArray[Any]]:
    try:
        with np.load(plain(path)) as archive:  # never unpickles
            return {name: archive[name] for name in archive.files}
    except BROKEN:
        raise UserError(f"{path} is damaged: the policy cannot be rebuilt from it.") from None


def _went_on(path: Path) -> bool:
    """Whether the run has gone on, and saved a checkpoint that is ahead, since it ended with the weights and summary it
    has."""
    try:
        config, summary = (json.loads(plain(path / name).read_text(encoding="utf-8")) for name in (CONFIG, SUMMARY))
        if int(config["life"]) <= int(summary["life"]):
            return False
        ended = int(summary.get("saved_version") or 0)
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return False  # it has not ended yet, or what is damaged is told by who needs it
    found, _ = Checkpoints(path / CHECKPOINTS).newest()
    return found is not None and "weights" in found.parts and found.meta.get("updates", ended) >= ended


def _checkpointed_weights(path: Path) -> Saved:
    """Of a run that was killed: those of its newest checkpoint."""
    found, complaints = Checkpoints(path / CHECKPOINTS).newest()
    if found is None or "weights" not in found.parts:
        raise UserError(
            f"{path} has no {WEIGHTS}: {complaints[0] if complaints else 'the run ended before it could save any.'}"
        )
    return Saved(found.part("weights"), found.path, found, complaints)


def read_rows(path: Path, kind: str) -> list[dict[str, Any]]:
    """The rows of one kind; what cannot be read is left out, as a last line that was cut short."""
    return [row for row in _read_metrics(path) if row is not None and row.get("kind") == kind]


def unreadable_rows(path: Path) -> int:
    """How many there are before the last, which may have been cut short when its writer was ended."""
    return sum(row is None for row in _read_metrics(path)[:-1])


def _read_metrics(path: Path) -> list[dict[str, Any] | None]:
    """Line by line; None: no row."""
    try:
        text = plain(path / METRICS).read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"{path / METRICS} cannot be read ({error.strerror}): is {path} a run directory?") from None
    except ValueError:
        raise UserError(f"{path / METRICS} is damaged: it is no text.") from None
    return [tables.parse_row(line) for line in text.splitlines()]


def _finite(value: Any) -> Any:
    """JSON has no NaN and no infinity: they become null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(part) for key, part in value.items()}
    return value


# ---- what a run is made of -------------------------------------------------------------------------------------------


def versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in ("shoal", "torch", "numpy", "gymnasium", "ray", "ale-py", "mujoco", "box2d"):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def git_revision() -> str | None:
    """The commit of the working directory's repository, with "+" when files differ from it."""
    try:
        return _git("rev-parse", "HEAD") + ("+" if _git("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.SubprocessError):
        return None


def _git(*command: str) -> str:
    return subprocess.run(["git", *command], capture_output=True, text=True, timeout=5.0, check=True).stdout.strip()


def _default(algorithm: str, env: str, seed: int) -> Path:
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", env).strip("-")
    return Path("runs") / f"{algorithm}-{plain}-{time.strftime('%Y%m%d-%H%M%S')}-s{seed}"


def _make_new(path: Path) -> Path:
    """Two runs that start within a second get folders of their own."""
    for number in range(1, 1000):
        candidate = path if number == 1 else path.with_name(f"{path.name}-{number}")
        try:
            candidate.mkdir(parents=True)
            return candidate
        except FileExistsError:
            if not candidate.is_dir():
                raise
    raise FileExistsError(17, "too many runs of this name", str(path))
