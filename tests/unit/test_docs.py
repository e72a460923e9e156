"""README and docs: every page is listed, every link leads somewhere, every command that is shown is understood."""

from __future__ import annotations

import html
import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from shoal.arguments.command_options import Output
from shoal.arguments.config_files import CONFIG
from shoal.arguments.words import read
from shoal.cli import commands
from shoal.cli import main as cli
from shoal.cli.commands.common import EXAMPLES
from shoal.runs import registry
from shoal.runs.options import RunOptions

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
COMMAND = re.compile(r"(?:^|`|[Tt]ry )\$? ?shoal ([a-z][^`\n]*)", re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """As GitHub makes them of headings, and those that are written out."""
    text = page.read_text(encoding="utf-8")
    headings = re.findall(r"^#+ (.+)$", re.sub(r"```.*?```", "", text, flags=re.DOTALL), re.MULTILINE)
    plain = (re.sub(r"[^\w\- ]", "", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()) for heading in headings)
    return {heading.replace(" ", "-") for heading in plain} | set(re.findall(r'<a id="([^"]+)">', text))


def without_code(text: str) -> str:
    return re.sub(r"`[^`\n]*`", "`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_to_a_file_and_a_heading_that_is_there(page: Path) -> None:
    for target in LINK.findall(without_code(page.read_text(encoding="utf-8"))):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        found = (page.parent / name).resolve() if name else page
        assert found.exists(), f"{page.name} links to {target}"
        assert found.is_relative_to(ROOT), f"{page.name} links out of the repository: {target}"
        if anchor:
            assert anchor in anchors(found), f"{page.name} links to {target}, and there is no such heading"


def test_the_index_lists_every_page() -> None:
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    listed = {(ROOT / "docs" / target.partition("#")[0]).resolve() for target in LINK.findall(index)}
    pages = {page for page in PAGES if page.is_relative_to(ROOT / "docs") and page.parent.name != "decisions"}
    assert pages - listed - {ROOT / "docs" / "index.md"} == set()
    assert ROOT / "docs" / "decisions" / "README.md" in listed


@cache
def owners() -> dict[str, list[type[Any]]]:
    """The dataclasses whose fields are options, by command."""
    own: dict[str, list[type[Any]]] = {"train": [RunOptions, Output], "resume": [RunOptions, Output]}
    return own | commands.options() | {"algorithms": [], "completion": []}


def shown() -> list[str]:
    texts = [page.read_text(encoding="utf-8") for page in PAGES]
    lines = [command for text in texts for command in COMMAND.findall(text)]
    lines += [line.removeprefix("shoal ") for examples in EXAMPLES.values() for line in examples]
    return sorted({re.split(r"\s+(?:#|>|\||&&)\s|\s*…", line)[0].strip() for line in lines})


@pytest.mark.parametrize("line", shown())
def test_every_command_that_is_shown_is_understood(line: str) -> None:
    words = shlex.split(line)
    command = " ".join(words[:2]) if words[0] in ("bench", "data") and len(words) > 1 else words[0]
    words = words[len(command.split()) :]
    assert command in owners() or command in ("bench", "data"), f"shoal {line}"
    taken = list(owners().get(command, []))
    if command in ("train", *commands.TAKE_ALGORITHM) and words and not words[0].startswith("-"):
        name = words.pop(0)
        known = name in registry.names()
        assert known or name == "ALGORITHM" or name.endswith(".py"), f"shoal {line}"
        taken.append(registry.load(name if known else "impala").Config)
    if command == "resume":  # it takes those of the run's algorithm
        taken.append(registry.load("impala").Config)
    if CONFIG in words:
        at = words.index(CONFIG)
        del words[at : at + 2]
    read(words, taken, f"shoal {command}", positional=True)


TABLES = {"central-inference.md": "impala", "algorithms/ppo.md": "ppo", "algorithms/a3c.md": "a3c"}
NO_NUMBER = {"8 per worker", ""}  # what is said of an option whose default is worked out, or is none


def documented(page: str) -> Iterator[tuple[str, str]]:
    """Options and what a page's table says is their default: one for each, or one for all of a line."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    (table,) = re.findall(r"^\| option \| default \|.*\n\|[-|]+\|\n((?:\|.*\n)+)", text, re.MULTILINE)
    for line in table.splitlines():
        names, said = (cell.strip() for cell in line.split("|")[1:3])
        options = re.findall(r"`--([\w-]+)`", names)
        values = re.sub(r" \([^)]*\)", "", said).split(", ")
        yield from zip(options, values * len(options) if len(values) == 1 else values, strict=True)


def as_said(value: Any, said: str) -> bool:
    if isinstance(value, bool):
        return said == ("on" if value else "off")
    if isinstance(value, (int, float)):
        return value == (0.0 if said == "off" else float(said))
    return said == (" ".join(map(str, value)) if isinstance(value, tuple) else str(value))


@pytest.mark.parametrize("page", TABLES)
def test_the_defaults_that_a_page_names_are_those_of_the_options(page: str) -> None:
    cfg, found = registry.load(TABLES[page]).Config(), list(documented(page))
    assert len(found) >= 4
    for option, said in found:
        value = getattr(cfg, option.replace("-", "_"))
        assert said in NO_NUMBER or as_said(value, said), f"{page} says {said} of --{option}, which is {value}"


def test_the_overview_names_every_command() -> None:
    assert [name for name in owners() if f"\n  {name} " not in cli.OVERVIEW] == []


def test_the_readmes_picture_is_of_its_command() -> None:
    """What the picture shows in its title and names as its ends is what the command above it has."""
    readme, drawn = (ROOT / "README.md").read_text(encoding="utf-8"), (ROOT / "docs" / "live-view.svg").read_text()
    command = re.search(r"```\n(shoal train .*)\n```\n\n!\[[^]]*\]\(docs/live-view.svg\)", readme)
    assert command
    texts = [html.unescape(text).replace("\xa0", " ").strip() for text in re.findall(r">([^<]+)</text>", drawn)]
    assert command[1] in texts
    (towards,) = re.findall(r"towards +(.*)", "\n".join(texts)) or [texts[texts.index("towards") + 1]]
    stops = {"return", *re.findall(r"--stop-(\w+)", command[1])}  # a return is registered for CartPole-v1
    assert set(re.findall(r"return|steps|updates|seconds", towards)) == stops


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 170
