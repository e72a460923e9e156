"""The process that starts the nodes: what is killed with whom, also when it was lost itself. Without starting one."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from shoal.runtime.local import zygote
from shoal.runtime.local.zygote import Zygote, _Forks

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="there is none elsewhere")


@pytest.fixture
def node() -> Iterator[subprocess.Popen[bytes]]:
    """A process that leads a group, as nodes do."""
    process = subprocess.Popen(["sleep", "60"], process_group=0)
    yield process
    process.kill()
    process.wait()


class Line:
    """A connection that remembers what was said."""

    def __init__(self) -> None:
        self.said: list[Any] = []
        self.closed = False

    def send(self, message: Any) -> None:
        self.said.append(message)

    def ready(self, timeout: float = 0.0) -> bool:
        return False

    def close(self) -> None:
        self.closed = True


class Process:
    """A process that has ended with a code, or has not."""

    pid = 1

    def __init__(self, code: int | None) -> None:
        self.code = code
        self.calls: list[str] = []

    def poll(self) -> int | None:
        return self.code

    def kill(self) -> None:
        self.calls.append("kill")

    def wait(self, timeout: float | None = None) -> int:
        self.calls.append(f"wait {timeout}")
        return -9


def parent(monkeypatch: pytest.MonkeyPatch, code: int | None, *, nodes: set[int], orphans: set[int]) -> Any:
    def begin(self: Any) -> None:
        self._process, self._connection = Process(code), Line()
        self._ready, self._stopped, self._next_look, self._modules = False, 0, 0.0, []

    monkeypatch.setattr(Zygote, "_begin", begin)
    made = Zygote()
    made._nodes, made._orphans = nodes, orphans
    return made


def test_the_nodes_of_a_lost_zygote_are_handed_to_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    made = parent(monkeypatch, -9, nodes={11, 12}, orphans={10})
    before = made._connection
    assert made.revive() == "was killed by SIGKILL"
    assert before.closed
    assert (made._nodes, made._orphans) == (set(), {10, 11, 12})
    assert sorted(made._connection.said) == [("adopt", 10), ("adopt", 11), ("adopt", 12)]


def test_a_zygote_that_lives_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    made = parent(monkeypatch, None, nodes={11}, orphans=set())
    before = made._connection
    assert made.revive() is None
    assert (made._connection, made._nodes) == (before, {11})


def test_an_orphan_that_has_ended_takes_its_own_processes_along(
    node: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = parent(monkeypatch, None, nodes=set(), orphans={node.pid})
    assert made.ending(node.pid) == "ended after the process that had started it"
    assert node.wait(5.0) == -signal.SIGKILL
    assert made._orphans == set()


def test_only_what_was_started_here_is_killed(node: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    made = parent(monkeypatch, None, nodes=set(), orphans=set())
    made.kill(node.pid)
    assert node.poll() is None
    made._orphans.add(node.pid)
    made.kill(node.pid)
    assert node.wait(5.0) == -signal.SIGKILL


@pytest.mark.parametrize(("forked", "calls"), [(True, ["wait 5.0"]), (False, ["kill", "wait 5.0"])])
def test_a_zygote_with_nodes_is_given_time_to_end_them(
    forked: bool, calls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = parent(monkeypatch, None, nodes=set(), orphans=set())
    made._has_forked = forked
    made.close()
    assert made._process.calls == calls


def forks(nodes: set[int], adopted: set[int]) -> Any:
    made: Any = object.__new__(_Forks)
    made._connection, made._nodes, made._adopted = Line(), nodes, adopted
    return made


def test_with_a_node_goes_what_its_environments_have_started(monkeypatch: pytest.MonkeyPatch) -> None:
    killed: list[int] = []
    ended = iter([(11, 0), (77, 0), (12, 9), None])  # 77 belonged to one of them
    monkeypatch.setattr(zygote, "_waited", lambda options: next(ended))
    monkeypatch.setattr(zygote, "kill_group", killed.append)
    made = forks({11, 12, 13}, set())
    made._reap()
    assert killed == [11, 12]
    assert made._connection.said == [("exited", 11, 0), ("exited", 12, -9)]
    assert made._nodes == {13}


def test_at_the_end_adopted_nodes_are_ended_like_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    killed: list[int] = []
    monkeypatch.setattr(zygote, "kill_group", killed.append)
    monkeypatch.setattr(zygote, "_children", list)
    monkeypatch.setattr(zygote, "_waited", lambda options: None)
    forks({11}, {12})._end_all()
    assert sorted(killed) == [11, 12]
