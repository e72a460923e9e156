"""What a run that goes on is asked for from outside: a file in its directory, at which its driver looks."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path

from shoal.checkpoints.own_files import Replacing, open_own
from shoal.errors import UserError

SCALE = "scale.json"  # how many members groups of nodes should have
MOST = 100_000  # members that can be asked for; what fits is the machine's to say
LARGEST = 10_000  # bytes of a request


def ask_to_scale(run: Path, sizes: Mapping[str, int]) -> None:
    """Leave a request for the run's driver; it takes the place of one that has not been read yet."""
    with Replacing(run / SCALE) as file:
        file.write(json.dumps(dict(sizes)).encode())


def is_waiting(run: Path) -> bool:
    """Whether a request has not been taken yet."""
    return os.path.lexists(run / SCALE)


def withdraw(run: Path) -> None:
    """Remove a request, where it can be removed."""
    with contextlib.suppress(OSError):  # a folder, or in a folder that cannot be written
        (run / SCALE).unlink(missing_ok=True)


def take_scale(run: Path) -> dict[str, int] | None:
    """The sizes that are asked for, once; None where nothing is. A file that is no request is removed and refused."""
    path = run / SCALE
    if not os.path.lexists(path):
        return None
    try:
        with open(open_own(path, os.O_RDONLY), "rb") as file:
            sizes = json.loads(file.read(LARGEST))
    except (OSError, ValueError, RecursionError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is damaged"
        raise UserError(f"{path} is no request to scale ({reason}): use shoal scale.") from None
    finally:
        withdraw(run)
    if not isinstance(sizes, dict):
        raise UserError(f"{path} is no request to scale: use shoal scale.")
    for group, size in sizes.items():
        check_size(group, size)
    return sizes


def check_size(group: str, size: object) -> int:
    """A number of members that can be asked for."""
    if not isinstance(size, int) or isinstance(size, bool) or not 1 <= size <= MOST:
        asked = f"{group}={size}" if isinstance(size, int | float) and group.isprintable() else "What is asked for"
        raise UserError(f"{asked} cannot be had: give a whole number from 1 to {MOST:,}.")
    return size
