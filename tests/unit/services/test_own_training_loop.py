"""The example of a training loop of one's own does what its page says."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[3] / "examples" / "own_training_loop.py"


def test_the_example_fits_its_curve(capsys: pytest.CaptureFixture[str]) -> None:
    spec = importlib.util.spec_from_file_location("own_training_loop", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    assert example.main("inline") < 0.05
    assert "900 steps from 900 gradients, 0 too stale" in capsys.readouterr().out
