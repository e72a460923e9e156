"""A3C: the loss is the n-step actor-critic's, workers learn from what they did with the weights they had, runs end."""

from __future__ import annotations

import itertools
import os
import signal
import time
from collections.abc import Sequence
from dataclasses import fields
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import nn

from shoal import envs, optim, tree
from shoal.algorithms.a3c import A3C, PRESETS, Config, make_policy, program
from shoal.envs import EnvSpec
from shoal.errors import UserError
from shoal.loops.learner import MAX_REFUSED, NonFinite
from shoal.loops.wiring import Settings, make_envs
from shoal.loops.worker import Publisher, WorkerLoop
from shoal.nets.building import make_actor_critic
from shoal.nets.weights import named_tensors
from shoal.program import Handle
from shoal.runtime import launch
from shoal.services.gradients import GradientClient, GradientServer
from shoal.services.metrics import Metrics
from shoal.services.weights import WeightStore
from shoal.versions import NONE

Batch = dict[str, Any]
COUNTING = "counting_envs:counting"  # short episodes that end in both ways, rewards all different
TASKS = ["CartPole-v1", "Pendulum-v1", COUNTING]


def make_parameters(cfg: Config, env: EnvSpec, seed: int) -> tuple[Any, list[int], Any]:
    """A network's parameters as one vector, their sizes, and the same memory by name."""
    network = make_actor_critic(cfg, env, seed)
    parameters = list(network.parameters())
    flat = optim.flatten(parameters).numpy()
    named = {name: tensor.numpy() for name, tensor in named_tensors(network).items()}
    return flat, [parameter.numel() for parameter in parameters], named


def service_for(cfg: Config, env: EnvSpec, **options: Any) -> GradientServer:
    server = GradientServer(**{"rate": cfg.learning_rate, **options})
    flat, groups, _ = make_parameters(cfg, env, 0)
    GradientClient([server], flat, groups).initialise()
    return server


class Watched(A3C):
    """A worker that keeps what it is given."""

    def __init__(self, cfg: Config, env: EnvSpec, seed: int, servers: Sequence[GradientServer]) -> None:
        super().__init__(cfg, env, seed, servers)
        self.batches: list[Batch] = []
        self.ratios: list[npt.NDArray[Any]] = []

    def update(self, batch: Any) -> Any:
        self.batches.append(tree.map(torch.clone, batch))
        with torch.no_grad():
            parameters, _, _ = self.network(batch["observation"], batch["state"], batch["first"])
            log_prob = self.network.distribution.log_prob(parameters[:-1], batch["action"][:-1])
        self.ratios.append((log_prob - batch["log_prob"][:-1]).exp().numpy())
        return super().update(batch)


def worked(task: str, cfg: Config, blocks: int = 4) -> Watched:
    """A worker after some blocks."""
    env = envs.describe(task)
    made: list[Watched] = []

    def make(seed: int, servers: Sequence[GradientServer]) -> Watched:
        made.append(Watched(cfg, env, seed, servers))
        return made[0]

    build: Any = partial(make_envs, env, cfg.envs_per_actor, "auto")
    loop = WorkerLoop(
        build, make, cfg.unroll, [service_for(cfg, env)], Metrics(), observation_space=env.observation_space
    )
    for _ in range(blocks):
        assert loop.step()
    loop.close()
    return made[0]


def small(**options: Any) -> Config:
    return Config(**{"envs_per_actor": 4, "unroll": 6, "hidden": (8,), "learning_rate": 0.05, **options})


# ---- the loss -------------------------------------------------------------------------------------------------------


def losses_by_hand(cfg: Config, values: Any, log_prob: Any, entropy: Any, batch: Batch) -> float:
    """Row by row: sum rewards until the episode ends, bootstrap unless it terminated (Mnih 2016, algorithm S3)."""
    rows, count = len(batch["valid"]) - 1, batch["valid"].shape[1]  # the last row only bootstraps
    total, number = 0.0, 0
    for b in range(count):
        for t in range(rows):
            if not batch["valid"][t, b]:
                continue
            target, scale, last = 0.0, 1.0, t
            while True:
                target += scale * cfg.reward_scale * batch["reward"][last, b]
                scale *= cfg.gamma
                over = batch["terminated"][last, b]
                last += 1
                if over or last == rows or not batch["valid"][last, b]:
                    break
            if not over:
                target += scale * values[last, b]
            advantage = target - values[t, b]
            total += -log_prob[t, b] * advantage + cfg.value_cost * 0.5 * advantage**2
            total -= cfg.entropy_cost * entropy[t, b]
            number += 1
    return total / number


