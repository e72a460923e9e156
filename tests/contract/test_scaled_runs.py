"""From 1 to 6 to 2 actors while a run goes on: nothing is lost but the open episodes of those that leave."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from starting import Start, wait_until

from shoal import envs
from shoal.algorithms import a3c, apex_dqn, impala, ppo, r2d2
from shoal.loops.wiring import Settings
from shoal.program import Handle
from shoal.runtime.restarts import Loss, Supervisor

ENVS = 2
SMALL: dict[str, Any] = {"env": "CartPole-v1", "preset": "none", "envs_per_actor": ENVS, "hidden": (8,)}
REPLAY: dict[str, Any] = {"learning_starts": 40, "batch": 8, "samples_per_insert": 0.0, "rows": 4}
SEQUENCES: dict[str, Any] = {"lstm": 8, "length": 8, "period": 4, "burn_in": 2}
CASES: dict[str, tuple[Any, Any]] = {
    "impala": (impala, impala.Config(**SMALL, unroll=4, batch=12, queue=24)),
    "ppo": (ppo, ppo.Config(**SMALL, unroll=4, epochs=1, minibatches=1)),
    "apex_dqn": (apex_dqn, apex_dqn.Config(**SMALL, **REPLAY)),
    "a3c": (a3c, a3c.Config(**SMALL, unroll=4)),
    "a2c": (a3c, a3c.Config(**SMALL, unroll=4, synchronous=True)),
    "r2d2 with central inference": (
        r2d2,
        r2d2.Config(**SMALL, **REPLAY | {"learning_starts": 8, "batch": 2}, **SEQUENCES, inference="central"),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_actors_come_and_go_while_the_run_learns(two_runtimes: Start, case: str) -> None:
    check(two_runtimes, *CASES[case])


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_actors_come_and_go_on_ray(ray_cluster: None, case: str) -> None:
    from shoal.runtime import launch

    runs: list[Any] = []

    def start(program: Any, seed: int = 0, supervisor: Any = None) -> Any:
        runs.append(launch(program, "ray", seed=seed, supervisor=supervisor))
        return runs[-1]

    try:
        check(start, *CASES[case])
    finally:
        for run in runs:
            run.close()


def check(start: Callable[..., Any], page: Any, cfg: Any) -> None:
    losses: list[Loss] = []
    program = page.program(cfg, envs.describe(cfg.env), Settings(evaluate=False))
    run = start(program, seed=1, supervisor=Supervisor(on_loss=losses.append))
    metrics = run.client(Handle("metrics"))

    def counts() -> dict[str, float]:
        found: dict[str, float] = metrics.snapshot()["counts"]
        return found

    def learns(updates: int = 3) -> None:
        """Updates are made, and everybody who is there now makes steps."""
        acting = [node.name for node in program.group("actors").members]

        def made(snapshot: dict[str, Any]) -> dict[str, float]:
            steps = {name: snapshot["lives"].get(name, (0, {}))[1].get("env_steps", 0.0) for name in acting}
            return steps | {"updates": snapshot["counts"].get("learner_steps", 0.0) / updates}

        before = made(metrics.snapshot())

        def moved() -> bool:
            now = made(metrics.snapshot())
            return all(now[name] >= before[name] + 1 for name in now)

        wait_until(run, moved)

    learns()
    for _ in range(5):
        run.add(program.next_member("actors"))
    learns()
    stepped = counts()["env_steps"]
    for index in (5, 4, 3, 2):
        run.remove(f"{program.stems['actors']}/{index}")
    wait_until(
        run, lambda: set(metrics.snapshot()["nodes"]).isdisjoint(f"{program.stems['actors']}/{i}" for i in range(2, 6))
    )
    learns()
    told = counts()
    assert told["env_steps"] > stepped
    assert 0 < told["lost_episodes"] <= 4 * ENVS
    assert {name: told[name] for name in ("lost_rows", "lost_items", "lost_updates") if told.get(name)} == {}
    assert losses == []
    run.add(program.next_member("actors"))  # under a name that was used before
    learns()
    assert counts()["lost_episodes"] == told["lost_episodes"]
    assert sum(run.supervisor.restarts.values()) == 0
