"""The checkpoints of a run: each is a folder that is complete or absent; the last few and the best are kept.

checkpoints/000007/         a checkpoint: manifest.json, and of each part PART.safetensors and PART.json
checkpoints/best-000003/    the same for the best weights so far
checkpoints/.saving-…       what is being written, or was when its process was killed: removed at the next start
"""

from __future__ import annotations

import json
import os
import re
import shutil
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from shoal.checkpoints.state_files import DamagedCheckpoint, plain, read_state, write_state

MANIFEST = "manifest.json"
FORMAT = 1
BEST = "best-"
_SAVING, _REMOVING = ".saving-", ".removing-"
_NAME = re.compile(r"(best-)?([0-9]{6,})")
_PART = re.compile(r"[A-Za-z0-9_]+(-[A-Za-z0-9_]+)*")
_BLOCK = 1 << 20


class CheckpointFailed(Exception):
    """A checkpoint could not be written; those that were there are as they were, and training can go on."""


@dataclass(frozen=True)
class Checkpoint:
    """One that is complete: its manifest was read, and its files are as they were written."""

    path: Path
    meta: Mapping[str, Any]  # what was said of it when it was saved: plain JSON
    parts: tuple[str, ...]

    def part(self, name: str) -> Any:
        """The state of a part. `DamagedCheckpoint` where it is not what was written, or not there."""
        if name not in self.parts:
            raise DamagedCheckpoint(f"{self.path} has no part {name!r}: it has {', '.join(self.parts) or 'none'}.")
        return read_state(self.path / name)

    def folder(self, name: str) -> Path | None:
        """Where the files lie that were saved as a folder of this name."""
        return self.path / name if (self.path / name).is_dir() else None


class Checkpoints:
    """Saves and finds the checkpoints of one run. Only who holds the run's lock may save or clean up."""

    def __init__(self, directory: Path, keep: int = 3) -> None:
        self.directory = directory
        self._keep = max(1, keep)

    def clean(self) -> list[str]:
        """Remove what killed processes have left half written or half removed; their names."""
        left = [path for path in self._entries() if path.name.startswith((_SAVING, _REMOVING))]
        for path in left:
            shutil.rmtree(path, ignore_errors=True)
        return [path.name for path in left]

    def save(
        self, parts: Mapping[str, Any], meta: Mapping[str, Any], folders: Mapping[str, Path] | None = None
    ) -> Checkpoint:
        """A new checkpoint of states by name. The files of `folders` become part of it by hard links, so that what does
        not change from one checkpoint to the next lies on the disk once; they must not be changed later.

        Raises `CheckpointFailed`, with everything that was there before as it was.
        """
        return self._save("", parts, meta, folders or {}, self._keep)

    def save_best(self, parts: Mapping[str, Any], meta: Mapping[str, Any]) -> Checkpoint:
        """The best so far: it takes the place of the one before."""
        return self._save(BEST, parts, meta, {}, 1)

    def newest(self, check: Callable[[Checkpoint], None] | None = None) -> tuple[Checkpoint | None, list[str]]:
        """The newest that is undamaged, and a sentence for each newer one that is not. `check` looks at what belongs to
        a checkpoint and lies elsewhere, and raises `DamagedCheckpoint`."""
        return self._newest("", check)

    def all(self) -> list[Checkpoint]:
        """Those that are numbered, oldest first; `DamagedCheckpoint` where one is."""
        return [open_checkpoint(path) for path in self._saved("")]

    def names(self) -> tuple[str, list[str]]:
        """The name that the next checkpoint will have, and those that there are."""
        before = self._saved("")
        return f"{1 + (_number(before[-1]) if before else 0):06d}", [path.name for path in before]

    def best(self) -> tuple[Checkpoint | None, list[str]]:
        return self._newest(BEST)

    def _newest(
        self, prefix: str, check: Callable[[Checkpoint], None] | None = None
    ) -> tuple[Checkpoint | None, list[str]]:
        complaints: list[str] = []
        for path in reversed(self._saved(prefix)):
            try:
                found = open_checkpoint(path)
                if check is not None:
                    check(found)
                return found, complaints
            except DamagedCheckpoint as damage:
                complaints.append(str(damage))
        return None, complaints

    # ---- saving

    def _save(
        self, prefix: str, parts: Mapping[str, Any], meta: Mapping[str, Any], folders: Mapping[str, Path], keep: int
    ) -> Checkpoint:
        before = self._saved(prefix)
        number = 1 + (_number(before[-1]) if before else 0)
        path = self.directory / f"{prefix}{number:06d}"
        temporary = self.directory / f"{_SAVING}{os.getpid()}-{path.name}"
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            shutil.rmtree(temporary, ignore_errors=True)
            temporary.mkdir()
            _write(temporary, parts, meta, folders)
            os.rename(temporary, path)  # a folder of this name cannot be there: then it fails, as it should
            _sync(self.directory)
        except (OSError, SafetensorError, TypeError, ValueError) as error:
            shutil.rmtree(temporary, ignore_errors=True)
            raise CheckpointFailed(f"the checkpoint {path} could not be written: {_reason(error)}") from error
        for old in [*before, path][:-keep]:
            _remove(old)
        return Checkpoint(path, dict(meta), tuple(parts))

    # ---- what is there

    def _entries(self) -> list[Path]:
        try:
            return sorted(self.directory.iterdir())
        except OSError:
            return []

    def _saved(self, prefix: str) -> list[Path]:
        """The folders of checkpoints, oldest first."""
        found = [path for path in self._entries() if (name := _NAME.fullmatch(path.name)) and (name[1] or "") == prefix]
        return sorted(found, key=_number)


