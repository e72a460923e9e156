"""D4PG and Ape-X DPG, learner, policy and program: priorities on both sides, losses, targets, noise, the support."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from batches import update, weights
from finite_differences import check_gradient
from gymnasium import spaces
from torch import Tensor, nn
from transitions import Columns, Spec, batch_of, stored, tensors

from shoal import envs
from shoal.algorithms import apex_dpg, d4pg
from shoal.config import validate
from shoal.errors import UserError
from shoal.experiment.training import train
from shoal.loops.wiring import Settings
from shoal.program import Handle
from shoal.replay import Replay
from shoal.runtime import launch

SMALL: dict[str, Any] = {"actor_hidden": (16,), "critic_hidden": (16,), "envs_per_actor": 4, "rows": 5, "n": 3}
SUPPORT = {"support_low": -20.0, "support_high": 20.0}
BATCH = 32
BOUNDS = spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 10.0], np.float32))
VECTOR = Spec(spaces.Box(-1.0, 1.0, (3,), np.float32), BOUNDS)
NESTED = Spec(spaces.Dict(camera=spaces.Box(0, 255, (36, 36, 3), np.uint8), place=spaces.Discrete(4)), BOUNDS)
KINDS: dict[str, tuple[Any, dict[str, Any]]] = {
    "categorical": (d4pg, {"atoms": 21, **SUPPORT}),
    "quantile": (d4pg, {"critic": "quantile", "quantiles": 7}),
    "scalar": (apex_dpg, {}),
}
every_kind = pytest.mark.parametrize("kind", KINDS)
every_algorithm = pytest.mark.parametrize("algorithm", [d4pg, apex_dpg], ids=["d4pg", "apex_dpg"])


def config(kind: str, **options: Any) -> Any:
    algorithm, own = KINDS[kind]
    return algorithm.Config(**(SMALL | own | options))


def learner_of(cfg: Any, spec: Spec = VECTOR) -> Any:
    return (d4pg.D4PG if isinstance(cfg, d4pg.Config) else apex_dpg.ApexDPG)(cfg, spec, seed=1)


def policy_of(cfg: Any, spec: Spec = VECTOR, **options: Any) -> Any:
    return (d4pg if isinstance(cfg, d4pg.Config) else apex_dpg).make_policy(cfg, spec, seed=1, **options)


def stored_by(cfg: Any, spec: Spec = VECTOR) -> Replay:
    return stored(cfg, policy_of(cfg, spec), spec)


def some(cfg: Any, spec: Spec = VECTOR, count: int = BATCH) -> Columns:
    return batch_of(stored_by(cfg, spec).sample("transitions", count))


class OwnCritic(nn.Module):
    """A user's critic; unlike the built-in networks it computes in whatever precision it is given."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, outputs))

    def forward(self, observation: Tensor, action: Tensor) -> Tensor:
        q: Tensor = self.layers(torch.cat([observation, action], -1))
        return q


def own_scalar(observation_space: object, action_space: object) -> tuple[nn.Module, nn.Module]:
    return nn.Linear(3, 2), OwnCritic(1)


def own_quantile(observation_space: object, action_space: object) -> tuple[nn.Module, nn.Module]:
    return nn.Linear(3, 2), OwnCritic(7)


def own_categorical(observation_space: object, action_space: object) -> tuple[nn.Module, nn.Module]:
    return nn.Linear(3, 2), OwnCritic(21)


@every_kind
@pytest.mark.parametrize("spec", [VECTOR, NESTED], ids=["vector", "nested"])
def test_actor_computed_priorities_are_those_of_a_learner_with_the_same_weights(kind: str, spec: Spec) -> None:
    cfg = config(kind, reward_scale=0.5)
    sample = stored_by(cfg, spec).sample("transitions", 64)
    assert (sample.data["discount"] == 0.0).any()  # after a termination
    assert (sample.data["discount"] > np.float32(cfg.gamma**cfg.n)).any()  # shortened by the end of an episode
    _, priorities, _ = learner_of(cfg, spec).critic_loss(tensors(batch_of(sample), spec))
    np.testing.assert_allclose(sample.priorities, priorities.numpy(), rtol=1e-4, atol=1e-5)


@every_kind
def test_the_values_acted_on_are_not_stored(kind: str) -> None:
    data = stored_by(config(kind)).sample("transitions", 1).data
    assert set(data) == {"observation", "next_observation", "action", "reward", "discount", "version"}


