"""R2D2: priorities and losses against direct computation, what burn-in and padding may touch, and that it learns."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from batches import update, weights
from gymnasium import spaces
from torch import Tensor, nn
from transitions import Columns, Spec, batch_of, tensors

from shoal import envs
from shoal.acting import Recorder, Sender
from shoal.algorithms.r2d2 import PRESETS, R2D2, Config, make_policy, program
from shoal.config import validate
from shoal.envs.tasks.recall import RecallVector
from shoal.errors import UserError
from shoal.functional.rescaling import inverse_rescale, rescale
from shoal.loops.evaluator import evaluate
from shoal.loops.wiring import Settings
from shoal.program import Handle
from shoal.replay import Replay, Table, sequence
from shoal.runtime import launch
from steps import outcome

SMALL: dict[str, Any] = {
    "hidden": (16,),
    "lstm": 8,
    "stream": 0,
    "envs_per_actor": 4,
    "rows": 5,
    "burn_in": 2,
    "length": 4,
    "period": 2,
    "n": 3,
}
VECTOR = Spec(spaces.Box(-1.0, 1.0, (3,), np.float32), spaces.Discrete(3))
NESTED = Spec(
    spaces.Dict(camera=spaces.Box(0, 255, (36, 36, 3), np.uint8), place=spaces.Discrete(4)), spaces.Discrete(3)
)
BATCH = 64


class Core(nn.Module):
    """A user's core, with a state of its own shape."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.cell = nn.GRUCell(inputs, 6)

    def initial_state(self, count: int) -> dict[str, Tensor]:
        return {"memory": torch.zeros(count, 2, 3)}

    def forward(self, x: Tensor, state: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        memory = self.cell(x, state["memory"].flatten(1))
        return memory, {"memory": memory.unflatten(1, (2, 3))}


KINDS = [
    pytest.param({}, VECTOR, id="lstm"),
    pytest.param({"stream": 8}, VECTOR, id="streams"),
    pytest.param({"burn_in": 0}, VECTOR, id="no burn-in"),
    pytest.param({"core": f"{__name__}:Core"}, VECTOR, id="own core"),
    pytest.param({}, NESTED, id="nested"),
]


def stored(cfg: Config, spec: Spec, blocks: int = 20) -> Replay:
    """What an actor with freshly made weights sends of random episodes that are terminated or cut short."""
    random = np.random.default_rng(3)
    replay = Replay([Table("sequences", 1000)])
    policy = make_policy(cfg, spec, seed=1)
    pattern = sequence(cfg.length, period=cfg.period, burn_in=cfg.burn_in, end="shift")
    count = cfg.envs_per_actor
    recorder = Recorder(policy, count, cfg.rows, Sender(policy, [replay], {"sequences": pattern}, "actor"))
    spec.observation_space.seed(0)
    ended = np.zeros(count, np.bool_)
    sent = 0
    while sent < blocks:
        drawn = [spec.observation_space.sample() for _ in range(count)]
        nested = isinstance(spec.observation_space, spaces.Dict)
        recorder.act({key: np.stack([row[key] for row in drawn]) for key in drawn[0]} if nested else np.stack(drawn))
        valid, ends = ~ended, ~ended & (random.random(count) < 0.15)
        terminated = ends & (random.random(count) < 0.5)
        reward = np.where(valid, 3.0 * random.standard_normal(count), 0.0).astype(np.float32)
        sent += recorder.result(outcome(reward, terminated, valid))
        ended = ends
    return replay


def sampled(cfg: Config, spec: Spec = VECTOR) -> tuple[Columns, npt.NDArray[Any]]:
    """A batch with everything in it: sequences that begin episodes, end them, are cut short; and its priorities."""
    sample = stored(cfg, spec).sample("sequences", BATCH)
    batch = batch_of(sample)
    begins = batch["state/last_action"] == 0
    assert begins.any()
    assert not begins.all()
    assert not batch["mask"].all()
    assert batch["terminated"].any()
    assert (batch["mask"] & ~batch["valid"]).any()
    return batch, sample.priorities


@pytest.mark.parametrize(("options", "spec"), KINDS)
def test_actor_computed_priorities_are_those_of_a_learner_with_the_same_weights(
    options: dict[str, Any], spec: Spec
) -> None:
    cfg = Config(**(SMALL | options))
    batch, priorities = sampled(cfg, spec)
    _, again, _ = R2D2(cfg, spec, seed=1).loss(tensors(batch, spec))
    assert len(np.unique(priorities)) > BATCH // 4
    np.testing.assert_allclose(priorities, again.numpy(), rtol=1e-4, atol=1e-6)


def step_by_step(cfg: Config, network: nn.Module, batch: Columns, item: int) -> Tensor:
    """Q [rows, actions] of one sequence, row by row, as an actor goes through it."""
    state = {
        name.removeprefix("state/core/"): torch.from_numpy(batch[name][item : item + 1])
        for name in batch
        if name.startswith("state/core/")
    }
    action, reward = int(batch["state/last_action"][item]) - 1, float(batch["state/last_reward"][item])
    rows = []
    for t in range(int(batch["mask"][:, item].sum())):
        observation = torch.from_numpy(batch["observation"][t : t + 1, item : item + 1])
        first = torch.tensor([[t == 0 and action < 0]])
        q, state = network(observation, torch.tensor([[action]]), torch.tensor([[reward]]), state, first)
        rows.append(q[0, 0])
        action, reward = int(batch["action"][t, item]), float(batch["reward"][t, item])
    return torch.stack(rows)


def test_losses_and_priorities_are_those_of_rows_taken_one_by_one() -> None:
    """The whole law once more, in plain words: stepping, double Q, n-step returns, rescaling, max and mean."""
    cfg = Config(**SMALL, learning_rate=3e-3, mix=0.7)
    batch, _ = sampled(cfg)
    batch["importance"] = np.linspace(0.2, 1.0, BATCH, dtype=np.float32)
    learner = R2D2(cfg, VECTOR, seed=1)
    then = copy.deepcopy(learner.network)
    for _ in range(30):
        update(learner, batch, VECTOR)
    now = learner.network
    loss, priorities, _ = learner.loss(tensors(batch, VECTOR))
    losses = []
    with torch.no_grad():
        for item in range(BATCH):
            online, target = step_by_step(cfg, now, batch, item), step_by_step(cfg, then, batch, item)
            rows = int(batch["valid"][:, item].sum())
            rows = min(rows, cfg.burn_in + cfg.length)
            begin = 0 if batch["state/last_action"][item] == 0 else cfg.burn_in
            errors = []
            for t in range(begin, rows):
                end = min(t + cfg.n, rows)
                value = inverse_rescale(target[end, online[end].argmax()])
                if batch["terminated"][t:end, item].any():
                    value = torch.tensor(0.0)
                total = sum(cfg.gamma ** (k - t) * float(batch["reward"][k, item]) for k in range(t, end))
                goal = rescale(total + cfg.gamma ** (end - t) * value)
                errors.append(float(goal - online[t, batch["action"][t, item]]))
            sizes = np.abs(errors)
            assert float(priorities[item]) == pytest.approx(0.7 * sizes.max() + 0.3 * sizes.mean(), abs=1e-4)
            losses.append(0.5 * np.square(errors).sum())
    assert float(loss.detach()) == pytest.approx(np.mean(batch["importance"] * losses), rel=1e-4)


def test_padding_changes_neither_loss_nor_gradient() -> None:
    cfg = Config(**SMALL)
    batch, _ = sampled(cfg)
    learner = R2D2(cfg, VECTOR, seed=1)
    parameters = list(learner.network.parameters())

    def judge() -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
        loss, priorities, _ = learner.loss(tensors(batch, VECTOR))
        return loss.detach(), priorities, torch.autograd.grad(loss, parameters)

    before = judge()
    nowhere = ~batch["mask"]
    for name, garbage in (("observation", 50.0), ("reward", 100.0), ("action", 2)):
        batch[name] = batch[name].copy()
        batch[name][nowhere] = garbage
    torch.testing.assert_close(judge(), before)


def test_gradients_reach_into_the_burn_in_only_where_a_sequence_begins_an_episode() -> None:
    cfg = Config(**SMALL)
    columns = tensors(sampled(cfg)[0], VECTOR)
    columns["observation"].requires_grad_()
    loss, _, _ = R2D2(cfg, VECTOR, seed=1).loss(columns)
    (gradient,) = torch.autograd.grad(loss, columns["observation"])
    reached = (gradient[: cfg.burn_in] != 0).any(-1).any(0)
    begins = columns["state"]["last_action"] == 0
    assert torch.equal(reached, begins)


def test_the_stored_state_is_what_a_sequence_starts_from() -> None:
    cfg = Config(**SMALL)
    batch, _ = sampled(cfg)
    learner = R2D2(cfg, VECTOR, seed=1)
    _, priorities, _ = learner.loss(tensors(batch, VECTOR))
    begins = torch.from_numpy(batch["state/last_action"] == 0)
    for name, change in (("state/core/hidden", 1.0), ("state/core/cell", 1.0), ("state/last_reward", 5.0)):
        _, others, _ = learner.loss(tensors({**batch, name: batch[name] + np.float32(change)}, VECTOR))
        torch.testing.assert_close(others[begins], priorities[begins])
        assert (others[~begins] != priorities[~begins]).all(), name


def test_the_gradient_of_the_loss_is_that_of_finite_differences() -> None:
    cfg = Config(**(SMALL | {"burn_in": 0, "activation": "tanh"}))  # burnt-in rows have an effect that is not followed
    columns = tensors(sampled(cfg)[0], VECTOR)
    columns["importance"] = torch.rand(BATCH, generator=torch.Generator().manual_seed(0))
    learner = R2D2(cfg, VECTOR, seed=1)
    parameters = list(learner.network.parameters())
    gradient = torch.autograd.grad(learner.loss(columns)[0], parameters)
    generator = torch.Generator().manual_seed(1)
    direction = [torch.randn(part.shape, generator=generator) for part in parameters]

    def moved(step: float) -> float:
        with torch.no_grad():
            for part, way in zip(parameters, direction):
                part += step * way
            loss = float(learner.loss(columns)[0])
            for part, way in zip(parameters, direction):
                part -= step * way
        return loss

    slope = sum(float((part * way).sum()) for part, way in zip(gradient, direction))
    step = 1e-4  # too small to change which action is the best one
    assert slope == pytest.approx((moved(step) - moved(-step)) / (2 * step), rel=1e-2)


def test_the_values_acted_on_are_not_stored() -> None:
    assert not {"q", "value"} & set(stored(Config(**SMALL), VECTOR).sample("sequences", 1).data)


@pytest.mark.parametrize(("options", "spec"), KINDS)
def test_an_update_gives_priorities_and_weights_that_policies_load(options: dict[str, Any], spec: Spec) -> None:
    cfg = Config(**(SMALL | options))
    batch, _ = sampled(cfg, spec)
    learner = R2D2(cfg, spec, seed=1)
    before = weights(learner)
    measured = update(learner, batch, spec)
    after = weights(learner)
    assert measured.applied
    assert measured.priorities.shape == (BATCH,)
    assert {"td_error", "q_min", "q_mean", "q_max", "target_drift"} <= set(measured.metrics)
    assert any(not np.array_equal(before[name], after[name]) for name in before)
    make_policy(cfg, spec, seed=5).load(after)


def test_the_target_network_is_a_copy_from_every_so_many_updates_ago() -> None:
    cfg = Config(**SMALL, target_every=3)
    batch, _ = sampled(cfg)
    learner = R2D2(cfg, VECTOR, seed=1)
    drifts = [float(update(learner, batch, VECTOR).metrics["target_drift"]) for _ in range(7)]
    assert [drift == 0.0 for drift in drifts] == [False, False, True, False, False, True, False]


def test_a_batch_that_is_not_finite_changes_neither_weights_nor_priorities() -> None:
    cfg = Config(**SMALL)
    batch, _ = sampled(cfg)
    batch["reward"] = np.full_like(batch["reward"], np.nan)
    learner = R2D2(cfg, VECTOR, seed=1)
    before = weights(learner)
    measured = update(learner, batch, VECTOR)
    assert not measured.applied
    assert measured.priorities is None
    assert all(np.array_equal(before[name], array) for name, array in weights(learner).items())


def test_it_learns_to_remember_a_cue() -> None:
    """Four cues, shown at the beginning and asked for three steps later: a quarter would be right by chance."""
    cfg = Config(**(SMALL | {"lstm": 16, "envs_per_actor": 32}), learning_rate=3e-3, target_every=20)
    spec = Spec(spaces.Box(0.0, 1.0, (5,), np.float32), spaces.Discrete(4))
    task = envs.Envs(RecallVector(32, cues=4, delay=3), "recall", seed=1)
    replay = Replay([Table("sequences", 2000)])
    policy, learner = make_policy(cfg, spec, seed=1), R2D2(cfg, spec, seed=1)
    pattern = sequence(cfg.length, period=cfg.period, burn_in=cfg.burn_in, end="shift")
    recorder = Recorder(policy, 32, cfg.rows, Sender(policy, [replay], {"sequences": pattern}, "actor"))
    observation = task.reset()
    for row in range(1500):
        step = task.step(recorder.act(observation))
        observation = step.observation
        recorder.result(step)
        if row > 50 and row % 3 == 0:
            sample = replay.sample("sequences", 32)
            measured = update(learner, batch_of(sample), spec)
            replay.update_priorities("sequences", sample.keys, measured.priorities.numpy())
            policy.load(weights(learner))
    judge = make_policy(cfg, spec, seed=2, greedy=True)
    judge.load(weights(learner))
    assert np.mean(evaluate(task, judge, 200)) > 0.9


def test_the_atari_preset_fits_a_laptop_and_the_papers_is_beside_it() -> None:
    def gigabytes(preset: str) -> float:
        return PRESETS[preset]["capacity"] * PRESETS[preset]["period"] * 84 * 84 / 1e9

    assert gigabytes("atari") < 2
    assert gigabytes("paper") > 28


def test_presets_set_fields_that_exist() -> None:
    for preset in PRESETS.values():
        Config(**preset)


def test_the_ladder_runs_over_the_environments_of_all_actors() -> None:
    cfg = Config(**SMALL, actors=3)
    policy = make_policy(cfg, VECTOR, seed=1)
    policy.set_environments(np.arange(8, 12), 12)
    assert policy.exploration is not None
    np.testing.assert_allclose(policy.exploration, [0.4 ** (1 + 7 * i / 11) for i in (8, 9, 10, 11)], rtol=1e-5)


@pytest.mark.parametrize(
    "options", [{"shards": 2, "actors": 2}, {"inference": "central", "actors": 2}, {"learners": 2}]
)
def test_the_program_runs_with(options: dict[str, Any]) -> None:
    cfg = Config(**(SMALL | options), batch=16, learning_starts=50, samples_per_insert=4.0)
    spec = envs.describe(cfg.env)
    with launch(program(cfg, spec, Settings(max_updates=30, evaluate=False)), "inline", seed=1) as run:
        run.wait(60.0)
        counts = run.client(Handle("metrics")).snapshot()["counts"]
    assert counts["learner_steps"] == 30


def test_sequences_with_gaps_between_them_are_refused() -> None:
    cfg = dataclasses.replace(Config(), length=5, period=6)
    with pytest.raises(UserError, match="--period 6"):
        validate(cfg)
