"""From a dataset of ours to formats of others."""

from __future__ import annotations

from pathlib import Path

from shoal.data import minari, npz, parquet
from shoal.data.dataset import Dataset
from shoal.data.episodes import BadData


def export(data: Dataset, output: str, data_format: str = "hdf5") -> Path:
    """Write all episodes as `minari:ID`, `NAME.npz`, or a folder of Parquet files, which must be new."""
    if minari.is_name(output):
        return minari.write(data, output, data_format)
    path = Path(output)
    if path.suffix == ".npz":
        if path.exists():
            raise BadData(f"{path} is there already: give another name, nothing is written over.")
        npz.write(data, path)
    else:
        parquet.write(data, path)
    return path
