"""Functions and classes in configs: recorded by name with their folder, found again elsewhere, or said to be lost."""

from __future__ import annotations

import importlib
import math
import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from shoal import envs, factories
from shoal.algorithms import apex_dqn, impala
from shoal.errors import UserError
from shoal.runs import directory, records
from shoal.runs.directory import RunDirectory
from shoal.runs.options import RunOptions

MODULE = "import gymnasium\ndef make_env():\n    return gymnasium.make('CartPole-v1')\n"


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A module of the user's, in a folder of its own."""
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "recorded_module.py").write_text(MODULE)
    monkeypatch.setattr(sys, "path", [str(tmp_path / "code"), *sys.path])
    yield importlib.import_module("recorded_module")
    sys.modules.pop("recorded_module", None)


def written(path: Path, cfg: Any) -> Path:
    made = RunDirectory.create(str(path), "impala", "x", 0, print)
    made.write_config(records.record_of("impala", cfg, envs.describe("CartPole-v1"), RunOptions()))
    made.close()
    return path


def test_a_function_of_a_module_is_recorded_with_its_folder_and_found_from_elsewhere(
    own: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = written(tmp_path / "run", impala.Config(env=own.make_env))
    assert records.lost_note(impala.Config(env=own.make_env)) is None
    sys.modules.pop("recorded_module")
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry != str(tmp_path / "code")])
    _, _, cfg = records.rebuild(run, {}, trust=True)
    assert cfg.env == "recorded_module:make_env"
    assert factories.load_factory(cfg.env, "env")().spec.id == "CartPole-v1"


@pytest.mark.parametrize("module", ["recorded_package", "recorded_package.inner", "recorded_package.inner.deep"])
def test_a_function_of_a_package_is_found_from_elsewhere_wherever_in_it_it_is(
    module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = tmp_path / "code"
    inner = code / "recorded_package" / "inner"
    inner.mkdir(parents=True)
    for file in (inner.parent / "__init__.py", inner / "__init__.py", inner / "deep.py"):
        file.write_text(MODULE)

    def forget() -> None:
        for name in [name for name in sys.modules if name.partition(".")[0] == "recorded_package"]:
            del sys.modules[name]

    before = list(sys.path)
    monkeypatch.setattr(sys, "path", [str(code), *before])
    try:
        made = importlib.import_module(module).make_env
        assert factories.folder_of(module) == str(code.resolve())
        run = written(tmp_path / "run", impala.Config(env=made))
        forget()
        monkeypatch.setattr(sys, "path", before)
        _, _, cfg = records.rebuild(run, {}, trust=True)
        assert cfg.env == f"{module}:make_env"
        assert factories.load_factory(cfg.env, "env")().spec.id == "CartPole-v1"
    finally:
        forget()


@pytest.mark.parametrize("value", [math.inf, math.nan, len, np.zeros(2), {1: 2}, {1, 2}, b"x", [math.inf]])
def test_options_that_no_file_can_hold_are_said_to_be_lost_and_can_be_given_again(value: Any, tmp_path: Path) -> None:
    cfg = impala.Config(env_options={"limit": value})
    assert "env_options holds what no file can hold" in str(records.lost_note(cfg))
    run = written(tmp_path / "run", cfg)
    with pytest.raises(UserError, match="held what no file can hold: give them again, in Python or as --env-option"):
        records.rebuild(run, {})
    with pytest.raises(UserError, match="held what no file can hold"):
        records.refuse_lost(run, records.OF_ENVIRONMENT)
    assert records.rebuild(run, {"env_options": {"limit": 3}})[2].env_options == {"limit": 3}


def test_options_that_a_file_can_hold_come_back(tmp_path: Path) -> None:
    plain = {"size": np.int64(3), "gravity": np.float64(-9.5), "map": "x", "wind": True, "none": None, "places": [1, 2]}
    plain |= {"range": (0.5, (1, [2])), "parts": {"shape": (3,), "deep": [np.float32(0.5)]}}
    run = written(tmp_path / "run", impala.Config(env_options=plain))
    assert records.rebuild(run, {})[2].env_options == {**plain, "size": 3, "gravity": -9.5}


def test_numbers_of_numpy_are_recorded_as_numbers(tmp_path: Path) -> None:
    numbers: dict[str, Any] = {"gamma": np.float32(0.5), "batch": np.int64(8), "shared_torso": np.bool_(False)}
    cfg = impala.Config(hidden=np.array([32, 16]), **numbers)  # type: ignore[arg-type]
    options = RunOptions(seed=np.int64(3), stop_updates=np.int64(4), checkpoint_every=np.float32(10))  # type: ignore[arg-type]
    made = RunDirectory.create(str(tmp_path / "run"), "impala", "x", 0, print)
    made.write_config(records.record_of("impala", cfg, envs.describe("CartPole-v1"), options))
    made.close()
    again = records.rebuild(tmp_path / "run", {"gamma": np.float64(0.25)})[2]
    assert (again.hidden, again.gamma, again.batch, again.shared_torso) == ((32, 16), 0.25, 8, False)
    assert {type(value) for value in (*again.hidden, again.batch, options.seed, options.stop_updates)} == {int}
    record = directory.read_config(tmp_path / "run")
    assert (record["seed"], record["options"]["stop_updates"], record["options"]["checkpoint_every"]) == (3, 4, 10.0)


def test_a_function_without_a_name_of_its_own_is_said_to_be_lost_and_can_be_given_again(tmp_path: Path) -> None:
    cfg = impala.Config(env=lambda: gymnasium.make("CartPole-v1"))
    assert records.lost_note(cfg) == (
        "env <lambda> cannot be imported by name: to go on with this run later, or to play it, put it into a module "
        "and say so, as in shoal eval RUN --env module:factory"
    )
    run = written(tmp_path / "run", cfg)
    with pytest.raises(UserError, match="give --env module:factory"):
        records.rebuild(run, {})
    assert records.rebuild(run, {"env": "CartPole-v1"})[2].env == "CartPole-v1"


def test_a_pattern_is_part_of_what_is_rebuilt_and_playing_does_without(tmp_path: Path) -> None:
    cfg = apex_dqn.Config(pattern=lambda cfg: None)
    assert (records.lost_note(cfg) or "").endswith("put it into a module and say so")
    lost, named = (tmp_path / name for name in ("lost", "named"))
    for path, one in ((lost, cfg), (named, apex_dqn.Config(pattern="own:slices"))):
        made = RunDirectory.create(str(path), "apex_dqn", "x", 0, print)
        made.write_config(records.record_of("apex_dqn", one, envs.describe("CartPole-v1"), RunOptions()))
        made.close()
    assert records.rebuild(named, {}, trust=True)[2].pattern == "own:slices"
    with pytest.raises(UserError, match="give --pattern module:factory"):
        records.rebuild(lost, {})
    records.rebuild(lost, {}, unneeded=records.NOT_PLAYED)
