"""Typed words: what they become, and one sentence for what cannot be understood."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest

from shoal.arguments.words import peek, read, suggestion
from shoal.cli import main as cli
from shoal.cli.commands import bench
from shoal.errors import UserError
from shoal.runs import registry
from shoal.runs.options import RunOptions


@dataclass(frozen=True, kw_only=True)
class Config:
    env: str = "CartPole-v1"
    actors: int = 1
    envs_per_actor: int = 8
    hidden: tuple[int, ...] = (64, 64)
    shared: bool = True
    lambda_: float = 1.0
    network: str | None = None
    threads: int | Literal["auto"] = 1


@dataclass(frozen=True, kw_only=True)
class Run:
    seed: int = 0
    runtime: Literal["local", "inline"] = "local"
    stop_return: float | None = None


def parsed(*words: str) -> tuple[Config, Run]:
    found = read(words, [Run, Config], "shoal train x")
    return found.make(Config), found.make(Run)


def test_what_is_typed_replaces_the_given_values_and_nothing_else() -> None:
    config, run = parsed(
        "--hidden", "32", "16", "--no-shared", "--seed=7", "--stop-return", "-120.5", "--network", "a:b"
    )
    assert config == Config(hidden=(32, 16), shared=False, network="a:b")
    assert run == Run(seed=7, stop_return=-120.5)


@pytest.mark.parametrize("words", [["--envs-per-actor", "3"], ["--envs_per_actor=3"]])
def test_hyphens_and_underscores_are_the_same(words: list[str]) -> None:
    assert parsed(*words)[0].envs_per_actor == 3


def test_a_word_may_stand_in_the_place_of_a_number() -> None:
    assert parsed("--threads", "auto")[0].threads == "auto"
    assert parsed("--threads=3")[0].threads == 3


@pytest.mark.parametrize("word", ["--lambda", "--lambda_"])
def test_a_field_named_like_a_keyword_is_typed_without_its_underscore(word: str) -> None:
    assert parsed(word, "0.9")[0].lambda_ == 0.9


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--actrs", "3"], "shoal train x has no option --actrs. Did you mean --actors?"),
        (["--zzzzzzz"], "shoal train x has no option --zzzzzzz. See shoal train x --help."),
        (["--actors", "two"], "--actors two cannot be understood: give a whole number."),
        (["--lambda=high"], "--lambda high cannot be understood: give a number."),
        (["--threads", "atuo"], "--threads atuo cannot be understood: give a whole number or auto."),
        (
            ["--hidden", "3", "x", "--seed", "1"],
            "--hidden 3 x cannot be understood: give whole numbers with spaces between, such as --hidden 64 64.",
        ),
        (["--runtime", "locl"], "--runtime locl is not known: choose one of local, inline. Did you mean local?"),
        (["--seed"], "--seed needs a value: see shoal train x --help."),
        (["--seed", "1.5"], "--seed 1.5 cannot be understood: give a whole number."),
        (["--shared=yes"], "--shared takes no value, not 'yes': give --shared or --no-shared."),
        (["--env="], "--env  cannot be understood: give a name."),
        (["--", "x"], "shoal train x does not understand '--': see shoal train x --help."),
        (["stray"], "shoal train x does not understand 'stray': see shoal train x --help."),
    ],
)
def test_what_cannot_be_understood_is_one_sentence(words: list[str], sentence: str) -> None:
    with pytest.raises(UserError) as raised:
        parsed(*words)
    assert str(raised.value) == sentence


def test_an_option_can_be_read_before_all_are_parsed() -> None:
    words = ["--env", "A", "--seed", "1", "--env=B"]
    assert peek(words, "env", "C") == "B"
    assert peek(words, "preset", "auto") == "auto"
    assert peek(["--env"], "env", "C") == "C"


def test_a_large_whole_number_may_be_typed_with_an_exponent() -> None:
    assert parsed("--seed", "1e6")[1].seed == 1_000_000


@pytest.mark.parametrize(
    ("typed", "known", "meant"),
    [
        ("--lr", ["--learning-rate", "--lstm"], " Did you mean --learning-rate?"),
        ("--lr", ["--actor-rate", "--lstm"], " Did you mean --actor-rate?"),
        ("--load", ["--lstm", "--lambda", "--loss-scale"], ""),
        ("--load", ["--resume", "--loss-scale"], " Did you mean --resume?"),
        ("--load", ["--resume", "--restore"], " Did you mean --restore?"),
        ("--checkpoint-freq", ["--clip-rho", "--eval-every"], ""),
        ("--return", ["--stop-return", "--env"], " Did you mean --stop-return?"),
        ("--stop", ["--stop-return", "--stop-steps"], ""),
        ("--Seeed", ["--seed"], " Did you mean --seed?"),
    ],
)
def test_what_is_suggested_is_what_was_meant_or_nothing(typed: str, known: list[str], meant: str) -> None:
    assert suggestion(typed, known) == meant


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> object:
    """Runs a command in this process; returns its exit code and the lines it wrote to stderr."""
    for module in (cli, bench):
        monkeypatch.setattr(module, "warm", lambda words: None)
    monkeypatch.chdir(tmp_path)

    def run(*words: str) -> tuple[int, list[str]]:
        code = cli.main(words)
        lines = capsys.readouterr().err.splitlines()
        return code, [line for line in lines if not line.startswith("starting ")]

    return run


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        ("trian impala", "There is no command trian: see shoal --help. Did you mean train?"),
        ("train inpala", "There is no algorithm inpala: choose one of "),
        ("train --env CartPole-v1", "shoal train needs an algorithm first: shoal train impala --env CartPole-v1"),
        ("train missing.py", "There is no file missing.py"),
        ("train impala --env CartPol-v1", "There is no environment CartPol-v1. Did you mean CartPole-v1"),
        ("train impala --env nowhere:make", "nowhere:make: there is no module 'nowhere'"),
        ("train impala --actrs 3", "shoal train impala has no option --actrs. Did you mean --actors?"),
        ("train impala --actors 0", "--actors 0 is too small: give at least 1."),
        ("train impala --preset clasic", "--preset clasic is not known"),
        ("train impala --optimizer adm", "--optimizer adm is not known"),
        (
            "train impala --activation tahn",
            "--activation tahn is not known: choose one of tanh, relu. Did you mean tanh?",
        ),
        (
            "train impala --vectorizer nativ",
            "--vectorizer nativ is not known: choose one of auto, native, sync, async. Did you mean native?",
        ),
        ("train impala --device nonsense", "--device nonsense cannot be used here"),
        ("train impala --network nowhere:make", "The network 'nowhere:make'"),
        ("train impala --run-dir /proc/run", "The run directory /proc/run cannot be written"),
        ("train impala --runtime local --ray-address auto", "--ray-address needs the ray runtime"),
        ("eval nowhere", "There is no run directory nowhere"),
        ("eval", "shoal eval needs one run directory"),
        ("plot", "shoal plot needs run directories"),
        ("plot nowhere", "There is no run directory nowhere"),
        ("bench speed", "There is no benchmark speed: choose throughput, limits, update, replay or checkpoints."),
        ("bench throughput impala --repeat 0", "--repeat 0 is too small: give at least 1."),
        ("algorithms impala", "shoal algorithms takes no arguments"),
    ],
)
def test_bad_usage_is_one_sentence_and_exit_code_2(command: str, sentence: str, told: object) -> None:
    code, lines = told(*command.split())  # type: ignore[operator]
    assert code == 2
    assert len(lines) == 1
    assert lines[0].startswith(f"shoal: {sentence}")


def test_ray_without_ray_is_one_sentence_that_says_what_to_install(
    told: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "ray", None)
    for module in ("run", "cluster"):
        monkeypatch.delitem(sys.modules, f"shoal.runtime.ray.{module}", raising=False)
    code, lines = told("train", "impala", "--runtime", "ray")  # type: ignore[operator]
    assert code == 2
    assert lines[-1] == "shoal: --runtime ray needs Ray: install it with `pip install 'shoal[ray]'`"


def test_an_action_space_the_algorithm_cannot_use_is_one_sentence(told: object, tmp_path: Path) -> None:
    (tmp_path / "odd_actions.py").write_text(
        "import gymnasium, numpy as np\n"
        "from gymnasium import spaces\n"
        "class Env(gymnasium.Env):\n"
        "    observation_space = spaces.Box(-1, 1, (3,), np.float32)\n"
        "    action_space = spaces.Text(5)\n"
        "    def reset(self, *, seed=None, options=None):\n"
        "        return np.zeros(3, np.float32), {}\n"
    )
    code, lines = told("train", "impala", "--env", "odd_actions:Env")  # type: ignore[operator]
    assert code == 2
    assert len(lines) == 1
    assert "actions in Text" in lines[0]


def test_every_algorithm_is_listed_with_its_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["algorithms"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines if not line.startswith(" ")] == registry.names()
    assert len(registry.names()) == 15
    assert any(line.startswith("impala     IMPALA (Espeholt 2018)") for line in lines)


def test_a_module_that_is_no_algorithm_is_refused(tmp_path: Path) -> None:
    (tmp_path / "not_an_algorithm.py").write_text("Config = int\n")
    with pytest.raises(UserError, match="is not an algorithm, it lacks PRESETS, make_policy, program"):
        registry.load(str(tmp_path / "not_an_algorithm.py"))


def test_an_algorithm_is_shown_by_its_last_name() -> None:
    assert [registry.short_name(name) for name in ("impala", "a.b.mine", "dir/mine.py")] == ["impala", "mine", "mine"]


@pytest.mark.parametrize(
    ("words", "actors", "most"),
    [
        (["--actors", "8..64"], 8, 64),
        (["--actors=8..64"], 8, 64),
        (["--actors", "auto"], 1, 10_000),
        (["--actors", "3"], 3, None),
    ],
)
def test_a_range_of_actors_is_two_options_in_one(words: list[str], actors: int, most: int | None) -> None:
    cfg, options = registry.load("impala").Config, RunOptions
    typed = read([*words, "--place", "actor=auto"], [cfg, options], "shoal train")
    assert typed.make(cfg).actors == actors
    assert typed.make(options).most_actors == most
    assert typed.make(options).place == "actor=auto"
