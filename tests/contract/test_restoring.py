"""A run that starts with old weights: as the old one at first, told what does not fit before it starts, parts fixed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_programs import ALGORITHMS, TINY

import shoal
from logged_data import page_options
from shoal.errors import UserError
from shoal.experiment.training import resume, train
from shoal.runs import registry
from shoal.runs.directory import read_weights
from shoal.runs.saved_weights import find_weights
from shoal.types import Columns

ENVS = {"apex_dpg": "Pendulum-v1", "d4pg": "Pendulum-v1", "sac": "Pendulum-v1", "td3": "Pendulum-v1"}
STILL = dict.fromkeys(("learning_rate", "actor_rate", "critic_rate", "temperature_rate"), 1e-60)  # moves no float32


def run(path: Path, algorithm: str = "impala", *, updates: int = 3, values: Any = None, **options: Any) -> Columns:
    """Train for a few updates; the weights that were saved."""
    config = registry.load(algorithm).Config
    env = {"env": ENVS[algorithm]} if algorithm in ENVS else page_options(algorithm)
    chosen = {name: value for name, value in {**TINY, **env, **(values or {})}.items() if hasattr(config, name)}
    options = {"runtime": "inline", "stop_updates": updates, "eval_episodes": 2, **options}
    train(config(**chosen), quiet=True, run_dir=str(path), **options)
    return dict(read_weights(path))


def equal(one: Columns, other: Columns) -> bool:
    return one.keys() == other.keys() and all(np.array_equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_restored_run_begins_as_the_old_one_and_frozen_parameters_stay_bit_for_bit(
    tmp_path: Path, algorithm: str
) -> None:
    old = run(tmp_path / "old", algorithm)
    still = run(tmp_path / "still", algorithm, updates=1, values=STILL, seed=5, restore=str(tmp_path / "old"))
    assert equal(old, still)
    name = next(name for name in old if name.endswith("weight"))
    learned = run(tmp_path / "new", algorithm, updates=5, seed=6, restore=str(tmp_path / "old"), freeze=name)
    assert np.array_equal(old[name], learned[name])
    assert not equal(old, learned)


@pytest.mark.parametrize("algorithm", ["impala", "a3c"])
def test_what_is_frozen_without_old_weights_stays_as_it_was_made_and_everybody_acts_with_it(
    tmp_path: Path, algorithm: str
) -> None:
    made = run(tmp_path / "made", algorithm, updates=1, values=STILL)
    learned = run(tmp_path / "learned", algorithm, updates=6, freeze="torso")
    fixed = [name for name in made if name.startswith("torso.")]
    assert fixed
    assert all(np.array_equal(made[name], learned[name]) for name in fixed)
    assert not equal(made, learned)


@pytest.mark.parametrize("runtime", ["local", pytest.param("ray", marks=[pytest.mark.ray, pytest.mark.slow])])
def test_restored_weights_play_as_the_old_ones_also_in_another_algorithm_and_in_processes(
    tmp_path: Path, runtime: str
) -> None:
    run(tmp_path / "old")
    run(tmp_path / "new", "ppo", updates=1, values=STILL, restore=str(tmp_path / "old"), runtime=runtime)
    before, after = (shoal.evaluate(tmp_path / name, episodes=5, seed=3) for name in ("old", "new"))
    assert before.eval_return == after.eval_return


def test_one_checkpoint_and_the_best_can_be_restored(tmp_path: Path) -> None:
    old = run(tmp_path / "old", values=STILL)  # whose weights are all the same
    first = sorted((tmp_path / "old" / "checkpoints").glob("0*"))[0]
    for index, source in enumerate((str(first), f"{tmp_path / 'old'}:best")):
        assert equal(old, run(tmp_path / str(index), updates=1, values=STILL, seed=4, restore=source))
    (tmp_path / "old").rename(tmp_path / "old:best")
    assert find_weights(f"{tmp_path / 'old:best'}").place.name == "weights.npz"  # a folder's own name comes first
    (tmp_path / "old:best").rename(tmp_path / "old")
    with pytest.raises(UserError, match="names one checkpoint: leave out :best"):
        run(tmp_path / "x", restore=f"{first}:best")
    with pytest.raises(UserError, match="There is no run directory"):
        run(tmp_path / "x", restore=str(tmp_path / "nothing"))
    assert not (tmp_path / "x").exists()


def test_layers_that_do_not_fit_are_listed_before_anything_starts_or_skipped_and_told(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    old = run(tmp_path / "old")
    wider: dict[str, Any] = {"values": {"hidden": (8, 5)}, "restore": str(tmp_path / "old"), "updates": 1}
    with pytest.raises(UserError, match=r"do not fit the network: .*old \[2, 8\], new \[2, 5\].* --restore-partial"):
        run(tmp_path / "new", **wider)
    assert not (tmp_path / "new").exists()
    wider["values"] |= STILL
    new = run(tmp_path / "new", restore_partial=True, **wider)
    fitting = [name for name in old if name in new and old[name].shape == new[name].shape]
    assert fitting
    assert len(fitting) < len(new)
    assert all(np.array_equal(old[name], new[name]) for name in fitting)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"freeze": "torsi"}, r"--freeze torsi matches no parameter: there are .*torso"),
        ({"freeze": "*"}, "leaves nothing to train"),
        ({"restore_partial": True}, "--restore-partial needs --restore"),
    ],
)
def test_what_cannot_be_restored_or_frozen_is_refused_in_a_sentence(
    tmp_path: Path, options: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(UserError, match=sentence):
        run(tmp_path / "run", **options)
    assert not (tmp_path / "run").exists()


def test_a_run_that_goes_on_keeps_its_own_weights_and_what_is_frozen(tmp_path: Path) -> None:
    old = run(tmp_path / "old")
    new = run(tmp_path / "new", restore=str(tmp_path / "old"), freeze="torso")
    with pytest.raises(UserError, match="--freeze cannot change when a run goes on"):
        resume(tmp_path / "new", quiet=True, stop_updates=6, freeze="value")
    resume(tmp_path / "new", quiet=True, stop_updates=6)
    after = read_weights(tmp_path / "new")
    assert all(np.array_equal(old[name], after[name]) for name in old if name.startswith("torso."))
    assert not equal(new, dict(after))


def test_a_network_of_another_size_is_refused_when_a_run_goes_on(tmp_path: Path) -> None:
    before = run(tmp_path / "run")
    with pytest.raises(UserError, match=r"The network cannot change when a run goes on: .* is \[8, 4\] and would be"):
        resume(tmp_path / "run", quiet=True, stop_updates=6, hidden=(16,))
    assert equal(before, dict(read_weights(tmp_path / "run")))
    resume(tmp_path / "run", quiet=True, stop_updates=6)  # its lock was let go


def test_a_layer_more_is_refused_when_a_run_goes_on_though_all_that_was_saved_would_fit(tmp_path: Path) -> None:
    before = run(tmp_path / "run")
    with pytest.raises(UserError, match=r"The network cannot change .* is absent and would be \[8, 8\]\."):
        resume(tmp_path / "run", quiet=True, stop_updates=6, hidden=(8, 8))
    assert equal(before, dict(read_weights(tmp_path / "run")))
