"""Minari's datasets, in and out (0.5).

Two things of theirs are kept away from: metadata without spaces would have an environment made that the file names, and
images would be stored as JPEG, which is not what was seen.
"""

from __future__ import annotations

import json
import re
import shutil
import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from shoal.data.dataset import Dataset
from shoal.data.episodes import BadData, Episode, episode, nested
from shoal.data.foreign import Foreign, SpacePair, check_regular, fingerprint_of
from shoal.data.npz import native_start

PREFIX = "minari:"
VERSION = "0.5"
ID = re.compile(r"([\w\-]+/)*[\w\-]+-v\d+")
AT_ONCE = 64  # episodes that are written together
METADATA = "metadata.json"


def _minari() -> Any:
    try:
        import minari
        import minari.dataset.minari_storage
    except ImportError as error:
        raise BadData(f"Minari's datasets need its package ({error}): pip install 'shoal[minari]'.") from None
    return minari


def is_name(name: str) -> bool:
    """Whether Minari's own folder is meant, and not one of the user's."""
    return name.startswith(PREFIX)


def folder_of(name: str) -> Path | None:
    """Where the metadata of the dataset lie that is meant: of an id, `minari:ID`, or a folder; None: none of them."""
    path = Path(name)
    for folder in (path, path / "data"):
        if (folder / METADATA).is_file():
            return folder
    named = name.removeprefix(PREFIX)
    if not ID.fullmatch(named):
        return None
    import os

    root = Path(os.environ.get("MINARI_DATASETS_PATH") or Path.home() / ".minari" / "datasets")
    folder = root / named / "data"
    if (folder / METADATA).is_file():
        return folder
    if name.startswith(PREFIX):
        raise BadData(f"There is no Minari dataset {named} in {root}: fetch it with minari download {named}.")
    return None


def read(name: str, folder: Path) -> Foreign:
    try:
        metadata = json.loads((folder / METADATA).read_bytes())
    except OSError as error:
        raise BadData(f"{folder / METADATA} cannot be read: {error.strerror}.") from None
    except (RecursionError, ValueError):
        raise BadData(f"{folder / METADATA} is damaged: it is no JSON.") from None
    if not isinstance(metadata, dict):
        raise BadData(f"{folder / METADATA} is damaged: it is no table.")
    if not all(isinstance(metadata.get(part), str) for part in ("observation_space", "action_space")):
        raise BadData(
            f"{name} does not tell its spaces, and Minari would make the environment that the file names to find out: "
            "that is not done. Make it anew with a newer Minari."
        )
    check_regular(*folder.rglob("*"))
    minari = _minari()
    version = str(metadata.get("minari_version", "unknown"))
    if version not in minari.supported_dataset_versions:
        raise BadData(
            f"{name} was written by Minari {version}, and this one, {minari.__version__}, does not read it: install "
            "that version, or write the dataset anew."
        )
    try:
        storage = minari.dataset.minari_storage.MinariStorage.read(folder)
        count = int(storage.total_episodes)
        spaces = SpacePair(storage.observation_space, storage.action_space)
    except Exception as error:
        raise _damaged(folder, error) from None
    if not count:
        raise BadData(f"{name} has no episode: there is nothing to learn from.")
    notes = []
    if metadata.get("jpeg_encoding", True) and _has_images(minari, spaces):
        notes.append("its images were stored as JPEG: they are not quite what was seen")
    files = [file for file in folder.iterdir() if file.is_file()]
    env, options = _environment(metadata)
    return Foreign(
        name,
        fingerprint_of(*files),
        partial(_episodes, storage, folder, count),
        spaces=spaces,
        env=env,
        env_options=options,
        count=count,
        notes=notes,
    )


def _has_images(minari: Any, spaces: SpacePair) -> bool:
    from shoal import tree

    is_image = minari.dataset.minari_storage.is_image_space
    return any(is_image(leaf) for leaf in tree.leaf_spaces(spaces.observation, "observation").values())


def _environment(metadata: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """The id and the options that it tells; nothing is made of them."""
    try:
        spec = json.loads(metadata["env_spec"])
        options = {key: value for key, value in spec.get("kwargs", {}).items() if isinstance(value, str | int | float)}
        return str(spec["id"]), options
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError):
        return "", {}


