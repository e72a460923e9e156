"""The supervision loop on a pretended runtime, in virtual time: who is judged, restarted and replaced, and when."""

from __future__ import annotations

import heapq
import threading
from collections.abc import Callable
from typing import Any

import pytest

from shoal.program import Capabilities, Context, Handle, Node, Program
from shoal.runtime.network import rpc
from shoal.runtime.network.rpc import LocalLane
from shoal.runtime.network.transport import Connection, pair
from shoal.runtime.processes import ProcessRun
from shoal.runtime.restarts import FIRST_BACKOFF, Hang, Loss, RunFailed, Supervisor
from shoal.runtime.supervision import (
    FINISHING,
    LEAVING,
    SETTLING,
    STARTING,
    STOPPING,
    Beat,
    Event,
    Finished,
    Lost,
    Supervision,
)
from shoal.types import Role


class Actor:
    restart = True

    def step(self) -> None: ...


class Service:
    def call(self) -> None: ...


class Pretended:
    """A runtime whose nodes do what a script says: `at(time, event)`. Time passes only while the loop listens."""

    beats = 1.0
    capabilities = Capabilities()

    def __init__(self, **supervisor: Any) -> None:
        self.now = 0.0
        self.starts: list[tuple[float, str, Context]] = []
        self.kills: list[tuple[float, str]] = []
        self.stops: list[tuple[float, str]] = []
        self.calls: list[tuple[Any, ...]] = []
        self.deaf: set[str] = set()
        self.ready_at = 0.0
        self.taken: dict[str, list[Any]] = {}  # states
        self.losses: list[Loss] = []
        self.hangs: list[Hang] = []
        self.on_start: Callable[[str], None] = lambda name: None
        self._script: list[tuple[float, int, Event]] = []
        self.program = Program()
        self.program.add("service", Service)
        for name in ("actor/0", "actor/1"):
            self.program.add(name, Actor)
        self.supervisor = Supervisor(on_loss=self.losses.append, on_hang=self.hangs.append, **supervisor)
        self.loop = Supervision(self.program, self, self.supervisor, 0, lambda: self.now)

    def at(self, when: float, *events: Event) -> None:
        for event in events:
            heapq.heappush(self._script, (when, len(self._script), event))

    def can_start(self) -> bool:
        return self.now >= self.ready_at

    def start(self, node: Node, context: Context) -> None:
        self.starts.append((self.now, node.name, context))
        self.taken.setdefault(node.name, []).append(node.start)
        self.on_start(node.name)

    def hear(self, timeout: float) -> list[Event]:
        until = self.now + timeout
        if self._script and self._script[0][0] <= until:
            self.now = max(self.now, self._script[0][0])
        else:
            self.now = until
        events = []
        while self._script and self._script[0][0] <= self.now:
            events.append(heapq.heappop(self._script)[2])
        return events

    def kill(self, name: str) -> None:
        self.kills.append((self.now, name))
        self.at(self.now, Lost(name, "was killed by SIGKILL"))

    def stop(self, name: str) -> None:
        self.stops.append((self.now, name))
        if name not in self.deaf:
            self.at(self.now, Lost(name, "exited with code 0"))

    def tell(self, name: str, method: str, *arguments: object) -> None:
        self.calls.append((name, method, *arguments))

    def cleared(self, name: str) -> None: ...

    def started(self, name: str) -> list[float]:
        return [when for when, started, _ in self.starts if started == name]


def killed(name: str, progress: int | None = 0) -> Lost:
    return Lost(name, "was killed by SIGKILL", progress=progress)


def victim(name: str) -> Lost:
    return Lost(name, "raised NodeDied: node 'service' is gone", "Traceback", secondary=True, progress=0)


def test_a_lost_node_is_started_again_when_its_backoff_is_over_and_not_before() -> None:
    run = Pretended(max_failures=9)
    run.loop.start_all()
    run.on_start = lambda name: run.at(run.now + 1.0, killed(name))
    run.at(1.0, killed("actor/0"))
    run.loop.wait(1.0 + FIRST_BACKOFF / 2)
    assert run.started("actor/0") == [0.0]
    run.loop.wait(10.0)
    expected = [0.0]
    for wait in (FIRST_BACKOFF, 2 * FIRST_BACKOFF, 4 * FIRST_BACKOFF, 8 * FIRST_BACKOFF):
        expected.append(expected[-1] + 1.0 + wait)
    assert run.started("actor/0")[:5] == pytest.approx(expected)
    assert [context.restarts for _, name, context in run.starts if name == "actor/0"][:3] == [0, 1, 2]
    seeds = {context.seed for _, name, context in run.starts if name == "actor/0"}
    assert len(seeds) == len(run.started("actor/0")), "a restarted node does not repeat its episodes"


