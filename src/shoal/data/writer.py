"""Writing a dataset: episodes are appended, and become part of it in whole ones.

Rows and episodes go to the ends of two files; from time to time both are made to last and the manifest, replaced as a
whole, says how far they count. Whoever is killed leaves what the manifest says, and who goes on writes from there.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
import zlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np
from gymnasium import spaces

from shoal import tree
from shoal.data import manifest as manifests
from shoal.data import moments
from shoal.data.episodes import ACTION, OBSERVATION, REWARD, BadData, Episode, to_rows
from shoal.data.manifest import EPISODE, EPISODES, LOCK, ROWS, Manifest, Origin
from shoal.envs import check

COMMIT_BYTES = 1 << 26
RESERVE, RESERVED = "reserve", 1 << 18  # bytes that are given free where a full disk would not take the manifest
COMMIT_SECONDS = 2.0


class DatasetWriter:
    """Appends episodes to a new dataset or, with `DatasetWriter.go_on`, to one that was begun."""

    def __init__(
        self,
        path: Path | str,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        *,
        native_action_space: spaces.Space[Any] | None = None,
        log_probs: bool = False,
        env: str = "",
        env_options: Mapping[str, Any] | None = None,
        origin: Origin | None = None,
    ) -> None:
        """Spaces may be an environment's own: what is stored has floating point as float32 and counts from 0."""
        self.path = Path(path)
        name = env or "the dataset"
        manifest = Manifest(
            check.observation_space(observation_space, name),
            check.action_space(action_space, name),
            native_action_space or action_space,
            log_probs=log_probs,
            env=env,
            env_options=env_options or {},
            origin=origin or Origin(),
        )
        _make_folder(self.path)
        self._lock = _locked(self.path)
        try:
            if manifests.is_dataset(self.path):
                raise BadData(f"{self.path} is there already: name a new folder, nothing is written over.")
            self._open(manifest, os.O_CREAT)
        except BaseException:
            os.close(self._lock)
            raise

    @classmethod
    def go_on(cls, path: Path | str) -> DatasetWriter:
        """Append to a dataset that is there; what a killed writer left behind whole episodes is cut off."""
        writer = cls.__new__(cls)
        writer.path = Path(path)
        manifests.read(writer.path)  # or there is nothing to lock
        writer._lock = _locked(writer.path)
        try:
            writer._open(manifests.read(writer.path))  # as who wrote until now has left it
        except BaseException:
            os.close(writer._lock)
            raise
        return writer

    def _open(self, manifest: Manifest, create: int = 0) -> None:
        self.manifest = manifest
        self.episodes, self.rows = manifest.episodes, manifest.rows
        self._sums: dict[str, Any] = {
            name: {key: value if key == "count" else np.asarray(value) for key, value in found.items()}
            for name, found in manifest.moments.items()
        }
        self._record = manifest.record
        self._checks = dict(manifest.checksums)
        self._pending, self._committed = 0, time.monotonic()
        self._files: dict[str, BinaryIO] = {}
        try:
            for name, size in ((ROWS, self.rows * self._record.itemsize), (EPISODES, self.episodes * EPISODE.itemsize)):
                descriptor = os.open(self.path / name, os.O_RDWR | os.O_NOFOLLOW | create, 0o666)
                file = self._files[name] = open(descriptor, "r+b", buffering=0)  # noqa: SIM115 closed with the writer
                if file.seek(0, os.SEEK_END) < size:
                    raise BadData(f"{self.path / name} is cut short: {file.tell():,} bytes where {size:,} belong.")
                file.truncate(size)
                file.seek(size)
            manifests.write(self.path, self.manifest)
            with open(self.path / RESERVE, "wb") as reserve:
                reserve.write(bytes(RESERVED))
        except BaseException as error:
            for opened in self._files.values():
                opened.close()
            if isinstance(error, OSError):
                raise _cannot(self.path, error) from None
            raise

    @property
    def steps(self) -> int:
        return self.rows - self.episodes

    def append(self, episode: Episode, name: str | None = None, taken: int | None = None) -> None:
        """Add an episode; `name` is what sentences call it. It lasts from the next commit on, which comes by itself;
        with it lasts that so many episodes of what is imported were `taken`."""
        manifest = self.manifest
        rows = to_rows(episode, self._record, manifest.action_space, name or f"episode {self.episodes}")
        entry = np.zeros(1, EPISODE)
        entry["first"], entry["length"], entry["total"] = self.rows, len(episode), episode.total
        entry["seed"] = -1 if episode.seed is None else episode.seed
        entry["terminated"], entry["truncated"] = episode.terminated, episode.truncated
        checks = {}
        try:
            for file, values in ((ROWS, rows), (EPISODES, entry)):
                data = values.view(np.uint8).reshape(-1).data
                checks[file] = zlib.crc32(data, self._checks[file])
                while len(data):
                    data = data[self._files[file].write(data) :]
        except OSError as error:
            self._cut_back()
            raise _cannot(self.path, error) from None
        self._checks = checks
        steps = slice(0, len(episode))
        observed = {name: rows[name] for name in self._record.names or () if tree.is_under(name, OBSERVATION)}
        moments.add(self._sums, {**observed, ACTION: rows[ACTION][steps], REWARD: rows[REWARD][steps]})
        self.rows, self.episodes, self._pending = self.rows + len(rows), self.episodes + 1, self._pending + rows.nbytes
        if taken is not None:
            self.manifest = replace(self.manifest, origin=replace(self.manifest.origin, taken=taken))
        if self._pending >= COMMIT_BYTES or time.monotonic() - self._committed >= COMMIT_SECONDS:
            self.commit()

    def _cut_back(self) -> None:
        """The disk is full: what was counted stays, of half an episode nothing."""
        for name, size in ((ROWS, self.rows * self._record.itemsize), (EPISODES, self.episodes * EPISODE.itemsize)):
            self._files[name].truncate(size)
            self._files[name].seek(size)

    def commit(self, **origin: Any) -> None:
        """Make what was appended last; fields of `Origin` may change with it."""
        try:
            self._commit(origin)
        except OSError as error:
            try:  # what was kept free for it
                (self.path / RESERVE).unlink()
                self._commit(origin)
            except OSError:
                raise _cannot(self.path, error) from None
        self._pending, self._committed = 0, time.monotonic()

    def _commit(self, origin: Mapping[str, Any]) -> None:
        for file in self._files.values():
            os.fsync(file.fileno())
        self.manifest = replace(
            self.manifest,
            rows=self.rows,
            episodes=self.episodes,
            checksums=dict(self._checks),
            moments=moments.plain(self._sums),
            origin=replace(self.manifest.origin, **origin),
        )
        manifests.write(self.path, self.manifest)

    def keep(self) -> None:
        """Let go of the folder with all that was appended, or, where that cannot be, with what was committed."""
        try:
            if self._files:
                self.commit()
        except BadData:
            pass  # a full disk: what was committed before stays
        self.release()

    def close(self, **origin: Any) -> None:
        """Commit and let go of the folder."""
        try:
            self.commit(**origin)
        finally:
            self.release()

    def release(self) -> None:
        """Let go of the folder, with what was committed. May come twice."""
        files, self._files = self._files, {}
        for file in files.values():
            try:
                file.close()
            except OSError:
                pass  # what it could not write was never committed
        if files:
            (self.path / RESERVE).unlink(missing_ok=True)
            os.close(self._lock)

    def __enter__(self) -> DatasetWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None or not issubclass(kind, BadData | OSError):
            self.close()
        else:
            self.release()


