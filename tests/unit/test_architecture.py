"""docs/architecture.md says what is: every room, import, file and name on it is compared with the tree."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from test_imports import ALLOWED, SOURCE

PAGE = (Path(__file__).parents[2] / "docs" / "architecture.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| `([\w/.]+)` \| (.+?) \|(.*)\|$", PAGE, re.MULTILINE)
NAMED = sorted({(path, name) for path, name in re.findall(r"`([\w/]+\.py)`(?:[ \n]+`(\w[\w.]*)`)?", PAGE)})
NO_ROOMS = {"__init__", "__main__"}


def rooms() -> dict[str, set[str]]:
    """Each room of the page and what it may import."""
    return {
        name.removesuffix("/").removesuffix(".py"): set(re.findall(r"`(\w+)`", imports)) for name, _, imports in ROWS
    }


def defined(path: str) -> set[str]:
    """Names that a file defines at its top level, and those inside its classes as Class.name."""
    names: set[str] = set()
    for node in ast.parse((SOURCE / path).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            names |= {f"{node.name}.{part.name}" for part in node.body if isinstance(part, ast.FunctionDef)}
    return names


def test_every_room_of_the_tree_is_on_the_page_and_every_room_of_the_page_in_the_tree() -> None:
    there = {path.name.removesuffix(".py") for path in SOURCE.iterdir() if path.suffix == ".py" or path.is_dir()}
    assert set(rooms()) == there - NO_ROOMS - {"__pycache__", "py.typed"}


@pytest.mark.parametrize("room", sorted(set(ALLOWED) - NO_ROOMS))
def test_the_page_says_what_a_room_may_import(room: str) -> None:
    assert rooms()[room] == set(ALLOWED[room][0].split())


@pytest.mark.parametrize(("path", "name"), NAMED)
def test_what_the_page_names_is_there(path: str, name: str) -> None:
    if path.startswith("tests/"):
        assert (SOURCE.parents[1] / path).is_file()
        return
    assert (SOURCE / path).is_file(), f"there is no {path}"
    if name:
        assert name in defined(path), f"{path} has no {name}"


def test_the_page_names_enough_to_be_checked() -> None:
    assert len([name for _, name in NAMED if name]) >= 30


def test_no_two_files_of_tests_have_one_name() -> None:
    """They are imported by their names alone, as are their helpers: two of one name cannot be run together."""
    tests = Path(__file__).parents[1]
    names = [file.name for file in tests.rglob("*.py") if file.name != "conftest.py"]
    assert sorted({name for name in names if names.count(name) > 1}) == []
