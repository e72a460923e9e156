"""Filming a policy: whole greedy episodes, picture by picture; and now and then while a run goes on."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from shoal import films
from shoal.acting import Player, Policy
from shoal.envs import EnvFault, Envs, EnvSpec
from shoal.envs.pictures import make_drawn, picture
from shoal.errors import UserError
from shoal.program import current
from shoal.step import Step
from shoal.sync import monotonic, sign_of_life
from shoal.types import Array, Columns
from shoal.versions import number

UNDER_WAY = ".filming"  # lies in the folder while a film is being made: what ended the process then was perhaps that


class Interrupted(Exception):
    """Playing was given up before the episodes were over."""


@dataclass(frozen=True)
class FilmPlan:
    """Films that a run's evaluator makes of its greedy policy."""

    every: float  # seconds from one to the next
    folder: str
    format: Literal["mp4", "gif"] = "mp4"


def pictures(
    made: Envs,
    policy: Policy,
    episodes: int,
    returns: list[float],
    give_up: Callable[[], bool] = lambda: False,
    see: Callable[[Step], None] = lambda step: None,
) -> Iterator[Array]:
    """Every picture of so many episodes; their returns are appended as they end. `give_up` is asked before every step:
    `Interrupted`; `see` is shown what came of it."""
    total, observation = 0.0, made.reset()
    yield picture(made)
    player = Player(policy, made.count, made.stacks)
    while len(returns) < episodes:
        if give_up():
            raise Interrupted
        step = made.step(player.act(observation))
        sign_of_life()
        player.result(step)
        see(step)
        observation = step.observation
        total += float(step.reward[0])
        yield picture(made)
        if step.terminated[0] or step.truncated[0]:
            returns.append(total)
            total = 0.0


class Filming:
    """The evaluator's films, named by the updates behind the policy. What goes wrong ends filming, never the run."""

    def __init__(
        self,
        plan: FilmPlan,
        spec: EnvSpec,
        make_policy: Callable[[int], Policy],
        seed: int,
        note: Callable[[str], None],
    ) -> None:
        self._plan, self._spec, self._seed, self._note = plan, spec, seed, note
        self._make_policy = make_policy
        self._policy: Policy | None = None
        self._next, self._working = 0.0, True
        self._mark = Path(plan.folder) / UNDER_WAY
        if self._mark.exists() and current().restarts:
            self._end("its process ended while it made one")
        self._clear()

    def due(self) -> bool:
        return self._working and monotonic() >= self._next

    def film(self, version: int, weights: Columns, give_up: Callable[[], bool]) -> None:
        """One episode with these weights, if there is time."""
        self._next = monotonic() + self._plan.every
        try:
            self._mark.parent.mkdir(parents=True, exist_ok=True)
            self._mark.touch()
            self._film(Path(self._plan.folder) / f"{number(version):09d}.{self._plan.format}", weights, give_up)
        except Interrupted:
            pass
        except (UserError, EnvFault) as error:
            self._end(str(error))
        except Exception as error:  # of the environment's drawing, the encoder, the disk
            self._end(f"{type(error).__name__}: {error}")
        finally:
            self._clear()

    def _film(self, path: Path, weights: Columns, give_up: Callable[[], bool]) -> None:
        policy = self._policy = self._policy or self._make_policy(self._seed)
        policy.load(weights)
        self._seed += 1
        write = films.writer_for(path.suffix)
        made = make_drawn(self._spec, self._seed)
        try:
            rate = float(made.metadata.get("render_fps") or films.PER_SECOND)
            films.write_whole(path, lambda whole: write(whole, pictures(made, policy, 1, [], give_up), rate))
        finally:
            made.close()

    def _clear(self) -> None:
        """Take away the mark, and what a process that was killed has left of a film."""
        with contextlib.suppress(OSError):
            for path in [*self._mark.parent.glob(f".*.{self._plan.format}"), self._mark]:
                path.unlink(missing_ok=True)

    def _end(self, why: str) -> None:
        self._working = False
        self._note(f"no more films are made of this run: {why.rstrip('.')}")
