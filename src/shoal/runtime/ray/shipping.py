"""The user's own files on other machines: packed where the command is, unpacked by the agent of each machine; and what
is installed there, compared with what is installed here.

Files, not functions: an environment is named `module:factory` and looked for by name in every process, its module may
import others late, read files beside it, or start processes that import it again (decision 0052).
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import io
import os
import platform
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from shoal.errors import UserError
from shoal.factories import folder_of

MOST_BYTES = 64 << 20  # of all files together
MOST_FILES = 5_000
LARGEST = 16 << 20  # bytes of a file; what is larger is data, and stays
MOST_SEEN = 50_000  # files and folders that are looked at
NOT_SHIPPED = ("__pycache__", "node_modules", "runs")  # and what is hidden, environments of Python, and runs
OF_A_RUN, OF_AN_ENVIRONMENT = ("config.json", "metrics.jsonl"), "pyvenv.cfg"
INSTALLED = ("site-packages", "dist-packages")  # folders of what was installed, wherever they are
COMPARED = ("shoal", "torch", "numpy")
EXTRAS = {
    "ale_py": "atari",
    "Box2D": "box2d",
    "mujoco": "mujoco",
    "dm_env": "dm",
    "dm_control": "dm-control",
    "minari": "minari",
    "pyarrow": "parquet",
    "aiohttp": "gateway",
    "msgpack": "gateway",
    "imageio": "video",
}  # which extra of shoal brings a module


@dataclass(frozen=True)
class Parcel:
    """Folders of the user's own, as they are where the command was given."""

    digest: str
    files: bytes  # a zip; each folder under its number
    paths: tuple[str, ...]  # in it, where modules are looked for
    working: str | None  # in it, the working directory

    def unpack(self, below: str) -> tuple[list[str], str | None]:
        """Where modules are to be looked for first, and the working directory; unpacked once however many ask."""
        place = os.path.join(below, f"shoal-{self.digest}")
        if not os.path.isdir(place):
            made = tempfile.mkdtemp(prefix="shoal-", dir=below)
            with zipfile.ZipFile(io.BytesIO(self.files)) as archive:
                archive.extractall(made)
            for path in self.paths:
                os.makedirs(os.path.join(made, path), exist_ok=True)
            try:
                os.rename(made, place)
            except OSError:  # another agent of this machine was quicker
                shutil.rmtree(made, ignore_errors=True)
        found = [os.path.join(place, path) for path in self.paths]
        return found, None if self.working is None else os.path.join(place, self.working)


def own_folders(named: Iterable[str] = ()) -> list[str]:
    """Where the user's own modules lie: those that are `named`, and those from which this process has imported some."""
    imported = {
        folder_of(name)
        for name in list(sys.modules)
        if name.partition(".")[0] not in ("shoal", "__main__", "__mp_main__")
    }
    own = {folder for folder in imported if folder is not None and not {*INSTALLED} & {*Path(folder).parts}}
    return [*dict.fromkeys([*named, *sorted(own)])]


def pack(folders: Iterable[str], working: str) -> tuple[Parcel | None, list[str]]:
    """A parcel of these folders, and what should be known of it. None where there is nothing of the user's own."""
    wanted = [*dict.fromkeys(os.path.realpath(folder) for folder in folders)]
    found = [folder for folder in wanted if not any(_is_below(folder, other) for other in wanted)]
    if not found:
        return None, []
    chosen, notes, left = [], [], MOST_BYTES
    for folder in found:
        files = [*_files(folder)]
        large = [path for path, size in files if size > LARGEST]
        kept = [(path, size) for path, size in files if size <= LARGEST]
        if len(kept) > MOST_FILES or sum(size for _, size in kept) > left:
            kept = [(path, size) for path, size in kept if path.suffix == ".py"]
            notes.append(
                f"{folder} is too large to be taken to other machines: only its Python files are "
                f"(at most {MOST_FILES:,} files and {MOST_BYTES >> 20} MB)"
            )
        elif large:
            names = ", ".join(str(path.relative_to(folder)) for path in large[:3])
            notes.append(f"not taken to other machines: {names} (files over {LARGEST >> 20} MB stay where they are)")
        left -= sum(size for _, size in kept)
        if left < 0 or len(kept) > MOST_FILES:
            raise UserError(
                f"{folder} has too many files to be taken to the other machines ({len(kept):,}): give the command in a "
                "folder of your program's own, or install the program on every machine."
            )
        chosen.append([path for path, _ in kept])
    data = _zip(found, chosen)
    paths, here = [_place(folder, found) for folder in wanted], os.path.realpath(working)
    digest = hashlib.sha256(data + repr(paths).encode()).hexdigest()[:32]
    return Parcel(digest, data, tuple(path for path in paths if path), _place(here, found)), notes


