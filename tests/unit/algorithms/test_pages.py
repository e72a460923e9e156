"""A page is the algorithm: what every file has, and what makes them one family (decision 0035)."""

from __future__ import annotations

import ast
import dataclasses
import difflib
import itertools
from pathlib import Path

import pytest

import shoal.algorithms
from shoal.program import Program
from shoal.runs import registry

FOLDER = Path(shoal.algorithms.__file__).parent
PAGES = {path.stem: path.read_text() for path in sorted(FOLDER.glob("*.py")) if path.stem != "__init__"}
EVERY = ["a3c", "apex_dpg", "apex_dqn", "appo", "bc", "cql", "d4pg", "discrete_cql", "impala", "iql", "ppo", "r2d2"]
EVERY += ["sac", "td3", "td3_bc"]
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


# ---- one family

# Twins, and in how many lines `diff` may find them to differ, both sides counted: what the methods, their papers'
# figures and what is said of them differ in, and a little room. Another name for what both pages have is none of it.
# (D4PG has a preset of FastTD3's figures, too: 22 lines. PPO may act ahead: 12 lines.)
TWINS = {("apex_dpg", "d4pg"): 105, ("ppo", "appo"): 167, ("td3", "sac"): 165, ("apex_dqn", "r2d2"): 230}
TWINS |= {("td3", "td3_bc"): 110, ("sac", "cql"): 170, ("td3_bc", "iql"): 180, ("apex_dqn", "discrete_cql"): 190}


@pytest.mark.parametrize("twins", TWINS, ids=" ".join)
def test_twins_differ_where_their_methods_do(twins: tuple[str, str]) -> None:
    one, other = (PAGES[name].splitlines() for name in twins)
    changed = [line for line in difflib.ndiff(one, other) if line[:2] in ("- ", "+ ")]
    assert len(changed) <= TWINS[twins], "\n".join(changed)


# What says where a run takes place, on what and with whose code; all other options are numbers of the method.
WHERE = {"env_options", "eval_env_options", "eval_limit", "frame_stack", "vectorizer", "env_timeout", "preset"}
WHERE |= {"actor_gpus", "inference_gpus", "learner_gpus", "gpu_memory"}
WHERE |= {"acting_device", "learners", "learner_threads", "device", "precision", "shards"}
WHERE |= {"data", "inference", "inference_servers", "inference_batch", "inference_wait", "pattern", "network", "core"}
WHERE |= {"prefill", "listen", "spaces", "token_file", "tls_certificate", "tls_key"}
WHERE |= {"clients_wait", "session_seconds", "largest_message"}


def config_of(name: str) -> tuple[dict[str, ast.expr], set[str]]:
    """The defaults that a page's `@config(...)` gives, and the fields that its Config declares."""
    (made,) = [node for node in ast.parse(PAGES[name]).body if isinstance(node, ast.ClassDef) and node.name == "Config"]
    (decorator,) = made.decorator_list
    assert isinstance(decorator, ast.Call)
    given = {str(keyword.arg): keyword.value for keyword in decorator.keywords}
    return given, {ast.unparse(node.target) for node in made.body if isinstance(node, ast.AnnAssign)}


@every_page
def test_every_number_of_a_method_is_on_its_page(name: str) -> None:
    given, declared = config_of(name)
    resolved = {field.name: field.default for field in dataclasses.fields(registry.load(name).Config)}
    lacking = resolved.keys() - given.keys() - declared - WHERE
    assert not lacking, "give the default to @config(...): " + ", ".join(
        f"{n}={resolved[n]!r}" for n in sorted(lacking)
    )
    assert {option: ast.literal_eval(value) for option, value in given.items()} == {n: resolved[n] for n in given}


@every_page
def test_presets_are_whole_on_the_page(name: str) -> None:
    """Plain literals: what is read there is what is set."""
    (written,) = [
        node.value
        for node in ast.parse(PAGES[name]).body
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "PRESETS"
    ]
    assert written is not None
    assert ast.literal_eval(written) == registry.load(name).PRESETS


@pytest.mark.parametrize("twins", list(itertools.combinations(PAGES, 2)), ids=" ".join)
def test_two_pages_list_their_options_in_the_same_order(twins: tuple[str, str]) -> None:
    """So that a diff shows values that differ, and nothing else."""
    one, other = (config_of(name)[0] for name in twins)
    assert [option for option in one if option in other] == [option for option in other if option in one]
