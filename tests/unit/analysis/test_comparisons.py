"""Settings beside each other: over seeds, over tasks, and how soon they reach a target."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from shoal.analysis.comparisons import ALL_TASKS, compare, on_one_clock, table_rows
from shoal.cli.main import main
from shoal.runs import directory
from shoal.runs.run_lists import find_runs


def run(
    path: Path,
    algorithm: str,
    env: str,
    seed: int,
    last: float,
    reached: bool,
    runtime: str = "local",
    target: float | None = 5.0,
    **config: Any,
) -> None:
    """Evaluated at 100 and 200 steps; what reaches its target does so at the second."""
    made = directory.RunDirectory.create(str(path), algorithm, env, seed, print)
    options = {"stop_return": target, "runtime": runtime}
    made.write_config({"algorithm": algorithm, "config": config, "env": env, "seed": seed, "options": options})
    for index, value in enumerate((2.0, last)):
        steps, seconds = 100 * (index + 1), (index + 1.0) * (seed + 1)
        row = {"eval_return": value, "spread": 1.0, "env_steps": steps, "seconds": seconds}
        made.write_row("evaluation", {**row, "reached": reached and index == 1})
    times = {"train_seconds": seconds, "seconds_to_target": seconds if reached else None}
    made.write_summary({"stopped_by": "return", "eval_return": last, "env_steps": 200, "life": 0, **times})
    made.close()


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    for seed in range(3):
        run(tmp_path / f"ia{seed}", "impala", "A-v0", seed, 10.0, reached=True)
        run(tmp_path / f"pa{seed}", "ppo", "A-v0", seed, 4.0, reached=seed == 0)
        run(tmp_path / f"ib{seed}", "impala", "B-v0", seed, -100.0, reached=False)
        run(tmp_path / f"pb{seed}", "ppo", "B-v0", seed, -200.0, reached=False)
    run(tmp_path / "only", "sac", "B-v0", 0, -300.0, reached=False)
    return tmp_path


def test_settings_are_compared_over_seeds_and_over_tasks(runs: Path) -> None:
    tasks = compare(find_runs([runs])[0], [], None)
    assert {env: [one.setting for one in settings] for env, settings in tasks.items()} == {
        "A-v0": ["impala", "ppo"],
        "B-v0": ["impala", "ppo", "sac"],
        ALL_TASKS: ["impala", "ppo"],
    }, "the best first; sac was not run on every task"
    impala, ppo = tasks["A-v0"]
    assert (impala.returns.iqm, impala.returns.low, impala.returns.high) == (10.0, 10.0, 10.0)
    assert impala.seconds is not None
    assert impala.steps is not None
    assert (impala.aimed, impala.reached, impala.seconds.iqm, impala.steps.iqm) == (3, 3, 4.0, 200.0)
    assert (ppo.reached, ppo.missed) == (1, [4.0, 6.0])
    over_all = tasks[ALL_TASKS]
    assert [one.returns.iqm for one in over_all] == [1.0, 0.25], "0 is the lowest of a task, 1 the highest: 0 and 0.5"
    assert [(one.returns.low, one.returns.high, one.runs) for one in over_all] == [(1.0, 1.0, 6), (0.25, 0.25, 6)]


def test_a_target_that_is_given_counts_from_the_first_evaluation_that_has_it(runs: Path) -> None:
    impala, ppo = compare(find_runs([runs])[0], [], 2.0)["A-v0"]
    assert impala.steps is not None
    assert ppo.seconds is not None
    assert (impala.steps.iqm, ppo.reached, ppo.seconds.iqm) == (100.0, 3, 2.0)
    impala, ppo = compare(find_runs([runs])[0], [], 11.0)["A-v0"]
    assert (impala.aimed, impala.reached, impala.seconds) == (3, 0, None)


def test_every_run_is_counted_against_a_target_that_is_given_also_one_that_had_none_of_its_own(tmp_path: Path) -> None:
    for seed, last in enumerate((10.0, 4.0)):
        run(tmp_path / str(seed), "impala", "A-v0", seed, last, reached=False, target=None)
    found, _ = find_runs([tmp_path])
    ((given,),) = compare(found, [], 8.0).values()
    assert (given.aimed, given.reached, given.missed) == (2, 1, [4.0]), "the second ended after 4 seconds without it"
    assert table_rows([given])[0][4] == "1 of 2"
    ((none,),) = compare(found, [], None).values()
    assert (none.aimed, none.reached, none.missed) == (0, 0, [])


def test_the_command_tells_and_draws_it(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", str(runs), "--output", str(tmp_path / "out.png")]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0].split("  ")[0] == "setting"
    assert {"A-v0", "B-v0", ALL_TASKS} <= set(said)
    cells = [" ".join(line.split()) for line in said]
    assert "impala 3 10.0 10.0 … 10.0 3 of 3 200 4.0" in cells
    assert "ppo 6 0.25 0.25 … 0.25 1 of 6 – –" in cells
    assert said[-1] == f"→ {tmp_path / 'out.png'}"
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")
    assert main(["compare", str(runs), "--json", "--by", "seed", "--where", "algorithm=impala"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {row["setting"] for row in found} == {f"impala: seed {seed}" for seed in range(3)}
    assert all(row["steps_to_target"]["iqm"] == 200.0 for row in found if row["env"] == "A-v0")


def test_the_command_counts_to_the_target_that_was_typed(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", str(runs), "--json", "--where", "env=A-v0", "--target", "2"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {row["setting"]: row["steps_to_target"]["iqm"] for row in found} == {"impala": 100.0, "ppo": 100.0}


def test_virtual_seconds_do_not_stand_beside_real_ones(tmp_path: Path) -> None:
    for runtime in ("inline", "local"):
        run(tmp_path / runtime, "impala", "A-v0", 0, 10.0, reached=True, runtime=runtime)
    (settings,) = compare(find_runs([tmp_path])[0], [], None).values()
    assert [one.setting for one in on_one_clock(settings)] == ["impala: runtime local"]
    virtual = [one for one in settings if one.virtual]
    assert on_one_clock(virtual) == virtual


def test_a_single_run_is_compared_with_the_spread_of_its_episodes(tmp_path: Path) -> None:
    for name, last in (("impala", 10.0), ("ppo", 4.0)):
        run(tmp_path / name, name, "A-v0", 0, last, reached=False)
    tasks = compare(find_runs([tmp_path])[0], [], None)
    assert [row[2:4] for row in table_rows(tasks["A-v0"])] == [
        ["10.0", "± 1.0, its episodes"],
        ["4.00", "± 1.00, its episodes"],
    ]
