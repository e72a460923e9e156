"""From what --data names to a dataset of ours: a folder as it is, anything else converted once.

An import streams: it holds an episode at a time. One that was interrupted goes on where it was, as long as what is
imported is still the same.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from shoal.data import functions, minari, npz, parquet
from shoal.data.episodes import BadData, Episode
from shoal.data.foreign import Foreign, SpacePair, infer_spaces
from shoal.data.manifest import Origin, is_dataset
from shoal.data.manifest import read as read_manifest
from shoal.data.writer import DatasetWriter, check_new

Tell = Callable[[str], None]
FORMS = (
    "give a folder that shoal data import or shoal collect made, a Minari id or folder, a folder of Parquet files, an "
    ".npz file, or module:function"
)


def recognise(name: str) -> Foreign:
    """What a name means that is no dataset of ours."""
    if not name:
        raise BadData(f"There is no dataset without a name: {FORMS}.")
    path = Path(name)
    try:
        if path.suffix == ".npz" and path.exists():
            return npz.read(path)
        if (folder := minari.folder_of(name)) is not None:
            return minari.read(name, folder)
        if path.exists() and parquet.files_of(path) and (path.is_dir() or path.suffix == ".parquet"):
            return parquet.read(path)
        if is_dataset(path):
            raise BadData(f"{name} is a dataset of Shoal's already: use it as it is.")
        if path.exists():
            if path.is_dir():
                list(path.iterdir())  # a folder without rights says so here
            raise BadData(f"{name} is no dataset: {FORMS}.")
    except OSError as error:
        raise BadData(f"{name} cannot be read: {error.strerror or error}.") from None
    if functions.is_function(name):
        return functions.read(name)
    raise BadData(f"There is no dataset {name}: {FORMS}.")


def prepare(name: str | None, given: Callable[[], SpacePair] | None = None, tell: Tell = lambda _: None) -> Path:
    """The folder of the dataset that --data names. What is no dataset of ours is converted into the user's cache, once;
    `given` says the spaces where the data do not."""
    if not name:
        raise BadData(f"--data is missing: {FORMS}.")
    if is_dataset(Path(name)):
        known = read_manifest(Path(name))
        if not known.origin.complete:
            tell(f"note: {name} was not imported to its end: it has {known.episodes:,} episodes so far")
        return Path(name).resolve()
    found = recognise(name)
    stem = re.sub(r"[^\w.\-]+", "-", Path(name).name or name).strip("-.") or "data"
    target = cache() / f"{stem}-{found.fingerprint[:16]}"
    if is_dataset(target) and read_manifest(target).origin.complete:
        return target
    tell(f"importing {name} into {target}")
    convert(found, target, given=given, tell=tell)
    return target


def cache() -> Path:
    """Where datasets lie that were converted for a run."""
    home = os.environ.get("SHOAL_DATA") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "shoal"
    )
    return Path(home) / "data"


def import_dataset(
    name: str, output: Path | str, *, given: Callable[[], SpacePair] | None = None, tell: Tell = lambda _: None
) -> Path:
    """Convert what `name` means into a new folder, or go on with one whose import was interrupted."""
    target = Path(output)
    found = recognise(name)
    if is_dataset(target):
        origin = read_manifest(target).origin
        if origin.complete or origin.source != found.fingerprint:
            raise BadData(f"{target} is there already: name a new folder, nothing is written over.")
    convert(found, target, given=given, tell=tell)
    return target


def convert(found: Foreign, target: Path, *, given: Callable[[], SpacePair] | None = None, tell: Tell) -> None:
    """Write all episodes of a source; what was interrupted is gone on with."""
    source = iter(found.episodes())
    going_on = is_dataset(target) and read_manifest(target).origin.source == found.fingerprint
    if going_on:
        writer = DatasetWriter.go_on(target)
        taken = writer.manifest.origin.taken
        for _ in zip(range(taken), source):
            pass
        if taken:
            tell(f"going on after {taken:,} episodes that were imported before")
    else:
        check_new(target)
        first = next(source, None)
        if first is None:
            raise BadData(f"{found.name} has no episode: there is nothing to learn from.")
        pair = given() if given is not None else found.spaces or infer_spaces(found, first)
        origin = Origin(f"imported from {found.name}", found.fingerprint, 0, False)
        writer = DatasetWriter(
            target,
            pair.observation,
            pair.action,
            log_probs=first.log_probs is not None,
            env=found.env,
            env_options=found.env_options,
            origin=origin,
        )
        source, taken = _behind(first, source), 0
    start = _start(writer.manifest.native_action_space)
    try:
        for episode in source:
            writer.append(_counted_from_zero(episode, start), f"{found.name}: episode {taken}", taken + 1)
            taken += 1
        writer.close(complete=True, taken=taken)
    except BaseException:
        writer.keep()
        if not writer.episodes:
            discard(target)
        raise
    for note in found.notes:
        tell(f"note: {note}")


def discard(target: Path) -> None:
    """Remove what an import that never took an episode has made."""
    for file in target.iterdir():
        file.unlink()
    target.rmdir()


def _behind(first: Episode, rest: Iterator[Episode]) -> Iterator[Episode]:
    yield first
    yield from rest


def _start(native: spaces.Space[Any]) -> Any:
    start = getattr(native, "start", None)
    return np.asarray(start) if start is not None and np.any(start) else None


def _counted_from_zero(episode: Episode, start: Any) -> Episode:
    return episode if start is None else replace(episode, actions=episode.actions - start)
