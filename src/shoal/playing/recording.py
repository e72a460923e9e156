"""Filming a trained policy: whole episodes, greedy, as mp4 or GIF."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from shoal import envs
from shoal.acting import Stacker, with_last_reward, zero_where
from shoal.envs import Environment, Envs
from shoal.errors import UserError
from shoal.factories import load_factory, name_of
from shoal.playing.evaluation import checked_spec, environment_config
from shoal.playing.policy import TrainedPolicy, load
from shoal.types import Array

FORMATS = (".mp4", ".gif")
PER_SECOND = 30  # pictures, where the environment does not say
WIDEST_GIF = 400  # pixels: a GIF is not compressed well


@dataclass(frozen=True)
class Recording:
    path: str
    algorithm: str
    env: str
    seed: int
    frames: int
    returns: tuple[float, ...]


def record(
    source: TrainedPolicy | str | os.PathLike[str],
    output: str | os.PathLike[str] | None = None,
    *,
    episodes: int = 1,
    env: Environment | None = None,
    seed: int | None = None,
    fps: float | None = None,
) -> Recording:
    """Film greedy episodes of a policy or a run, from first to last picture, into `output` (.mp4 or .gif); by default
    `policy.mp4` in the run directory. `fps` is the environment's own where it is not given."""
    if episodes < 1:
        raise UserError(f"--episodes {episodes} is too small: give at least 1.")
    policy = source if isinstance(source, TrainedPolicy) else load(source)
    path = Path(output) if output is not None else policy.run / "policy.mp4"
    write = writer_for(path)
    seed = int.from_bytes(os.urandom(4), "little") if seed is None else seed
    cfg = environment_config(policy, env)
    spec = checked_spec(policy, cfg).for_evaluation()
    made = envs.make(spec, 1, seed=seed, options=_rendering(cfg.env), vectorizer=_single(cfg.env))
    returns: list[float] = []
    counted = _Counted(_pictures(made, policy, episodes, returns))
    try:
        rate = fps or float(made.metadata.get("render_fps") or PER_SECOND)
        _write_whole(path, lambda whole: write(whole, counted, rate))
    except envs.EnvFault as fault:
        raise UserError(str(fault)) from fault
    finally:
        made.close()
    return Recording(str(path), policy.algorithm, name_of(cfg.env), seed, counted.count, tuple(returns))


def _pictures(made: Envs, policy: TrainedPolicy, episodes: int, returns: list[float]) -> Iterator[Array]:
    """Every picture of so many episodes; their returns are appended as they end."""
    acting, total = policy.greedy, 0.0
    observation = made.reset()
    yield _picture(made)
    state, first = acting.initial_state(1), np.ones(1, np.bool_)
    stacker = Stacker(made.stacks)
    while len(returns) < episodes:
        action, state, _ = acting.act(stacker.push(observation, first), state, first)
        outcome = made.step(action)
        state = zero_where(~outcome.valid, with_last_reward(state, outcome.reward))
        observation, first = outcome.observation, ~outcome.valid
        total += float(outcome.reward[0])
        yield _picture(made)
        if outcome.terminated[0] or outcome.truncated[0]:
            returns.append(total)
            total = 0.0


def _picture(made: Envs) -> Array:
    wanted = (
        f"{made.environment} gives no pictures: its render() must return an array [height, width, 3] of bytes; a "
        "factory that takes render_mode is given 'rgb_array'."
    )
    try:
        found = made.picture()
    except ImportError as error:
        raise UserError(f"{made.environment} cannot be drawn: {error}") from None
    except Exception as error:
        if type(error).__name__ == "DependencyNotInstalled":
            raise UserError(
                f"{made.environment} needs a package to be drawn; run: pip install 'shoal[video]' ({error})"
            ) from None
        raise UserError(f"{wanted} ({type(error).__name__}: {error})") from None
    if isinstance(found, list):
        found = found[-1] if found else None
    picture = np.asarray(found) if found is not None else np.zeros(0)
    if picture.ndim != 3 or picture.shape[-1] != 3:
        raise UserError(wanted)
    return picture.astype(np.uint8, copy=False)


class _Counted:
    def __init__(self, pictures: Iterator[Array]) -> None:
        self._pictures, self.count = pictures, 0

    def __iter__(self) -> Iterator[Array]:
        for picture in self._pictures:
            self.count += 1
            yield picture


def _rendering(env: Environment) -> dict[str, Any]:
    """What an environment is made with so that it can be drawn; a factory, where it takes that."""
    if isinstance(env, str) and ":" not in env:
        return {"render_mode": "rgb_array"}
    try:
        parameters = inspect.signature(load_factory(env, "env")).parameters
    except (TypeError, ValueError):
        return {}
    takes = "render_mode" in parameters or any(one.kind is one.VAR_KEYWORD for one in parameters.values())
    return {"render_mode": "rgb_array"} if takes else {}


def _single(env: Environment) -> envs.Vectorizer:
    """One by one, since vector versions are not drawn; a factory may make only vectors."""
    return "sync" if isinstance(env, str) and ":" not in env else "auto"


# ---- files -----------------------------------------------------------------------------------------------------------

Write = Callable[[Path, _Counted, float], None]


def writer_for(path: Path) -> Write:
    """What writes files of this ending; refuses others, and what is not installed, before anything is played."""
    if path.suffix.lower() not in FORMATS:
        raise UserError(f"--output {path} has no format of films: give a name that ends in {' or '.join(FORMATS)}.")
    if not path.parent.is_dir():
        raise UserError(f"--output {path} cannot be written: there is no folder {path.parent}.")
    package = "imageio_ffmpeg" if path.suffix.lower() == ".mp4" else "PIL"
    try:
        __import__(package)
    except ImportError:
        raise UserError(
            f"{path.suffix[1:]} needs packages that are not installed; run: pip install 'shoal[video]'"
        ) from None
    return _write_mp4 if path.suffix.lower() == ".mp4" else _write_gif


def _write_whole(path: Path, write: Callable[[Path], None]) -> None:
    """Complete or absent."""
    temporary = path.with_name(f".{path.stem}.{os.getpid()}{path.suffix}")
    try:
        write(temporary)
        os.replace(temporary, path)
    except OSError as error:
        raise UserError(f"--output {path} cannot be written ({error.strerror or error}).") from None
    finally:
        temporary.unlink(missing_ok=True)


def _write_mp4(path: Path, pictures: _Counted, rate: float) -> None:
    import imageio.v2 as imageio

    writer: Any = imageio.get_writer(path, fps=rate, codec="libx264", macro_block_size=1, quality=8)
    with writer as film:
        for picture in pictures:
            film.append_data(_even(picture))


def _write_gif(path: Path, pictures: _Counted, rate: float) -> None:
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
