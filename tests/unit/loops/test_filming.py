"""Films while a run goes on: complete or absent, and never the end of a run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from shoal import envs
from shoal.envs.pictures import check_drawn
from shoal.errors import UserError
from shoal.loops import filming
from shoal.loops.filming import UNDER_WAY, Filming, FilmPlan
from shoal.program import Context, set_current
from shoal.runs.options import RunOptions


class Shown(gymnasium.Env[Any, Any]):
    """Episodes of four steps whose pictures are as bright as the number of the step."""

    observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = spaces.Discrete(2)
    steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        return np.zeros(2, np.float32), 1.0, self.steps == 4, False, {}

    def render(self) -> Any:
        return np.full((32, 48, 3), 50 * self.steps, np.uint8)


class Hidden(Shown):
    def render(self) -> Any:
        return None


class Breaks(Shown):
    def render(self) -> Any:
        if self.steps == 2:
            raise OSError("the screen is gone")
        return super().render()


class EndsWhenDrawn(Shown):
    def render(self) -> Any:
        import os

        os._exit(4)


class Still:
    """A policy that does nothing."""

    def __init__(self, seed: int = 0) -> None:
        self.loaded: Any = None

    def initial_state(self, count: int) -> dict[str, Any]:
        return {}

    def act(self, observation: Any, state: Any, first: Any) -> Any:
        return np.zeros(len(first), np.int64), {}, {}

    def load(self, weights: Any) -> None:
        self.loaded = weights


@pytest.fixture(autouse=True)
def a_node() -> None:
    set_current(Context("evaluator", seed=1))


def made(
    folder: Path, notes: list[str], env: Callable[[], Any] = Shown, kind: Any = "gif", every: float = 1e9
) -> Filming:
    spec = envs.describing.describe_here(env, None, "auto", None)
    return Filming(FilmPlan(every, str(folder / "films"), kind), spec.for_evaluation(), Still, 1, notes.append)


@pytest.mark.parametrize("kind", ["mp4", "gif"])
def test_a_film_is_a_whole_episode_named_by_its_updates(kind: str, tmp_path: Path) -> None:
    imageio = pytest.importorskip("imageio.v3")
    notes: list[str] = []
    films = made(tmp_path, notes, kind=kind)
    assert films.due()
    films.film(12, {}, lambda: False)
    assert not films.due(), "the next one is a long time off"
    assert [path.name for path in (tmp_path / "films").iterdir()] == [f"000000012.{kind}"]
    assert [int(picture.mean().round(-1)) for picture in imageio.imread(tmp_path / "films" / f"000000012.{kind}")] == [
        *(0, 50, 100, 150, 200)
    ]
    assert notes == []


def test_films_are_as_far_apart_as_was_asked_from_the_beginning_of_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [1000.0]
    monkeypatch.setattr(filming, "monotonic", lambda: clock[0])
    films = made(tmp_path, [], every=60.0)
    monkeypatch.setattr(films, "_film", lambda *_: clock.__setitem__(0, clock[0] + 5.0))
    films.film(1, {}, lambda: False)
    due = []
    for clock[0] in (1005.0, 1059.9, 1060.0):
        due.append(films.due())
    assert due == [False, False, True]


def test_every_film_is_of_another_episode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seeds = []

    def drawn(spec: Any, seed: int) -> Any:
        seeds.append(seed)
        raise filming.Interrupted

    films = made(tmp_path, [])
    monkeypatch.setattr(filming, "make_drawn", drawn)
    for version in range(3):
        films.film(version, {}, lambda: False)
    assert seeds == [2, 3, 4]


def test_a_run_that_ends_gives_a_film_up_and_leaves_nothing_of_it(tmp_path: Path) -> None:
    asked = iter([False, False, True])
    notes: list[str] = []
    made(tmp_path, notes).film(1, {}, lambda: next(asked))
    assert list((tmp_path / "films").iterdir()) == []
    assert notes == [], "nothing went wrong"


@pytest.mark.parametrize(
    ("env", "sentence"), [(Breaks, "OSError: the screen is gone"), (Hidden, "Hidden gives no pictures")]
)
def test_what_goes_wrong_is_told_once_and_ends_filming_alone(env: Any, sentence: str, tmp_path: Path) -> None:
    notes: list[str] = []
    films = made(tmp_path, notes, env, every=0.0)
    films.film(1, {}, lambda: False)
    assert not films.due()
    assert len(notes) == 1
    assert notes[0].startswith("no more films are made of this run: ")
    assert sentence in notes[0]
    assert list((tmp_path / "films").iterdir()) == []


def test_a_disk_that_cannot_be_written_ends_filming_alone(tmp_path: Path) -> None:
    (tmp_path / "films").write_text("a file where the folder should be")
    notes: list[str] = []
    made(tmp_path, notes).film(1, {}, lambda: False)
    assert len(notes) == 1


def test_an_encoder_that_breaks_ends_filming_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(path: Path, pictures: Any, rate: float) -> None:
        path.write_bytes(b"half a film")
        raise ValueError("no such codec")

    monkeypatch.setattr(filming.films, "writer_for", lambda ending: broken)
    notes: list[str] = []
    made(tmp_path, notes).film(1, {}, lambda: False)
    assert notes == ["no more films are made of this run: ValueError: no such codec"]
    assert list((tmp_path / "films").iterdir()) == []


def test_a_process_that_ended_while_it_filmed_does_not_try_again(tmp_path: Path) -> None:
    (tmp_path / "films").mkdir()
    mark = tmp_path / "films" / UNDER_WAY
    mark.touch()
    (tmp_path / "films" / ".000000012.77.gif").write_bytes(b"half a film")
    notes: list[str] = []
    assert made(tmp_path, notes).due(), "another run, that was killed and goes on"
    assert list((tmp_path / "films").iterdir()) == []
    mark.touch()
    set_current(Context("evaluator", seed=1, restarts=1))
    assert not made(tmp_path, notes).due()
    assert notes == ["no more films are made of this run: its process ended while it made one"]
    assert not mark.exists()


@pytest.mark.parametrize(
    ("env", "sentence"),
    [
        (Hidden, "Hidden gives no pictures"),
        (EndsWhenDrawn, "with exit code 4, when it was to be drawn: leave out --record-every"),
    ],
)
def test_what_cannot_be_drawn_is_refused_at_the_start(env: Any, sentence: str) -> None:
    spec = envs.describing.describe_here(env, None, "auto", None)
    with pytest.raises(UserError, match=sentence):
        check_drawn(spec)
    check_drawn(envs.describing.describe_here(Shown, None, "auto", None))


def test_packages_that_are_missing_are_named_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    RunOptions().check()
    with pytest.raises(UserError, match=r"run: pip install 'shoal\[video\]'"):
        RunOptions(record_every=60.0).check()
