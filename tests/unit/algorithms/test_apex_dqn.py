"""Ape-X DQN's learner, policy and program: priorities on both sides, targets, the ladder, shards."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from batches import update, weights
from finite_differences import check_gradient
from gymnasium import spaces
from torch import Tensor, nn
from transitions import Spec, batch_of, stored, tensors

from shoal import envs
from shoal.algorithms.apex_dqn import PRESETS, ApexDQN, Config, make_policy, program
from shoal.errors import UserError
from shoal.loops.wiring import Settings
from shoal.program import Handle
from shoal.replay import Replay
from shoal.runtime import launch

SMALL: dict[str, Any] = {"hidden": (16,), "envs_per_actor": 4, "rows": 5}
BATCH = 32


VECTOR = Spec(spaces.Box(-1.0, 1.0, (3,), np.float32), spaces.Discrete(3))
NESTED = Spec(
    spaces.Dict(camera=spaces.Box(0, 255, (36, 36, 3), np.uint8), place=spaces.Discrete(4)), spaces.Discrete(3)
)
KINDS = [
    pytest.param({}, VECTOR, id="mean"),
    pytest.param({"quantiles": 5}, VECTOR, id="quantiles"),
    pytest.param({"kappa": 1.0, "stream": 8}, VECTOR, id="streams"),
    pytest.param({}, NESTED, id="nested"),
]


def stored_by(cfg: Config, spec: Spec) -> Replay:
    """What an actor with freshly made weights sends."""
    return stored(cfg, make_policy(cfg, spec, seed=1), spec)


@pytest.mark.parametrize(("options", "spec"), KINDS)
def test_actor_computed_priorities_are_those_of_a_learner_with_the_same_weights(
    options: dict[str, Any], spec: Spec
) -> None:
    cfg = Config(**(SMALL | options), reward_scale=0.5)
    replay = stored_by(cfg, spec)
    sample = replay.sample("transitions", 64)
    assert (sample.data["discount"] == 0.0).any()  # after a termination
    assert (sample.data["discount"] > np.float32(cfg.gamma**cfg.n)).any()  # shortened by the end of an episode
    _, priorities, _ = ApexDQN(cfg, spec, seed=1).loss(tensors(batch_of(sample), spec))
    np.testing.assert_allclose(sample.priorities, priorities.numpy(), rtol=1e-4, atol=1e-6)


def test_the_values_acted_on_are_not_stored() -> None:
    replay = stored_by(Config(**SMALL), VECTOR)
    data = replay.sample("transitions", 1).data
    assert set(data) == {"observation", "next_observation", "action", "reward", "discount", "version"}


@pytest.mark.parametrize(("options", "spec"), KINDS)
def test_an_update_gives_priorities_and_weights_that_policies_load(options: dict[str, Any], spec: Spec) -> None:
    cfg = Config(**(SMALL | options))
    replay = stored_by(cfg, spec)
    learner = ApexDQN(cfg, spec, seed=1)
    before = weights(learner)
    measured = update(learner, batch_of(replay.sample("transitions", BATCH)), spec)
    after = weights(learner)
    assert measured.applied
    assert measured.priorities.shape == (BATCH,)
    assert any(not np.array_equal(before[name], after[name]) for name in before)
    make_policy(cfg, spec, seed=5).load(after)


def test_what_follows_a_termination_does_not_count() -> None:
    cfg = Config(**SMALL)
    batch = batch_of(stored_by(cfg, VECTOR).sample("transitions", BATCH))
    learner = ApexDQN(cfg, VECTOR, seed=1)
    loss, _, _ = learner.loss(tensors(batch, VECTOR))
    ended = batch["discount"] == 0.0
    assert ended.any()
    batch["next_observation"] = np.where(ended[:, None], np.nan, batch["next_observation"]).astype(np.float32)
    assert learner.loss(tensors(batch, VECTOR))[0] == loss


def test_importance_weights_scale_each_item_of_the_loss() -> None:
    cfg = Config(**SMALL)
    batch = batch_of(stored_by(cfg, VECTOR).sample("transitions", 2))
    learner = ApexDQN(cfg, VECTOR, seed=1)

    def loss(first: float, second: float) -> float:
        batch["importance"] = np.array([first, second], np.float32)
        return float(learner.loss(tensors(batch, VECTOR))[0].detach())

    assert loss(1.0, 0.5) == pytest.approx(loss(1.0, 0.0) + 0.5 * loss(0.0, 1.0))


@pytest.mark.parametrize("quantiles", [0, 4])
def test_the_target_is_the_target_networks_value_of_the_action_that_the_network_prefers(quantiles: int) -> None:
    cfg = Config(**SMALL, quantiles=quantiles, target_every=1000)
    batch = batch_of(stored_by(cfg, VECTOR).sample("transitions", BATCH))
    learner = ApexDQN(cfg, VECTOR, seed=1)
    then = make_policy(cfg, VECTOR, seed=1).network
    for _ in range(20):
        update(learner, batch, VECTOR)
    _, priorities, _ = learner.loss(tensors(batch, VECTOR))
    now = make_policy(cfg, VECTOR, seed=1).network
    now.load_state_dict({name: torch.from_numpy(array) for name, array in weights(learner).items()})
    with torch.no_grad():
        for index in range(BATCH):
            following = torch.from_numpy(batch["next_observation"][index : index + 1])
            expected = now(following)[0] if not quantiles else now(following)[0].mean(-1)
            value = then(following)[0, expected.argmax()]
            target = float(batch["reward"][index]) + float(batch["discount"][index]) * value
            predicted = now(torch.from_numpy(batch["observation"][index : index + 1]))[0, batch["action"][index]]
            pairs = [abs(float(t) - float(p)) for t in target.reshape(-1) for p in predicted.reshape(-1)]
            assert float(priorities[index]) == pytest.approx(np.mean(pairs), abs=1e-4)


def test_the_target_network_is_a_copy_from_every_so_many_updates_ago() -> None:
    cfg = Config(**SMALL, target_every=3)
    batch = batch_of(stored_by(cfg, VECTOR).sample("transitions", BATCH))
    learner = ApexDQN(cfg, VECTOR, seed=1)
    drifts = [float(update(learner, batch, VECTOR).metrics["target_drift"]) for _ in range(7)]
    assert [drift == 0.0 for drift in drifts] == [False, False, True, False, False, True, False]


def test_a_batch_that_is_not_finite_changes_neither_weights_nor_priorities() -> None:
    cfg = Config(**SMALL)
    batch = batch_of(stored_by(cfg, VECTOR).sample("transitions", BATCH))
    batch["reward"] = np.full(BATCH, np.nan, np.float32)
    learner = ApexDQN(cfg, VECTOR, seed=1)
    before = weights(learner)
    measured = update(learner, batch, VECTOR)
    assert not measured.applied
    assert measured.priorities is None
    assert all(np.array_equal(before[name], array) for name, array in weights(learner).items())


@pytest.mark.parametrize("quantiles", [0, 8])
def test_it_learns_which_action_pays(quantiles: int) -> None:
    """Action a pays only where the a-th number of the observation is the largest: next to a third by chance."""
    cfg = Config(**SMALL, quantiles=quantiles, learning_rate=1e-2, target_every=10)
    random = np.random.default_rng(0)
    learner = ApexDQN(cfg, VECTOR, seed=1)
    for _ in range(300):
        observation = random.uniform(-1, 1, (64, 3)).astype(np.float32)
        action = random.integers(3, size=64)
        update(
            learner,
            {
                "observation": observation,
                "next_observation": observation,
                "action": action,
                "reward": (observation.argmax(-1) == action).astype(np.float32),
                "discount": np.zeros(64, np.float32),
                "importance": np.ones(64, np.float32),
            },
            VECTOR,
        )
    policy = make_policy(cfg, VECTOR, seed=2, greedy=True)
    policy.load(weights(learner))
    observation = random.uniform(-1, 1, (500, 3)).astype(np.float32)
    chosen, _, extras = policy.act(observation, {}, np.zeros(500, np.bool_))
    assert extras == {}
    assert (chosen == observation.argmax(-1)).mean() > 0.9


class Own(nn.Module):
    """A user's network."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, observation: Tensor) -> Tensor:
        q: Tensor = self.layer(observation)
        return q