@pytest.mark.parametrize("task", TASKS)
def test_the_loss_is_that_of_n_step_returns_which_end_with_their_episode(task: str) -> None:
    cfg = small(reward_scale=0.3, gamma=0.9)
    worker = worked(task, cfg)
    for batch in worker.batches:
        with torch.no_grad():
            parameters, values, _ = worker.network(batch["observation"], {}, batch["first"])
            actions = batch["action"][:-1]
            log_prob, entropy = worker.network.distribution.log_prob_and_entropy(parameters[:-1], actions)
            loss, count, _ = worker.loss(batch)
        columns = {name: batch[name].numpy() for name in ("reward", "terminated", "valid")}
        expected = losses_by_hand(cfg, values.numpy(), log_prob.numpy(), entropy.expand_as(log_prob).numpy(), columns)
        assert float(loss) == pytest.approx(expected, rel=1e-4, abs=1e-5)
        assert int(count) == batch["valid"][:-1].sum()
    if task == COUNTING:
        ended = np.concatenate([batch["terminated"] for batch in worker.batches])
        assert ended.any()
        assert not np.concatenate([batch["valid"] for batch in worker.batches]).all()


# ---- workers --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lstm", [0, 8])
@pytest.mark.parametrize("task", TASKS)
def test_every_row_a_worker_learns_from_was_acted_with_the_weights_it_learns_with(task: str, lstm: int) -> None:
    worker = worked(task, small(lstm=lstm))
    assert len(worker.ratios) == 4
    for ratio, batch in zip(worker.ratios, worker.batches):
        np.testing.assert_allclose(ratio[batch["valid"][:-1]], 1.0, rtol=1e-3)


def test_blocks_follow_each_other_without_a_gap_or_an_overlap() -> None:
    cfg = small()
    batches = worked(COUNTING, cfg).batches
    for batch, following in itertools.pairwise(batches):
        assert batch["observation"].shape == (cfg.unroll + 1, cfg.envs_per_actor, 3)
        assert batch["reward"].shape == batch["action"].shape == (cfg.unroll + 1, cfg.envs_per_actor)
        np.testing.assert_array_equal(batch["observation"][-1], following["observation"][0])
        again, before = (one["observation"][:-1][one["valid"][:-1]] for one in (following, batch))
        assert not any((row == before).all(-1).any() for row in again)


@pytest.mark.parametrize("lstm", [0, 8])
def test_after_an_update_the_worker_acts_with_the_newest_weights_of_the_service(lstm: int) -> None:
    env = envs.describe("CartPole-v1")
    cfg = small(lstm=lstm)
    server = service_for(cfg, env)
    worker = A3C(cfg, env, 1, [server])
    other = A3C(cfg, env, 2, [server])
    batch = worked("CartPole-v1", cfg).batches[0]
    for each in (worker, other, worker):
        measured = each.update(dict(batch))
        assert measured.applied
    flat, _, named = make_parameters(cfg, env, 0)
    found = server.pull()
    assert found is not None
    assert found.version == 3
    np.copyto(flat, found.parameters)
    fresh = make_policy(cfg, env, seed=5)
    fresh.load(named)
    observation, first = batch["observation"][0].numpy(), np.ones(cfg.envs_per_actor, np.bool_)
    worker.policy.random, fresh.random = np.random.default_rng(0), np.random.default_rng(0)
    ours = worker.policy.act(observation, worker.policy.initial_state(cfg.envs_per_actor), first)
    expected = fresh.act(observation, fresh.initial_state(cfg.envs_per_actor), first)
    np.testing.assert_array_equal(ours[0], expected[0])
    np.testing.assert_allclose(ours[2]["log_prob"], expected[2]["log_prob"], rtol=1e-5)