def test_while_nobody_can_be_started_others_are_heard_and_supervised() -> None:
    run = Pretended(hang_seconds=5.0)
    run.loop.start_all()
    run.at(1.0, killed("actor/0"))
    run.ready_at = 20.0  # what starts processes was lost too
    run.at(1.0, Beat("actor/1", 1))
    run.loop.wait(25.0)
    assert run.started("actor/0") == pytest.approx([0.0, 20.0], abs=FIRST_BACKOFF)
    assert [hang.node for hang in run.hangs] == ["actor/1"]


def test_other_nodes_are_heard_while_one_waits_for_its_backoff() -> None:
    run = Pretended()
    run.loop.start_all()
    run.at(1.0, killed("actor/0"))
    run.at(1.05, Finished("actor/1"))
    run.loop.wait(1.06)
    assert run.loop.finished == {"actor/1"}
    assert run.started("actor/0") == [0.0]


@pytest.mark.parametrize("late", [0.0, 0.5 * SETTLING])
def test_the_cause_is_named_and_not_its_victim_even_if_it_is_heard_of_later(late: float) -> None:
    run = Pretended()
    run.program.place("actor/0", restart=False)
    run.loop.start_all()
    run.at(1.0, victim("actor/0"))
    run.at(1.0 + late, killed("service"))
    with pytest.raises(RunFailed, match=r"^node 'service' was killed by SIGKILL; the run cannot go on") as caught:
        run.loop.wait(10.0)
    assert caught.value.node == "service"
    assert run.now == pytest.approx(1.0 + late)


def test_who_cannot_be_started_again_is_named_before_who_can() -> None:
    run = Pretended(max_failures=0)
    run.loop.start_all()
    run.at(1.0, killed("actor/0"), killed("service"))
    with pytest.raises(RunFailed) as caught:
        run.loop.wait(10.0)
    assert caught.value.node == "service"


def test_after_a_loss_that_ends_the_run_nobody_is_started_again_or_blamed() -> None:
    run = Pretended()
    run.loop.start_all()
    run.at(1.0, victim("actor/0"), killed("actor/1"), killed("service"))
    run.at(1.0 + 2 * SETTLING, victim("actor/1"))
    with pytest.raises(RunFailed):
        run.loop.wait(10.0)
    told = len(run.losses)
    run.loop.wait(10.0)  # the last calls to those who are left
    assert len(run.losses) == told
    assert run.started("actor/0") == run.started("actor/1") == [0.0]


def test_victims_of_a_node_that_comes_back_are_restarted_and_not_blamed() -> None:
    run = Pretended(max_failures=1)
    run.program.place("service", restart=True)
    run.loop.start_all()
    for begun in (1.0, 20.0, 40.0):
        run.at(begun, victim("actor/0"), victim("actor/1"), killed("service", None))
    run.loop.wait(60.0)
    assert [loss.node for loss in run.losses] == ["service"] * 3
    assert run.started("actor/0") == pytest.approx([0.0, *(begun + FIRST_BACKOFF for begun in (1.0, 20.0, 40.0))])


def test_whoever_suffers_from_a_node_that_has_not_come_back_yet_is_not_blamed_however_late() -> None:
    run = Pretended(max_failures=1)
    run.program.place("service", restart=True)
    run.loop.start_all()
    run.at(1.0, killed("service", None))
    run.ready_at = 20.0
    run.at(1.0 + 2 * SETTLING, victim("actor/0"))
    run.loop.wait(30.0)
    assert [loss.node for loss in run.losses] == ["service"]
    assert run.started("actor/0") == pytest.approx([0.0, 20.0], abs=FIRST_BACKOFF)


def test_a_victim_without_a_cause_is_judged_by_itself() -> None:
    run = Pretended(max_failures=0)
    run.loop.start_all()
    run.at(1.0, victim("actor/0"))
    with pytest.raises(RunFailed, match="node 'actor/0' raised NodeDied"):
        run.loop.wait(10.0)
    assert run.now == pytest.approx(1.0 + SETTLING)


class Replay:
    restart = True


class Learner(Actor):
    role = Role.LEARNER

    def finish(self) -> None: ...


