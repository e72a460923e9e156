"""The runtimes, as fixtures: every contract holds on each of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from starting import Start, start_on

from shoal.program import Program
from shoal.runtime import Run
from shoal.runtime.local.run import cool
from shoal.runtime.restarts import Supervisor

SLOW_RAY = pytest.param("ray", marks=[pytest.mark.ray, pytest.mark.slow])  # make test-cluster; test_ray.py is quick
RUNTIMES = ["inline", "local", "spawn", SLOW_RAY]
PROCESS_RUNTIMES = RUNTIMES[1:]


def _starter(name: str) -> Iterator[Start]:
    runs: list[Run] = []

    def start(program: Program, seed: int = 0, supervisor: Supervisor | None = None) -> Run:
        runs.append(start_on(name, program, seed, supervisor))
        return runs[-1]

    yield start
    for run in runs:
        run.close()


@pytest.fixture(scope="session", autouse=True)
def warmth(nothing_left_behind: None) -> Iterator[None]:
    """Ends what was warmed up for a run that did not follow."""
    yield
    cool()


@pytest.fixture(scope="module", params=RUNTIMES)
def runtime(request: pytest.FixtureRequest) -> str:
    if request.param == "ray":
        request.getfixturevalue("ray_cluster")
    return str(request.param)


@pytest.fixture(scope="module", params=PROCESS_RUNTIMES)
def process_runtime(request: pytest.FixtureRequest) -> str:
    if request.param == "ray":
        request.getfixturevalue("ray_cluster")
    return str(request.param)


@pytest.fixture
def start(runtime: str) -> Iterator[Start]:
    """Starts programs on the runtime under test and ends them after the test."""
    yield from _starter(runtime)


@pytest.fixture(params=["inline", "local", "spawn"])
def start_quickly(request: pytest.FixtureRequest) -> Iterator[Start]:
    """As `start`, without Ray, which takes seconds: for what does not depend on how a runtime is made."""
    yield from _starter(request.param)


@pytest.fixture(params=["inline", "local"])
def two_runtimes(request: pytest.FixtureRequest) -> Iterator[Start]:
    """As `start`, on the two runtimes that start in no time."""
    yield from _starter(request.param)


@pytest.fixture
def start_processes(process_runtime: str) -> Iterator[Start]:
    yield from _starter(process_runtime)
