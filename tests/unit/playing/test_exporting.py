"""Exports: the same as the policy on recorded steps, for batches of any size, playable without Shoal."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from tests.saved_runs import saved_run
from tests.unit.playing import export_cases
from tests.unit.playing.export_cases import CASES, QUICK

import shoal
from shoal.cli.main import main
from shoal.errors import UserError
from shoal.playing import exporting
from shoal.playing.exporting import _as_environment, _check, export
from shoal.runs import registry

EXAMPLE = Path(__file__).parents[3] / "examples" / "play_export.py"


@pytest.fixture(autouse=True)
def nothing_of_onnxruntime() -> Iterator[None]:
    """It leaves a file of its own in the folder for temporary ones."""
    yield
    (Path(tempfile.gettempdir()) / ".ses").unlink(missing_ok=True)


def checked(run: Path, format: str) -> None:
    """The file, loaded anew, plays the recorded episode as the policy does, and takes another size of the batch."""
    made = export(run, format=format)
    assert made.largest_difference <= 1e-5
    folder = Path(made.folder)
    contract = json.loads((folder / "contract.json").read_text())
    assert [contract["inputs"], contract["outputs"]] == [made.inputs, made.outputs]
    recorded = np.load(folder / "recorded.npz")
    play = exporting._player(format, folder / contract["file"])
    names = [each["name"] for each in contract["inputs"]]
    policy, memory = shoal.load(run), {}
    for step in range(exporting.STEPS):
        seen = {name: recorded[name][step] for name in names}
        for name, value in memory.items():  # what it gave itself is what the policy would have remembered
            np.testing.assert_allclose(seen[name], value, atol=1e-5, rtol=1e-5)
        found = play(seen)
        np.testing.assert_allclose(found["action"], recorded["out/action"][step], atol=1e-5, rtol=1e-5)
        memory = {name: value for name, value in found.items() if name.startswith("memory/")}
        assert all(policy.action_space.contains(action) for action in found["action"])
    five = play({name: np.repeat(recorded[name][0][:1], 5, axis=0) for name in names})["action"]
    np.testing.assert_allclose(five, np.repeat(recorded["out/action"][0][:1], 5, axis=0), atol=1e-5)


@pytest.mark.parametrize(
    ("algorithm", "kind", "chosen"), [case for case in CASES if case[:2] in QUICK], ids=lambda part: str(part)[:20]
)
def test_a_torch_export_is_the_policy(algorithm: str, kind: str, chosen: dict[str, Any], tmp_path: Path) -> None:
    checked(saved_run(tmp_path / "run", algorithm, **chosen), "torch")


def test_an_onnx_export_is_the_policy(tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    checked(saved_run(tmp_path / "run", "ppo", lstm=8, normalize_observations=True), "onnx")


def test_every_algorithm_is_among_the_cases() -> None:
    assert {algorithm for algorithm, _, _ in CASES} == set(registry.names())


@pytest.mark.slow
@pytest.mark.parametrize("format", ["onnx", "torch"])
@pytest.mark.parametrize(("algorithm", "kind", "chosen"), CASES, ids=lambda part: part if isinstance(part, str) else "")
def test_everything_that_can_be_trained_is_exported(
    algorithm: str, kind: str, chosen: dict[str, Any], format: str, tmp_path: Path
) -> None:
    pytest.importorskip("onnxscript")
    checked(saved_run(tmp_path / "run", algorithm, **chosen), format)


def played(folder: str, *words: str) -> float:
    """What the example says, in a process that cannot import shoal."""
    hidden = (
        "import sys; sys.modules['shoal'] = None; sys.argv = sys.argv[1:]; import runpy; runpy.run_path(sys.argv[0])"
    )
    done = subprocess.run(
        [sys.executable, "-c", hidden, str(EXAMPLE), folder, *words], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return float(done.stdout)


@pytest.mark.parametrize(
    ("algorithm", "env"),
    [
        ("impala", "CartPole-v1"),
        pytest.param("r2d2", "CartPole-v1", marks=pytest.mark.slow),
        pytest.param("td3", "Pendulum-v1", marks=pytest.mark.slow),
    ],
)
def test_the_example_plays_an_export_without_shoal(algorithm: str, env: str, tmp_path: Path) -> None:
    """The same episode as the policy plays, from the same seed."""
    pytest.importorskip("onnxscript")
    run = saved_run(tmp_path / "run", algorithm, env=env)
    policy, made = shoal.load(run), gymnasium.make(env)
    (observation, _), total, reward, ended = made.reset(seed=1), 0.0, 0.0, False
    while not ended:
        last = {"reward": reward} if policy.wants_reward else {}
        observation, reward, terminated, truncated, _ = made.step(policy.act(observation, **last))
        total, ended = total + float(reward), terminated or truncated
    assert played(export(run).folder, env) == pytest.approx(total, rel=1e-3)


def test_what_differs_from_the_policy_is_refused() -> None:
    row = {"observation": np.zeros((2, 1), np.float32), "out/action": np.array([0, 1]), "out/scores": np.eye(2)}
    right = {"action": np.array([0, 1]), "scores": np.eye(2)}
    assert _check(lambda given: right, [row], "export") == 0.0
    with pytest.raises(UserError, match="takes other actions"):
        _check(lambda given: {**right, "action": np.array([1, 1])}, [row], "export")
    with pytest.raises(UserError, match=r"differs from the policy by 5\.0e-01 in scores"):
        _check(lambda given: {**right, "scores": np.eye(2) + 1.0}, [row], "export")
    with pytest.raises(UserError, match=r"gives scores as \[2\]"):
        _check(lambda given: {**right, "scores": np.zeros(2)}, [row], "export")


def test_what_gives_no_number_is_refused() -> None:
    row = {"out/action": np.array([[0.5], [0.25]]), "out/memory/core": np.zeros((2, 3))}
    right = {"action": np.array([[0.5], [0.25]]), "memory/core": np.zeros((2, 3))}
    assert _check(lambda given: right, [row], "export") == 0.0
    for name in right:
        spoilt = {**right, name: right[name].copy()}
        spoilt[name][1, 0] = np.nan
        with pytest.raises(UserError, match=f"differs from the policy by nan in {name}: it was not written"):
            _check(lambda given, spoilt=spoilt: spoilt, [row], "export")  # type: ignore[misc]


def test_a_tie_excuses_its_own_row_and_choice_alone() -> None:
    scores = np.array([[0.0, 0.0, 1.0, 2.0, 3.0], [0.0, 1.0, 1.0, 2.0, 3.0]])  # of two choices, of 2 and of 3
    row = {"out/action": np.array([[0, 2], [1, 2]]), "out/scores": scores}

    def gives(*action: list[int]) -> Any:
        return lambda given: {"action": np.array(action)}

    _check(gives([1, 2], [1, 2]), [row], "export", [2, 3])
    for wrong in ([[0, 2], [0, 2]], [[0, 1], [1, 2]]):
        with pytest.raises(UserError, match="takes other actions"):
            _check(gives(*wrong), [row], "export", [2, 3])


@pytest.mark.parametrize(
    ("chosen", "sentence"),
    [
        ({}, "The torch export takes other actions than the policy: it was not written."),
        ({"env": "Pendulum-v1"}, r"The torch export differs from the policy by .* in action: it was not written\."),
        ({"lstm": 8}, r"The torch export differs from the policy by .* in (scores|memory/.*): it was not written\."),
    ],
)
def test_an_export_of_other_weights_than_the_policys_is_not_written(
    chosen: dict[str, Any], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = saved_run(tmp_path / "run", **chosen)

    def other_weights(acting: Any) -> None:
        torch.manual_seed(5)
        for parameter in acting.network.parameters():
            torch.nn.init.normal_(parameter)

    if chosen.get("lstm"):  # here the network itself acts: only what is written is another one
        traced = exporting._traced

        def spoilt(step: Any, row: Any, any_size: bool) -> Any:
            step._acting = copy.deepcopy(step._acting)
            step.network = step._acting.network
            with torch.no_grad():
                torch.nn.init.normal_(step.network.core.cell.weight_hh)
            return traced(step, row, any_size)

        monkeypatch.setattr(exporting, "_traced", spoilt)
    else:
        monkeypatch.setattr(exporting, "_load_network", other_weights)
    with pytest.raises(UserError, match=sentence):
        export(run, format="torch")
    assert not [path for path in run.iterdir() if "export" in path.name]


def test_a_network_that_does_otherwise_with_a_single_observation_is_not_exported(tmp_path: Path) -> None:
    run = saved_run(tmp_path / "run", network=f"{export_cases.HERE}:by_size")
    with pytest.raises(
        UserError, match=r"torch export, given a single observation, takes other actions than the policy"
    ):
        export(run, format="torch")
    assert not [path for path in run.iterdir() if "export" in path.name]


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


def test_an_export_for_which_there_is_no_room_is_refused_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(exporting.FORMATS, "torch", "/dev/full")
    with pytest.raises(UserError, match=r"^--output .* cannot be written \(No space left on device\)\.$"):
        export(saved_run(tmp_path / "run"), format="torch")


def test_the_command_exports_in_the_format_and_to_the_folder_that_were_typed(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def pretended(source: str, folder: str | None, **given: Any) -> exporting.Export:
        asked.append((source, folder, given))
        return exporting.Export("out", "policy.pt2", [], [], 0.0)

    monkeypatch.setattr(exporting, "export", pretended)
    assert main(["export", "runs/A", "--format", "torch", "--output", "out", "--trust"]) == 0
    assert main(["export", "runs/A"]) == 0
    assert asked == [
        ("runs/A", "out", {"format": "torch", "trust": True}),
        ("runs/A", None, {"format": "onnx", "trust": False}),
    ]
