"""Import directions: who may know whom. Laws know torch only, replay numpy only, algorithms nothing of distribution."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

import shoal

SOURCE = Path(shoal.__file__).parent

# Part of shoal -> (parts it may import, packages it may import). What is not listed here may import nothing.
ALLOWED: dict[str, tuple[str, str]] = {
    "errors": ("", ""),
    "sync": ("", ""),
    "tree": ("", ""),
    "types": ("", "numpy"),
    "versions": ("", ""),
    "step": ("tree", ""),
    "schedules": ("", ""),
    "state": ("errors", "numpy torch"),
    "buffers": ("", "numpy"),
    "program": ("", "numpy"),
    "retry": ("program sync", ""),
    "config": ("errors factories", ""),
    "options": ("config errors", ""),
    "factories": ("errors", ""),
    "pixels": ("", "numpy gymnasium"),
    "flat": ("errors", "torch"),
    "products": ("", "torch"),
    "films": ("errors", "numpy imageio PIL"),
    "batches": ("tree", "torch"),
    "learning": ("batches state versions", "torch"),
    "functional": ("", "torch numpy"),
    "replay": ("buffers sync", "numpy lz4"),
    "checkpoints": ("errors", "numpy torch safetensors"),
    "envs": (
        "errors pixels step tree",
        "numpy torch gymnasium dm_env ale_py envpool cloudpickle jax gymnax brax mujoco",
    ),
    "data": ("envs errors factories replay tree", "numpy gymnasium minari pyarrow"),
    "nets": ("errors factories functional options pixels tree", "torch numpy gymnasium"),
    "acting": ("batches functional nets program replay retry step tree versions", "torch numpy"),
    "services": ("acting buffers errors flat program replay retry state step sync tree versions", "torch numpy"),
    "optim": ("flat schedules services sync", "torch"),
    "loops": (
        "acting batches config data envs errors factories films gateway learning nets optim options products program "
        "replay retry services state step sync tree versions",
        "torch numpy gymnasium",
    ),
    "gateway": ("envs errors tree", "numpy gymnasium aiohttp msgpack safetensors uvloop"),
    "runtime": ("buffers errors factories program sync", "numpy torch cloudpickle cryptography"),
    "algorithms": (
        "acting batches config data envs errors functional learning loops nets optim options program replay "
        "schedules services state tree",
        "torch",
    ),
    "runs": (
        "acting algorithms checkpoints config envs errors factories films loops nets options program",
        "numpy torch pandas wandb",
    ),
    "analysis": ("config errors runs", "numpy matplotlib"),
    "arguments": ("config errors runs", ""),
    "experiment": (
        "acting analysis arguments checkpoints config data envs errors gateway loops nets options program replay runs "
        "runtime services versions",
        "numpy torch rich gymnasium",
    ),
    "playing": (
        "acting checkpoints config data envs errors experiment films functional loops nets options runs step tree",
        "numpy torch gymnasium onnxruntime",
    ),
    "diagnosis": (
        "acting analysis config envs errors experiment loops options pixels runs runtime tree",
        "numpy torch gymnasium cloudpickle",
    ),
    "sweeps": ("analysis arguments checkpoints config errors experiment runs", "numpy optuna matplotlib"),
    "bench": (
        "acting config envs errors experiment flat functional learning loops nets optim options products program "
        "replay runs runtime tree",
        "numpy torch gymnasium",
    ),
    "planning": (
        "acting bench config envs errors experiment learning loops options program runs runtime tree versions",
        "numpy",
    ),
    "serving": (
        "acting checkpoints config errors experiment gateway playing runs tree",
        "numpy torch aiohttp",
    ),
    "cli": (
        "analysis arguments bench config data diagnosis envs errors experiment options planning playing runs runtime "
        "serving sweeps",
        "rich",
    ),
    "__main__": ("cli", ""),
    "__init__": ("diagnosis errors experiment playing runs runtime serving sweeps", ""),
}
ONLY_IN = {"ray": "runtime/ray"}  # packages that one folder alone may import


def modules() -> list[Path]:
    return sorted(path.relative_to(SOURCE) for path in SOURCE.rglob("*.py"))


def part_of(path: Path) -> str:
    return path.parts[0].removesuffix(".py")


def imported(path: Path) -> set[str]:
    """Full names of everything a file imports, wherever in the file."""
    package = ("shoal", *path.parent.parts)
    names: set[str] = set()
    for node in ast.walk(ast.parse((SOURCE / path).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join([*above, *([node.module] if node.module else [])])
            names.update(f"{module}.{alias.name}" for alias in node.names)
    return names


@pytest.mark.parametrize("path", modules(), ids=str)
def test_a_module_imports_only_what_its_part_may_know(path: Path) -> None:
    part = part_of(path)
    parts, packages = (set(text.split()) for text in ALLOWED[part])
    for name in imported(path):
        top, _, rest = name.partition(".")
        if top == "shoal":
            known = rest.partition(".")[0]
            assert known in {*parts, part, "types", "__version__"} or not rest, f"{path} may not import {name}"
        elif top in ONLY_IN:
            assert str(path.parent) == ONLY_IN[top], f"{path} may not import {name}: only {ONLY_IN[top]} may"
        else:
            assert top in packages or top in sys.stdlib_module_names, f"{path} may not import {name}"


@pytest.mark.parametrize("path", modules(), ids=str)
def test_no_node_asks_which_runtime_it_is_on(path: Path) -> None:
    """What a runtime can do it says (`program.Capabilities`); only the clock itself knows of a scheduler."""
    if part_of(path) not in ("sync", "runtime"):
        assert "scheduler()" not in (SOURCE / path).read_text(encoding="utf-8")


@pytest.mark.parametrize("path", modules(), ids=str)
def test_nothing_imports_an_algorithm(path: Path) -> None:
    assert not [name for name in imported(path) if name.startswith("shoal.algorithms.")]


@pytest.mark.parametrize("path", modules(), ids=str)
def test_the_replay_does_not_need_its_extras(path: Path) -> None:
    """What no algorithm uses lies apart: it knows the replay, and nothing of Shoal knows it."""
    if "extras" not in path.parts:
        assert not [name for name in imported(path) if "replay.extras" in name]


def test_rooms_do_not_import_each_other_in_a_circle() -> None:
    knows = {part: set(parts.split()) & set(ALLOWED) for part, (parts, _) in ALLOWED.items()}
    while leaves := [part for part, others in knows.items() if not others]:
        knows = {part: others - set(leaves) for part, others in knows.items() if part not in leaves}
    assert not knows, f"these rooms import each other: {knows}"


def test_what_a_room_may_know_it_does_know() -> None:
    """The table cannot grow beyond what is used, or it would forbid too little."""
    used: dict[str, set[str]] = {part: set() for part in ALLOWED}
    for path in modules():
        for name in imported(path):
            top, _, rest = name.partition(".")
            used[part_of(path)].add(rest.partition(".")[0] if top == "shoal" else top)
    for part, allowed in ALLOWED.items():
        spare = {name for text in allowed for name in text.split()} - used[part]
        assert not spare, f"{part} does not import {spare}: take it out of the table"