def make_own(observation_space: object, action_space: object) -> nn.Module:
    return Own()


def test_the_users_own_network_is_trained_and_acts() -> None:
    cfg = Config(**SMALL, network=f"{__name__}:make_own")
    replay = stored_by(cfg, VECTOR)
    measured = update(ApexDQN(cfg, VECTOR, seed=1), batch_of(replay.sample("transitions", BATCH)), VECTOR)
    assert measured.applied
    with pytest.raises(UserError, match="shape"):
        ApexDQN(dataclasses.replace(cfg, quantiles=2), VECTOR, seed=1)


def test_presets_set_fields_that_exist() -> None:
    for preset in PRESETS.values():
        Config(**preset)


def test_the_ladder_runs_over_the_environments_of_all_actors() -> None:
    spec = envs.describe("CartPole-v1")
    cfg = Config(**SMALL, actors=3)
    members = program(cfg, spec, Settings()).members()
    assert [members[f"actor/{index}"].place for index in range(3)] == [0, 1, 2]
    policy = make_policy(cfg, spec, seed=1)
    policy.set_environments(np.arange(8, 12), 12)
    assert policy.exploration is not None
    np.testing.assert_allclose(policy.exploration, [0.4 ** (1 + 7 * i / 11) for i in (8, 9, 10, 11)], rtol=1e-5)


