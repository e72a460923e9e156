"""Datasets: logged episodes in a folder, written in whole ones, read by any number of learners, never run."""

from __future__ import annotations

from shoal.data.dataset import Dataset, open_dataset
from shoal.data.episodes import BadData, Episode, episode
from shoal.data.importing import prepare
from shoal.data.items import Items, gather
from shoal.data.manifest import Origin, is_dataset
from shoal.data.moments import Moments
from shoal.data.writer import DatasetWriter

__all__ = [
    "BadData",
    "Dataset",
    "DatasetWriter",
    "Episode",
    "Items",
    "Moments",
    "Origin",
    "episode",
    "gather",
    "is_dataset",
    "open_dataset",
    "prepare",
]
