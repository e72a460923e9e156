"""A policy as servers ask it gives what the policy itself gives, traced or not, whatever the batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shoal
from saved_runs import saved_run
from shoal import tree
from shoal.serving.computing import Acts

CASES: list[tuple[str, dict[str, Any]]] = [
    ("ppo", {"env": "CartPole-v1"}),
    ("impala", {"env": "CartPole-v1", "lstm": 8}),
    ("r2d2", {"env": "CartPole-v1", "lstm": 8}),
    ("apex_dqn", {"env": "CartPole-v1"}),
    ("sac", {"env": "Pendulum-v1"}),
    ("ppo", {"env": "Pendulum-v1", "normalize_observations": True}),
]


@pytest.mark.parametrize(("algorithm", "chosen"), CASES, ids=[f"{name} {chosen}" for name, chosen in CASES])
def test_a_traced_step_is_the_policys_own(algorithm: str, chosen: dict[str, Any], tmp_path: Path) -> None:
    policy = shoal.load(saved_run(tmp_path / "run", algorithm, seed=4, **chosen))
    acts, greedy = Acts(policy), policy.greedy
    assert (acts._step is None) == (getattr(greedy, "mirror", None) is not None)
    random = np.random.default_rng(0)
    for rows in (1, 2, 5, 64, 1, 7):
        leaf = tree.leaf_spaces(policy.seen_space, "observation")["observation"]
        observation = random.normal(size=(rows, *leaf.shape)).astype(leaf.dtype)
        state = {
            name: random.normal(size=np.shape(value)).astype(np.asarray(value).dtype)
            if np.asarray(value).dtype.kind == "f"
            else np.asarray(value)
            for name, value in greedy.initial_state(rows).items()
        }
        first = np.zeros(rows, np.bool_)
        action, after = acts(False, observation, state, first, np.arange(rows))
        wanted, memory, _ = greedy.act(observation, dict(state), first)
        assert np.allclose(action, policy.to_environment(wanted), atol=1e-5)
        assert after.keys() == memory.keys()
        for name in after.keys() - {"last_reward"}:
            assert np.allclose(after[name], memory[name], atol=1e-5)
