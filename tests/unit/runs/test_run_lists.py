"""Runs seen from outside: states, conditions, differences, and what the commands tell of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.saved_runs import saved_run

from shoal.analysis.grouping import chosen, grouped
from shoal.cli.commands.common import fit
from shoal.cli.main import main
from shoal.errors import UserError
from shoal.runs.run_lists import differences, find_runs, is_held, state_of
from shoal.runs.tables import aligned, folded

HOLDER = """
import sys
from pathlib import Path
from shoal.checkpoints import RunLock
RunLock(Path(sys.argv[1])).acquire()
print("held", flush=True)
sys.stdin.read()
"""


def ended(run: Path, stopped_by: str = "steps", **more: Any) -> Path:
    summary = {"stopped_by": stopped_by, "eval_return": 5.0, "env_steps": 100, "train_seconds": 2.0, "life": 0, **more}
    (run / "summary.json").write_text(json.dumps(summary))
    return run


def checkpointed(run: Path) -> Path:
    (run / "checkpoints" / "000001").mkdir(parents=True)
    (run / "checkpoints" / "000001" / "manifest.json").write_text("{}")
    return run


def test_a_runs_state_is_that_of_its_lock_and_its_summary(tmp_path: Path) -> None:
    run = saved_run(tmp_path / "run")
    assert state_of(run).resumable, "from its weights"
    (run / "weights.npz").unlink()
    assert (state_of(run).state, state_of(run).resumable) == ("crashed", False)
    checkpointed(run)
    assert (state_of(run).state, state_of(run).resumable) == ("crashed", True)
    for reason, state in (("interrupt", "interrupted"), ("failure", "failed"), ("return", "finished")):
        found = state_of(ended(run, reason))
        assert (found.state, found.resumable) == (state, state != "finished")
    record = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps(record | {"life": 1}))
    assert state_of(run).state == "crashed", "it has gone on since its summary, and was killed"


def test_a_run_is_running_while_another_process_holds_its_lock(tmp_path: Path) -> None:
    run = checkpointed(ended(saved_run(tmp_path / "run"), "interrupt"))
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(run)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert holder.stdin is not None
    assert holder.stdout is not None
    try:
        assert holder.stdout.readline() == b"held\n"
        found = state_of(run)
        assert (found.state, found.resumable, found.stopped_by) == ("running", False, None)
    finally:
        holder.communicate()
    assert not is_held(run)
    found = state_of(run)
    assert (found.state, found.resumable, found.stopped_by) == ("interrupted", True, "interrupt")


def test_runs_are_found_in_folders_of_folders_and_what_is_damaged_is_told(tmp_path: Path) -> None:
    one, two = saved_run(tmp_path / "one"), saved_run(tmp_path / "sweeps" / "x" / "runs", seed=4)
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "config.json").write_text("{")
    found, strange = find_runs([tmp_path])
    assert {run.path for run in found} == {one, two}
    assert len(strange) == 1
    assert [run.seed for run in chosen(found, "seed=4")] == [4]
    assert chosen(found, "hidden=8,state=crashed, env=CartPole-v1") == found
    assert chosen(found, "gamma=0.5") == []
    assert chosen(found, "gamma=99e-2") == found, "numbers are compared as numbers"
    assert chosen(found, "state=resumable") == found
    for run in (one, two):
        (run / "weights.npz").unlink()
    assert chosen(find_runs([tmp_path])[0], "state=resumable") == []
    checkpointed(one)
    assert [run.path for run in chosen(find_runs([tmp_path])[0], "state=resumable")] == [one]
    with pytest.raises(UserError, match="--where seed is no condition"):
        chosen(found, "seed")
    with pytest.raises(UserError, match=r"--where gama=1: none of these runs has a field gama\. Did you mean gamma"):
        chosen(found, "gama=1")
    with pytest.raises(UserError, match=r"--where state runing is not known: choose one of running, finished"):
        chosen(found, "state=runing")


def test_a_truth_is_named_by_its_word_and_is_no_number(tmp_path: Path) -> None:
    for name, synchronous in (("yes", True), ("no", False)):
        saved_run(tmp_path / name, "a3c", synchronous=synchronous)
    found, _ = find_runs([tmp_path])
    names = {word: [run.path.name for run in chosen(found, f"synchronous={word}")] for word in ("true", "false", "1")}
    assert names == {"true": ["yes"], "false": ["no"], "1": []}


def test_differences_of_config_options_and_result(tmp_path: Path) -> None:
    one = ended(saved_run(tmp_path / "one", gamma=0.9))
    two = ended(saved_run(tmp_path / "two", gamma=0.8, seed=3), eval_return=7.0)
    found = differences(one, two)
    assert found["config"] == {"gamma": (0.9, 0.8)}
    assert found["options"] == {"seed": (0, 3)}
    assert found["result"] == {"eval_return": (5.0, 7.0)}
    assert found["versions"] == {}


def test_settings_are_told_apart_by_what_differs_or_by_what_is_named(tmp_path: Path) -> None:
    for number, (gamma, seed) in enumerate([(0.9, 0), (0.9, 1), (0.8, 0)]):
        ended(saved_run(tmp_path / str(number), gamma=gamma, seed=seed))
    found, _ = find_runs([tmp_path])
    (groups,) = grouped(found).values()
    assert [(group.label, len(group.runs)) for group in groups] == [("impala: gamma 0.8", 1), ("impala: gamma 0.9", 2)]
    (groups,) = grouped(found, ["seed"]).values()
    assert [(group.label, len(group.runs)) for group in groups] == [("impala: seed 0", 2), ("impala: seed 1", 1)]


def test_a_label_names_four_settings_and_counts_the_others(tmp_path: Path) -> None:
    names = ("gamma", "unroll", "batch", "entropy_cost", "value_cost")
    labels = []
    for count in (4, 5):
        for value in (1, 2):
            ended(saved_run(tmp_path / str(count) / str(value), **dict.fromkeys(names[:count], value)))
        (groups,) = grouped(find_runs([tmp_path / str(count)])[0], names[:count]).values()
        labels.append(groups[0].label)
    four = "impala: gamma 1, unroll 1, batch 1, entropy_cost 1"
    assert labels == [four, f"{four}, and 1 more"]


def test_the_commands_tell_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = checkpointed(ended(saved_run(tmp_path / "one", gamma=0.9), "interrupt"))
    two = ended(saved_run(tmp_path / "two", gamma=0.8, seed=3), eval_return=7.0, seconds_to_target=3.0)
    rows = [
        {"kind": "progress", "seconds": 2.0, "counts": {"env_steps": 90}, "rates": {}, "values": {"loss": 0.5}},
        {"kind": "evaluation", "eval_return": 4.0, "spread": 1.0, "env_steps": 80, "seconds": 1.0},
    ]
    (one / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"kind": "prog')

    def told(*words: str) -> str:
        assert main(words) == 0
        return capsys.readouterr().out

    listed = told("runs", str(tmp_path), "--sort", "return").splitlines()
    assert "two" in listed[1]
    assert "interrupted, resumable" in listed[2]
    assert json.loads(told("runs", str(tmp_path), "--where", "seed=3", "--json"))[0]["eval_return"] == 7.0
    status = told("status", str(one))
    for part in ("interrupted (stopped by interrupt)", "4.0 ± 1.0 at 80 steps", "loss 0.5", f"shoal resume {one}"):
        assert part in status
    assert "config gamma" in told("diff", str(one), str(two))
    assert told("diff", str(one), str(one)) == "they do not differ\n"
    compared = told("compare", str(tmp_path))
    assert [line.split() for line in compared.splitlines()[2:4]] == [
        ["CartPole-v1"],
        ["impala:", "gamma", "0.8", "1", "7.00", "–", "3.0"],
    ]
    assert {row["iqm"] for row in json.loads(told("compare", str(tmp_path), "--json"))} == {5.0, 7.0}


def with_progress(run: Path, env_steps: int, seconds: float, **more: Any) -> Path:
    row = {"kind": "progress", "seconds": seconds, "counts": {"env_steps": env_steps, **more}}
    (run / "metrics.jsonl").write_text(json.dumps(row | {"rates": {"env_steps": 50.0}}) + "\n")
    return run


def test_runs_are_listed_in_the_order_that_was_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ended(saved_run(tmp_path / "a"), eval_return=-5.0, env_steps=300, train_seconds=1.0)
    ended(saved_run(tmp_path / "b"), eval_return=2.0, env_steps=100, train_seconds=3.0)
    with_progress(saved_run(tmp_path / "c"), 200, 2.0)  # killed before an evaluation
    for name, began in (("a", 100.0), ("b", 300.0), ("c", 200.0)):
        os.utime(tmp_path / name / "config.json", (began, began))
    orders = {"began": "bca", "return": "bac", "steps": "acb", "seconds": "bca", "name": "abc"}
    for sort, order in orders.items():
        assert main(["runs", str(tmp_path), "--sort", sort, "--json"]) == 0
        assert [Path(row["run"]).name for row in json.loads(capsys.readouterr().out)] == list(order), sort


def test_of_a_run_that_has_ended_the_summary_says_how_far_it_came_and_no_rate_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = with_progress(saved_run(tmp_path / "run"), 90, 2.0, learner_steps=30)
    record = json.loads((run / "config.json").read_text())
    record["options"] |= {"stop_updates": 40, "stop_steps": 200, "stop_seconds": 8.0}
    (run / "config.json").write_text(json.dumps(record))
    for killed, towards in (
        (True, ["steps 90 of 200", "seconds 2 of 8", "updates 30 of 40"]),
        (False, ["steps 100 of 200", "seconds 6.5 of 8", "updates 40 of 40"]),
    ):
        if not killed:
            ended(run, "updates", learner_steps=40, train_seconds=6.5)
        assert main(["status", str(run)]) == 0
        said = capsys.readouterr().out
        assert [
            line.removeprefix("towards").strip() for line in said.splitlines() if line.startswith("towards")
        ] == towards
        assert "steps/s" not in said


@pytest.mark.parametrize("width", [60, 80])
def test_in_a_terminal_what_they_tell_has_no_line_that_is_broken(
    width: int, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", str(width))
    one, two = (
        checkpointed(saved_run(Path("runs") / f"apex_dqn-CartPole-v1-20261117-07223{seed}-s{seed}", seed=seed))
        for seed in (1, 2)
    )
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    for words in (["runs"], ["diff", str(one), str(two)]):
        assert main(words) == 0
        told = capsys.readouterr().out
        assert max(map(len, told.splitlines())) <= width
        assert all(str(run) in told.split() for run in (one, two)), "to be copied"


def test_a_table_folds_where_it_is_too_wide() -> None:
    rows = [["setting", "runs", "return"], ["learning_rate 0.001", "2", "498.1"]]
    assert folded(rows, 34) == folded(rows, None) == aligned(rows)
    assert folded(rows, 20) == ["  runs  return", "learning_rate 0.001\n     2   498.1"]


def test_a_sentence_is_broken_between_words_and_a_command_is_not(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    told = "This film needs packages that are not there; run: pip install 'shoal[video]'\nshoal eval runs/NAME --seed 1"
    assert fit(told, sys.stdout) == told, "other programs read lines"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert fit(told, sys.stdout).split("\n") == [
        "This film needs packages that are not",
        "there; run: pip install 'shoal[video]'",
        "shoal eval runs/NAME --seed 1",
    ]
