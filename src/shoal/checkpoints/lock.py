"""The lock of a run directory: one process at a time writes to it, and the lock dies with that process."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import threading
import time
from pathlib import Path
from types import TracebackType

from shoal.checkpoints.own_files import open_own
from shoal.errors import UserError

LOCK = "run.lock"


class RunLock:
    """Held from `acquire` to `release`, or to the end of the process however it ends.

    It is a POSIX record lock: the kernel drops it with the process, forked children do not inherit it (one of `flock`
    would live as long as any of them), and network file systems know it. It does not tell the threads of a process
    apart, and closing any other descriptor of the file would drop it, so this process's own locks are also in a table.
    """

    _held: dict[Path, int] = {}  # noqa: RUF012 - of this process: the directory and the descriptor
    _table = threading.Lock()

    def __init__(self, directory: Path) -> None:
        self._directory = directory.resolve()

    def acquire(self) -> None:
        """Raises `UserError` where somebody else holds it, and says who."""
        with self._table:
            if self._held.get(self._directory) is not None:
                raise UserError(f"{self._directory} belongs to a run of this very process: wait until it has ended.")
            path = self._directory / LOCK
            try:
                descriptor = open_own(path, os.O_RDWR | os.O_CREAT)
            except OSError as error:
                raise UserError(f"{path} cannot be written ({error.strerror}): a run needs its directory.") from None
            try:
                fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                holder = _holder(descriptor)
                os.close(descriptor)
                if error.errno in (errno.EACCES, errno.EAGAIN):
                    raise UserError(
                        f"{self._directory} belongs to a run that is going on ({holder}): wait for its end, or end it."
                    ) from None
                raise UserError(f"{path} cannot be locked ({error.strerror}).") from None
            self._held[self._directory] = descriptor
            _sign(descriptor)

    def release(self) -> None:
        with self._table:
            descriptor = self._held.pop(self._directory, None)
            if descriptor is not None:
                os.close(descriptor)

    def __enter__(self) -> RunLock:
        self.acquire()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def _sign(descriptor: int) -> None:
    """Say whose it is, for those who find it held; a full disk does not keep anybody from holding it."""
    text = json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "since": time.strftime("%Y-%m-%d %H:%M:%S")})
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, text.encode(), 0)
    except OSError:
        pass


def _holder(descriptor: int) -> str:
    try:
        signed = json.loads(os.pread(descriptor, 4096, 0))
        return f"process {int(signed['pid'])} on {str(signed['host'])[:60]}, since {str(signed['since'])[:30]}"
    except (OSError, ValueError, TypeError, KeyError):
        return "it has not said who it is"