@every_kind
@pytest.mark.parametrize("spec", [VECTOR, NESTED], ids=["vector", "nested"])
def test_an_update_gives_priorities_and_weights_that_policies_load(kind: str, spec: Spec) -> None:
    cfg = config(kind)
    learner = learner_of(cfg, spec)
    before = weights(learner)
    measured = update(learner, some(cfg, spec), spec)
    after = weights(learner)
    assert measured.applied
    assert measured.priorities.shape == (BATCH,)
    for part in ("actor", "critic"):
        assert any(not np.array_equal(before[name], after[name]) for name in before if name.startswith(part))
    policy_of(cfg, spec).load(after)


@every_kind
def test_priorities_are_errors_of_expected_returns_against_both_target_networks(kind: str) -> None:
    cfg = config(kind, target_every=1000, reward_scale=0.5)
    batch = some(cfg)
    learner = learner_of(cfg)
    then, now = policy_of(cfg).network, policy_of(cfg).network
    for _ in range(20):
        update(learner, batch, VECTOR)
    now.load_state_dict({name: torch.from_numpy(array) for name, array in weights(learner).items()})
    _, priorities, _ = learner.critic_loss(tensors(batch, VECTOR))
    with torch.no_grad():
        for index in range(BATCH):
            item = {name: torch.from_numpy(column[index : index + 1]) for name, column in batch.items()}
            following = item["next_observation"]
            value = then.critic.expected(then.critic(following, then.actor(following)))
            target = 0.5 * item["reward"] + item["discount"] * value
            units = (item["action"] - torch.tensor([0.0, 5.0])) / torch.tensor([2.0, 5.0])
            predicted = now.critic.expected(now.critic(item["observation"], units))
            assert float(priorities[index]) == pytest.approx(abs(float(target - predicted)), abs=1e-4)


def in_double_precision(kind: str, **options: Any) -> tuple[Any, dict[str, Tensor]]:
    """A learner of the user's networks and a batch for it."""
    cfg = config(kind, network=f"{__name__}:own_{kind}", **options)
    learner = learner_of(cfg)
    for network in (learner.network, learner.target.network):
        network.double()
    columns = {name: x for name, x in tensors(some(cfg), VECTOR).items() if name != "state"}
    return learner, {name: x.double() if x.is_floating_point() else x for name, x in columns.items()}


@every_kind
def test_the_gradient_of_the_critics_loss_is_that_of_finite_differences(kind: str) -> None:
    learner, columns = in_double_precision(kind)
    columns["importance"] = torch.linspace(0.1, 1.0, BATCH, dtype=torch.float64)
    check_gradient(lambda: learner.critic_loss(columns)[0], learner.network.critic)


@every_kind
def test_the_gradient_of_the_actors_loss_is_that_of_finite_differences_and_reaches_the_actor_alone(kind: str) -> None:
    learner, columns = in_double_precision(kind, slope_clip=0.0)
    check_gradient(lambda: learner.actor_loss(columns["observation"])[0], learner.network.actor)
    others = list(learner.network.critic.parameters())
    assert all(parameter.requires_grad for parameter in others), "only while the actor's loss is worked out it is not"
    unused = torch.autograd.grad(learner.actor_loss(columns["observation"])[0], others, allow_unused=True)
    assert all(gradient is None for gradient in unused)


@every_kind
def test_saturation_costs_the_square_of_what_tanh_makes_actions_of(kind: str) -> None:
    with_cost, columns = in_double_precision(kind, saturation_cost=0.5)
    without, _ = in_double_precision(kind)
    observation = columns["observation"]
    extra = with_cost.actor_loss(observation)[0] - without.actor_loss(observation)[0]
    raw = torch.atanh(without.network.actor(observation))
    torch.testing.assert_close(extra, 0.5 * raw.square().sum(-1).mean())


@every_kind
def test_the_actors_slope_is_that_of_the_critic_as_it_is_now(kind: str) -> None:
    """Not of the target's, and not of the one from before the critic's step."""
    cfg = config(kind, target_every=1000, slope_clip=0.0)
    learner = learner_of(cfg)
    batch = tensors(some(cfg), VECTOR)
    for _ in range(3):
        learner.update(batch)
    critic = learner.network.critic
    action = learner.network.actor(batch["observation"]).detach().requires_grad_()
    (slope,) = torch.autograd.grad(critic.expected_return(batch["observation"], action).sum(), action)
    torch.testing.assert_close(learner.actor_loss(batch["observation"])[1], slope.norm(dim=-1))
    before = [parameter.detach().clone() for parameter in critic.parameters()]
    with torch.no_grad():
        for parameter in critic.parameters():
            parameter.zero_()
    assert not learner.actor_loss(batch["observation"])[1].any()
    assert any(value.any() for value in before)


