"""What is refused before a process is started, each in one sentence that names the option."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import pytest

from shoal.algorithms import apex_dqn, impala, ppo, r2d2
from shoal.errors import UserError
from shoal.experiment import checks
from shoal.experiment.checks import memory_needs, prepare
from shoal.experiment.environments import describe_env
from shoal.runs.options import RunOptions


def refusal(page: Any, cfg: Any, **options: Any) -> str:
    with pytest.raises(UserError) as told:
        prepare(page, cfg, describe_env(cfg), RunOptions(**options))
    return str(told.value)


HUGE = 10**12


@pytest.mark.parametrize(
    ("page", "given", "option"),
    [
        (impala, {"hidden": (HUGE, HUGE)}, f"--hidden {HUGE} {HUGE}"),
        (impala, {"lstm": 10**7}, "--lstm 10000000"),
        (impala, {"queue": HUGE}, f"--queue {HUGE}"),
        (impala, {"unroll": HUGE}, f"--unroll {HUGE}"),
        (impala, {"envs_per_actor": HUGE}, f"--envs-per-actor {HUGE}"),
        (ppo, {"unroll": HUGE}, f"--unroll {HUGE}"),
        (r2d2, {"burn_in": HUGE}, f"--burn-in {HUGE}"),
        (apex_dqn, {"capacity": HUGE}, f"--capacity {HUGE}"),
    ],
)
def test_what_cannot_fit_into_memory_is_refused_by_its_option(page: Any, given: dict[str, Any], option: str) -> None:
    sentence = refusal(page, page.Config(env="CartPole-v1", **given))
    assert sentence.startswith(f"{option} needs")
    assert "this machine has" in sentence


@pytest.mark.parametrize("page", [impala, ppo, r2d2, apex_dqn])
def test_defaults_fit(page: Any) -> None:
    cfg = page.Config(env="CartPole-v1")
    assert sum(memory_needs(cfg, describe_env(cfg)).values()) < 2e9


def test_a_device_without_memory_cannot_be_learned_on() -> None:
    assert refusal(impala, impala.Config(env="CartPole-v1", device="meta")).startswith("--device meta cannot be used")
    acting = refusal(impala, impala.Config(env="CartPole-v1", acting_device="meta"))
    assert acting.startswith("--acting-device meta cannot be used")


def test_a_ratio_at_which_nobody_ever_learns_is_refused() -> None:
    sentence = refusal(apex_dqn, apex_dqn.Config(env="CartPole-v1", samples_per_insert=1e-12))
    assert sentence.startswith("--samples-per-insert 1e-12 would let the learner sample once in")


@pytest.mark.parametrize("seed", [-1, 99999999999999999999999])
def test_a_seed_that_no_generator_takes_is_refused(seed: int) -> None:
    assert refusal(impala, impala.Config(env="CartPole-v1"), seed=seed).startswith(f"--seed {seed} ")


def test_memory_is_counted_by_copies_of_parameters_rows_and_items() -> None:
    cfg = impala.Config(env="CartPole-v1", hidden=(10, 20), learners=2, actors=3, preset="none")
    cfg = replace(cfg, envs_per_actor=8, unroll=5, queue=100)
    env = describe_env(cfg)
    needs = memory_needs(cfg, env)
    row = env.observation_bytes
    copies = 4 * 2 + 3  # of a learner four: values, gradients, two moments
    assert needs["hidden"] == 4 * copies * (1 * 10 + 10 * 20)
    assert needs["envs_per_actor"] == 3 * 8 * (2000 + row)
    assert needs["unroll"] == 3 * 8 * 6 * row
    assert needs["queue"] == 100 * 6 * row


def test_the_capacity_that_is_suggested_takes_half_of_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sysconf", {"SC_PAGE_SIZE": 1000, "SC_PHYS_PAGES": 1_600_000}.__getitem__)
    cfg = apex_dqn.Config(env="CartPole-v1", capacity=HUGE)
    assert refusal(apex_dqn, cfg).endswith("this machine has 2 GB: give --capacity 50000000 or less.")


def test_needs_that_fit_one_by_one_and_not_together_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    cfg = impala.Config(env="CartPole-v1", preset="none")
    needs = sorted(memory_needs(cfg, describe_env(cfg)).values())
    pages = int(sum(needs) - needs[0] / 2) if needs[0] else int(sum(needs) - 1)
    assert pages > needs[-1]
    monkeypatch.setattr(os, "sysconf", {"SC_PAGE_SIZE": 1, "SC_PHYS_PAGES": pages}.__getitem__)
    assert "of memory, and this machine has" in refusal(impala, cfg)


def test_a_precision_that_ends_who_computes_in_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "IN_BFLOAT16", "import os, signal; os.kill(os.getpid(), signal.SIGILL)")
    told = refusal(impala, impala.Config(precision="bfloat16"))
    assert told.startswith("--precision bfloat16 was ended by SIGILL while it was tried, so this processor")
    assert "leave it at float32" in told


def test_a_precision_that_the_processor_has_is_taken_and_float32_is_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    cfg = impala.Config(precision="bfloat16")
    prepare(impala, cfg, describe_env(cfg), RunOptions())
    monkeypatch.setattr(checks, "IN_BFLOAT16", "raise SystemExit(1)")
    cfg = impala.Config()
    prepare(impala, cfg, describe_env(cfg), RunOptions())


# ---- GPUs


@pytest.fixture
def without_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.runtime.devices.missing", lambda device: None if device == "cpu" else "no driver")


@pytest.mark.usefixtures("without_gpu")
def test_a_driver_without_a_gpu_can_have_nodes_on_one_elsewhere_but_not_here() -> None:
    cfg = impala.Config(env="CartPole-v1", device="cuda", acting_device="cuda", actor_gpus=0.01)
    env = describe_env(cfg)
    prepare(impala, cfg, env, RunOptions(runtime="ray"))
    for runtime in ("local", "inline"):
        with pytest.raises(
            UserError, match=r"^--acting-device cuda cannot be used here \(no driver\): leave it at cpu"
        ):
            prepare(impala, cfg, env, RunOptions(runtime=runtime))


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"device": "gpu"}, "--device gpu is no device ("),
        (
            {"device": "cuda:1"},
            "--device cuda:1: on Ray a node sees the GPU that Ray has chosen for it; give --device cuda",
        ),
        ({"acting_device": "cuda:2"}, "--acting-device cuda:2: on Ray"),
        ({"gpu_memory": 4.0}, "--gpu-memory 4 bounds nothing while all compute on a CPU: add --device cuda"),
        ({"learner_gpus": 0.5}, "--learner-gpus 0.5 is a part of no GPU while learners compute on cpu: add --device"),
        (
            {"actor_gpus": 0.5},
            "--actor-gpus 0.5 is a part of no GPU while policies compute on cpu: add --acting-device",
        ),
        ({"inference_gpus": 0.5, "acting_device": "cuda"}, "--inference-gpus 0.5 is for servers that compute on a GPU"),
        ({"learner_gpus": 2.0, "device": "cuda"}, "--learner-gpus 2.0 is out of range: give a number from 0.0001 to 1"),
    ],
)
def test_gpus_that_cannot_be_had_are_refused_by_their_option(given: dict[str, Any], sentence: str) -> None:
    cfg = impala.Config(env="CartPole-v1")
    with pytest.raises(UserError) as told:
        prepare(impala, replace(cfg, **given), describe_env(cfg), RunOptions(runtime="ray"))
    assert str(told.value).startswith(sentence)