@pytest.mark.parametrize(
    "options", [{"shards": 2, "actors": 2}, {"inference": "central", "actors": 2}, {"learners": 2}]
)
def test_the_program_runs_with(options: dict[str, Any]) -> None:
    cfg = Config(**(SMALL | options), batch=16, learning_starts=50, samples_per_insert=4.0)
    spec = envs.describe("CartPole-v1")
    with launch(program(cfg, spec, Settings(max_updates=30, evaluate=False)), "inline", seed=1) as run:
        run.wait(60.0)
        counts = run.client(Handle("metrics")).snapshot()["counts"]
    assert counts["learner_steps"] == 30


def test_more_shards_than_actors_are_refused() -> None:
    with pytest.raises(UserError, match="--shards 2"):
        program(Config(shards=2), envs.describe("CartPole-v1"), Settings())


@pytest.mark.parametrize("options", [{}, {"kappa": 1.0}, {"quantiles": 5}], ids=["mean", "huber", "quantiles"])
def test_the_gradient_of_the_loss_is_that_of_finite_differences(options: dict[str, Any]) -> None:
    cfg = Config(**(SMALL | options), network=f"{__name__}:smooth_{cfg_kind(options)}")
    batch = batch_of(stored_by(cfg, VECTOR).sample("transitions", BATCH))
    learner = ApexDQN(cfg, VECTOR, seed=1)
    for network in (learner.network, learner.target.network):
        network.double()
    columns = {
        name: x.double() if x.is_floating_point() else x
        for name, x in tensors(batch, VECTOR).items()
        if name != "state"
    }
    columns["importance"] = torch.linspace(0.1, 1.0, BATCH, dtype=torch.float64)
    check_gradient(lambda: learner.loss(columns)[0], learner.network)


def cfg_kind(options: dict[str, Any]) -> str:
    return "quantiles" if "quantiles" in options else "mean"


def smooth_mean(observations: Any, actions: Any) -> nn.Module:
    """Without kinks, and in the precision of its parameters."""
    return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 3))


def smooth_quantiles(observations: Any, actions: Any) -> nn.Module:
    return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 15), nn.Unflatten(-1, (3, 5)))
