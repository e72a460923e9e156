"""The example of docs/programs.md, one's own policy, actor and learner, runs on every runtime and learns."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> object:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import own_loops

    yield own_loops
    sys.modules.pop("own_loops")


@pytest.mark.parametrize("runtime", ["inline", "local", pytest.param("ray", marks=[pytest.mark.ray, pytest.mark.slow])])
def test_own_loops_learn_on_every_runtime(example: object, runtime: str) -> None:
    length = example.main(runtime)  # type: ignore[attr-defined]
    assert length > 60  # random actions last 22 steps