def _place(folder: str, found: list[str]) -> str | None:
    """Where a folder is among those that were packed."""
    for number, root in enumerate(found):
        if folder == root or _is_below(folder, root):
            return os.path.normpath(os.path.join(str(number), os.path.relpath(folder, root)))
    return None


def _is_below(folder: str, other: str) -> bool:
    return folder != other and folder.startswith(other.rstrip(os.sep) + os.sep)


def _files(folder: str) -> Iterator[tuple[Path, int]]:
    """Regular files and their sizes, in order; of links, what they lead to within the folder."""
    seen = 0
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if _is_shipped(os.path.join(place, name), name))
        seen += len(folders) + len(names)
        if seen > MOST_SEEN:
            raise UserError(
                f"{folder} has more than {MOST_SEEN:,} files to look through for what other machines need: give the "
                "command in a folder of your program's own, or install the program on every machine."
            )
        for name in sorted(names):
            path = Path(place, name)
            with contextlib.suppress(OSError):  # gone meanwhile, or a broken link
                if not name.startswith(".") and not name.endswith(".pyc") and path.is_file():
                    yield path, path.stat().st_size


def _is_shipped(path: str, name: str) -> bool:
    if name.startswith(".") or name in NOT_SHIPPED or os.path.islink(path):
        return False
    if os.path.exists(os.path.join(path, OF_AN_ENVIRONMENT)):
        return False
    return not all(os.path.exists(os.path.join(path, file)) for file in OF_A_RUN)


def _zip(folders: list[str], chosen: list[list[Path]]) -> bytes:
    """The same files give the same bytes, whenever they are packed."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for number, (folder, paths) in enumerate(zip(folders, chosen, strict=True)):
            for path in paths:
                with contextlib.suppress(OSError):  # unreadable: whoever needs it will say so
                    name = zipfile.ZipInfo(f"{number}/{path.relative_to(folder)}")
                    archive.writestr(name, path.read_bytes(), zipfile.ZIP_DEFLATED, compresslevel=1)
    return out.getvalue()


# ---- what is installed


def installed() -> dict[str, str]:
    """Versions here; what is not installed is missing."""
    found = {"python": platform.python_version()}
    for name in COMPARED:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def compare(machine: str, here: Mapping[str, str], there: Mapping[str, str]) -> str | None:
    """What of another machine's versions should be known; refuses those with which programs would not fit."""
    differing = [name for name in here if there.get(name) != here[name]]
    for name in differing:
        if name not in there:
            raise UserError(f"the machine {machine} has no {name}, and here is {here[name]}: install it there.")
        parts = {"shoal": 3, "torch": 1, "python": 2}.get(name, 0)  # of a version, which must be the same
        if here[name].split(".")[:parts] != there[name].split(".")[:parts]:
            raise UserError(
                f"the machine {machine} has {name} {there[name]}, and here is {here[name]}: install the same on both."
            )
    if not differing:
        return None
    told = ", ".join(f"{name} {there[name]} (here {here[name]})" for name in differing)
    return f"the machine {machine} has {told}"


def missing_module(text: str) -> str | None:
    """A remedy, where an error says that a module is missing."""
    _, found, rest = text.partition("No module named '")
    if not found:
        return None
    name = rest.partition("'")[0]
    extra = EXTRAS.get(name.partition(".")[0])
    install = f"pip install 'shoal[{extra}]'" if extra else f"pip install {name.partition('.')[0]}"
    return f"the module {name!r} is missing: install it there ({install})"
