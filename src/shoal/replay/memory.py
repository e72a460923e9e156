"""Address space for slabs: reserved once and far too large, filled as it is needed, in memory or in a file.

A reservation costs nothing until its pages are touched, so slabs never move, never get copied to grow, and a batch is
one `take` on one array.
"""

from __future__ import annotations

import mmap
import os
import shutil
import tempfile
from pathlib import Path

_NO_RESERVE = 0x4000 if os.uname().sysname == "Linux" else 0  # not counted against memory until it is touched


class Memory:
    """Hands out reservations: anonymous memory, or sparse files in `directory` for tables larger than memory."""

    def __init__(self, directory: str | os.PathLike[str] | None = None) -> None:
        self.directory = Path(directory) if directory is not None else None
        if self.directory is not None:
            self.directory.mkdir(parents=True, exist_ok=True)

    def limit(self) -> int:
        """Bytes that can be filled at the very most: what a store spreads its reservations over."""
        if self.directory is not None:
            return shutil.disk_usage(self.directory).free
        return 2 * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")

    def reserve(self, size: int) -> tuple[mmap.mmap, int | None]:
        """`size` bytes of zeros, and the file's descriptor when they lie in a file."""
        size = max(size, mmap.PAGESIZE)
        if self.directory is not None:
            return self._file(size)
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE
        memory = mmap.mmap(-1, size, flags=flags)
        if hasattr(mmap, "MADV_HUGEPAGE"):  # first touch is several times faster, and look-ups miss less
            try:
                memory.madvise(mmap.MADV_HUGEPAGE)
            except OSError:
                pass  # a kernel without huge pages
        return memory, None

    def _file(self, size: int) -> tuple[mmap.mmap, int]:
        descriptor, name = tempfile.mkstemp(prefix="shoal-slab-", dir=self.directory)
        os.unlink(name)  # the space is given back even when this process is killed
        os.ftruncate(descriptor, size)
        memory = mmap.mmap(descriptor, size, flags=mmap.MAP_SHARED)
        return memory, descriptor
