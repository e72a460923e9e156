"""Films of a policy: every picture of whole episodes, complete files or none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from tests.saved_runs import saved_run

import shoal
from shoal.cli.main import main
from shoal.envs import describing, trial
from shoal.errors import UserError
from shoal.playing import Recording


class Shown(gymnasium.Env[Any, Any]):
    """Episodes of four steps whose pictures are as bright as the number of the step, of an odd size."""

    observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = spaces.Discrete(2)
    steps = 0

    def __init__(self, size: tuple[int, int] = (33, 47)) -> None:
        self.size = size

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        return np.zeros(2, np.float32), 1.0, self.steps == 4, False, {}

    def render(self) -> Any:
        return np.full((*self.size, 3), 50 * self.steps, np.uint8)


class Quick(Shown):
    metadata = {"render_fps": 12}  # noqa: RUF012 - as Gymnasium has it


class Hidden(Shown):
    def render(self) -> Any:
        return None


@pytest.fixture(autouse=True)
def described_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "describe_apart", describing.describe_here)


@pytest.mark.parametrize("ending", ["mp4", "gif"])
def test_a_film_has_every_picture_of_whole_episodes(ending: str, tmp_path: Path) -> None:
    imageio = pytest.importorskip("imageio.v3")
    run = saved_run(tmp_path / "run", env=Shown)
    made = shoal.record(run, tmp_path / f"film.{ending}", episodes=2, seed=1)
    assert (made.frames, made.returns) == (10, (4.0, 4.0))
    film = imageio.imread(made.path)
    bright = [int(picture.mean().round(-1)) for picture in film]
    assert bright == [0, 50, 100, 150, 200] * 2
    assert [path.name for path in tmp_path.glob("*film*")] == [f"film.{ending}"]


def test_a_film_lies_in_the_run_directory_where_no_name_is_given(tmp_path: Path) -> None:
    run = saved_run(tmp_path / "run", env=Shown)
    assert Path(shoal.record(shoal.load(run), seed=1).path) == run / "policy.mp4"


def test_a_film_goes_as_fast_as_was_asked_or_as_the_environment_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rates = []

    def write(path: Path, pictures: Any, rate: float) -> None:
        rates.append(rate)
        path.write_bytes(bytes(len(list(pictures))))

    monkeypatch.setattr("shoal.films.writer_for", lambda ending: write)
    run = saved_run(tmp_path / "run", env=Shown)
    for env, fps in ((Shown, 7.5), (Quick, 7.5), (Quick, None), (Shown, None)):
        shoal.record(run, tmp_path / "film.gif", env=env, fps=fps)
    assert rates == [7.5, 7.5, 12.0, 30.0]


@pytest.mark.parametrize(("fps", "milliseconds"), [(4.0, 250), (10.0, 100), (50.0, 20), (200.0, 20)])
def test_a_gif_shows_each_picture_for_its_part_of_a_second_and_not_under_20_ms(
    fps: float, milliseconds: int, tmp_path: Path
) -> None:
    images = pytest.importorskip("PIL.Image")
    run = saved_run(tmp_path / "run", env=Shown)
    with images.open(shoal.record(run, tmp_path / "film.gif", fps=fps).path) as film:
        shown = []
        for index in range(film.n_frames):
            film.seek(index)
            shown.append(film.info["duration"])
    assert shown == [milliseconds] * 5


def test_the_command_films_as_was_typed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    asked: list[Any] = []

    def record(source: str, output: str | None, **given: Any) -> Recording:
        assert callable(given.pop("tell"))
        asked.append((source, output, given))
        return Recording("film.gif", "ppo", "CartPole-v1", 3, 10, (4.0, 5.0))

    monkeypatch.setattr("shoal.playing.record", record)
    typed = ["--output", "film.gif", "--episodes", "2", "--seed", "3", "--fps", "7.5", "--env", "CartPole-v1"]
    assert main(["record", "runs/A", *typed, "--trust"]) == 0
    assert main(["record", "runs/A"]) == 0
    assert asked == [
        ("runs/A", "film.gif", {"episodes": 2, "env": "CartPole-v1", "seed": 3, "fps": 7.5, "trust": True}),
        ("runs/A", None, {"episodes": 1, "env": None, "seed": None, "fps": None, "trust": False}),
    ]
    assert capsys.readouterr().out.splitlines()[-1] == "→ film.gif"


def test_wide_pictures_are_made_smaller_for_a_gif(tmp_path: Path) -> None:
    imageio = pytest.importorskip("imageio.v3")
    run = saved_run(tmp_path / "run", env=Shown)
    made = shoal.record(run, tmp_path / "film.gif", env=lambda: Shown((100, 800)))
    assert imageio.imread(made.path).shape[1:3] == (50, 400)


@pytest.mark.parametrize(
    ("name", "options", "sentence"),
    [
        ("film.avi", {}, "has no format of films: give a name that ends in .mp4 or .gif"),
        ("nowhere/film.gif", {}, "there is no folder"),
        ("film.gif", {"episodes": 0}, "--episodes 0 is too small"),
        ("film.gif", {"env": Hidden}, "Hidden gives no pictures"),
        ("film.gif", {"env": "Acrobot-v1"}, "Acrobot-v1 has the observations"),
    ],
)
def test_what_cannot_be_filmed_is_refused_and_leaves_no_file(
    name: str, options: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    run = saved_run(tmp_path / "run", env=Shown)
    with pytest.raises(UserError, match=sentence):
        shoal.record(run, tmp_path / name, **options)
    assert not list(tmp_path.glob("*film*"))


def test_what_is_missing_is_named_with_its_pip_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    with pytest.raises(UserError, match=r"pip install 'shoal\[video\]'"):
        shoal.record(saved_run(tmp_path / "run", env=Shown))


class Standing(Shown):
    """Nothing happens for 600 steps."""

    def step(self, action: Any) -> Any:
        self.steps += 1
        return np.zeros(2, np.float32), 0.0, self.steps == 600, False, {}

    def render(self) -> Any:
        return np.zeros((8, 8, 3), np.uint8)


def test_a_folder_that_cannot_be_written_is_one_sentence_and_no_command_of_the_encoder(tmp_path: Path) -> None:
    run = saved_run(tmp_path / "run", env=Shown)
    with pytest.raises(UserError) as refused:  # not even by root
        shoal.record(run, "/proc/film.mp4")
    assert "--output /proc/film.mp4 cannot be written" in str(refused.value)
    assert "give another one" in str(refused.value)
    assert "ffmpeg" not in str(refused.value).lower()


def test_an_encoder_that_fails_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        def __enter__(self) -> Any:
            raise OSError("[Errno 32] Broken pipe\n\nFFMPEG COMMAND:\n/usr/bin/ffmpeg -y -f rawvideo\n\nFFMPEG STDERR")

        def __exit__(self, *_: object) -> None: ...

    monkeypatch.setattr("imageio.v2.get_writer", lambda *_, **__: Broken())
    with pytest.raises(UserError, match=r"cannot be written \(ffmpeg: \[Errno 32\] Broken pipe\): give another one.$"):
        shoal.record(saved_run(tmp_path / "run", env=Shown), tmp_path / "film.mp4")


def test_a_policy_that_stands_still_is_told_of_once_and_how_far_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, told = saved_run(tmp_path / "run", env=Standing), list[str]()
    shoal.record(run, tmp_path / "film.gif", tell=told.append)
    assert [text.partition(":")[0] for text in told] == ["the policy stands still"]
    told.clear()
    shoal.evaluate(run, episodes=2, tell=told.append)
    assert [text.partition(":")[0] for text in told] == ["the policy stands still in 2 of 2 environments"]
    told.clear()
    monkeypatch.setattr("shoal.playing.watching.PATIENCE", 0.0)
    shoal.record(run, tmp_path / "film.gif", env=Shown, tell=told.append)
    assert told == [f"still playing: {steps} steps so far (Ctrl-C ends it)" for steps in range(4)]
