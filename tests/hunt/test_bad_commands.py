"""Commands that cannot work: every one is refused with one sentence and exit code 2, before anything is started."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.hunt.conftest import Told

LINES = (Path(__file__).parent / "commands.txt").read_text().splitlines()[1:]
TABLE = list(zip(LINES[::2], (line.strip() for line in LINES[1::2])))


@pytest.mark.parametrize(("command", "sentence"), TABLE, ids=[command for command, _ in TABLE])
def test_a_command_that_cannot_work_is_refused_with_one_sentence(command: str, sentence: str, told: Told) -> None:
    assert told(*command.split())[-1].startswith(f"shoal: {sentence}")


@pytest.mark.parametrize("words", [["--env", ""], ["--hidden", ""], ["--env=  "], ["--seed", " "], ["", "--seed", "1"]])
def test_words_without_letters_are_refused(words: list[str], told: Told) -> None:
    assert len(told("train", "impala", *words)) == 1
