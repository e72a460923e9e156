"""Help and completion: every option explains itself, in 80 columns, from the one place where it is declared."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

import shoal
from shoal import cli, config, options
from shoal.experiment import registry
from shoal.experiment.arguments import options_of
from shoal.experiment.options import RunOptions
from shoal.experiment.usage import completion_script, help_text


@config.config(batch=7)
class Small(options.Rewards):
    """A small one."""

    batch: config.Count = 3
    """Items
    per update."""
    plain: bool = True  # said beside it
    network: config.Factory | None = None


def test_a_fields_text_is_the_string_below_it_or_the_comment_beside_it() -> None:
    texts = config.field_texts(Small)
    assert texts["batch"] == "Items per update."
    assert texts["plain"] == "said beside it"
    assert texts["reward_scale"] == "Rewards are multiplied by this.", "also of a group that it is composed of"


def test_a_configs_docstring_lists_its_fields() -> None:
    assert (Small.__doc__ or "").splitlines()[0] == "A small one."
    assert "    batch: Items per update. [7]" in (Small.__doc__ or "").splitlines()


def test_help_shows_the_values_that_would_be_used_under_their_groups() -> None:
    text = help_text("shoal x", "What it does.", [Small(reward_scale=0.5)])
    assert text.splitlines()[:4] == ["usage: shoal x [OPTIONS]", "", "What it does.", ""]
    assert "What learners make of the environment's rewards\n  --reward-scale NUMBER   Rewards" in text
    assert "  --reward-scale NUMBER   Rewards are multiplied by this. [0.5]" in text
    assert "  --[no-]plain            said beside it [on]" in text


@pytest.mark.parametrize("name", registry.names())
def test_every_option_of_every_algorithm_is_explained_in_80_columns(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    made = registry.load(name).Config()
    assert [found.name for found in options_of(type(made)) if not found.text] == []
    assert max(map(len, help_text(f"shoal train {name}", "", [made, RunOptions()]).splitlines())) <= 80


def test_a_shell_completes_commands_algorithms_options_and_choices(tmp_path: Path) -> None:
    @dataclass
    class Eval:
        episodes: int = 3

    commands: dict[str, list[type]] = {"train": [], "eval": [Eval]}
    (tmp_path / "completion.sh").write_text(
        completion_script(commands, {"impala": [RunOptions, Small], "ppo": [RunOptions]})
    )
    asked = """
source completion.sh
try() { COMP_WORDS=("$@"); COMP_CWORD=$(( $# - 1 )); COMPREPLY=(); _shoal; echo "${COMPREPLY[*]}"; }
try shoal e; try shoal train im; try shoal train impala --rew; try shoal train impala --no; try shoal train ppo --rew
try shoal train ppo --runtime i; try shoal eval --
"""
    found = subprocess.run(["bash", "-c", asked], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert found.stdout.splitlines() == [
        "eval",
        "impala",
        "--reward-clip --reward-scale",
        "--no-checkpoint-replay --no-plain --no-restore-partial",
        "",
        "inline",
        "--episodes --help",
    ]


def test_the_commands_completion_knows_every_algorithm(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["completion"]) == 0
    script = capsys.readouterr().out
    assert all(f"train\\ {name})" in script for name in registry.names())


def test_dir_shows_what_is_imported_on_first_use() -> None:
    assert {"train", "Result", "RunFailed", "UserError"} <= set(dir(shoal))
