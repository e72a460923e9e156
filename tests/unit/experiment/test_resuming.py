"""What may be different when a run goes on, what is refused, and from which checkpoint it goes on."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from shoal import envs
from shoal.algorithms import apex_dqn, impala
from shoal.checkpoints import Checkpoints, DamagedCheckpoint, RunLock
from shoal.errors import UserError
from shoal.experiment.checkpointing import as_parts, start_program
from shoal.experiment.resuming import Plan, finished, plan
from shoal.program import Program
from shoal.runs import records
from shoal.runs.directory import RunDirectory, read_weights
from shoal.runs.options import RunOptions
from shoal.services.metrics import LASTING, UPDATES, Metrics
from shoal.types import Role

META = {"algorithm": "impala", "env": "CartPole-v1", "updates": 7, "env_steps": 900, "seconds": 3.0, "evaluations": 0}
META |= {"evaluation": None, "best": None, "metrics_bytes": 0}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """The directory of a run that was interrupted, with two checkpoints."""
    options = RunOptions(stop_steps=1000, run_dir=str(tmp_path))
    record = records.record_of("impala", impala.Config(), envs.describe("CartPole-v1"), options)
    (tmp_path / "config.json").write_text(json.dumps(record, default=str))
    store = Checkpoints(tmp_path / "checkpoints")
    for updates in (6, 7):
        store.save({"learner": {"updates": updates}, "metrics": {"notes": []}}, {**META, "updates": updates})
    return tmp_path


def planned(path: Path, options: dict[str, Any] | None = None, **values: Any) -> Plan:
    found = plan(path, options or {}, values)
    found.resumed.lock.release()
    return found


def test_the_newest_checkpoint_is_gone_on_from_and_what_differs_is_told(run: Path) -> None:
    found = planned(run, {"stop_steps": 5000, "runtime": "inline"}, actors=3)
    assert (found.options.stop_steps, found.options.runtime, found.cfg.actors) == (5000, "inline", 3)
    assert found.resumed.life == 1
    assert found.resumed.parts["learner"]["updates"] == 7
    assert found.resumed.lines[:3] == [
        "--stop-steps was 1000, now 5000",
        "--runtime was local, now inline",
        "--actors was 1, now 3",
    ]
    assert found.resumed.lines[3] == "going on from 000002: 7 updates, 900 steps, 3 s of training"


def test_what_cannot_change_is_refused_with_its_reason(run: Path) -> None:
    for options, values, sentence in (
        ({"seed": 5}, {}, "--seed cannot change when a run goes on: a run goes on with its own random numbers"),
        ({"run_dir": "other"}, {}, "--run-dir cannot change"),
        ({"freeze": "torso"}, {}, "--freeze cannot change when a run goes on: its optimizer has moments"),
        ({"restore": "old"}, {}, "--restore cannot change when a run goes on: it has weights of its own by now"),
        ({}, {"env": "Acrobot-v1"}, "--env cannot change when a run goes on"),
        ({}, {"env_options": {"sutton_barto_reward": True}}, "--env-option cannot change when a run goes on"),
    ):
        with pytest.raises(UserError, match=sentence):
            planned(run, options, **values)
    planned(run)  # nobody has kept the lock


@pytest.mark.parametrize(("name", "passed"), [("updates", 7), ("steps", 900), ("seconds", 3)])
def test_a_stop_that_is_behind_is_refused(run: Path, name: str, passed: int) -> None:
    for given in (1, passed):
        with pytest.raises(
            UserError, match=rf"--stop-{name} {given} is behind the run in .* has {passed} {name}: give"
        ):
            planned(run, {f"stop_{name}": given})
    planned(run, {f"stop_{name}": passed + 1})


@pytest.mark.parametrize("given", [{"stop_updates": 9}, {"stop_return": 500.0}])
def test_a_recorded_stop_that_was_reached_is_named_where_another_one_is_given(run: Path, given: dict[str, Any]) -> None:
    Checkpoints(run / "checkpoints").save({"metrics": {"notes": []}}, {**META, "env_steps": 1000})
    sentence = r"would end at once, by the --stop-steps 1,000 .* reached \(1,000 steps\): give --stop-steps too"
    with pytest.raises(UserError, match=sentence):
        planned(run, given)
    planned(run, given | {"stop_steps": 2000})
    planned(run)  # to end it in order


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("updates", None),
        ("updates", "x"),
        ("env_steps", []),
        ("seconds", -1),
        ("evaluations", True),
        ("metrics_bytes", 10**400),
        ("evaluation", "x"),
        ("best", "x"),
        ("replay", ["x"]),
        ("replay", {"replay": 3}),
        ("replay", {"replay": "../../x"}),
    ],
)
def test_a_checkpoint_that_says_nonsense_of_itself_is_passed_over(run: Path, name: str, value: Any) -> None:
    Checkpoints(run / "checkpoints").save({"metrics": {"notes": []}}, {**META, name: value})
    found = planned(run).resumed
    assert found.checkpoint is not None
    assert found.checkpoint.path.name == "000002"
    assert "damaged" in found.lines[0]


@pytest.mark.parametrize("parts", [{}, {"metrics": None}, {"metrics": {}}])
def test_a_checkpoint_without_counts_is_passed_over(run: Path, parts: dict[str, Any]) -> None:
    Checkpoints(run / "checkpoints").save(parts, META)
    assert "has no counts. Going on from the one before." in planned(run).resumed.lines[0]


def test_a_capacity_may_change_where_the_replay_was_not_saved(tmp_path: Path) -> None:
    cfg = apex_dqn.Config(capacity=1000)
    made = RunDirectory.create(str(tmp_path / "other"), "apex_dqn", "CartPole-v1", 0, print)
    made.write_config(records.record_of("apex_dqn", cfg, envs.describe("CartPole-v1"), RunOptions(stop_steps=1000)))
    made.close()
    assert planned(tmp_path / "other", capacity=2000).cfg.capacity == 2000


def test_the_shape_of_a_replay_that_was_saved_cannot_change(tmp_path: Path) -> None:
    cfg = apex_dqn.Config(capacity=1000, shards=2, actors=2)
    made = RunDirectory.create(str(tmp_path), "apex_dqn", "CartPole-v1", 0, print)
    made.write_config(records.record_of("apex_dqn", cfg, envs.describe("CartPole-v1"), RunOptions(stop_steps=1000)))
    made.close()
    meta = {**META, "algorithm": "apex_dqn", "replay": {}}
    Checkpoints(tmp_path / "checkpoints").save({"learner": {"updates": 7}, "metrics": {"notes": []}}, meta)
    for values in ({"capacity": 2000}, {"shards": 1}, {"gamma": 0.5}, {"n": 2}, {"reward_clip": 3.0}):
        (name,) = values
        with pytest.raises(
            UserError, match=f"--{name.replace('_', '-')} cannot change when a run goes on with its replay"
        ):
            planned(tmp_path, **values)
    assert planned(tmp_path, capacity=1000, shards=2, actors=3).cfg.actors == 3


def test_an_environment_that_was_in_no_module_may_be_given_from_one(run: Path) -> None:
    record = json.loads((run / "config.json").read_text())
    record["config"]["env"] = record["env"] = "make_env"
    (run / "config.json").write_text(json.dumps(record | {"lost": ["env"]}))
    with pytest.raises(UserError, match="give --env module:factory"):
        planned(run)
    with pytest.raises(UserError, match=r"is of the env CartPole-v1, and the run in .* of make_env"):
        planned(run, env="own:make_env")  # the checkpoint of this test
    shutil.rmtree(run / "checkpoints")
    assert planned(run, env="own:make_env").cfg.env == "own:make_env"


def test_a_checkpoint_of_a_function_that_is_in_a_module_by_now_is_the_runs_own(run: Path) -> None:
    record = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps(record | {"env": "CartPole-v1"}))
    Checkpoints(run / "checkpoints").save(
        {"learner": {"updates": 8}, "metrics": {"notes": []}}, {**META, "env": "own:CartPole-v1"}
    )
    assert planned(run).resumed.parts["learner"]["updates"] == 8


def test_a_function_is_the_environment_of_that_name(run: Path) -> None:
    record = json.loads((run / "config.json").read_text())
    record["config"]["env"] = f"{__name__}:make_cartpole"
    (run / "config.json").write_text(json.dumps(record))
    found = planned(run, env=make_cartpole)
    assert found.cfg.env is make_cartpole
    assert not any("--env" in line for line in found.resumed.lines)


def make_cartpole() -> Any:
    return gymnasium.make("CartPole-v1")


def test_a_run_that_is_going_on_is_refused(run: Path) -> None:
    with RunLock(run), pytest.raises(UserError, match="this very process"):
        planned(run)


def test_a_damaged_checkpoint_is_told_and_the_one_before_taken(run: Path) -> None:
    (run / "checkpoints" / "000002" / "learner.json").write_text("{")
    found = planned(run)
    assert found.resumed.parts["learner"]["updates"] == 6
    assert "000002/learner.json is damaged" in found.resumed.lines[0]
    assert found.resumed.lines[0].endswith("Going on from the one before.")
    (run / "checkpoints" / "000001" / "manifest.json").unlink()
    with pytest.raises(DamagedCheckpoint, match=r"No checkpoint of .* can be read"):
        planned(run)


def test_a_checkpoint_of_another_run_is_refused(run: Path) -> None:
    Checkpoints(run / "checkpoints").save({"learner": 1, "metrics": {"notes": []}}, {**META, "env": "Acrobot-v1"})
    with pytest.raises(UserError, match=r"is of the env Acrobot-v1, and the run in .* of CartPole-v1"):
        planned(run)


def test_a_run_killed_before_its_first_checkpoint_begins_again_and_leftovers_go(tmp_path: Path, run: Path) -> None:
    for path in (run / "checkpoints").iterdir():
        path.rename(path.with_name(f".saving-1-{path.name}"))
    found = planned(run)
    assert found.resumed.checkpoint is None
    assert found.resumed.lines == ["there is no checkpoint yet: training begins again"]
    assert not list((run / "checkpoints").iterdir())


def test_a_run_that_has_ended_needs_another_stop_rule(run: Path) -> None:
    (run / "summary.json").write_text(json.dumps({"stopped_by": "steps"}))
    with pytest.raises(UserError, match=r"has ended, by its stop rule \(steps\): give another one"):
        planned(run)
    assert planned(run, {"stop_steps": 2000}).options.stop_steps == 2000
    assert finished(run) == {"stopped_by": "steps"}
    (run / "summary.json").write_text(json.dumps({"stopped_by": "interrupt"}))
    assert finished(run) is None
    planned(run)


def test_a_run_that_ended_and_was_killed_when_it_had_gone_on_has_not_ended(run: Path) -> None:
    (run / "summary.json").write_text(json.dumps({"stopped_by": "steps", "life": 0}))
    record = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps({**record, "life": 1}))
    assert finished(run) is None
    assert planned(run).resumed.life == 2


def ended(run: Path, updates: int, **told: Any) -> dict[str, Any]:
    """The files with which a run has ended after so many updates."""
    weights = {"w": np.full(3, updates, np.float32)}
    np.savez(run / "weights.npz", **weights)  # type: ignore[arg-type]
    summary = {"stopped_by": "interrupt", "life": 0, "saved_version": updates, "learner_steps": updates}
    summary |= {"env_steps": 4000, "train_seconds": 9.0} | told
    (run / "summary.json").write_text(json.dumps(summary))
    return weights


def test_a_run_without_a_checkpoint_goes_on_from_its_last_weights_and_counts(run: Path) -> None:
    shutil.rmtree(run / "checkpoints")
    weights = ended(run, 40, metrics_bytes=0)
    made = RunDirectory.reopen(run, 0, 0, print)
    made.write_row("evaluation", {"eval_return": 70.0, "version": 20, "seconds": 3.0})
    made.write_row("evaluation", {"eval_return": 50.0, "version": 40, "seconds": 9.0})
    made.write_row("progress", {"seconds": 9.5, "counts": {"env_steps": 4000.0, "episodes": 12.0, "learner_steps": 41}})
    size = made.offset()
    ended(run, 40, metrics_bytes=size)
    made.write_row("progress", {"seconds": 99.0, "counts": {"env_steps": 9999.0}})  # of a life that was killed since
    made.close()
    resumed = planned(run, {"stop_steps": 10_000}).resumed
    assert resumed.checkpoint is None
    assert resumed.lines[1].startswith(
        "there is no checkpoint: going on from weights.npz, 40 updates, 4,000 steps; lost is what only checkpoints hold"
    )
    assert resumed.meta == {
        **{"updates": 40, "env_steps": 4000, "seconds": 9.5, "evaluations": 2, "best": 70.0, "metrics_bytes": size},
        "evaluation": {"eval_return": 50.0, "version": 40, "seconds": 9.0},
    }
    assert resumed.parts["metrics"]["counts"] == {
        **{"env_steps": 4000.0, "episodes": 12.0, "learner_steps": 40.0, "trained_steps": 0.0, "refused_updates": 0.0}
    }
    assert np.array_equal(resumed.parts["weights"]["w"], weights["w"])
    with pytest.raises(UserError, match="--stop-steps 3000 is behind"):
        planned(run, {"stop_steps": 3000})


def test_weights_that_are_far_ahead_of_the_newest_checkpoint_are_gone_on_from(run: Path) -> None:
    ended(run, 500)
    resumed = planned(run, {"stop_steps": 10_000}).resumed
    assert resumed.checkpoint is None
    assert resumed.lines[1].startswith("the newest checkpoint, 000002, is of 7 updates: going on from weights.npz, 500")


def test_weights_that_are_a_little_ahead_are_kept_beside_what_follows(run: Path) -> None:
    Checkpoints(run / "checkpoints").save({"learner": {}, "metrics": {"notes": []}}, {**META, "updates": 490})
    weights = ended(run, 500)
    resumed = planned(run).resumed
    assert resumed.meta["updates"] == 490
    assert resumed.lines[-1] == "weights.npz of 500 updates is kept as weights-500.npz"
    with np.load(run / "weights-500.npz") as kept:
        assert np.array_equal(kept["w"], weights["w"])


def test_a_trained_run_of_which_nothing_is_left_is_not_begun_again(run: Path) -> None:
    shutil.rmtree(run / "checkpoints")
    ended(run, 40)
    (run / "weights.npz").unlink()
    with pytest.raises(UserError, match=r"has made 40 updates, of which neither a checkpoint nor weights\.npz is left"):
        planned(run)


def test_weights_without_a_summary_are_of_the_updates_that_the_metrics_tell(run: Path) -> None:
    """Of a run that was killed between the two."""
    shutil.rmtree(run / "checkpoints")
    ended(run, 40)
    (run / "summary.json").unlink()
    assert planned(run).resumed.meta["updates"] == 0
    made = RunDirectory.reopen(run, 0, 0, print)
    made.write_row("progress", {"seconds": 2.0, "counts": {"learner_steps": 40.0, "env_steps": 900.0}})
    made.close()
    meta = planned(run).resumed.meta
    assert (meta["updates"], meta["env_steps"], meta["seconds"]) == (40, 900, 2.0)


def test_a_damaged_weights_file_is_no_reason_against_a_checkpoint_but_against_going_on_without(run: Path) -> None:
    ended(run, 7)
    (run / "weights.npz").write_bytes(b"PK\x03\x04")
    assert planned(run).resumed.meta["updates"] == 7
    shutil.rmtree(run / "checkpoints")
    with pytest.raises(UserError, match=r"weights\.npz is damaged"):
        planned(run)


@pytest.mark.parametrize("name", ["checkpoints", "replay", "films", "tensorboard", "checkpoints/.saving-1-000009"])
def test_links_out_of_a_run_are_refused_before_anything_is_cleaned(run: Path, tmp_path: Path, name: str) -> None:
    other = tmp_path.parent / f"{tmp_path.name}-other"
    (other / ".saving-1-000003").mkdir(parents=True)
    if (run / name).exists():
        shutil.rmtree(run / name)
    (run / name).symlink_to(other)
    with pytest.raises(UserError, match=f"{name} is a link, and a run writes into its own folder only"):
        planned(run)
    assert (other / ".saving-1-000003").is_dir()
    (run / name).unlink()
    planned(run)


def test_the_run_directory_itself_may_be_a_link_and_its_lock_may_not(run: Path, tmp_path: Path) -> None:
    linked = tmp_path.parent / f"{tmp_path.name}-linked"
    linked.symlink_to(run)
    assert planned(linked).resumed.meta["updates"] == 7
    other = tmp_path / "other"
    other.write_text("precious")
    (run / "run.lock").unlink()
    (run / "run.lock").symlink_to(other)
    with pytest.raises(UserError, match=r"run\.lock cannot be written \(it is a link"):
        planned(run)
    assert other.read_text() == "precious"


@pytest.mark.parametrize("reason", ["return", "steps", "updates", "seconds"])
def test_every_stop_rule_is_an_end(run: Path, reason: str) -> None:
    (run / "summary.json").write_text(json.dumps({"stopped_by": reason}))
    assert finished(run) == {"stopped_by": reason}
    for other in ("callback", "failure"):
        (run / "summary.json").write_text(json.dumps({"stopped_by": other}))
        assert finished(run) is None


def test_a_checkpoint_without_the_replay_that_belongs_to_it_is_damaged(run: Path) -> None:
    meta = {**META, "updates": 9, "replay": {"replay": "000003"}}
    Checkpoints(run / "checkpoints").save({"learner": {"updates": 9}, "metrics": {"notes": []}}, meta)
    found = planned(run)
    assert found.resumed.parts["learner"]["updates"] == 7
    assert found.resumed.lines[0].startswith(f"The replay of {run / 'checkpoints' / '000003'} is damaged: ")


def test_the_options_that_a_run_recorded_are_checked(run: Path) -> None:
    record = json.loads((run / "config.json").read_text())
    for options in (None, {"keep": 0}):
        (run / "config.json").write_text(json.dumps({**record, "options": options}))
        with pytest.raises(UserError, match=r"config\.json (is damaged: options must be|cannot be used: --keep 0)"):
            planned(run)


def test_metrics_are_cut_back_to_the_checkpoint_and_go_on(tmp_path: Path) -> None:
    directory = RunDirectory.create(str(tmp_path / "run"), "impala", "CartPole-v1", 0, print)
    directory.write_row("progress", {"seconds": 1.0})
    offset = directory.offset()
    directory.write_row("progress", {"seconds": 2.0})
    (tmp_path / "run" / "metrics.jsonl").open("a").write('{"kind": "prog')  # cut short by a kill
    again = RunDirectory.reopen(tmp_path / "run", offset, 1, print)
    again.write_row("progress", {"seconds": 1.5})
    told = [json.loads(line)["seconds"] for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert told == [1.0, 1.5]
    again.close()
    directory.close()


class Node:
    def load_state_dict(self, state: Any) -> None: ...


def program_of(*names: str) -> Program:
    """Nodes whose roles are as they are called."""
    program = Program()
    for name in names:
        program.group(name, Role(name.partition("/")[0])).add(name, Node)
    return program


def test_counts_of_a_checkpoint_agree_though_nodes_were_asked_one_after_the_other() -> None:
    states = {
        "learner": {"updates": 9},
        "metrics": {"counts": {"learner_steps": 5.0, "env_steps": 100.0}, "evaluations": 4},
        "weights": (9, {"w": np.ones(2)}),
        "actor/0": {"environments": {}},
        "actor/1": None,  # held up
    }
    parts, meta = as_parts(program_of(*states), states, {"evaluations": 3})
    counted = {"counts": {"env_steps": 100.0}, "lives": {UPDATES: [LASTING, {"learner_steps": 9.0}]}}
    assert parts["metrics"] == counted | {"evaluations": 3}
    assert sorted(parts) == ["actor-0", "learner", "metrics", "weights"]
    assert meta["updates"] == 9


def test_updates_of_a_gradient_service_are_counted_once() -> None:
    states = {
        "gradients/0": {"version": 8, "counts": {"gradients": 20, "stale": 1}},
        "gradients/1": {"version": 9, "counts": {"gradients": 21, "stale": 0}},
        "metrics": Metrics().state_dict(),
    }
    parts, meta = as_parts(program_of(*states), states, {"evaluations": 0})
    assert "learner" not in parts, "the publisher holds nothing"
    resumed = Metrics()
    resumed.load_state_dict(parts["metrics"])
    assert resumed.snapshot()["counts"]["learner_steps"] == meta["updates"] == 9
    resumed.report(UPDATES, {"learner_steps": 11}, {}, {}, LASTING)  # it counts on from what it has saved
    assert resumed.snapshot()["counts"]["learner_steps"] == 11


def test_nodes_start_from_their_parts_and_actors_without_a_place_are_counted() -> None:
    program = program_of("weights", "metrics", "learner", "actor/0")
    program.group("blue/weights", Role.WEIGHTS, "blue").add("blue/weights", Node)
    parts = {
        "learner": {"updates": 3},
        "metrics": {"counts": {"env_steps": 1.0}},
        "actor-0": {"a": 0},
        "actor-1": {"a": 1},
        "weights": {},
    }
    parts |= {"actor-2": {"a": 2}, "blue-weights": {"version": 4}}
    assert start_program(program, parts, {"updates": 3, "evaluations": 4}) == 2, "actors that have no place any more"
    started = {name: node.start for name, node in program.nodes.items()}
    assert started["learner"] == {"updates": 3}
    assert (started["metrics"]["counts"], started["metrics"]["evaluations"]) == ({"env_steps": 1.0}, 4)
    assert started["actor/0"] == {"a": 0}
    assert started["weights"] is None
    assert started["blue/weights"] is None, "its learner publishes anew, as the main one's does"


def test_every_option_of_a_run_has_a_place_in_what_is_recorded(run: Path) -> None:
    recorded = json.loads((run / "config.json").read_text())["options"]
    assert set(recorded) == {option.name for option in dataclasses.fields(RunOptions)}


def test_the_weights_of_a_killed_run_are_those_of_its_newest_checkpoint(run: Path) -> None:
    with pytest.raises(UserError, match=r"has no weights\.npz"):
        read_weights(run)
    Checkpoints(run / "checkpoints").save({"weights": {"w": np.arange(3.0)}}, META)
    assert read_weights(run)["w"].tolist() == [0.0, 1.0, 2.0]