class LateWriter:
    """A dataset that begins with its first episode: that one says whether log-probabilities are known."""

    def __init__(self, make: Callable[..., DatasetWriter]) -> None:
        self._make = make
        self._writer: DatasetWriter | None = None
        self.returns: list[float] = []
        self.steps = 0

    def go_on(self, path: Path) -> None:
        """Append to a dataset that was begun."""
        self._writer = DatasetWriter.go_on(path)

    def append(self, episode: Episode) -> None:
        if self._writer is None:
            self._writer = self._make(log_probs=episode.log_probs is not None)
        self._writer.append(episode)
        self.returns.append(episode.total)
        self.steps += len(episode)

    def kept(self) -> str:
        count = len(self.returns)
        return f"{count:,} episode{'' if count == 1 else 's'}"

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


def check_new(path: Path) -> None:
    """BadData where something is there already."""
    try:
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise BadData(f"{path} is there already: name a new folder, nothing is written over.")
    except OSError as error:
        raise _cannot(path, error) from None


def check_writable(path: Path) -> None:
    """BadData where no such folder can be made; what is made to find out is removed again."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    _make_folder(path)
    for folder in missing:
        folder.rmdir()


def _make_folder(path: Path) -> None:
    check_new(path)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _cannot(path, error) from None


def _locked(path: Path) -> int:
    """A descriptor that keeps other writers out as long as it is open."""
    try:
        lock = os.open(path / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
    except OSError as error:
        raise _cannot(path, error) from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(lock)
        if isinstance(error, BlockingIOError):
            raise BadData(f"{path} is being written by another process: wait for it, or take another folder.") from None
        raise _cannot(path, error) from None
    return lock


def _cannot(path: Path, error: OSError) -> BadData:
    what = "the disk is full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else (error.strerror or str(error))
    return BadData(f"{path} cannot be written: {what}.")
