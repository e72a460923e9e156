"""Films as files: mp4 or GIF out of pictures, complete or absent."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from shoal.errors import UserError
from shoal.types import Array

FORMATS = (".mp4", ".gif")
PER_SECOND = 30  # pictures, where the environment does not say
WIDEST_GIF = 400  # pixels: a GIF is not compressed well

Write = Callable[[Path, Iterable[Array], float], None]


class Counted:
    """Pictures, and how many have been taken of them."""

    def __init__(self, pictures: Iterator[Array]) -> None:
        self._pictures, self.count = pictures, 0

    def __iter__(self) -> Iterator[Array]:
        for picture in self._pictures:
            self.count += 1
            yield picture


def writer_for(ending: str) -> Write:
    """What writes files of this ending; refuses what is not installed, before anything is played."""
    package = "imageio_ffmpeg" if ending == ".mp4" else "PIL"
    try:
        __import__(package)
    except ImportError:
        raise UserError(
            f"{ending[1:]} needs packages that are not installed; run: pip install 'shoal[video]'"
        ) from None
    return _write_mp4 if ending == ".mp4" else _write_gif


def write_whole(path: Path, write: Callable[[Path], None]) -> None:
    """Complete or absent."""
    temporary = path.with_name(f".{path.stem}.{os.getpid()}{path.suffix}")
    try:
        temporary.touch()  # an encoder of its own would answer with its whole command
        write(temporary)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _write_mp4(path: Path, pictures: Iterable[Array], rate: float) -> None:
    import imageio.v2 as imageio

    writer: Any = imageio.get_writer(path, fps=rate, codec="libx264", macro_block_size=1, quality=8)
    try:
        with writer as film:
            for picture in pictures:
                film.append_data(_even(picture))
    except OSError as error:
        said = [line for line in str(error).splitlines() if line.strip()]
        raise error if error.errno else OSError(errno.EIO, f"ffmpeg: {said[0] if said else 'it failed'}") from None


def _write_gif(path: Path, pictures: Iterable[Array], rate: float) -> None:
    from PIL import Image

    images = iter(_small(Image.fromarray(picture)) for picture in pictures)
    first = next(images)
    duration = max(20, round(1000 / rate))  # milliseconds; browsers slow down what is faster than 50 per second
    first.save(path, save_all=True, append_images=images, duration=duration, loop=0)


def _small(image: Any) -> Any:
    width, height = image.size
    return image if width <= WIDEST_GIF else image.resize((WIDEST_GIF, round(height * WIDEST_GIF / width)))


def _even(picture: Array) -> Array:
    """H.264 wants an even number of rows and columns: the last ones are repeated."""
    height, width, _ = picture.shape
    return (
        np.pad(picture, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge") if height % 2 or width % 2 else picture
    )