def test_parameters_are_published_under_the_names_that_policies_load() -> None:
    env = envs.describe("CartPole-v1")
    cfg = small(lstm=8)
    server = GradientServer(rate=0.1)
    weights = WeightStore()
    publisher = Publisher(partial(make_actor_critic, cfg, env), [server], weights, Metrics())
    publisher._begin()
    first = weights.newer(NONE)
    size = server.pull().parameters.size  # type: ignore[union-attr]
    server.push("a", 0, np.ones(size, np.float32), 0)
    publisher.step()
    second = weights.newer(0)
    assert first is not None
    assert second is not None
    make_policy(cfg, env, seed=0).load(second[1])
    assert sum(value.size for value in second[1].values()) == size
    for name, value in second[1].items():
        assert (value < first[1][name]).all()


def test_the_run_ends_with_a_sentence_when_no_gradient_is_finite() -> None:
    env = envs.describe("CartPole-v1")
    server = GradientServer(rate=0.1)
    publisher = Publisher(partial(make_actor_critic, small(), env), [server], WeightStore(), Metrics())
    publisher._begin()
    bad = np.full(server.pull().parameters.size, np.nan, np.float32)  # type: ignore[union-attr]
    for sequence in range(MAX_REFUSED - 1):
        server.push(f"worker/{sequence % 2}", sequence, bad, 0)
    publisher._reporter._next = 0.0
    assert publisher.step()
    server.push("worker/0", MAX_REFUSED, bad, 0)
    publisher._reporter._next = 0.0
    with pytest.raises(NonFinite, match="lower the learning rate"):
        publisher.step()


def test_the_loss_is_scaled_before_its_gradient_is_pushed() -> None:
    batch, env = worked("CartPole-v1", small()).batches[0], envs.describe("CartPole-v1")
    norms = []
    for scale in (1.0, 3.0):
        cfg = small(loss_scale=scale)
        norms.append(A3C(cfg, env, 1, [service_for(cfg, env)]).update(dict(batch)).metrics["grad_norm"])
    assert norms[1] == pytest.approx(3.0 * norms[0], rel=1e-4)


