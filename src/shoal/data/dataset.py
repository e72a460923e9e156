"""A dataset that is read: rows mapped into memory, which all readers of a machine share, and what is known of them."""

from __future__ import annotations

import mmap
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from shoal.data import manifest as manifests
from shoal.data import moments
from shoal.data.episodes import BadData, Episode, from_rows
from shoal.data.manifest import EPISODE, EPISODES, ROWS, Manifest
from shoal.data.moments import Moments
from shoal.types import Array

_PIECE = 1 << 24  # bytes of a file that are looked at together


class Dataset:
    """Episodes in a folder. Nothing is read before it is asked for, and what is read stays in the machine's cache."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.manifest: Manifest = manifests.read(self.path)
        self.record = self.manifest.record
        if not self.manifest.episodes:
            raise BadData(f"{self.path} has no episode: there is nothing to learn from.")
        self.index: Array = self._read_episodes()
        self.raw: Array = self._map_rows()  # uint8 [rows, bytes of a row]
        self.rows: Array = self.raw.view(self.record)[:, 0]  # records [rows]

    def _file(self, name: str, size: int) -> int:
        """The file's descriptor; BadData where it is not as large as it should be."""
        file = self.path / name
        try:
            if not file.is_file():  # a pipe would be waited for
                raise BadData(f"{file} is missing: the dataset is damaged.")
            descriptor = os.open(file, os.O_RDONLY)
        except OSError as error:
            raise BadData(f"{file} cannot be read: {error.strerror}.") from None
        if (there := os.fstat(descriptor).st_size) < size:
            os.close(descriptor)
            raise BadData(f"{file} is cut short: {there:,} bytes where {size:,} belong.")
        return descriptor

    def _read_episodes(self) -> Array:
        size = self.manifest.episodes * EPISODE.itemsize
        descriptor = self._file(EPISODES, size)
        with os.fdopen(descriptor, "rb") as file:
            index = np.frombuffer(file.read(size), EPISODE)
        lengths = index["length"]
        first = np.concatenate([[0], np.cumsum(lengths + 1)])
        if lengths.min() < 1 or first[-1] != self.manifest.rows or not np.array_equal(first[:-1], index["first"]):
            raise BadData(f"{self.path / EPISODES} is damaged: its episodes do not fit the rows.")
        return index

    def _map_rows(self) -> Array:
        size = self.manifest.rows * self.record.itemsize
        descriptor = self._file(ROWS, size)
        try:
            self._mapping = mmap.mmap(descriptor, size, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)
        except (OSError, ValueError) as error:
            raise BadData(f"{self.path / ROWS} cannot be mapped into memory: {error}.") from None
        finally:
            os.close(descriptor)
        self.descriptor = self._file(ROWS, size)  # of the rows, for who says what is read next
        return np.ndarray((self.manifest.rows, self.record.itemsize), np.uint8, self._mapping)

    def expect_random_reads(self) -> None:
        """Rows will be read here and there: of a dataset larger than memory, neighbours are not worth reading too."""
        if hasattr(mmap, "MADV_RANDOM"):
            self._mapping.madvise(mmap.MADV_RANDOM)

    def __del__(self) -> None:
        if hasattr(self, "descriptor"):
            os.close(self.descriptor)

    # ---- what it is

    @property
    def observation_space(self) -> spaces.Space[Any]:
        return self.manifest.observation_space

    @property
    def action_space(self) -> spaces.Space[Any]:
        return self.manifest.action_space

    @property
    def env(self) -> str:
        """What it was made in, for a person; "" where that is not known."""
        return self.manifest.env

    @property
    def steps(self) -> int:
        return self.manifest.steps

    @property
    def nbytes(self) -> int:
        return self.manifest.rows * self.record.itemsize

    def __len__(self) -> int:
        """Episodes."""
        return self.manifest.episodes

    @property
    def returns(self) -> Array:
        """Of each episode, not discounted: float64 [episodes]."""
        totals: Array = self.index["total"]
        return totals

    @property
    def lengths(self) -> Array:
        """Steps of each episode: int64 [episodes]."""
        lengths: Array = self.index["length"]
        return lengths

    @property
    def terminated(self) -> Array:
        """Which episodes came to an end of their own: bool [episodes]."""
        ended: Array = self.index["terminated"]
        return ended

    def statistics(self) -> dict[str, Moments]:
        """Of each observation, "observation" or "observation/…" over all T + 1 of each episode, "action", "reward"."""
        return {name: moments.moments(found, self.record[name].shape) for name, found in self.manifest.moments.items()}

    # ---- episodes

    def episode(self, number: int) -> Episode:
        entry = self.index[number]
        first, length = int(entry["first"]), int(entry["length"])
        seed = None if entry["seed"] < 0 else int(entry["seed"])
        return from_rows(
            self.rows[first : first + length + 1], bool(entry["terminated"]), bool(entry["truncated"]), seed
        )

    def episodes(self) -> Iterator[Episode]:
        for number in range(len(self)):
            yield self.episode(number)

    def verify(self) -> None:
        """Compare both files with their checksums; BadData names the one that does not fit."""
        sizes = {ROWS: self.nbytes, EPISODES: self.index.nbytes}
        for name, size in sizes.items():
            check = 0
            with os.fdopen(self._file(name, size), "rb") as file:
                while size:
                    piece = file.read(min(size, _PIECE))
                    check, size = zlib.crc32(piece, check), size - len(piece)
                    if not piece:
                        break
            if check != self.manifest.checksums[name]:
                raise BadData(f"{self.path / name} is damaged: its checksum does not fit its contents.")


def open_dataset(path: Path | str) -> Dataset:
    """The dataset in a folder; BadData, in a sentence, for what is none."""
    return Dataset(path)