@every_kind
def test_what_follows_a_termination_does_not_count(kind: str) -> None:
    cfg = config(kind)
    batch = some(cfg)
    learner = learner_of(cfg)
    loss, priorities, _ = learner.critic_loss(tensors(batch, VECTOR))
    ended = batch["discount"] == 0.0
    assert ended.any()
    batch["next_observation"] = np.where(ended[:, None], 100.0, batch["next_observation"]).astype(np.float32)
    again, others, _ = learner.critic_loss(tensors(batch, VECTOR))
    assert float(again.detach()) == pytest.approx(float(loss.detach()), rel=1e-6)
    assert torch.equal(others, priorities)


@every_kind
def test_importance_weights_scale_each_item_of_the_loss(kind: str) -> None:
    cfg = config(kind)
    batch = some(cfg, count=2)
    learner = learner_of(cfg)

    def loss(first: float, second: float) -> float:
        batch["importance"] = np.array([first, second], np.float32)
        return float(learner.critic_loss(tensors(batch, VECTOR))[0].detach())

    assert loss(1.0, 0.5) == pytest.approx(loss(1.0, 0.0) + 0.5 * loss(0.0, 1.0))


@every_algorithm
def test_with_a_rate_of_one_the_target_networks_are_copies_from_every_so_many_updates_ago(algorithm: Any) -> None:
    cfg = algorithm.Config(**SMALL, target_every=3)
    batch = some(cfg)
    learner = learner_of(cfg)
    drifts = [float(update(learner, batch, VECTOR).metrics["target_drift"]) for _ in range(7)]
    assert [drift == 0.0 for drift in drifts] == [False, False, True, False, False, True, False]


@every_algorithm
def test_with_a_smaller_rate_the_target_networks_go_a_part_of_the_way_with_every_update(algorithm: Any) -> None:
    cfg = algorithm.Config(**SMALL, target_every=1, target_rate=0.25)
    batch = some(cfg)
    learner = learner_of(cfg)
    before = weights(learner)
    update(learner, batch, VECTOR)
    after = weights(learner)
    for name, slow in learner.target.network.state_dict().items():
        np.testing.assert_allclose(slow.numpy(), 0.75 * before[name] + 0.25 * after[name], rtol=1e-4, atol=1e-6)


@every_kind
def test_a_batch_that_is_not_finite_changes_neither_weights_nor_priorities(kind: str) -> None:
    cfg = config(kind)
    batch = some(cfg)
    batch["reward"] = np.full(BATCH, np.nan, np.float32)
    learner = learner_of(cfg)
    before = weights(learner)
    measured = update(learner, batch, VECTOR)
    assert not measured.applied
    assert measured.priorities is None
    assert all(np.array_equal(before[name], array) for name, array in weights(learner).items())


@every_kind
def test_it_learns_which_action_pays(kind: str) -> None:
    """The reward falls with the square of the action's distance, in units, to the first two numbers seen."""
    support = {"support_low": -8.0, "support_high": 1.0} if kind == "categorical" else {}
    networks = {"actor_hidden": (32, 32), "critic_hidden": (32, 32)}
    cfg = config(kind, actor_rate=3e-3, critic_rate=1e-2, slope_clip=0.0, target_every=10, **networks, **support)
    random = np.random.default_rng(0)
    learner = learner_of(cfg)
    centre, half_width = np.array([0.0, 5.0], np.float32), np.array([2.0, 5.0], np.float32)
    for _ in range(400):
        observation = random.uniform(-0.8, 0.8, (64, 3)).astype(np.float32)
        units = random.uniform(-1, 1, (64, 2)).astype(np.float32)
        update(
            learner,
            {
                "observation": observation,
                "next_observation": observation,
                "action": centre + half_width * units,
                "reward": -np.square(units - observation[:, :2]).sum(-1),
                "discount": np.zeros(64, np.float32),
                "importance": np.ones(64, np.float32),
            },
            VECTOR,
        )
    policy = policy_of(cfg, greedy=True)
    policy.load(weights(learner))
    observation = random.uniform(-0.8, 0.8, (500, 3)).astype(np.float32)
    action, _, extras = policy.act(observation, {}, np.zeros(500, np.bool_))
    assert extras == {}
    distance = np.abs((action - centre) / half_width - observation[:, :2]).mean()
    assert distance < 0.15  # of an actor that does nothing: 0.4


def test_with_uniform_replay_actors_need_no_critic_and_learners_read_no_importance() -> None:
    cfg = config("categorical", replay="uniform")
    replay = stored_by(cfg)
    sample = replay.sample("transitions", BATCH)
    assert (sample.priorities == 1.0).all()
    assert update(learner_of(cfg), sample.data, VECTOR).applied
    nodes = d4pg.program(cfg, envs.describe("Pendulum-v1"), Settings()).nodes
    assert nodes["learner"].args[1].keywords["beta"] is None, "without it the loop sends no priorities back"