class Moody(nn.Module):
    """A user's network that behaves differently in training: it remembers how it was called."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3))
        self.modes: list[bool] = []

    def forward(self, observation: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self.modes.append(self.training)
        outputs = self.layers(observation)
        return outputs[..., :2], outputs[..., 2]


def make_moody(observation_space: object, action_space: object) -> nn.Module:
    return Moody()


def test_dropout_and_batch_norm_act_in_evaluation_mode_and_learn_in_training_mode() -> None:
    cfg = small(network=f"{__name__}:make_moody")
    env = envs.describe("CartPole-v1")
    worker = A3C(cfg, env, 1, [service_for(cfg, env)])
    module: Any = next(part for part in worker.network.modules() if isinstance(part, Moody))
    batch = worked("CartPole-v1", small()).batches[0]
    observation, first = batch["observation"][0].numpy(), np.ones(cfg.envs_per_actor, np.bool_)
    for _ in range(2):
        module.modes.clear()
        worker.policy.act(observation, {}, first)
        assert module.modes == [False]
        statistics = module.layers[1].running_mean.clone()
        worker.policy.act(observation, {}, first)
        assert torch.equal(module.layers[1].running_mean, statistics), "acting changes no statistics"
        module.modes.clear()
        worker.update(dict(batch))
        assert module.modes == [True]
        assert not torch.equal(module.layers[1].running_mean, statistics)


def test_what_batch_norm_has_measured_in_the_workers_is_published_with_the_weights() -> None:
    cfg = small(network=f"{__name__}:make_moody", actors=2)
    _, weights = finish(cfg, "inline", 12)
    (count,) = (value for name, value in weights.items() if name.endswith("num_batches_tracked"))
    (mean,) = (value for name, value in weights.items() if name.endswith("running_mean"))
    assert count >= 4, "each of the two workers has made about half of the updates"
    assert np.all(mean != 0.0)


# ---- programs -------------------------------------------------------------------------------------------------------


def finish(cfg: Config, runtime: str, updates: int, seed: int = 0) -> tuple[dict[str, float], dict[str, Any]]:
    """The counts and the last weights of a run that stops after `updates`."""
    env = envs.describe(cfg.env)
    with launch(program(cfg, env, Settings(max_updates=updates, eval_episodes=2)), runtime, seed=seed) as run:
        for _ in range(400):
            run.wait(0.1)
            if run.finished(Handle("learner")):
                break
        else:
            raise AssertionError("the run did not finish")
        counts = run.client(Handle("metrics")).snapshot()["counts"]
        found = run.client(Handle("weights")).newer(NONE)
    assert found[0] == updates
    return counts, found[1]


VARIANTS = {
    "asynchronous": {},
    "synchronous": {"synchronous": True},
    "reduced": {"reduce": 2},
    "sharded": {"shards": 3},
    "recurrent": {"lstm": 8, "env": "Pendulum-v1"},
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_run_makes_exactly_the_updates_it_is_asked_for(variant: str) -> None:
    counts, _ = finish(small(**VARIANTS[variant]), "inline", updates=12)
    assert counts["learner_steps"] == 12
    rows = counts["gradients"] * 6 * 4
    assert 0.8 * rows < counts["trained_steps"] <= rows, "all but the reset rows"
    assert counts["gradients"] == 12 * (2 if variant in ("synchronous", "reduced") else 1)
    assert counts["stale_gradients"] == counts["refused_updates"] == counts["short_rounds"] == 0


@pytest.mark.parametrize("variant", ["asynchronous", "synchronous"])
def test_inline_runs_are_reproducible_from_their_seed(variant: str) -> None:
    cfg = small(**VARIANTS[variant])
    one, same, other = (finish(cfg, "inline", updates=8, seed=seed)[1] for seed in (1, 1, 2))
    assert all(np.array_equal(one[name], same[name]) for name in one)
    assert any(not np.array_equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("variant", ["sharded", "synchronous"])
def test_it_runs_in_processes(variant: str) -> None:
    counts, _ = finish(small(**VARIANTS[variant]), "local", updates=40)
    assert counts["learner_steps"] == 40
    assert counts["repeated_gradients"] == 0


@pytest.mark.parametrize("variant", ["asynchronous", "synchronous"])
def test_a_killed_worker_is_replaced_and_the_service_goes_on(variant: str) -> None:
    cfg = small(**VARIANTS[variant])
    env = envs.describe(cfg.env)
    with launch(program(cfg, env, Settings(evaluate=False)), "local") as run:
        metrics, gradients = run.client(Handle("metrics")), run.client(Handle("gradients"))

        def until(steps: int) -> None:
            deadline = time.monotonic() + 60.0
            while gradients.statistics()["version"] < steps:
                assert time.monotonic() < deadline
                run.wait(0.02)

        until(20)
        os.kill(run.pids()["worker/0"], signal.SIGKILL)
        begin = time.monotonic()
        while run.supervisor.restarts["worker/0"] < 1 or "worker/0" not in run.pids():
            run.wait(0.02)
        before = gradients.statistics()
        until(before["version"] + 200)
        assert time.monotonic() - begin < 25.0, "no round waited for the dead worker until its timeout"
        assert gradients.statistics().get("short_rounds", 0) == 0
        assert run.supervisor.restarts == {"worker/0": 1}
        run.wait(1.0)
        assert metrics.snapshot()["counts"]["env_steps"] > 0


def test_more_shards_than_tensors_are_refused_in_a_sentence() -> None:
    with pytest.raises(UserError, match=r"--shards 99 cannot share \d+ tensors of parameters: give \d+ or less"):
        program(small(shards=99), envs.describe("CartPole-v1"), Settings())


def test_reducing_in_rounds_is_refused_in_a_sentence() -> None:
    with pytest.raises(UserError, match="leave out --reduce"):
        program(small(synchronous=True, reduce=2), envs.describe("CartPole-v1"), Settings())


@pytest.mark.parametrize("preset", PRESETS)
def test_presets_name_fields_of_the_config(preset: str) -> None:
    Config(preset=preset, **PRESETS[preset])
    assert set(PRESETS[preset]) <= {field.name for field in fields(Config)}