def open_checkpoint(path: Path) -> Checkpoint:
    """Read a manifest and compare every file with it, or `DamagedCheckpoint`."""
    body = _read_manifest(path / MANIFEST)
    for name, (size, checksum) in body["files"].items():
        file = path / name
        try:
            found = file.stat().st_size
            if found != size:
                raise DamagedCheckpoint(f"{file} is damaged: it has {found:,} bytes and should have {size:,}.")
            if checksum is not None and _checksum(file) != checksum:
                raise DamagedCheckpoint(f"{file} is damaged: its checksum is another one.")
        except OSError as error:
            raise DamagedCheckpoint(f"{file} cannot be read: {error.strerror}.") from None
    return Checkpoint(path, body["meta"], tuple(body["parts"]))


def _read_manifest(path: Path) -> dict[str, Any]:
    try:
        record = json.loads(plain(path).read_text(encoding="utf-8"))
        body = record["body"]
        if record["crc32"] != _crc_of(body):
            raise DamagedCheckpoint(f"{path} is damaged: its checksum is another one.")
        if body["format"] != FORMAT:
            raise DamagedCheckpoint(
                f"{path} has format {body['format']!r} and this version of Shoal reads {FORMAT}: "
                "use the one that wrote it."
            )
        if not isinstance(body["meta"], dict) or not all(_PART.fullmatch(name) for name in body["parts"]):
            raise ValueError("meta or parts")
        for name, (size, checksum) in body["files"].items():
            relative = Path(name)
            if relative.is_absolute() or ".." in relative.parts or not isinstance(size, int):
                raise ValueError(f"the file {name!r}")
            if checksum is not None and not isinstance(checksum, int):
                raise ValueError(f"the checksum of {name!r}")
    except OSError as error:
        raise DamagedCheckpoint(f"{path} cannot be read: {error.strerror}.") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DamagedCheckpoint(f"{path} is damaged: {' '.join(str(error).split())[:200]}.") from None
    return body  # type: ignore[no-any-return]


def _write(folder: Path, parts: Mapping[str, Any], meta: Mapping[str, Any], folders: Mapping[str, Path]) -> None:
    files: dict[str, tuple[int, int | None]] = {}
    for name in (*parts, *folders):
        if not _PART.fullmatch(name):
            raise ValueError(f"{name!r} is no name of a part")
    for name, state in parts.items():
        for file in write_state(folder / name, state):
            _sync(file)
            files[file.name] = (file.stat().st_size, _checksum(file))
    for name, source in folders.items():
        (folder / name).mkdir()
        for file in sorted(source.iterdir()):
            linked = folder / name / file.name
            _link(file, linked)
            files[f"{name}/{file.name}"] = (linked.stat().st_size, None)  # who wrote it has checksums inside
        _sync(folder / name)
    body = {"format": FORMAT, "meta": dict(meta), "parts": list(parts), "files": files}
    with open(folder / MANIFEST, "w", encoding="utf-8") as out:
        json.dump({"crc32": _crc_of(body), "body": body}, out, indent=1)
        out.flush()
        os.fsync(out.fileno())
    _sync(folder)


def _link(file: Path, linked: Path) -> None:
    try:
        os.link(file, linked)
    except OSError:  # not every file system has links
        shutil.copyfile(file, linked)
        _sync(linked)


def _remove(path: Path) -> None:
    """First its name, so that nobody takes a half removed one for a checkpoint."""
    gone = path.with_name(_REMOVING + path.name)
    try:
        os.rename(path, gone)
    except OSError:
        return  # it stays: one too many does no harm
    shutil.rmtree(gone, ignore_errors=True)


def _number(path: Path) -> int:
    return int(path.name.removeprefix(BEST))


def _crc_of(body: Any) -> int:
    return zlib.crc32(json.dumps(body, sort_keys=True, allow_nan=False).encode())


def _checksum(file: Path) -> int:
    checksum = 0
    with open(file, "rb") as data:
        while block := data.read(_BLOCK):
            checksum = zlib.crc32(block, checksum)
    return checksum


def _sync(path: Path) -> None:
    """Force a file, or the names in a folder, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    said = " ".join(str(error).split())
    io_error = re.search(r"([^:\"]+) \(os error \d+\)", said)  # as safetensors says it
    return io_error[1].strip() if io_error else said
