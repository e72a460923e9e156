"""Filming a trained policy: whole episodes, greedy, as mp4 or GIF."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from shoal import envs, films
from shoal.envs import Environment
from shoal.envs.pictures import make_drawn
from shoal.errors import UserError, name_of
from shoal.loops.filming import pictures
from shoal.playing.evaluation import checked_spec, environment_config
from shoal.playing.policy import TrainedPolicy, load
from shoal.playing.watching import Onlooker


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
    trust: bool = False,
    tell: Callable[[str], None] = lambda _: None,
) -> Recording:
    """Film greedy episodes of a policy or a run, from first to last picture, into `output` (.mp4 or .gif); by default
    `policy.mp4` in the run directory. `fps` is the environment's own where it is not given; `tell`
    hears of it where it takes long; `trust` as for `shoal.load`."""
    if episodes < 1:
        raise UserError(f"--episodes {episodes} is too small: give at least 1.")
    policy = source if isinstance(source, TrainedPolicy) else load(source, trust=trust)
    path = Path(output) if output is not None else policy.run / "policy.mp4"
    write = _writer_for(path)
    seed = int.from_bytes(os.urandom(4), "little") if seed is None else seed
    cfg = environment_config(policy, env, trust=trust)
    spec = checked_spec(policy, cfg).for_evaluation()
    made = make_drawn(spec, seed)
    returns: list[float] = []
    onlooker = Onlooker(tell, made.count)
    counted = films.Counted(pictures(made, policy.greedy, episodes, returns, onlooker.give_up, onlooker.see))
    try:
        rate = fps or float(made.metadata.get("render_fps") or films.PER_SECOND)
        films.write_whole(path, lambda whole: write(whole, counted, rate))
    except OSError as error:
        raise UserError(f"--output {path} cannot be written ({error.strerror or error}): give another one.") from None
    except envs.EnvFault as fault:
        raise UserError(str(fault)) from fault
    finally:
        made.close()
    return Recording(str(path), policy.algorithm, name_of(cfg.env), seed, counted.count, tuple(returns))


def _writer_for(path: Path) -> films.Write:
    """What writes such files; refuses others, and what is not installed, before anything is played."""
    if path.suffix.lower() not in films.FORMATS:
        endings = " or ".join(films.FORMATS)
        raise UserError(f"--output {path} has no format of films: give a name that ends in {endings}.")
    if not path.parent.is_dir():
        raise UserError(f"--output {path} cannot be written: there is no folder {path.parent}.")
    return films.writer_for(path.suffix.lower())
