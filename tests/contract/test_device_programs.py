"""Acting and learning in one node, on the device where the environments live: as it is typed, on every runtime."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensor_cartpole
import torch
from starting import start_on
from test_exact_resume import OPTIONS, found_differences, killed
from test_programs import TINY, finish

import shoal
from shoal.algorithms import a3c, d4pg, ppo, r2d2, td3
from shoal.envs.torch_tasks.cartpole import CartPoles
from shoal.errors import UserError
from shoal.experiment.environments import describe_env, fit
from shoal.experiment.training import resume, train
from shoal.learning import Learning
from shoal.loops.wiring import Settings, Wiring
from shoal.program import Handle
from shoal.replay import n_step
from shoal.runs import registry
from shoal.versions import number

CARTPOLE, PENDULUM, CATCH = "torch/CartPole-v1", "torch/Pendulum-v1", "torch/Catch-v0"


def make_env(count: int, seed: int, device: str, limit: int = 500) -> CartPoles:
    """A factory of the user's."""
    return CartPoles(count, seed, device, "same_step", limit)


def tiny(algorithm: str, **chosen: Any) -> Any:
    config = registry.load(algorithm).Config
    named = {name: value for name, value in TINY.items() if hasattr(config, name) and name != "actors"}
    return config(**{**named, **chosen})


def tiny_program(algorithm: str, **chosen: Any) -> Any:
    cfg = tiny(algorithm, **chosen)
    cfg, spec = fit(cfg, describe_env(cfg), "inline")
    return registry.load(algorithm).program(cfg, spec, Settings(max_updates=3, eval_episodes=2, eval_every=0.1))


@pytest.mark.parametrize(
    ("runtime", "algorithm", "chosen"),
    [
        ("inline", "ppo", {"env": CATCH}),
        ("local", "ppo", {"env": make_env, "lstm": 8}),
        ("inline", "impala", {"env": PENDULUM, "batch": 1}),
        ("inline", "appo", {"env": CARTPOLE}),
        ("local", "ppo", {"env": CARTPOLE, "learners": 2}),
        ("inline", "sac", {"env": PENDULUM}),
        ("local", "td3", {"env": PENDULUM, "learners": 2, "n": 3}),
        ("inline", "d4pg", {"env": PENDULUM, "samples_per_insert": 2.0}),
        ("inline", "apex_dqn", {"env": CARTPOLE}),
        pytest.param("ray", "ppo", {"env": CARTPOLE, "learners": 2}, marks=[pytest.mark.ray, pytest.mark.slow]),
    ],
)
def test_algorithms_run_without_actors(runtime: str, algorithm: str, chosen: dict[str, Any]) -> None:
    program = tiny_program(algorithm, **chosen)
    assert not any(node.startswith(("actor", "replay")) for node in program.nodes)
    with start_on(runtime, program) as run:
        version, weights = finish(run)
        counts = run.client(Handle("metrics")).snapshot()["counts"]
    assert number(version) == 3
    assert all(np.isfinite(value).all() for value in weights.values())
    assert counts["env_steps"] > 0