def note_of(cfg: Any, reward: float) -> list[str]:
    learner = learner_of(cfg)
    batch = some(cfg) | {"reward": np.full(BATCH, reward, np.float32)}
    notes = [update(learner, batch, VECTOR).note for _ in range(601)]
    return [note for note in notes if note is not None]


def test_it_warns_when_targets_leave_the_categorical_support_and_names_the_options() -> None:
    cfg = config("categorical", critic_rate=1e-2)
    assert note_of(cfg, reward=0.1) == []
    notes = note_of(cfg, reward=30.0)
    assert len(notes) == 1
    assert all(word in notes[0] for word in ("-20 to 20", "--support-low", "--support-high", "--critic quantile"))


def test_the_warning_reaches_the_user_and_the_run_directory(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    cfg = config("categorical", support_low=-1.0, support_high=1.0, batch=16, learning_starts=50, critic_rate=1e-2)
    train(cfg, quiet=True, runtime="inline", stop_updates=450, run_dir=str(tmp_path / "run"))
    told = capfd.readouterr().err
    assert told.count("outside of the critic's support, -1 to 1") == 1
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert any(row["kind"] == "note" and row["text"] in told for row in rows)


def test_a_support_whose_ends_are_swapped_is_refused() -> None:
    with pytest.raises(UserError, match="--support-low 5 must lie below --support-high -5"):
        validate(config("categorical", support_low=5.0, support_high=-5.0))


def test_the_users_own_networks_are_trained_and_act() -> None:
    cfg = apex_dpg.Config(**SMALL, network=f"{__name__}:own_scalar")
    assert update(learner_of(cfg), some(cfg), VECTOR).applied
    with pytest.raises(UserError, match="shape"):
        policy_of(d4pg.Config(**SMALL, network=f"{__name__}:own_scalar"))


@every_algorithm
def test_presets_set_fields_that_exist(algorithm: Any) -> None:
    for preset in algorithm.PRESETS.values():
        algorithm.Config(**preset)


@every_algorithm
def test_the_noise_ladder_runs_over_the_environments_of_all_actors(algorithm: Any) -> None:
    spec = envs.describe("Pendulum-v1")
    cfg = algorithm.Config(**SMALL, actors=3, noise=0.8, noise_smallest=0.1)
    members = algorithm.program(cfg, spec, Settings()).members()
    assert [members[f"actor/{index}"].place for index in range(3)] == [0, 1, 2]
    policy = algorithm.make_policy(cfg, spec, seed=1)
    policy.set_environments(np.arange(8, 12), 12)
    np.testing.assert_allclose(policy.exploration, [0.8 * (1 / 8) ** (i / 11) for i in (8, 9, 10, 11)], rtol=1e-5)


def test_without_a_ladder_every_environment_has_the_same_noise() -> None:
    policy = policy_of(d4pg.Config(**SMALL, noise=0.3, noise_smallest=0.0))
    policy.set_environments(np.arange(4), 4)
    np.testing.assert_allclose(policy.exploration, [0.3] * 4, rtol=1e-6)


@every_algorithm
@pytest.mark.parametrize(
    "options", [{"shards": 2, "actors": 2}, {"inference": "central", "actors": 2}, {"learners": 2}]
)
def test_the_program_runs_with(algorithm: Any, options: dict[str, Any]) -> None:
    cfg = algorithm.Config(**(SMALL | options), batch=16, learning_starts=50, samples_per_insert=4.0)
    spec = envs.describe("Pendulum-v1")
    with launch(algorithm.program(cfg, spec, Settings(max_updates=30, evaluate=False)), "inline", seed=1) as run:
        run.wait(60.0)
        counts = run.client(Handle("metrics")).snapshot()["counts"]
    assert counts["learner_steps"] == 30


def test_uniform_replay_runs_as_a_program() -> None:
    cfg = dataclasses.replace(
        config("categorical"), replay="uniform", batch=16, learning_starts=50, samples_per_insert=4.0
    )
    spec = envs.describe("Pendulum-v1")
    with launch(d4pg.program(cfg, spec, Settings(max_updates=30, evaluate=False)), "inline", seed=1) as run:
        run.wait(60.0)
        snapshot = run.client(Handle("metrics")).snapshot()
    assert snapshot["counts"]["learner_steps"] == 30
    assert "importance_mean" not in snapshot["values"]
