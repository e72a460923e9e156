"""A page is the algorithm: what every file has (decision 0035)."""

from __future__ import annotations

import ast
import dataclasses
from pathlib import Path

import pytest

import shoal.algorithms
from shoal.program import Program
from shoal.runs import registry

FOLDER = Path(shoal.algorithms.__file__).parent
PAGES = {path.stem: path.read_text() for path in sorted(FOLDER.glob("*.py")) if path.stem != "__init__"}
EVERY = ["a3c", "apex_dpg", "apex_dqn", "appo", "d4pg", "impala", "ppo", "r2d2", "sac", "td3"]
every_page = pytest.mark.parametrize("name", PAGES)


def imported(source: str) -> set[str]:
    """Modules, and what is taken from them."""
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom):
            names |= {str(node.module)} | {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    return names


def test_these_are_all_of_them() -> None:
    assert sorted(PAGES) == EVERY == sorted(registry.names())


@every_page
def test_a_page_has_config_presets_policy_learner_and_program(name: str) -> None:
    page = registry.load(name)
    assert dataclasses.is_dataclass(page.Config)
    page.Config()  # every option has a default
    for preset in page.PRESETS.values():
        page.Config(**preset)
    assert callable(page.make_policy)
    assert page.program.__annotations__["return"] in (Program, "Program")
    learners = [value for value in vars(page).values() if isinstance(value, type) and hasattr(value, "update")]
    own = [learner for learner in learners if learner.__module__ == page.__name__]
    assert len(own) == 1, "the learner is on the page, with its steps"
    assert all(hasattr(own[0], method) for method in ("update", "state_dict", "load_state_dict"))


@every_page
def test_a_page_knows_nothing_of_processes(name: str) -> None:
    strangers = {"shoal.runtime", "shoal.services", "shoal.sync", "shoal.buffers", "shoal.experiment"}
    strangers |= {"ray", "socket", "multiprocessing", "threading", "subprocess", "os", "torch.distributed"}
    found = {
        module for module in imported(PAGES[name]) for stranger in strangers if f"{module}.".startswith(f"{stranger}.")
    }
    allowed = {"shoal.services.gradients", "shoal.services.gradients.GradientServer"} if name == "a3c" else set()
    assert found <= allowed, "A3C alone names the service it pushes to, which is its method"