def losing_replay(updates: int) -> Pretended:
    """A replay that lives for three seconds at a time, in each of which the learner makes so many updates."""
    run = Pretended(max_failures=5)
    for name, kind in (("replay", Replay), ("learner", Learner)):
        run.program.add(name, kind)
    run.loop = Supervision(run.program, run, run.supervisor, 0, lambda: run.now)
    for life in range(12):
        run.at(3.0 * life + 1.0, Beat("replay", None), Beat("learner", updates * life))
        run.at(3.0 * life + 2.0, Lost("replay", "was killed by SIGKILL"))
    return run


def test_a_service_that_is_lost_again_and_again_is_not_given_up_while_the_learner_learns() -> None:
    run = losing_replay(updates=4)
    run.loop.start_all()
    run.loop.wait(40.0)
    assert run.supervisor.restarts["replay"] == 12


def test_a_service_with_short_lives_in_which_nobody_learns_is_given_up() -> None:
    run = losing_replay(updates=0)
    run.loop.start_all()
    with pytest.raises(RunFailed, match="'replay' was killed by SIGKILL, 6 times in a row"):
        run.loop.wait(40.0)


def test_who_leaves_is_asked_to_then_stopped_then_killed_and_never_lost() -> None:
    run = Pretended()
    run.program.add("learner", Learner)
    run.loop = Supervision(run.program, run, run.supervisor, 0, lambda: run.now)
    run.loop.start_all()
    run.deaf = {"learner"}
    run.loop.remove("learner")
    run.loop.wait(LEAVING + FINISHING + STOPPING + 1.0)
    assert [call[:2] for call in run.calls] == [("learner", name) for name in ("finish", "finish", "report")]
    assert [(name, round(when)) for when, name in run.stops] == [("learner", round(LEAVING + FINISHING))]
    assert [(name, round(when)) for when, name in run.kills] == [("learner", round(LEAVING + FINISHING + STOPPING))]
    assert run.losses == []
    assert "learner" not in run.program.nodes


def test_who_is_lost_while_it_waits_to_be_started_again_leaves_at_once() -> None:
    run = Pretended()
    run.loop.start_all()
    run.at(1.0, killed("actor/0"))
    run.loop.wait(1.01)
    run.loop.remove("actor/0")
    run.loop.wait(10.0)
    assert run.started("actor/0") == [0.0]
    assert run.stops == []


def test_a_node_that_gets_nowhere_ends_the_run_after_max_failures() -> None:
    run = Pretended(max_failures=3)
    run.loop.start_all()
    run.on_start = lambda name: run.at(run.now + 1.0, killed(name))
    run.at(1.0, killed("actor/0"))
    with pytest.raises(RunFailed, match="node 'actor/0' was killed by SIGKILL, 4 times in a row; giving up"):
        run.loop.wait(1000.0)
    assert len(run.started("actor/0")) == 4


def test_a_node_that_got_somewhere_between_its_losses_never_ends_the_run() -> None:
    run = Pretended(max_failures=3)
    run.loop.start_all()

    def live_shortly(name: str) -> None:
        run.at(run.now + 0.5, Beat(name, progress=2000))
        run.at(run.now + 1.0, Lost(name, "was killed by SIGKILL"))  # could not say how far it had got

    run.on_start = live_shortly
    run.at(1.0, killed("actor/0", progress=2000))
    run.loop.wait(100.0)
    assert run.supervisor.restarts["actor/0"] > 10


def test_long_lives_without_a_step_are_in_a_row() -> None:
    run = Pretended(max_failures=2, hang_seconds=None)
    run.loop.start_all()
    run.on_start = lambda name: run.at(run.now + 60.0, killed(name))
    run.at(60.0, killed("actor/0"))
    with pytest.raises(RunFailed, match="3 times in a row"):
        run.loop.wait(1000.0)


def test_a_users_mistake_is_told_once_and_ends_the_run() -> None:
    run = Pretended()
    run.loop.start_all()
    run.at(1.0, Lost("actor/0", "raised UserError: --env is wrong", "Traceback", user_error="--env is wrong"))
    with pytest.raises(RunFailed, match=r"^--env is wrong$") as caught:
        run.loop.wait(10.0)
    assert caught.value.user_error == "--env is wrong"
    assert not run.losses
    assert run.started("actor/0") == [0.0]


def test_an_interrupt_is_honoured_between_two_starts() -> None:
    run = Pretended(interrupted=lambda: len(run.starts) == 2)
    with pytest.raises(KeyboardInterrupt):
        run.loop.start_all()
    assert len(run.starts) == 2


# ---- hangs


def beats(run: Pretended, name: str, times: range, busy_from: float | None = None) -> None:
    for when in times:
        busy = 0.0 if busy_from is None else max(0.0, when - busy_from)
        run.at(float(when), Beat(name, when, busy))


