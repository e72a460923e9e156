"""What nodes that were lost take when they are started again."""

from __future__ import annotations

from pathlib import Path

from shoal.experiment.reviving import Reviving
from shoal.program import Program
from shoal.replay import Replay, Table
from shoal.runtime import Supervisor
from shoal.services.metrics import Metrics


def described() -> Program:
    program = Program()
    program.add("metrics", Metrics)
    program.add("replay/0", Replay, [Table.queue("rows", 3)])
    program.start_from("metrics", "as it was resumed")
    return program


def test_metrics_go_on_from_what_the_driver_has_read_last(tmp_path: Path) -> None:
    supervisor, reviving = Supervisor(), Reviving(described(), tmp_path, {}, lambda text: None)
    reviving.attach(supervisor)
    assert supervisor.states["metrics"]() == "as it was resumed"
    lost = Metrics()
    lost.report("actor/0", {"env_steps": 3}, {}, {})
    lost.evaluation({"version": 1})
    reviving.read(lost.snapshot(), 1)
    back = Metrics()
    back.load_state_dict(supervisor.states["metrics"]())
    assert back.snapshot()["counts"] == {"env_steps": 3}
    assert back.state_dict()["evaluations"] == 1


def test_a_replay_comes_back_with_its_newest_save_or_empty_and_it_is_said_which(tmp_path: Path) -> None:
    told: list[str] = []
    supervisor, reviving = Supervisor(), Reviving(described(), tmp_path, {}, told.append)
    reviving.attach(supervisor)
    assert supervisor.states["replay/0"]() is None
    reviving.saved({"replay/0": "000007"})
    assert supervisor.states["replay/0"]() == {"path": str(tmp_path / "replay" / "replay-0"), "tag": "000007"}
    assert told == ["replay/0 comes back empty", "replay/0 comes back with what it has saved in checkpoint 000007"]
