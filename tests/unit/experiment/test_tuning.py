"""The one setting to change: each part slowed on purpose, in scripted figures."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, replace
from typing import Any

import pytest

from shoal.algorithms import a3c, apex_dqn, impala, ppo
from shoal.experiment.cores import IdleCores
from shoal.experiment.tuning import Ran, advise
from shoal.types import Role

BUSY, IDLE = 0.95, 0.05
ROLES = {"actor/0": "actor", "actor/1": "actor", "inference/0": "inference", "worker/0": "worker", "worker/1": "worker"}
PLAIN = impala.Config(envs_per_actor=16, batch=32)


def actor(environment: float = 0.0, inference: float = 0.0, **waits: float) -> dict[str, float]:
    return {"environment": environment, "inference": inference} | {
        name.replace("_", " "): part for name, part in waits.items()
    }


def learner(learning: float, publishing: float = 0.0) -> dict[str, float]:
    return {"learning": learning, "publishing": publishing, "waiting for data": 1.0 - learning - publishing}


@dataclass(frozen=True)
class Case:
    times: dict[str, dict[str, float]]
    setting: str
    value: Any
    cfg: Any = PLAIN
    cores: int = 8
    updates: float = 10.0
    more: tuple[tuple[str, Any], ...] = ()


SLOW_ENVIRONMENT = {"actor/0": actor(environment=BUSY, inference=IDLE), "learner": learner(0.1)}
SLOW_POLICY = {"actor/0": actor(environment=IDLE, inference=BUSY), "learner": learner(0.1)}
SLOW_LEARNER = {"actor/0": actor(environment=0.1, inference=0.1, waiting_to_insert=0.8), "learner": learner(1.0)}
SLOW_REPLAY = {"actor/0": actor(environment=0.2, waiting_to_insert=0.8), "learner": learner(0.2)}
SYNCHRONOUS = {"actor/0": actor(environment=0.7, waiting_for_weights=0.3), "learner": learner(0.3)}
SERVED = {
    "actor/0": actor(environment=0.1, waiting_for_inference=0.9),
    "actor/1": actor(environment=0.1, waiting_for_inference=0.9),
    "inference/0": {"inference": 0.95, "waiting for requests": 0.05},
    "learner": learner(0.3),
}
WORKERS = {"worker/0": {"environment": 0.5, "learning": 0.5}, "learner": {"waiting for gradients": 1.0}}
WAITING_WORKERS = {"worker/0": {"learning": 0.4, "waiting": 0.6}, "learner": {"waiting for gradients": 1.0}}
SMALL, LARGE = impala.Config(envs_per_actor=16), impala.Config(envs_per_actor=256, hidden=(256, 256))
ONE_THREAD = replace(LARGE, learner_threads=1)
FEW = impala.Config(batch=2, queue=512)
RATIO = apex_dqn.Config(samples_per_insert=4.0, envs_per_actor=64)
CENTRAL = impala.Config(inference="central", actors=2, hidden=(256, 256))

CASES = {
    "a slow environment, with idle cores": Case(SLOW_ENVIRONMENT, "--actors", 8),
    "a slow environment, all cores used": Case(SLOW_ENVIRONMENT, "--runtime", "ray", cores=1),
    "an environment that waits": Case(SLOW_ENVIRONMENT, "--vectorizer", "async", more=(("env_waits", True),)),
    "environments that wait in processes, on two cores": Case(
        SLOW_ENVIRONMENT, "--envs-per-actor", 32, cores=2, more=(("env_waits", True), ("env_processes", True))
    ),
    "environments that compute in processes": Case(
        SLOW_ENVIRONMENT, "--runtime", "ray", cores=2, more=(("env_processes", True),)
    ),
    "a slow environment, on a cluster": Case(SLOW_ENVIRONMENT, "--actors", 2, cores=1, more=(("runtime", "ray"),)),
    "a slow policy, few environments": Case(SLOW_POLICY, "--envs-per-actor", 32, SMALL),
    "a slow policy, many environments, idle cores": Case(SLOW_POLICY, "--actors", 8, LARGE),
    "a slow policy, all cores used": Case(SLOW_POLICY, "--hidden", "128 128", LARGE, cores=1),
    "a slow policy, and a GPU": Case(SLOW_POLICY, "--acting-device", "cuda", more=(("gpu", True),)),
    "a slow learner, with idle cores": Case(SLOW_LEARNER, "--learner-threads", 4, ONE_THREAD, cores=4),
    "a slow learner, and a GPU": Case(SLOW_LEARNER, "--device", "cuda", more=(("gpu", True),)),
    "a learner of quick updates": Case(SLOW_LEARNER, "--batch", 64, updates=1000.0),
    "a learner of few steps, on a machine with much to do": Case(SLOW_LEARNER, "--batch", 4, FEW),
    "a larger batch than the queue can hold": Case(
        SLOW_LEARNER, "--batch", "4 --queue 4", impala.Config(batch=2, queue=2)
    ),
    "a slow learner held to a ratio": Case(SLOW_LEARNER, "--samples-per-insert", "2", RATIO, cores=1),
    "a slow learner of several passes": Case(SLOW_LEARNER, "--epochs", 2, ppo.Config(minibatches=1), cores=1),
    "a slow learner of very many passes": Case(SLOW_LEARNER, "--epochs", 20, ppo.Config(epochs=40)),
    "a slow learner of many small steps": Case(SLOW_LEARNER, "--minibatches", 2, ppo.Config()),
    "a slow learner and nothing else": Case(SLOW_LEARNER, "--hidden", "128 128", LARGE, cores=1),
    "a learner that publishes": Case(
        {"actor/0": actor(waiting_to_insert=0.9), "learner": learner(0.2, publishing=0.8)}, "--publish-every", 4
    ),
    "actors that load weights": Case(
        {"actor/0": {"environment": 0.2, "weights": 0.8}, "learner": learner(0.3)}, "--publish-every", 4
    ),
    "a slow replay": Case(SLOW_REPLAY, "--shards", 2, apex_dqn.Config(actors=2)),
    "a slow replay of one actor": Case(SLOW_REPLAY, "--rows", 32, apex_dqn.Config(actors=1)),
    "a limiter at which both wait": Case(SLOW_REPLAY, "--rows", 32, RATIO),
    "a queue that is too short": Case(SLOW_REPLAY, "--queue", 256),
    "too few actors of a synchronous method": Case(SYNCHRONOUS, "--actors", 2, ppo.Config(actors=1), cores=2),
    "a slow inference server, idle cores": Case(SERVED, "--inference-servers", 2, CENTRAL),
    "a slow inference server, all cores used": Case(SERVED, "--hidden", "128 128", CENTRAL, cores=1),
    "too few workers": Case(WORKERS, "--actors", 4, a3c.Config(actors=1), cores=4),
    "a slow gradient service": Case(WAITING_WORKERS, "--shards", 2, a3c.Config(actors=2)),
    "a slow gradient service of one worker": Case(WAITING_WORKERS, "--unroll", 40, a3c.Config(actors=1)),
    "one thread for all": Case(SLOW_LEARNER, "--runtime", "local", more=(("runtime", "inline"),)),
}


def ran(case: Case) -> Ran:
    plain = Ran(case.times, case.cfg, roles=ROLES, updates_per_second=case.updates, cores=case.cores)
    return replace(plain, **dict(case.more))


@pytest.mark.parametrize("name", CASES)
def test_a_part_that_is_slowed_is_answered_with_the_setting_that_helps_it(name: str) -> None:
    found = advise(ran(CASES[name]))
    assert found is not None
    assert (found.setting, found.value) == (CASES[name].setting, CASES[name].value)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.setting != "--runtime"])
def test_what_is_advised_is_a_field_of_the_config_and_says_what_it_is_now(name: str) -> None:
    case = CASES[name]
    found = advise(ran(case))
    assert found is not None
    field = found.setting.removeprefix("--").replace("-", "_")
    now = getattr(case.cfg, field)
    shown = " ".join(map(str, now)) if isinstance(now, tuple) else f"{now:g}" if isinstance(now, float) else str(now)
    told = "sync" if field == "vectorizer" else shown  # it was auto, and came to that
    assert str(found).startswith(f"{found.setting} {found.value} (now {told}): ")


@pytest.mark.parametrize(
    "times",
    [
        {"actor/0": actor(environment=0.95, waiting_to_insert=0.05), "learner": learner(0.9)},
        {"learner": learner(0.1)},
        {"worker/0": {"learning": 0.9}, "worker/1": {"learning": 0.9}},
        SLOW_LEARNER,
    ],
    ids=["nobody waits", "one node", "workers that use all cores", "a small network that no thread would help"],
)
def test_where_no_setting_helps_none_is_named(times: dict[str, dict[str, float]]) -> None:
    assert advise(Ran(times, impala.Config(), roles=ROLES, cores=2)) is None


def test_the_evaluator_is_not_part_of_what_a_run_waits_for() -> None:
    times = SLOW_ENVIRONMENT | {"evaluator": {"waiting": 0.99, "evaluating": 0.01}}
    assert str(advise(Ran(times, impala.Config(), roles=ROLES, cores=8))) == str(
        advise(Ran(SLOW_ENVIRONMENT, impala.Config(), roles=ROLES, cores=8))
    )


def test_what_fills_a_replay_beforehand_is_no_slow_environment() -> None:
    times = SLOW_LEARNER | {"prefill": {"prefilling": 1.0}}
    roles = ROLES | {"prefill": Role.OTHER}
    assert advise(Ran(times, impala.Config(), roles=roles, cores=2)) is None


@pytest.mark.parametrize(
    ("idle", "setting", "why"), [(1.5, "--actors", "cores are idle"), (0.1, "--runtime", "cores are used up")]
)
def test_idle_cores_are_those_that_the_machine_counted(idle: float, setting: str, why: str) -> None:
    found = advise(Ran(SLOW_ENVIRONMENT, impala.Config(), roles=ROLES, cores=2, idle=idle))
    assert found is not None
    assert found.setting == setting
    assert why in found.why


def test_idle_cores_are_counted() -> None:
    cores = IdleCores()
    cores.look()
    assert cores.mean is None  # not yet
    deadline = time.monotonic() + 1.1
    while time.monotonic() < deadline:
        time.sleep(0.05)
    cores.look()
    assert cores.mean is not None
    assert 0.0 <= cores.mean <= len(os.sched_getaffinity(0)) + 0.1
