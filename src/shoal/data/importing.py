"""From what --data names to a dataset of ours: a folder as it is, anything else converted once."""

from __future__ import annotations

from pathlib import Path

from shoal.data.episodes import BadData
from shoal.data.manifest import is_dataset


def prepare(name: str | None) -> Path:
    """The folder of the dataset that is meant."""
    if not name:
        raise BadData("--data is missing: give a dataset, such as a folder that `shoal data import` has made.")
    path = Path(name)
    if is_dataset(path):
        return path.resolve()
    raise BadData(f"--data {name} is no dataset: there is no such folder, or it has no manifest.json.")
