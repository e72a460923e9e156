"""What is told of Shoal beside its peers, and what each of them is asked to do: all that needs no peer."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from bench.peers import report, running
from bench.peers import tasks as counting
from bench.peers.sides import Side, sides
from bench.peers.tasks import CONTROL, METHODS, TASKS, Clock

from shoal.arguments.words import read
from shoal.cli import commands
from shoal.runs import registry


def entry(peer: str, method: str, *rates: float) -> dict[str, Any]:
    who = {"label": Side(peer, method, {}).label, "peer": peer, "method": method, "setting": "2 threads"}
    turns = [{"env_steps_per_second": rate, "acted_per_second": rate, "passes": 4.0} for rate in rates]
    return report.row(who, turns)


def part(*rows: dict[str, Any]) -> dict[str, Any]:
    return {
        "date": "2026-11-17",
        "machine": {"cores": 2, "processor": "a processor", "system": "Linux", "python": "3.11"},
        "versions": {"Shoal": {"torch": "2.13.0"}},
        "rounds": 3,
        "seconds": 30.0,
        "rows": list(rows),
    }


@pytest.fixture
def results() -> dict[str, Any]:
    rows = [entry("shoal", "ppo", 900, 1100, 1000), entry("sb3", "ppo", 500, 450, 9999), entry("rllib", "ppo")]
    rows += [entry("cleanrl_native", "ppo", 1250, 1240, 1260)]
    return {"pong": {"ppo": part(*rows)}}


def test_the_table_tells_medians_all_rounds_and_the_ratio_to_the_same_method(results: dict[str, Any]) -> None:
    _, _, ours, theirs, nothing, native = report.table(results).splitlines()
    assert ours == "| Shoal PPO | 1,000 | 900, 1,100, 1,000 |  | 4.0 | 2 threads |"
    assert theirs == "| Stable-Baselines3 PPO | 500 | 500, 450, 9,999 | 0.50x | 4.0 | 2 threads |"
    assert nothing == "| RLlib PPO | no result | | | | 2 threads |"
    assert "1.25x" in native


def test_peers_that_are_faster_are_named(results: dict[str, Any]) -> None:
    (lost,) = report.losses(results)
    assert lost.startswith("CleanRL-style PPO, native vectors is faster on Pong")
    assert "1.25" in lost


def test_results_are_json_and_a_picture_with_and_without_figures(results: dict[str, Any], tmp_path: Path) -> None:
    assert json.loads(json.dumps(results)) == results
    assert "2026-11-17" in report.heading(results)
    assert "2.13.0" in report.heading(results)
    pytest.importorskip("matplotlib")
    results["cartpole"] = {"ppo": part(entry("rllib", "ppo"), entry("shoal", "ppo", 0))}
    report.draw(results, tmp_path / "peers.png")
    assert (tmp_path / "peers.png").stat().st_size > 1_000


def test_a_run_replaces_its_own_tasks_and_methods_alone(results: dict[str, Any]) -> None:
    new = {"pong": {"appo": part(entry("shoal", "appo", 5))}, "cartpole": {"ppo": part(entry("shoal", "ppo", 7))}}
    found = report.merged(results, new)
    assert found == {"pong": {**results["pong"], **new["pong"]}, "cartpole": new["cartpole"]}
    assert report.merged(found, {"pong": {"ppo": part()}})["pong"] == {"ppo": part(), **new["pong"]}
    assert report.table(found).count("| Shoal ") == 3


def test_bars_stand_by_method_the_fastest_first(results: dict[str, Any]) -> None:
    order = [found["peer"] for found in report.ordered([entry("shoal", "appo", 1), *results["pong"]["ppo"]["rows"]])]
    assert order == ["shoal", "cleanrl_native", "shoal", "sb3"]


@pytest.mark.parametrize(
    ("method", "found", "rate", "passes"),
    [
        ("ppo", {"env_steps_per_second": 100, "trained_rows_per_second": 400}, 100, 4.0),
        ("ppo", {"env_steps_per_second": 100, "trained_steps_per_second": 96}, 96, 4.0),  # Shoal: once per step
        ("impala", {"env_steps_per_second": 100, "trained_rows_per_second": 60}, 60, 0.6),  # the rest was dropped
        ("sac", {"env_steps_per_second": 80, "trained_rows_per_second": 80 * 256}, 80, 256.0),
        ("sac", {"env_steps_per_second": 80, "trained_steps_per_second": 80 * 256}, 80, 256.0),
        ("impala", {"env_steps_per_second": 0, "trained_rows_per_second": 0}, 0, 0.0),
    ],
)
def test_steps_that_are_not_trained_on_do_not_count(
    method: str, found: dict[str, Any], rate: float, passes: float
) -> None:
    told = report.reading("halfcheetah" if method in CONTROL else "pong", method, found)
    assert (told["env_steps_per_second"], told["passes"]) == (rate, passes)


def test_the_clock_leaves_the_first_update_and_the_warm_up_out(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter([10.0, 11.0, 12.5, 15.0, 17.5])
    monkeypatch.setattr(counting.time, "perf_counter", lambda: next(now))
    clock = Clock(seconds=5.0)
    assert [clock.update(env_steps=steps) for steps in (100, 200, 300, 400, 900)] == [True, True, True, True, False]
    assert json.loads(clock.result(("pytest",)))["env_steps_per_second"] == 120.0


@pytest.mark.parametrize("task", TASKS)
def test_every_size_is_shared_by_whole_numbers(task: str) -> None:
    for method, work in TASKS[task].works.items():
        assert method in METHODS
        assert work.rows % (work.unroll * work.minibatches) == 0
        assert work.environments % 2 == 0 or method in CONTROL
        if method == "ppo":
            assert work.rows == work.environments * work.unroll


@pytest.mark.parametrize("task", TASKS)
def test_shoal_understands_what_it_is_asked_and_has_the_sizes_of_the_task(task: str) -> None:
    for side in sides(task):
        if side.peer != "shoal":
            continue
        work = TASKS[task].work(side.method)
        for setting in side.settings:
            words = side.command(task, setting, 3.0)
            assert words[:6] == [sys.executable, "-m", "shoal", "bench", "throughput", side.method]
            config = registry.load(side.method).Config
            given = read(words[6:], [*commands.options()["bench throughput"], config], "shoal").values[config]
            assert given["actors"] * given["envs_per_actor"] == work.environments
            if side.method in CONTROL:
                assert (given["batch"], given["samples_per_insert"]) == (work.rows, work.epochs)
                continue
            assert given["unroll"] == work.unroll
            if side.method != "impala":
                assert (given["epochs"], given["minibatches"]) == (work.epochs, work.minibatches)
            if side.method != "ppo":
                assert given["batch"] * work.unroll == work.rows


def test_what_a_side_leaves_behind_is_ended(tmp_path: Path) -> None:
    orphan = "import subprocess, sys; p = subprocess.Popen(['sleep', '60'], start_new_session=True); print(p.pid)"
    command = ["sh", "-c", f'"{sys.executable}" -c "{orphan}" > {tmp_path}/pid; echo "{{}}"']
    with running.adopting():
        assert running.run(command, limit=60) == {}
    assert not Path("/proc", (tmp_path / "pid").read_text().strip()).exists()


def test_tensors_in_shared_memory_go_with_the_side_that_made_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "SHARED", tmp_path)
    kept = [tmp_path / f"torch_{os.getpid()}_1", tmp_path / "torch_of_somebody", tmp_path / "sem.abc"]
    make = " ".join(map(str, kept))
    assert running.run(["sh", "-c", f"touch {tmp_path}/torch_$$_2_3 {make}; echo '{{}}'"], limit=60) == {}
    assert sorted(tmp_path.iterdir()) == sorted(kept)


def test_a_side_without_a_result_says_what_it_said_last() -> None:
    with pytest.raises(running.Failed, match="it is so"):
        running.run(["sh", "-c", "echo it is so >&2; exit 1"], limit=60)
    with pytest.raises(running.Failed, match="no result"):
        running.run(["sleep", "60"], limit=0.2)
