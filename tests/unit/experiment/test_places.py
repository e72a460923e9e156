"""Runs on several machines: which node is where, and what nodes print there."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from shoal.errors import UserError
from shoal.experiment.places import LARGEST, SHOWN, Prints, on_cluster, told_places
from shoal.runs.options import RunOptions


def test_nodes_of_a_machine_are_told_in_a_line() -> None:
    places = {"learner": "a", "weights": "a", "actor/0": "b", "actor/1": "b", "evaluator": "b"}
    run: Any = SimpleNamespace(machines=lambda: places)
    assert told_places(run) == {"a": "learner, weights", "b": "2 × actor, evaluator"}
    alone: Any = SimpleNamespace(machines=lambda: dict.fromkeys(places, "a"))
    assert told_places(alone) == {}


def test_prints_are_written_with_machine_and_node_and_shown_once(tmp_path: Path) -> None:
    shown: list[str] = []
    prints = Prints(tmp_path, shown.append)
    prints.take("actor/0", "a", "deprecated\nhello")
    prints.take("actor/1", "b", "deprecated")
    assert shown == ["actor/0 on a: deprecated", "actor/0 on a: hello"]
    lines = (tmp_path / "prints.log").read_text().splitlines()
    assert [line.partition(" ")[2] for line in lines] == [
        "a actor/0: deprecated",
        "a actor/0: hello",
        "b actor/1: deprecated",
    ]


def test_nodes_that_print_without_end_fill_neither_view_nor_disk(tmp_path: Path) -> None:
    shown: list[str] = []
    prints = Prints(tmp_path, shown.append)
    for number in range(3):
        prints.take("actor/0", "a", "\n".join(f"{number} {line} {'x' * 1000}" for line in range(LARGEST // 2000)))
    assert len(shown) == SHOWN
    assert (tmp_path / "prints.log").stat().st_size <= LARGEST


def test_a_place_that_cannot_be_written_is_told_once(tmp_path: Path) -> None:
    shown: list[str] = []
    prints = Prints(tmp_path / "missing", shown.append)
    for _ in range(2):
        prints.take("actor/0", "a", "hello")
    assert len([line for line in shown if "cannot be written" in line]) == 1


def test_what_is_asked_of_a_cluster_reaches_the_runtime() -> None:
    options = RunOptions(
        runtime="ray", place="actor=pool-a, learner=big", actor_cpus=0.5, wait_for_resources=60, encryption=False
    )
    options.check()
    asked = on_cluster(options)
    assert asked.places == {"actor": "pool-a", "learner": "big"}
    assert (asked.actor_cpus, asked.wait_for_resources, asked.encrypted) == (0.5, 60, False)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            RunOptions(runtime="ray", place="fish=pool"),
            r"^--place 'fish=pool' is no ROLE=LABEL: .* roles are metrics, ",
        ),
        (RunOptions(runtime="ray", place="actor"), r"^--place 'actor' is no ROLE=LABEL"),
        (RunOptions(place="actor=pool"), r"^--place needs the ray runtime: add --runtime ray \(it is local\)"),
        (RunOptions(encryption=False), r"^--no-encryption needs the ray runtime"),
        (RunOptions(wait_for_resources=5), r"^--wait-for-resources needs the ray runtime"),
    ],
)
def test_what_cannot_be_asked_of_a_cluster_is_one_sentence(options: RunOptions, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        options.check()