def test_a_node_that_is_silent_is_told_and_replaced() -> None:
    run = Pretended(hang_seconds=5.0)
    run.loop.start_all()
    beats(run, "actor/0", range(1, 4))
    beats(run, "actor/1", range(1, 30))
    run.loop.wait(20.0)
    assert [(hang.node, hang.replaced) for hang in run.hangs] == [("actor/0", True)]
    assert run.hangs[0].seconds == pytest.approx(5.0)
    assert "no sign of life for 5 s" in run.hangs[0].reason
    assert run.kills == [(pytest.approx(8.0), "actor/0")]
    assert "was replaced" in run.losses[0].reason
    assert len(run.started("actor/0")) == 2


def test_a_node_that_was_replaced_is_no_victim_whatever_it_said_last() -> None:
    run = Pretended(hang_seconds=5.0)
    run.kill = lambda name: run.at(run.now, victim(name))  # type: ignore[method-assign]
    run.loop.start_all()
    beats(run, "actor/0", range(1, 4))
    beats(run, "actor/1", range(1, 30))
    run.loop.wait(20.0)
    assert [loss.reason for loss in run.losses] == [
        "has given no sign of life for 5 s and was replaced (--hang-seconds 5)"
    ]
    assert run.started("actor/0") == pytest.approx([0.0, 8.0 + FIRST_BACKOFF]), "at once: its cause is known"


def test_a_step_that_does_not_end_is_told_and_replaced() -> None:
    run = Pretended(hang_seconds=5.0)
    run.loop.start_all()
    beats(run, "actor/0", range(1, 10), busy_from=4.0)
    run.loop.wait(12.0)
    assert [name for _, name in run.kills] == ["actor/0"]
    assert run.kills[0][0] == pytest.approx(9.0)
    assert "step for 5 s" in run.losses[0].reason


def test_a_node_that_cannot_be_started_again_is_only_told_of_and_once() -> None:
    run = Pretended(hang_seconds=5.0)
    run.loop.start_all()
    beats(run, "service", range(1, 3))
    run.loop.wait(30.0)
    assert [(hang.node, hang.replaced) for hang in run.hangs] == [("service", False)]
    assert not run.kills


@pytest.mark.parametrize("off", [None, 0.0])
def test_hangs_are_not_looked_for_when_that_is_switched_off(off: float | None) -> None:
    run = Pretended(hang_seconds=off)
    run.loop.start_all()
    beats(run, "actor/0", range(1, 3))
    run.loop.wait(100.0)
    assert not run.hangs


def test_a_node_that_has_not_begun_is_given_longer() -> None:
    run = Pretended(hang_seconds=5.0)
    run.loop.start_all()
    run.loop.wait(STARTING - 1.0)
    assert not run.hangs
    run.loop.wait(2.0)
    assert {hang.node for hang in run.hangs} == {"service", "actor/0", "actor/1"}


def test_a_hang_says_what_the_node_was_doing() -> None:
    run = Pretended(hang_seconds=5.0)
    run.loop.start_all()
    run.at(1.0, Beat("actor/0", 1, 0.0, "it was at 'environment'"))
    run.loop.wait(10.0)
    assert run.hangs[0].reason == "has given no sign of life for 5 s (it was at 'environment')"


def test_a_node_that_is_started_again_takes_the_state_that_is_kept_for_it() -> None:
    run = Pretended()
    run.program.start_from("actor/0", "saved")
    states = iter(["kept", "newer"])
    run.supervisor.states["actor/0"] = lambda: next(states)
    run.loop.start_all()
    for when in (1.0, 20.0):
        run.at(when, killed("actor/0"), killed("actor/1"))
    run.loop.wait(30.0)
    assert run.taken == {"actor/0": ["saved", "kept", "newer"], "actor/1": [None] * 3, "service": [None]}


def test_while_everything_stands_still_nobody_hangs() -> None:
    """A closed lid: this process and all others stop for ten minutes."""
    run = Pretended(hang_seconds=5.0)
    run.loop.start_all()
    for name in ("service", "actor/0", "actor/1"):
        beats(run, name, range(1, 4))
        beats(run, name, range(605, 640))
    run.loop.wait(3.5)
    run.now = 603.9
    run.loop.wait(30.0)
    assert not run.hangs