@pytest.mark.parametrize(
    ("algorithm", "chosen"),
    [
        ("ppo", {"env": CARTPOLE, "lstm": 8}),
        ("impala", {"env": CARTPOLE, "batch": 1, "env_options": {"autoreset": "same_step"}}),
        ("td3", {"env": PENDULUM, "n": 3, "env_options": {"autoreset": "same_step"}}),
    ],
    ids=str,
)
def test_killed_and_resumed_is_what_it_would_have_been(
    algorithm: str, chosen: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its open episodes: a batch of one of two environments is killed between the two."""
    cfg = tiny(algorithm, **chosen)
    train(cfg, run_dir=str(tmp_path / "straight"), **OPTIONS)
    killed(cfg, tmp_path / "resumed", monkeypatch)
    resume(tmp_path / "resumed", quiet=True)
    fitted, _ = fit(cfg, describe_env(cfg), "inline")
    assert found_differences(tmp_path / "straight", tmp_path / "resumed", fitted) == []


def test_a_run_stops_at_its_steps_and_its_policy_plays_on(tmp_path: Path) -> None:
    cfg = ppo.Config(env=make_env, envs_per_actor=32, unroll=8, env_options={"limit": 40})
    result = train(cfg, run_dir=str(tmp_path / "run"), stop_steps=2_000, eval_episodes=3, quiet=True)
    assert result.stopped_by == "steps"
    assert 2_000 <= result.env_steps < 2_000 + 3 * 32 * 8, "the learner itself sees that it has made them"
    policy = shoal.load(tmp_path / "run")
    assert policy.act(np.zeros(4, np.float32)) in (0, 1)
    assert shoal.evaluate(policy, episodes=2).returns == pytest.approx((40.0, 40.0), abs=35.0)


@pytest.mark.parametrize(
    ("cfg", "sentence"),
    [
        (ppo.Config(env=CARTPOLE, actors=3), "--actors 3 would have nothing to step: torch/CartPole-v1 lives where"),
        (r2d2.Config(env=CARTPOLE), "torch/CartPole-v1 is a vector of tensors, .*choose another"),
        (a3c.Config(env=CARTPOLE), "torch/CartPole-v1 is a vector of tensors, .*choose another"),
        (td3.Config(env=PENDULUM, replay="prioritized"), "--replay prioritized is not drawn on a device"),
        (
            td3.Config(env=PENDULUM, n=5, capacity=1_000, envs_per_actor=512),
            "--capacity 1000 is too small for returns over 5 steps in",
        ),
        (ppo.Config(env=CATCH, frame_stack=2), "--frame-stack 2 is not made on a device"),
        (ppo.Config(env=CARTPOLE, vectorizer="async"), "makes a vector of environments itself; leave the vectorizer"),
    ],
    ids=str,
)
def test_what_cannot_work_is_said_in_a_sentence(cfg: Any, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=sentence):
        train(cfg, run_dir=str(tmp_path / "run"), stop_updates=1, quiet=True)


@pytest.mark.parametrize("mode", ["next_step", "same_step"])
def test_a_ring_converts_and_reads_nothing(mode: str) -> None:
    """Neither with a step nor with a batch."""
    cfg = tiny("td3", env=PENDULUM, n=3, env_options={"autoreset": mode})
    cfg, spec = fit(cfg, describe_env(cfg), "inline")
    wiring = Wiring(cfg, spec, Settings())
    make = wiring.ring_source(td3.make_policy, n_step(cfg.n, cfg.gamma))
    source = make(Learning(td3.TD3(cfg, spec, 0), torch.device("cpu")))
    source.take()
    found: Counter[str] = Counter()
    with tensor_cartpole.counting(found):
        for _ in range(5):
            source.take()
    assert found == {}


class Lame(CartPoles):
    """Breaks its promise in the middle of a run."""

    def step(self, actions: Any, /) -> Any:
        seen, *rest = super().step(actions)
        return seen.masked_fill(self._age.unsqueeze(1) > 9, torch.nan), *rest


def lame(count: int, seed: int, device: str) -> Lame:
    return Lame(count, seed, device)


def test_observations_that_are_not_finite_end_the_run_in_a_sentence(tmp_path: Path) -> None:
    cfg = ppo.Config(env=lame, envs_per_actor=8, unroll=16)
    with pytest.raises(Exception, match="not finite"):
        train(cfg, run_dir=str(tmp_path / "run"), stop_updates=200, max_failures=0, runtime="inline", quiet=True)


@pytest.mark.slow
def test_d4pg_learns_with_the_preset_for_many_environments(tmp_path: Path) -> None:
    """At a small size: 128 environments, networks of 64."""
    small: dict[str, Any] = {"envs_per_actor": 128, "batch": 512, "actor_hidden": (64, 64), "critic_hidden": (64, 64)}
    cfg = d4pg.Config(
        env=PENDULUM, preset="many", **small, actor_rate=1e-3, critic_rate=1e-3, reward_scale=0.1, capacity=200_000
    )
    result = train(cfg, run_dir=str(tmp_path / "run"), stop_return=-300.0, stop_seconds=180.0, quiet=True)
    assert result.reached
