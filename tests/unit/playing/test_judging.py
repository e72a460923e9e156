"""Policies judged by data: values that are known, densities, what is printed, and what cannot be judged."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from tests.saved_runs import saved_run

import shoal
from logged_data import dataset
from shoal.cli.main import main
from shoal.data import DatasetWriter, episode, open_dataset
from shoal.errors import UserError
from shoal.playing.fitted_q import Estimate, FittedQ
from shoal.playing.judging import Judged, Judgement, _density, judge, trust_of


def three_steps(path: Path, cut: bool = False) -> Any:
    """Episodes of three steps; only action 1 pays, and it was taken half the time."""
    random = np.random.default_rng(0)
    space = spaces.Box(0.0, 1.0, (4,), np.float32)
    with DatasetWriter(path, space, spaces.Discrete(2), env="", log_probs=True) as writer:
        for _ in range(200):
            actions = random.integers(2, size=3)
            ends = {"terminated": not cut, "truncated": cut, "log_probs": np.full(3, np.log(0.5))}
            writer.append(episode(np.eye(4, dtype=np.float32), actions, actions.astype(np.float32), **ends))
    return open_dataset(path)


@pytest.mark.parametrize(("action", "value"), [(1, 1.0 + 0.9 + 0.81), (0, 0.0)])
def test_fitted_q_finds_what_a_policy_earns_that_never_acted(action: int, value: float, tmp_path: Path) -> None:
    data = three_steps(tmp_path / "data")
    fitted = FittedQ(data, np.full(len(data.rows), action), 0.9, seed=0)
    fitted.fit(400)
    found = fitted.estimate()
    assert found.value == pytest.approx(value, abs=0.15)
    assert found.low <= found.value <= found.high


def test_what_was_cut_goes_on_being_worth_something(tmp_path: Path) -> None:
    """With the value of what follows the third step, which an end would have made 0."""
    ended, cut = (three_steps(tmp_path / name, cut) for name, cut in (("ended", False), ("cut", True)))
    values = []
    for data in (ended, cut):
        fitted = FittedQ(data, np.ones(len(data.rows), np.int64), 0.9, seed=0)
        fitted.fit(400)
        values.append(fitted.estimate().value)
    assert values[1] > values[0] + 0.3


def test_a_run_is_judged_and_told_so_that_one_can_read_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = saved_run(tmp_path / "run", "bc", env="CartPole-v1")
    data = dataset("CartPole-v1")
    words = ["judge", str(run), "--data", data, "--updates", "20", "--episodes", "2"]
    assert main(words) == 0
    told = capsys.readouterr().out
    for part in (
        "bc of",
        "8 episodes",
        "discounted by 0.99",
        "fitted Q evaluation",
        "the data have no log-prob",
        "played",
    ):
        assert part in told
    assert "too little is known to trust it: 0 checkpoints" in told
    assert main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["importance"] is None
    assert found["data_value"] == pytest.approx(
        np.mean([(1.0 - 0.99**length) / 0.01 for length in open_dataset(data).lengths]), rel=1e-6
    )


def test_importance_sampling_of_who_acted_itself_is_the_datas_own_value(tmp_path: Path) -> None:
    run = saved_run(tmp_path / "run", "bc", env="CartPole-v1")
    policy = shoal.load(run)
    density, base = _density(policy.greedy), open_dataset(dataset("CartPole-v1"))
    assert density is not None
    with DatasetWriter(
        tmp_path / "data", base.observation_space, base.action_space, env="CartPole-v1", log_probs=True
    ) as writer:
        for old in base.episodes():
            seen, action = torch.from_numpy(np.array(old.observations["observation"][:-1])), np.array(old.actions)
            with torch.inference_mode():
                chances = density(seen, torch.from_numpy(action)).numpy()
            ends = {"terminated": old.terminated, "truncated": old.truncated, "log_probs": chances}
            writer.append(episode(old.observations["observation"], action, old.rewards, **ends))
    found = judge(run, str(tmp_path / "data"), updates=1, episodes=1)
    assert found.importance is not None
    assert found.importance.value == pytest.approx(found.data_value, rel=1e-4)
    assert found.importance.low < found.importance.value < found.importance.high
    assert found.effective == pytest.approx(found.episodes, rel=1e-3)


@pytest.mark.parametrize(("algorithm", "reach"), [("iql", 40.0), ("sac", 2.0), ("cql", 2.0)])
def test_the_density_of_what_draws_continuous_actions_integrates_to_one(
    algorithm: str, reach: float, tmp_path: Path
) -> None:
    density = _density(shoal.load(saved_run(tmp_path / "run", algorithm, env="Pendulum-v1")).greedy)
    assert density is not None
    points = torch.linspace(-reach, reach, 80_001)[:-1].unsqueeze(1) + reach / 80_000  # the middles of small parts
    with torch.inference_mode():
        total = density(torch.zeros(80_000, 3), points).exp().sum() * reach / 40_000
    assert float(total) == pytest.approx(1.0, abs=0.02)


def test_a_deterministic_policy_has_no_density_and_that_is_said(tmp_path: Path) -> None:
    run = saved_run(tmp_path / "run", "td3_bc", env="Pendulum-v1")
    space = open_dataset(dataset("Pendulum-v1"))
    with DatasetWriter(tmp_path / "data", space.observation_space, space.action_space, log_probs=True) as writer:
        writer.append(episode(np.zeros((3, 3)), np.zeros((2, 1)), [0.0, 1.0], terminated=True, log_probs=[0.0, 0.0]))
    found = judge(run, str(tmp_path / "data"), updates=1, episodes=1)
    assert found.importance is None
    assert found.why_no_importance == "the policy of td3_bc draws nothing: it has no density for continuous actions"


def test_a_memory_cannot_be_judged(tmp_path: Path) -> None:
    run = saved_run(tmp_path / "run", "bc", env="CartPole-v1", lstm=8)
    with pytest.raises(UserError, match="has a memory"):
        judge(run, dataset("CartPole-v1"))


def test_data_of_another_task_are_refused(tmp_path: Path) -> None:
    run = saved_run(tmp_path / "run", "bc", env="CartPole-v1")
    with pytest.raises(UserError, match="has the observations"):
        judge(run, dataset("Pendulum-v1"))
    three = spaces.Discrete(3)
    with DatasetWriter(tmp_path / "data", spaces.Box(-1.0, 1.0, (4,)), three) as writer:
        writer.append(episode(np.zeros((3, 4)), [2, 2], [0.0, 1.0], terminated=True))
    with pytest.raises(UserError, match="another number of choices"):
        judge(run, str(tmp_path / "data"))


@pytest.mark.parametrize(
    ("correlation", "said"),
    [(0.9, "orders policies of this kind well"), (0.5, "roughly"), (-0.2, "do not choose by it")],
)
def test_how_far_to_trust_it_is_a_sentence(correlation: float, said: str) -> None:
    each = Judged("run", Estimate(1.0, 0.0, 2.0), 0.1, 3.0)
    made = Judgement("run", "bc", "data", 3, 0.9, 1.0, (each,) * 6, None, None, "", correlation)
    assert said in trust_of(made)
    unsettled = dataclasses.replace(made, judged=(dataclasses.replace(each, moved=-1.5),))
    assert "has not settled, it moved by -1.5" in trust_of(unsettled)
