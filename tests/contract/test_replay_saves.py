"""A run whose checkpoints hold its replay: what the table held is there when the run goes on, and learning goes on."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from test_programs import TINY

from shoal.algorithms import apex_dqn, impala
from shoal.errors import UserError
from shoal.experiment import checkpointing, experiment, view
from shoal.experiment.environments import describe_env
from shoal.experiment.replay_saves import folder_of, saving_nodes, start_replays, unsaved_note
from shoal.experiment.resuming import plan
from shoal.experiment.training import resume, train
from shoal.loops.wiring import Settings
from shoal.program import Program
from shoal.replay import Replay
from shoal.runtime import Run, launch

VALUES = {name: TINY[name] for name in ("envs_per_actor", "rows", "batch", "hidden")}


def config(**values: Any) -> Any:
    chosen = {**VALUES, "actors": 2, "capacity": 400, "learning_starts": 100, "samples_per_insert": 1.0, **values}
    return apex_dqn.Config(**chosen)


def run(path: Path, runtime: str = "inline", updates: int = 40, **values: Any) -> Path:
    options: dict[str, Any] = {"stop_updates": updates, "eval_episodes": 2, "checkpoint_replay": True}
    train(config(**values), quiet=True, run_dir=str(path), runtime=runtime, **options)
    return path


def program(**values: Any) -> Program:
    cfg = config(**values)
    made: Program = apex_dqn.program(cfg, describe_env(cfg), Settings())
    return made


def loaded(path: Path, **values: Any) -> dict[str, Replay]:
    """The replays of a run as they are when it goes on."""
    found = plan(path, {"stop_updates": 1000}, {})
    found.resumed.lock.release()
    made = program(**values)
    start_replays(made, path, found.resumed.meta)
    return {name: made.nodes[name].build({}.__getitem__) for name in saving_nodes(made)}


def test_who_asks_for_a_replay_where_none_is_saved_is_told() -> None:
    queue = impala.program(impala.Config(), describe_env(impala.Config()), Settings())
    said = unsaved_note(queue, "local")
    assert said is not None
    assert "saves nothing here" in said
    assert unsaved_note(queue, "inline") is None
    assert unsaved_note(program(), "local") is None


RAY = pytest.param("ray", marks=[pytest.mark.ray, pytest.mark.slow])


@pytest.mark.parametrize("runtime", ["inline", "local", RAY])
def test_a_run_goes_on_with_what_its_replay_held_and_learns_at_once(tmp_path: Path, runtime: str) -> None:
    path = run(tmp_path / "run", runtime)
    before = json.loads((path / "summary.json").read_text())
    resume(path, quiet=True, stop_updates=before["learner_steps"] + 3)
    after = json.loads((path / "summary.json").read_text())
    assert after["learner_steps"] == before["learner_steps"] + 3
    assert after["env_steps"] - before["env_steps"] < 100  # --learning-starts, which an empty replay would wait for


@pytest.mark.parametrize("runtime", ["local", RAY])
def test_a_replay_that_is_killed_in_a_run_comes_back_with_its_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runtime: str
) -> None:
    runs: list[Run] = []
    monkeypatch.setattr(experiment, "launch", lambda *given, **named: runs.append(launch(*given, **named)) or runs[-1])
    told: list[str] = []
    monkeypatch.setattr(view.Quiet, "note", lambda self, text: told.append(text))
    updates: list[int] = []

    def kill_after_some_learning(checkpoint: dict[str, Any]) -> bool:
        if updates or checkpoint["updates"] > 50:
            updates.append(checkpoint["updates"])
        if len(updates) == 1:
            os.kill(runs[0].pids()["replay/0"], signal.SIGKILL)
        return len(updates) == 4

    options: dict[str, Any] = {"checkpoint_every": 1.0, "checkpoint_replay": True, "stop_seconds": 120.0}
    options |= {"run_dir": str(tmp_path / "run"), "on_checkpoint": kill_after_some_learning, "eval_episodes": 2}
    result = train(config(shards=2), quiet=True, runtime=runtime, **options)
    assert any(line.startswith("replay/0 comes back with what it has saved in checkpoint 0000") for line in told), told
    assert updates[0] < updates[1] < updates[2], "it goes on learning, and saving"
    assert result.stopped_by == "callback"
    assert result.restarts == 1
    assert result.lost["items"] > 0


def keys_of(replay: Replay) -> list[int]:
    keys: list[int] = sorted(replay._tables["transitions"].saved_arrays()["items"]["key"].tolist())
    return keys


def test_the_table_has_the_size_and_the_keys_that_it_had(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held: dict[tuple[str, str], tuple[int, list[int]]] = {}
    save = Replay.save

    def spy(self: Replay, path: str, *, tag: str, keep: list[str]) -> dict[str, float]:
        held[Path(path).name, tag] = self.info()["transitions"]["size"], keys_of(self)
        return save(self, path, tag=tag, keep=keep)

    monkeypatch.setattr(Replay, "save", spy)
    path = run(tmp_path / "run", shards=2)
    newest = sorted((path / "checkpoints").glob("0*"))[-1]
    saves = json.loads((newest / "manifest.json").read_text())["body"]["meta"]["replay"]
    assert saves == {"replay/0": newest.name, "replay/1": newest.name}
    for node, replay in loaded(path, shards=2).items():
        size, keys = held[node.replace("/", "-"), newest.name]
        assert size >= 50
        assert (replay.info()["transitions"]["size"], keys_of(replay)) == (size, keys)


def test_a_damaged_or_missing_save_costs_its_checkpoint_and_is_told(tmp_path: Path) -> None:
    path = run(tmp_path / "run")
    resume(path, quiet=True, stop_updates=60)
    newest = sorted((path / "checkpoints").glob("0*"))[-1]
    manifest = folder_of(path, "replay") / f"manifest-{newest.name}"
    manifest.write_bytes(manifest.read_bytes()[:-9])
    found = plan(path, {"stop_updates": 90}, {})
    found.resumed.lock.release()
    assert found.resumed.meta["updates"] == 40
    assert any(line.startswith("The replay of") and line.endswith("the one before.") for line in found.resumed.lines)
    resume(path, quiet=True, stop_updates=90)
    assert json.loads((path / "summary.json").read_text())["learner_steps"] == 90


def test_the_size_of_a_saved_replay_cannot_change(tmp_path: Path) -> None:
    path = run(tmp_path / "run")
    with pytest.raises(UserError, match="--capacity cannot change when a run goes on with its replay"):
        resume(path, quiet=True, stop_updates=60, capacity=800)


def test_queues_are_not_saved() -> None:
    cfg = impala.Config()
    assert saving_nodes(impala.program(cfg, describe_env(cfg), Settings())) == []


def test_a_save_that_this_machine_does_not_see_makes_no_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As that of a replay on another machine of a cluster."""
    elsewhere = tmp_path / "another machine"
    monkeypatch.setattr(checkpointing, "folder_of", lambda run, node: elsewhere / node)
    told: list[str] = []
    monkeypatch.setattr(view.Quiet, "note", lambda self, text: told.append(text))
    path = run(tmp_path / "run", "local")
    assert not list((path / "checkpoints").glob("0*"))
    assert [line for line in told if "replay is on a machine that does not share" in line]
