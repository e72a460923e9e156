"""Exports: the same as the policy on recorded steps, for batches of any size, playable without Shoal."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from tests.saved_runs import saved_run

import shoal
from shoal.errors import UserError
from shoal.experiment import registry
from shoal.playing import exporting
from shoal.playing.exporting import _as_environment, _check, export

ENVS = {"apex_dpg": "Pendulum-v1", "d4pg": "Pendulum-v1", "sac": "Pendulum-v1", "td3": "Pendulum-v1"}
MORE: list[tuple[str, dict[str, Any]]] = [
    ("ppo", {"lstm": 8, "normalize_observations": True}),
    ("impala", {"env": "Pendulum-v1"}),
    ("apex_dqn", {"quantiles": 5}),
]
EXAMPLE = Path(__file__).parents[3] / "examples" / "play_export.py"


@pytest.fixture(autouse=True)
def nothing_of_onnxruntime() -> Iterator[None]:
    """It leaves a file of its own in the folder for temporary ones."""
    yield
    (Path(tempfile.gettempdir()) / ".ses").unlink(missing_ok=True)


def checked(run: Path, format: str) -> None:
    """The file, loaded anew and played with the recorded inputs and another size of the batch."""
    made = export(run, format=format)
    assert made.largest_difference <= 1e-5
    folder = Path(made.folder)
    contract = json.loads((folder / "contract.json").read_text())
    recorded = np.load(folder / "recorded.npz")
    play = exporting._player(format, folder / contract["file"])
    given = {each["name"]: np.repeat(recorded[each["name"]][0][:1], 5, axis=0) for each in contract["inputs"]}
    action = play(given)["action"]
    wanted = recorded["out/action"][0][:1]
    np.testing.assert_allclose(action, np.repeat(wanted, 5, axis=0), atol=1e-4)


def test_a_torch_export_is_the_policy(tmp_path: Path) -> None:
    checked(saved_run(tmp_path / "run"), "torch")


@pytest.mark.slow
@pytest.mark.parametrize(("algorithm", "chosen"), [*((name, {}) for name in registry.names()), *MORE])
def test_every_algorithm_is_exported_to_onnx(algorithm: str, chosen: dict[str, Any], tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    run = saved_run(tmp_path / "run", algorithm, **{"env": ENVS.get(algorithm, "CartPole-v1"), **chosen})
    checked(run, "onnx")


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["impala", "r2d2"])
def test_the_example_plays_an_export_without_shoal(algorithm: str, tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    made = export(saved_run(tmp_path / "run", algorithm, env="CartPole-v1"))
    hidden = (
        "import sys; sys.modules['shoal'] = None; sys.argv = sys.argv[1:]; import runpy; runpy.run_path(sys.argv[0])"
    )
    done = subprocess.run(
        [sys.executable, "-c", hidden, str(EXAMPLE), made.folder], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert 1.0 <= float(done.stdout) <= 500.0


def test_what_differs_from_the_policy_is_refused() -> None:
    row = {"observation": np.zeros((2, 1), np.float32), "out/action": np.array([0, 1]), "out/scores": np.eye(2)}
    right = {"action": np.array([0, 1]), "scores": np.eye(2)}
    assert _check(lambda given: right, [row], "export") == 0.0
    with pytest.raises(UserError, match="takes other actions"):
        _check(lambda given: {**right, "action": np.array([1, 1])}, [row], "export")
    with pytest.raises(UserError, match=r"differs from the policy by 1\.0e\+00 in scores"):
        _check(lambda given: {**right, "scores": np.eye(2) + 1.0}, [row], "export")
    with pytest.raises(UserError, match=r"gives scores as \[2\]"):
        _check(lambda given: {**right, "scores": np.zeros(2)}, [row], "export")


def test_what_cannot_be_exported_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = saved_run(tmp_path / "run")
    with pytest.raises(UserError, match="--format tf is not known"):
        export(run, format="tf")
    with pytest.raises(UserError, match="is there already: give a new or empty folder"):
        export(run, run, format="torch")
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(UserError, match=r"pip install 'shoal\[onnx\]'"):
        shoal.export(run)


def test_actions_are_those_that_the_environment_takes() -> None:
    counted = torch.tensor([0, 2])
    assert _as_environment(counted, spaces.Discrete(3, start=5)).tolist() == [5, 7]
    several = spaces.MultiDiscrete([3, 3], start=[1, -1])
    assert _as_environment(torch.tensor([[0, 2]]), several).tolist() == [[1, 1]]
    bounded = spaces.Box(np.array([-1.0, 0.0], np.float32), np.array([1.0, 0.5], np.float32))
    assert _as_environment(torch.tensor([[-3.0, 0.25], [0.5, 2.0]]), bounded).tolist() == [[-1.0, 0.25], [0.5, 0.5]]


def test_an_export_that_is_refused_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> Any:
        raise UserError("It differs from the policy.")

    monkeypatch.setattr(exporting, "_write", refuse)
    run = saved_run(tmp_path / "run")
    before = sorted(path.name for path in run.iterdir())
    with pytest.raises(UserError, match="differs"):
        export(run, format="torch")
    assert sorted(path.name for path in run.iterdir()) == before
