"""Writing and removing inside a run directory: links in it are not followed, and a file is complete or as it was.

A run directory may have come from anywhere. Its own path may be a link; what lies in it must be the thing itself, or a
run that goes on would write to, or clean up, a place that nobody has named.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO

from shoal.errors import UserError


def open_own(path: Path, flags: int) -> int:
    """A descriptor of a regular file of the run; OSError where it is a link, a pipe or a device."""
    try:
        descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, 0o644)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise OSError(errno.ELOOP, "it is a link, and a run writes into its own folder only", str(path)) from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is no regular file", str(path))
    return descriptor


def refuse_links(run: Path, folders: Iterable[str]) -> None:
    """Refuse links in place of folders in which a run writes and removes files, and anywhere in these."""
    for path in (found for name in folders for found in _tree(run / name)):
        if path.is_symlink():
            raise UserError(
                f"{path} is a link, and a run writes into its own folder only: put the file or folder itself in its "
                "place. The whole run directory may be a link."
            )


def _tree(folder: Path) -> Iterator[Path]:
    yield folder
    for place, folders, files in os.walk(folder):  # which does not go into links to folders
        yield from (Path(place) / name for name in (*folders, *files))


class Replacing:
    """A file that takes its name only when it is complete and on the disk."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._temporary = path.with_name(f".{path.name}.{os.getpid()}")

    def __enter__(self) -> IO[bytes]:
        self._temporary.unlink(missing_ok=True)
        self._file = open(open_own(self._temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb")
        return self._file

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self._file.flush()
                os.fsync(self._file.fileno())
            self._file.close()
            if kind is None:
                os.replace(self._temporary, self._path)
        finally:
            self._temporary.unlink(missing_ok=True)
