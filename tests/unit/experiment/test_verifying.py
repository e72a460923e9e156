"""`shoal verify` in words: what two checkpoints differ in, likely causes first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from shoal.checkpoints import Checkpoint, Checkpoints
from shoal.experiment.comparing import cannot_be_saved, differences
from shoal.program import Program

ENVS = {
    "vector": [{"class": "CartPoleEnv", "plain": {"state": np.zeros(4)}, "generators": {"_np_random": {"state": 1}}}]
}
STATES: dict[str, Any] = {
    "actor-0": {"environments": {"envs": ENVS}, "policy": {"random": {"state": 3}, "weights": {"torso": np.ones(2)}}},
    "learner": {
        "learner": {"network": {"torso.weight": torch.ones(2)}, "optimizer": {"mean": torch.zeros(2)}},
        "exact": {"reporter": {"values": {"loss": 1.0}}},
    },
    "run": {"clock": 0.5, "generators": {"torch": torch.zeros(3, dtype=torch.uint8)}},
}
CHANGES = {
    "the environment's random generator (actor/0)": (
        "actor-0",
        "environments.envs.vector.0.generators._np_random.state",
        2,
    ),
    "the environment's state (actor/0: state)": ("actor-0", "environments.envs.vector.0.plain.state", np.ones(4)),
    "the policy's random generator (actor/0)": ("actor-0", "policy.random.state", 4),
    "network: layer torso (as actor/0 has it)": ("actor-0", "policy.weights.torso", np.zeros(2)),
    "network: layer torso.weight": ("learner", "learner.network.torso%weight", torch.tensor([1.0, 1.0000001])),
    "the optimizer: mean": ("learner", "learner.optimizer.mean", torch.tensor([0.0, -0.0])),
    "the global random generator of torch": ("run", "generators.torch", torch.ones(3, dtype=torch.uint8)),
    "run: clock": ("run", "clock", 0.6),
}


def copied(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: copied(part) for name, part in value.items()}
    return [copied(part) for part in value] if isinstance(value, list) else value


def changed(*changes: tuple[str, str, Any]) -> dict[str, Any]:
    states = copied(STATES)
    for part, place, value in changes:
        *way, last = (name.replace("%", ".") for name in place.split("."))
        at = states[part]
        for name in way:
            at = at[int(name)] if isinstance(at, list) else at[name]
        at[last] = value
    return states


def saved(folder: Path, states: dict[str, Any]) -> Checkpoint:
    return Checkpoints(folder / "checkpoints").save(states, {"updates": 1})


def words(tmp_path: Path, other: dict[str, Any]) -> list[str]:
    one, two = saved(tmp_path / "a", STATES), saved(tmp_path / "b", other)
    return [difference.words for difference in differences(one, two, (tmp_path / "a", tmp_path / "b"), Program())]


@pytest.mark.parametrize("said", CHANGES)
def test_a_difference_of_one_bit_is_found_and_said_in_words(said: str, tmp_path: Path) -> None:
    assert words(tmp_path, changed(CHANGES[said])) == [said]


def test_what_is_alike_is_not_told_and_neither_are_measurements(tmp_path: Path) -> None:
    assert words(tmp_path, changed(("learner", "exact.reporter.values.loss", 2.0))) == []


def test_causes_come_before_what_follows_from_them(tmp_path: Path) -> None:
    told = words(tmp_path, changed(*CHANGES.values()))
    assert told[0] == "the environment's random generator (actor/0)"
    assert told.index("the policy's random generator (actor/0)") < told.index("network: layer torso.weight")


def test_environments_that_cannot_give_their_state_are_named(tmp_path: Path) -> None:
    states = changed(("actor-0", "environments", {"why": "Mine cannot give its state."}))
    assert cannot_be_saved(saved(tmp_path, states)) == "Mine cannot give its state."
    assert cannot_be_saved(saved(tmp_path / "other", STATES)) is None
