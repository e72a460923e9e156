"""Help and completion: every option explains itself, in 80 columns, from the one place where it is declared."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

import shoal
from shoal import config, options
from shoal.arguments.usage import completion_script, help_text
from shoal.arguments.words import options_of
from shoal.cli import main as cli
from shoal.cli.commands import bench
from shoal.runs import registry
from shoal.runs.options import RunOptions


@config.config(batch=7)
class Small(options.Rewards):
    """A small one."""

    batch: config.Count = 3
    """Items
    per update."""
    plain: bool = True
    """said below it"""
    network: config.Factory | None = None


def test_a_fields_text_is_the_string_below_it() -> None:
    texts = config.field_texts(Small)
    assert texts["batch"] == "Items per update."
    assert texts["plain"] == "said below it"
    assert texts["reward_scale"] == "Rewards are multiplied by this.", "also of a group that it is composed of"


def test_a_configs_docstring_lists_its_fields() -> None:
    assert (Small.__doc__ or "").splitlines()[0] == "A small one."
    assert "    batch: Items per update. [7]" in (Small.__doc__ or "").splitlines()


def test_help_shows_the_values_that_would_be_used_under_their_groups() -> None:
    text = help_text("shoal x", "What it does.", [Small(reward_scale=0.5)])
    assert text.splitlines()[:4] == ["usage: shoal x [OPTIONS]", "", "What it does.", ""]
    assert "What learners make of the environment's rewards\n  --reward-scale NUMBER   Rewards" in text
    assert "  --reward-scale NUMBER   Rewards are multiplied by this. [0.5]" in text
    assert "  --[no-]plain            said below it [on]" in text


@pytest.mark.parametrize("name", ["sac", "iql", "bc", "ppo"])
def test_the_environment_stands_where_it_is_acted_whoever_has_another_default_for_it(name: str) -> None:
    text = help_text("shoal x", "", [registry.load(name).Config()])
    assert "Who acts, and where\n  --env NAME " in text


@pytest.mark.parametrize("name", registry.names())
def test_every_option_of_every_algorithm_is_explained_in_80_columns(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    made = registry.load(name).Config()
    assert [found.name for found in options_of(type(made)) if not found.text] == []
    assert max(map(len, help_text(f"shoal train {name}", "", [made, RunOptions()]).splitlines())) <= 80


def test_a_shell_completes_commands_algorithms_options_choices_and_files(tmp_path: Path) -> None:
    @dataclass
    class Eval:
        episodes: int = 3

    @dataclass
    class Limits:
        part_seconds: float = 1.0

    commands: dict[str, list[type]] = {
        "train": [RunOptions],
        "eval": [Eval],
        "bench limits": [Limits],
        "bench replay": [],
    }
    script = completion_script(commands, {"impala": [Small], "ppo": []}, ("train", "bench limits"))
    (tmp_path / "completion.sh").write_text(script)
    for name in ("runs/one", "runs/two"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "run.toml").write_text("")
    asked = """
source completion.sh
try() { COMP_WORDS=("$@"); COMP_CWORD=$(( $# - 1 )); COMPREPLY=(); _shoal; echo "${COMPREPLY[*]}"; }
try shoal e; try shoal b; try shoal train im; try shoal train impala --rew; try shoal train impala --no
try shoal train ppo --rew; try shoal train ppo --runtime i; try shoal eval --; try shoal eval runs/
try shoal train --config ru; try shoal bench ""; try shoal bench limits i; try shoal bench limits impala --p
try shoal train ppo --json --stop-r
"""
    found = subprocess.run(["bash", "-c", asked], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert [sorted(line.split()) for line in found.stdout.splitlines()] == [
        ["eval"],
        ["bench"],
        ["impala"],
        ["--reward-clip", "--reward-scale"],
        ["--no-checkpoint-replay", "--no-encryption", "--no-plain", "--no-restore-partial"],
        [],
        ["inline"],
        ["--episodes", "--help"],
        ["runs/one", "runs/two"],
        ["run.toml", "runs"],
        ["limits", "replay"],
        ["impala"],
        ["--part-seconds", "--plain"],
        ["--stop-return"],
    ]


def test_the_commands_completion_knows_every_algorithm(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["completion"]) == 0
    script = capsys.readouterr().out
    for name in registry.names():
        assert f'"{name}") words="$words ' in script
    for command in (*cli.commands.NAMES, "train", "resume", "plot"):
        assert f'"{command}") words=' in script or f'"{command} ' in script


def commands_with_help() -> list[list[str]]:
    names = [name for name in cli.commands.NAMES if name != "bench"]
    own = ["train", "resume", "plot", "completion", "bench", *names]
    return [[], *([name] for name in own), *(name.split() for name in bench.COMMANDS if " " in name)]


@pytest.mark.parametrize("words", commands_with_help(), ids=" ".join)
def test_every_commands_help_fits_80_columns_and_ends_well(
    words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    try:
        code = cli.main([*words, "--help"])
    except SystemExit as ended:
        code = ended.code
    said = capsys.readouterr().out
    assert code == 0
    assert max(map(len, said.splitlines())) <= 80
    assert said.startswith(f"usage: shoal {' '.join(words)}".rstrip())
    if words and words != ["completion"]:
        assert "For example:" in said, "a command shows how it is used"


def test_help_before_a_command_is_help_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["help", "resume"]) == 0
    assert capsys.readouterr().out.startswith("usage: shoal resume RUN")
    assert cli.main(["help"]) == 0
    assert capsys.readouterr().out == cli.OVERVIEW + "\n"


def test_dir_shows_what_is_imported_on_first_use() -> None:
    assert {"train", "Result", "RunFailed", "UserError"} <= set(dir(shoal))