def _damaged(folder: Path, error: BaseException) -> BadData:
    what = " ".join(str(error).split())[:200].rstrip(".") or type(error).__name__
    return BadData(f"{folder} is damaged, or half written: {what}.")


def _episodes(storage: Any, folder: Path, count: int) -> Iterator[Episode]:
    for number in range(count):
        try:
            (found,) = storage.get_episodes([number])
            (metadata,) = storage.get_episode_metadata([number])
            ends = [np.asarray(found[name]).reshape(-1) for name in ("terminations", "truncations")]
            infos = found.get("infos")
            chances = infos.get("log_prob") if isinstance(infos, dict) else None
            made = episode(
                found["observations"],
                found["actions"],
                found["rewards"],
                terminated=bool(ends[0][-1]) if len(ends[0]) else False,
                truncated=bool(ends[1][-1]) if len(ends[1]) else False,
                log_probs=None if chances is None else np.asarray(chances).reshape(-1)[: len(found["rewards"])],
                seed=metadata.get("seed"),
            )
        except BadData:
            raise
        except Exception as error:
            raise _damaged(folder, error) from None
        yield made


def check_new(name: str) -> Path:
    """Where a new dataset of this id will lie; BadData where the id is none, or is there already."""
    named = name.removeprefix(PREFIX)
    if not ID.fullmatch(named):
        raise BadData(f"{named!r} is no id of Minari's: write for example hopper/expert-v0, the version is a must.")
    _minari()
    from minari.dataset.minari_dataset import parse_dataset_id
    from minari.storage.datasets_root_dir import get_dataset_path

    try:
        parse_dataset_id(named)
    except ValueError:
        raise BadData(
            f"{named!r} is no id of Minari's: write for example hopper/expert-v0, of two letters or more."
        ) from None

    try:
        folder = Path(get_dataset_path(named))
    except OSError as error:
        raise BadData(f"Minari's folder cannot be written: {error.strerror or error}.") from None
    if folder.exists():
        raise BadData(f"{folder} is there already: give another id, nothing is written over.")
    return folder


def write(data: Dataset, name: str, data_format: str = "hdf5") -> Path:
    """A new Minari dataset under this id, in Minari's own folder; complete or absent. HDF5, "arrow" or "parquet"."""
    folder, named = check_new(name), name.removeprefix(PREFIX)
    minari = _minari()
    from minari.data_collector import EpisodeBuffer

    made = None

    def buffer(number: int) -> Any:
        found = data.episode(number)
        length = len(found)
        ends = np.zeros((2, length), bool)
        ends[:, -1] = found.terminated, found.truncated
        infos = None
        if found.log_probs is not None and data_format == "hdf5":  # what it writes to Arrow it cannot read
            infos = {"log_prob": np.append(found.log_probs, np.float32(np.nan))}
        return EpisodeBuffer(
            seed=found.seed,
            observations=nested(found.observations, data.observation_space),
            actions=found.actions + native_start(data),
            rewards=found.rewards,
            terminations=ends[0],
            truncations=ends[1],
            infos=infos,
        )

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what is not told: author, code, reference scores
            for begin in range(0, len(data), AT_ONCE):
                buffers = [buffer(number) for number in range(begin, min(begin + AT_ONCE, len(data)))]
                if made is None:
                    made = minari.create_dataset_from_buffers(
                        dataset_id=named,
                        buffer=buffers,
                        observation_space=data.observation_space,
                        action_space=data.manifest.native_action_space,
                        description=data.manifest.origin.text or "written by Shoal",
                        data_format=data_format,
                        jpeg_encoding=False,
                    )
                else:
                    made.storage.update_episodes(buffers)
    except BaseException as error:
        made = None  # and with it its files
        shutil.rmtree(folder, ignore_errors=True)  # all of it, or nothing
        if isinstance(error, Exception) and not isinstance(error, BadData):
            what = error.strerror if isinstance(error, OSError) else None
            raise BadData(f"{folder} cannot be written: {what or ' '.join(str(error).split())[:200]}.") from None
        raise
    return folder
