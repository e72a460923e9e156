"""When checkpoints are asked for, what is written of the answers, and what is told when it cannot be."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from shoal import envs
from shoal.__main__ import _leave
from shoal.algorithms import a3c
from shoal.checkpoints import CheckpointFailed, Checkpoints
from shoal.experiment import checkpointing
from shoal.experiment.checkpointing import AGAIN, LOOKS, SAVING_LOOKS, Checkpointer, as_parts, asked_for, start_program
from shoal.experiment.replay_saves import folder_of
from shoal.loops.wiring import Settings
from shoal.program import NodeDied, Program
from shoal.replay import MinSize, Replay, Table, Uniform
from shoal.replay.checkpoint import manifest_name
from shoal.runs.options import RunOptions
from shoal.services.metrics import LASTING, UPDATES
from shoal.types import Role
from shoal.versions import make_version


class Answer:
    """An answer that comes, or does not, or is an error."""

    def __init__(self, value: Any = None, *, done: bool = True, error: Exception | None = None) -> None:
        self.value, self._done, self._error = value, done, error

    def done(self) -> bool:
        return self._done

    def result(self) -> Any:
        if self._error is not None:
            raise self._error
        return self.value


META = {"evaluations": 2}


class Kept:
    in_checkpoints = True


class Learner(Kept):
    role = Role.LEARNER


class Counts(Kept):
    role = Role.METRICS


class Store:
    role = Role.WEIGHTS


class Plain: ...


class Run:
    """A run whose nodes answer what the test says; it remembers what they were asked for."""

    def __init__(self) -> None:
        self.answers: dict[str, Any] = {
            "learner": Answer({"updates": 7, "learner": {}}),
            "metrics": Answer({"counts": {"learner_steps": 5.0, "env_steps": 40.0}, "evaluations": 0}),
            "weights": Answer((make_version(0, 7), {"w": np.ones(2)})),
            "actor/0": Answer({"environments": {}}),
            "replay/0": Answer("saved"),
            "replay/1": Answer("saved"),
            "evaluator": Answer((3.5, make_version(2, 6), {"w": np.zeros(2)})),
        }
        self.asked: list[str] = []

    def client(self, handle: Any) -> Any:
        run = self

        class Methods:
            def __getattr__(self, method: str) -> Any:
                def call(*arguments: Any, **named: Any) -> Any:
                    answer = run.answers[handle.name]
                    if isinstance(answer, NodeDied):
                        raise answer
                    run.asked.append(f"{handle.name}.{method}")
                    return answer

                return call

        found = Plain()
        found.future = Methods()  # type: ignore[attr-defined]
        return found

    def rounds(self) -> int:
        """How many checkpoints have been asked for."""
        return self.asked.count("learner.state_dict")


def make(tmp_path: Path, policies: bool = False, **options: Any) -> tuple[Checkpointer, Run, list[str]]:
    program = Program()
    program.add("metrics", Counts)
    program.add("weights", Store)
    for name in ("learner", "learner/1"):
        program.group("learners").add(name, Learner)
    if policies:
        program.group("blue/learners", policy="blue").add("blue/learner", Learner)
        program.group("blue/weights", policy="blue").add("blue/weights", Store)
    program.add("actor/0", Kept)
    program.group("evaluator", Role.EVALUATOR).add("evaluator", Plain)
    if options.get("checkpoint_replay"):
        for name in ("replay/0", "replay/1"):
            program.add(name, Replay, [Table("items", 3, sampler=Uniform(), limiter=MinSize(1))])
            saves = folder_of(tmp_path, name)
            saves.mkdir(parents=True)
            for tag in ("000001", "000002", "000003"):  # as the replays write them
                (saves / manifest_name(tag)).touch()
    run, notes = Run(), list[str]()
    store = Checkpoints(tmp_path / "checkpoints", 3)
    return Checkpointer(store, cast(Any, run), program, RunOptions(**options), notes.append), run, notes


def describe() -> dict[str, Any]:
    return {"evaluations": 4, "env_steps": 40}


def tick(saver: Checkpointer, now: float, updates: int = 0, best: float | None = None) -> None:
    saver.tick(now, updates, best, describe)
    if saver._writing is not None:
        saver._writing.join()


def test_checkpoints_are_asked_for_every_so_many_seconds(tmp_path: Path) -> None:
    saver, run, _ = make(tmp_path, checkpoint_every=10.0)
    asked = []
    for now in (0.0, 9.9, 10.0, 10.1, 19.9, 20.0, 20.1, 35.0, 35.1, 44.9, 45.0):
        tick(saver, now)
        asked.append(run.rounds())
    assert asked == [0, 0, 1, 1, 1, 2, 2, 3, 3, 3, 4]
    assert saver.saved == 3, "the last one has been asked for only"
    assert set(run.asked) == {"learner.state_dict", "actor/0.state_dict", "metrics.state_dict", "weights.newer"}


def test_checkpoints_are_asked_for_every_so_many_updates_in_place_of_seconds(tmp_path: Path) -> None:
    saver, run, _ = make(tmp_path, checkpoint_every=1.0, checkpoint_updates=100)
    asked = []
    for updates in (0, 99, 130, 130, 199, 229, 230, 230):
        tick(saver, 50.0, updates)
        asked.append(run.rounds())
    assert asked == [0, 0, 1, 1, 1, 1, 2, 2], "100 after the last one, which was at 130"


def test_with_0_seconds_there_is_one_at_the_end_only(tmp_path: Path) -> None:
    saver, run, _ = make(tmp_path, checkpoint_every=0.0)
    for now in (0.0, 1.0, 1e6):
        tick(saver, now)
    assert run.rounds() == 0
    saver.finish(lambda calls: {name: call.result() for name, call in calls.items()}, None, describe)
    assert (run.rounds(), saver.saved) == (1, 1)


def test_what_came_to_nothing_is_tried_again_soon(tmp_path: Path) -> None:
    saver, run, _ = make(tmp_path, checkpoint_every=60.0)
    run.answers["learner"] = Answer(error=NodeDied("gone"))
    tick(saver, 60.0)
    tick(saver, 60.1)
    tick(saver, 60.1 + AGAIN - 0.01)
    assert (run.rounds(), saver.saved) == (1, 0)
    run.answers["learner"] = Answer({"updates": 7, "learner": {}})
    tick(saver, 60.1 + AGAIN)
    tick(saver, 60.2 + AGAIN)
    assert (run.rounds(), saver.saved) == (2, 1)


@pytest.mark.parametrize("node", ["learner", "metrics"])
def test_without_the_learner_or_the_counts_there_is_no_checkpoint(node: str, tmp_path: Path) -> None:
    saver, run, _ = make(tmp_path)
    run.answers[node] = Answer(error=NodeDied("gone"))
    tick(saver, 60.0)
    tick(saver, 60.1)
    assert (run.rounds(), saver.saved, saver._store.newest()) == (1, 0, (None, []))


def test_without_the_learner_of_another_policy_there_is_none_either(tmp_path: Path) -> None:
    saver, run, _ = make(tmp_path, policies=True)
    run.answers["blue/learner"] = Answer(error=NodeDied("gone"))
    tick(saver, 60.0)
    tick(saver, 60.1)
    assert (run.rounds(), saver.saved) == (1, 0), "it would go on with one policy that has learned nothing"
    run.answers["blue/learner"] = Answer({"updates": 11, "learner": {}})
    tick(saver, 60.1 + AGAIN)
    tick(saver, 60.2 + AGAIN)
    found, _ = saver._store.newest()
    assert found is not None
    assert found.part("blue-learner")["updates"] == 11
    assert (found.meta["updates"], found.meta["policies"]) == (7, {"blue": 11})
    assert found.part("metrics")["lives"][UPDATES][1] == {"learner_steps": 7.0, "blue/learner_steps": 11.0}


def test_at_the_end_the_learner_of_another_policy_is_what_it_left_with_its_own_weights(tmp_path: Path) -> None:
    saver, run, _ = make(tmp_path, policies=True)
    run.answers["blue/learner"] = NodeDied("gone")
    run.answers["blue/weights"] = Answer({"updates": 5, "learner": {"left": 1}})
    saver.finish(answers, None, describe)
    found, _ = saver._store.newest()
    assert found is not None
    assert (found.part("learner")["updates"], found.part("blue-learner")["updates"]) == (7, 5)


def test_who_does_not_answer_in_time_is_left_out(tmp_path: Path) -> None:
    saver, run, _ = make(tmp_path)
    run.answers["actor/0"] = Answer(done=False)
    tick(saver, 60.0)
    for _ in range(LOOKS - 1):
        tick(saver, 60.0)
    assert saver.saved == 0
    tick(saver, 60.0)
    found, _ = saver._store.newest()
    assert found is not None
    assert sorted(found.parts) == ["learner", "metrics", "weights"]
    assert SAVING_LOOKS > LOOKS


def test_a_learner_whose_update_takes_long_is_waited_for_and_not_asked_again(tmp_path: Path) -> None:
    saver, run, notes = make(tmp_path, checkpoint_every=10.0)
    run.answers["learner"] = Answer({"updates": 7, "learner": {}}, done=False)
    for tenth in range(10 * LOOKS):
        tick(saver, 10.0 + 0.1 * tenth)
    assert (run.rounds(), saver.saved) == (1, 0), "every call would copy the whole state"
    assert notes == ["the checkpoint 000001 waits for learner, whose step takes long; nobody is asked anew"]
    run.answers["learner"]._done = True
    tick(saver, 80.0)
    assert saver.saved == 1


def test_a_node_that_is_gone_is_not_asked(tmp_path: Path) -> None:
    saver, run, _ = make(tmp_path)
    run.answers["actor/0"] = NodeDied("gone")
    tick(saver, 60.0)
    tick(saver, 60.0)
    assert saver.saved == 1


def test_the_best_is_asked_for_when_there_is_a_better_one_and_saved_with_its_return_and_updates(tmp_path: Path) -> None:
    saver, run, _ = make(tmp_path, checkpoint_every=10.0)
    for now, best in ((10.0, 2.0), (20.0, 3.5), (30.0, 3.5), (40.0, 4.0)):
        run.answers["evaluator"] = Answer((best, make_version(2, int(now)), {"w": np.full(2, best)}))
        tick(saver, now, best=best)
        tick(saver, now, best=best)
    assert run.asked.count("evaluator.best") == 3, "nothing better came at 30"
    found, _ = saver._store.best()
    assert found is not None
    assert (found.meta["eval_return"], found.meta["updates"]) == (4.0, 40)
    assert found.part("weights")["w"].tolist() == [4.0, 4.0]
    again, run, _ = make(tmp_path, checkpoint_every=10.0)
    tick(again, 10.0, best=3.9)
    tick(again, 10.0, best=3.9)
    assert run.asked.count("evaluator.best") == 0, "that of an earlier life is better"


def test_a_best_that_became_worse_meanwhile_is_not_saved(tmp_path: Path) -> None:
    saver, run, _ = make(tmp_path, checkpoint_every=10.0)
    tick(saver, 10.0, best=3.5)
    tick(saver, 10.0, best=3.5)
    run.answers["evaluator"] = Answer((3.4, make_version(0, 9), {"w": np.ones(2)}))  # a restarted one knows no better
    tick(saver, 20.0, best=3.6)
    tick(saver, 20.0, best=3.6)
    found, _ = saver._store.best()
    assert found is not None
    assert found.meta["eval_return"] == 3.5


def test_a_failure_is_told_once_until_another_one_comes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saver, _, notes = make(tmp_path, checkpoint_every=10.0)
    reasons = iter(["no space", "no space", "read only", "no space"])

    def fail(self: Checkpoints, parts: Any, meta: Any) -> None:
        raise CheckpointFailed(f"the checkpoint {len(notes)} could not be written: {next(reasons)}")

    monkeypatch.setattr(Checkpoints, "save", fail)
    for now in (10.0, 20.0, 30.0, 40.0):
        tick(saver, now)
        tick(saver, now)
        tick(saver, now + 1)
    assert [note.partition(": ")[2] for note in notes] == [
        f"{reason}; those before are as they were" for reason in ("no space", "read only", "no space")
    ]


def test_the_counts_of_a_checkpoint_agree_with_its_learner(tmp_path: Path) -> None:
    saver, _, _ = make(tmp_path)
    tick(saver, 60.0)
    tick(saver, 60.0)
    found, _ = saver._store.newest()
    assert found is not None
    assert found.meta == {"evaluations": 4, "env_steps": 40, "updates": 7}
    metrics = found.part("metrics")
    assert (metrics["counts"], metrics["evaluations"]) == ({"env_steps": 40.0}, 4)
    assert metrics["lives"] == {UPDATES: [LASTING, {"learner_steps": 7.0}]}


def test_of_several_gradient_servers_the_furthest_counts() -> None:
    states = {
        "gradients/0": {"version": 5, "counts": {"gradients": 9, "stale": 0}},
        "gradients/1": {"version": 6, "counts": {"gradients": 8, "stale": 2}},
        "metrics": {"counts": {"learner_steps": 1.0}, "evaluations": 0},
        "weights": (1, {"w": np.ones(1)}),
    }
    cfg = a3c.Config(actors=1, shards=2)
    parts, meta = as_parts(a3c.program(cfg, envs.describe(cfg.env), Settings()), states | {"worker/0": None}, META)
    assert meta["updates"] == 6
    assert parts["metrics"]["lives"] == {UPDATES: [LASTING, {"learner_steps": 6.0}]}
    assert sorted(parts) == ["gradients-0", "gradients-1", "metrics", "weights"]


@pytest.mark.parametrize("gradients", [False, True])
def test_what_a_node_is_called_decides_nothing(gradients: bool) -> None:
    program = Program()
    names = {"tally": Role.METRICS, "shelf": Role.WEIGHTS, "student": Role.PUBLISHER if gradients else Role.LEARNER}
    names |= {"sum": Role.GRADIENTS} if gradients else {"gradients": Role.ACTOR}
    for name, role in names.items():
        program.group(name, role).add(name, Kept)
    states: dict[str, Any] = {
        "tally": {"counts": {"learner_steps": 1.0, "env_steps": 3.0}, "evaluations": 0},
        "shelf": (1, {"w": np.ones(1)}),
        **({"sum": {"version": 6}} if gradients else {"student": {"updates": 6}, "gradients": {"version": 2}}),
    }
    parts, meta = as_parts(program, states, META)
    assert meta["updates"] == 6
    assert sorted(parts) == sorted(["metrics", "weights", *(["sum"] if gradients else ["gradients", "student"])])
    assert start_program(program, parts, meta) == 0
    assert program.nodes["tally"].start["lives"] == {UPDATES: [LASTING, {"learner_steps": 6.0}]}


@pytest.mark.parametrize(
    ("shards", "services"), [(1, {"gradients"}), (3, {"gradients/0", "gradients/1", "gradients/2"})]
)
def test_of_a3c_every_service_that_holds_parameters_is_asked_for_them(shards: int, services: set[str]) -> None:
    cfg = a3c.Config(actors=2, shards=shards)
    asked = asked_for(a3c.program(cfg, envs.describe(cfg.env), Settings()))
    assert {name for name in asked if not name.startswith("worker/")} == {"metrics"} | services
    assert {"worker/0", "worker/1"} <= set(asked)


def answers(calls: Any) -> dict[str, Any]:
    """Those that have come, as a run that ends waits for them."""
    found = {}
    for name, call in calls.items():
        try:
            if call.done():
                found[name] = call.result()
        except NodeDied:
            continue
    return found


def test_a_checkpoint_with_the_replay_is_complete_or_absent(tmp_path: Path) -> None:
    told: list[Any] = []
    saver, run, notes = make(tmp_path, checkpoint_every=10.0, checkpoint_replay=True)
    saver._tell_saved = told.append
    tick(saver, 10.0)
    tick(saver, 10.0)
    found, _ = saver._store.newest()
    assert found is not None
    assert found.meta["replay"] == {"replay/0": "000001", "replay/1": "000001"}
    assert "replay-0" not in found.parts
    assert told == [{"replay/0": "000001", "replay/1": "000001"}]
    run.answers["replay/1"] = Answer(error=NodeDied("node 'replay/1' is gone"))
    tick(saver, 20.0)
    tick(saver, 20.0)
    tick(saver, 20.1)
    assert (saver.saved, len(told)) == (1, 1)
    assert notes == [
        "the checkpoint 000002 could not be written: replay/1 has not saved its tables (node 'replay/1' is gone); "
        "those before are as they were"
    ]
    saver.finish(answers, None, describe)
    assert saver.saved == 1


def test_a_replay_whose_save_is_on_another_machine_is_told_of(tmp_path: Path) -> None:
    saver, _, notes = make(tmp_path, checkpoint_every=10.0, checkpoint_replay=True)
    (folder_of(tmp_path, "replay/1") / manifest_name("000001")).unlink()
    for _ in range(3):
        tick(saver, 10.0)
    assert saver.saved == 0
    assert notes == [
        "the checkpoint 000001 could not be written: replay/1 is on a machine that does not share "
        f"{tmp_path} with this one; those before are as they were"
    ]


def test_replays_are_given_more_time_than_others(tmp_path: Path) -> None:
    saver, run, _ = make(tmp_path, checkpoint_every=10.0, checkpoint_replay=True)
    run.answers["replay/1"] = Answer("saved", done=False)
    tick(saver, 10.0)
    for _ in range(LOOKS + 5):
        tick(saver, 10.0)
    assert saver.saved == 0
    run.answers["replay/1"]._done = True
    tick(saver, 10.0)
    assert saver.saved == 1


def test_nothing_is_asked_for_while_the_last_one_is_being_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saver, run, _ = make(tmp_path, checkpoint_every=10.0)
    written, save = threading.Event(), Checkpoints.save
    monkeypatch.setattr(Checkpoints, "save", lambda *given: (written.wait(10.0), save(*given))[1])
    saver.tick(10.0, 0, None, describe)
    saver.tick(10.0, 0, None, describe)
    for now in (20.0, 30.0):
        saver.tick(now, 0, None, describe)
    assert run.rounds() == 1
    threading.Timer(0.05, written.set).start()
    saver.finish(answers, None, describe)  # which waits for it: two would have the same name
    assert (run.rounds(), saver.saved) == (2, 2)
    assert [path.name for path in sorted((tmp_path / "checkpoints").iterdir())] == ["000001", "000002"]


def test_at_the_end_a_learner_that_is_gone_is_what_it_left_last(tmp_path: Path) -> None:
    saver, run, _ = make(tmp_path)
    run.answers["learner"] = NodeDied("gone")
    asked: list[dict[str, Any]] = []

    def ask(calls: Any) -> dict[str, Any]:
        asked.append(dict(calls))
        if run.asked[-1] == "weights.kept_snapshot":
            return {"weights": {"updates": 5, "learner": {"left": 1}}}
        return answers(calls)

    saver.finish(ask, None, describe)
    found, _ = saver._store.newest()
    assert found is not None
    assert found.part("learner") == {"updates": 5, "learner": {"left": 1}}
    assert found.meta["updates"] == 5


def test_where_a_moment_cannot_be_taken_nodes_are_asked_one_by_one(tmp_path: Path) -> None:
    class Broken:
        def still(self, ended: bool = False) -> bool:
            return True

        def take(self, tag: str, keep: Any) -> Any:
            raise ValueError("mine")

    saver, run, notes = make(tmp_path, checkpoint_every=10.0)
    saver._moment = cast(Any, Broken())
    for now in (10.0, 10.1, 20.1, 20.2):
        tick(saver, now)
    assert notes == ["checkpoints are not of one moment any more: ValueError: mine; those before are as they were"]
    assert (run.rounds(), saver.saved) == (1, 1)


def test_at_the_end_the_state_of_a_large_learner_is_waited_for_and_that_is_told(tmp_path: Path) -> None:
    saver, run, notes = make(tmp_path)
    run.answers["learner"] = Answer({"updates": 9, "learner": {}}, done=False)
    rounds = 0

    def ask(calls: Any) -> dict[str, Any]:
        nonlocal rounds
        rounds += 1
        run.answers["learner"]._done = rounds > 3
        return {name: call.result() for name, call in calls.items() if call.done()}

    saver.finish(ask, None, describe)
    assert (saver.saved, notes) == (1, ["the last checkpoint waits for learner (Ctrl-C ends without it)"])


def test_a_last_checkpoint_without_the_learners_state_is_told_of(tmp_path: Path) -> None:
    saver, run, notes = make(tmp_path)
    run.answers["learner"] = Answer({"updates": 9, "learner": {}}, done=False)
    saver.finish(
        lambda calls: {name: call.result() for name, call in calls.items() if call.done() and len(calls) > 1},
        None,
        describe,
    )
    assert saver.saved == 0
    assert notes[-1] == (
        "the checkpoint 000001 could not be written: learner has not given its state; those before are as they were"
    )


def test_a_last_checkpoint_that_takes_long_to_write_is_told_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saver, _, notes = make(tmp_path)
    written, save = threading.Event(), Checkpoints.save
    monkeypatch.setattr(checkpointing, "PATIENCE", 0.01)
    monkeypatch.setattr(Checkpoints, "save", lambda *given: (written.wait(10.0), save(*given))[1])
    threading.Timer(0.05, written.set).start()
    saver.finish(answers, None, describe)
    assert (saver.saved, notes) == (1, ["writing the last checkpoint (Ctrl-C ends without it)"])


def test_who_does_not_wait_for_a_large_last_checkpoint_leaves_without_the_interpreters_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saver, _, _ = make(tmp_path)
    written, left = threading.Event(), []
    monkeypatch.setattr(checkpointing, "PATIENCE", 0.01)
    monkeypatch.setattr(Checkpoints, "save", lambda *given: written.wait(10.0))
    monkeypatch.setattr("shoal.__main__.os._exit", left.append)
    join = threading.Thread.join

    def interrupted(thread: threading.Thread, timeout: float | None = None) -> None:
        if timeout is None:
            raise KeyboardInterrupt
        join(thread, timeout)

    monkeypatch.setattr(threading.Thread, "join", interrupted)
    with pytest.raises(KeyboardInterrupt):
        saver.finish(answers, None, describe)
    assert (_leave(130), left) == (130, [130])
    written.set()
    assert saver._writing is not None
    join(saver._writing, 10.0)
    assert (_leave(3), left) == (3, [130]), "nobody is left"