def test_a_hang_is_told_again_when_the_node_had_come_back_in_between() -> None:
    run = Pretended(hang_seconds=5.0)
    run.loop.start_all()
    for second in range(30):
        busy = {10: 5.0, 11: 6.0, 12: 0.0, 20: 5.0, 21: 6.0}.get(second, 0.0)
        run.at(float(second), Beat("service", None, busy), Beat("actor/0", second), Beat("actor/1", second))
    run.loop.wait(29.5)
    assert [(hang.node, hang.seconds) for hang in run.hangs] == [("service", 5.0), ("service", 5.0)]
    assert run.kills == []


def test_a_node_is_silent_only_after_several_beats_that_did_not_come() -> None:
    run = Pretended(hang_seconds=0.5)  # less than the time between two beats
    run.loop.start_all()
    for second in range(10):
        run.at(float(second), Beat("service"), Beat("actor/0", second))
        if second < 5:
            run.at(float(second), Beat("actor/1", second))
    run.loop.wait(6.9)
    assert run.hangs == []
    run.loop.wait(0.2)
    assert [(hang.node, hang.reason) for hang in run.hangs] == [
        ("actor/1", "has given no sign of life for 3 s"),
    ]


def test_a_node_that_is_started_again_has_not_finished() -> None:
    run = Pretended()
    run.loop.start_all()
    run.at(1.0, Finished("actor/0"))
    run.at(2.0, killed("actor/0", progress=3))
    run.loop.wait(1.5)
    assert run.loop.finished == {"actor/0"}
    run.loop.wait(2.0)
    assert run.loop.finished == set()


def test_who_waits_for_an_answer_goes_on_supervising_but_not_within_a_tick_nor_in_another_thread() -> None:
    run = Pretended()
    run.loop.start_all()
    run.at(0.0, killed("actor/0"))
    other = threading.Thread(target=run.loop.meanwhile)
    other.start()
    other.join()
    assert run.losses == [], "only the thread that drives the run"
    run.loop._ticking = True
    run.loop.meanwhile()
    assert run.losses == []
    run.loop._ticking = False
    run.loop.meanwhile()
    assert [loss.node for loss in run.losses] == ["actor/0"]


def test_a_node_that_is_gone_does_not_hang() -> None:
    run = Pretended(hang_seconds=5.0)
    run.loop.start_all()
    run.at(0.5, *(Beat(name) for name in ("service", "actor/0", "actor/1")))
    run.at(1.0, killed("actor/0"))
    run.ready_at = 100.0
    for second in range(1, 40):
        run.at(float(second), Beat("service"), Beat("actor/1", second))
    run.loop.wait(30.0)
    assert run.hangs == []


def test_a_node_has_lived_since_it_was_started_and_not_since_it_was_lost() -> None:
    run = Pretended(hang_seconds=None)
    run.loop.start_all()
    run.at(100.0, killed("actor/0", 1))
    run.on_start = lambda name: run.at(run.now + 1.0, killed(name, 1)) if len(run.started(name)) < 4 else None
    run.loop.wait(120.0)
    first, *later = run.started("actor/0")
    waits = [begun - lost for begun, lost in zip(later, (100.0, later[0] + 1.0, later[1] + 1.0))]
    assert waits == pytest.approx([FIRST_BACKOFF, 2 * FIRST_BACKOFF, 4 * FIRST_BACKOFF])
    assert first == 0.0


class Hasty(Connection):
    def receive(self) -> tuple[Any, list[int]]:
        assert self.ready(), "whoever reads here waits for ever"
        return super().receive()


class Answering(ProcessRun):
    """A run whose node answers only while the driver supervises it."""

    beats = 0.0
    capabilities = Capabilities()

    def __init__(self) -> None:
        super().__init__(Program(), None, 0)
        self.nodes_ends: list[Connection] = []

    def make_lanes(self, name: str) -> tuple[LocalLane, LocalLane]:
        ends = [pair(), pair()]
        self.nodes_ends += [Connection(there) for _, there in ends]
        calls, futures = (LocalLane(name, Hasty(here)) for here, _ in ends)
        return calls, futures

    def hear(self, timeout: float) -> list[Event]:
        for end in self.nodes_ends:
            if end.ready():
                end.send((True, end.receive()[0][0]))
        return []

    def start(self, node: Node, context: Context) -> None: ...

    def kill(self, name: str) -> None: ...

    def stop(self, name: str) -> None: ...

    def close(self) -> None:
        self.close_lanes()
        for end in self.nodes_ends:
            end.close()


def test_the_driver_supervises_while_it_waits_for_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rpc, "LOOK_AROUND", 0.0)
    with Answering() as run:
        client = run.client(Handle("node"))
        assert client.call() == "call"
        assert client.future.later().result() == "later"
