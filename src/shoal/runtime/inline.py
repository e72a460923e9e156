"""The inline runtime: one node at a time in a fixed order, on a virtual clock. Reproducible, debuggable.

Every node has a thread (a blocked call must be able to yield, and torch's grad mode is per thread) but only the one
that holds the baton runs. A node gives the baton away after each `step` and wherever it waits. Time is virtual: a step
takes a millisecond, and when everybody waits the clock jumps to the nearest deadline. When nobody can ever go on, the
run says who waits for what.

While the driver has its turn everybody else stands still, at the end of a step or where it waits: `states` are those of
one moment, and a run that starts from them goes on as this one does (decision 0029).
"""

from __future__ import annotations

import collections
import contextlib
import pickle
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import cloudpickle

from shoal.errors import UserError
from shoal.program import Capabilities, Client, Context, Handle, Node, NodeDied, Program, current, public, set_current
from shoal.runtime import host
from shoal.runtime.baton import Baton, Deadlock, Stopped, Task, deadlock_report
from shoal.runtime.restarts import Supervisor
from shoal.runtime.supervision import Event, Finished, Lost, Supervision

LATEST = 1e11  # virtual seconds, some thousand years; beyond that small steps would no longer move the clock
BUILDING = 60.0  # virtual seconds in which nodes that go on from a state must have been made
SHARED = "run"  # the name of what nodes share, among their states

# One node runs at a time: nothing is gained by asking ahead, and nobody dies while another waits. A report comes after
# twenty steps of any node (baton.TICK).
CAPABILITIES = Capabilities(asks_ahead=False, nodes_may_die=False, own_processes=False, report_seconds=0.02)


class _InlineFuture:
    def __init__(self, baton: Baton, what: str) -> None:
        self._baton = baton
        self.what = what
        self.ready = False
        self.value: Any = None
        self.error: BaseException | None = None

    def done(self) -> bool:
        return self.ready

    def result(self) -> Any:
        if not self.ready:
            with self._baton.driving():
                self._baton.wait_for(lambda: self.ready, None, self.what)
        if self.error is not None:
            raise self.error
        return self.value


class _Calls:
    """A waiting call runs in the caller's own thread."""

    def __init__(self, run: InlineRun, callee: str) -> None:
        self._run, self._callee = run, callee

    def send(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _InlineFuture:
        future = _InlineFuture(self._run.baton, f"{self._callee}.{method}")
        self._run.call(self._callee, method, args, kwargs, future)
        return future


class _Futures:
    """Futures run in order in a thread of their own, which takes its turns like any node."""

    def __init__(self, run: InlineRun, caller: str, callee: str) -> None:
        self._run, self._name, self._callee = run, f"{caller}→{callee}", callee
        self._place = (*run.place(caller), *run.place(callee))
        self._queue: collections.deque[tuple[str, Any, Any, _InlineFuture]] = collections.deque()
        self._task: Task | None = None

    def send(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _InlineFuture:
        future = _InlineFuture(self._run.baton, f"{self._callee}.{method}")
        args, kwargs = _copy((args, kwargs))  # as they are now: the caller may change them before the call runs
        self._queue.append((method, args, kwargs, future))
        if self._task is None:
            self._task = self._run.baton.spawn(self._name, self._place, self._work, idle=True)
        self._task.idle = False
        return future

    def _work(self) -> None:
        baton = self._run.baton
        while True:
            if self._task is not None:
                self._task.idle = True
            baton.wait_for(lambda: bool(self._queue), None, "calls to make")
            if self._task is not None:
                self._task.idle = False
            method, args, kwargs, future = self._queue.popleft()
            self._run.call(self._callee, method, args, kwargs, future)


def _copy(value: Any) -> Any:
    """What crosses between nodes is a copy, as on every other runtime."""
    return pickle.loads(cloudpickle.dumps(value, protocol=5))


@contextlib.contextmanager
def _taking(name: str) -> Iterator[None]:
    """A state that was saved is taken; whatever that raises, it is not this program's."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        raise UserError(
            f"The state of {name} does not fit this program ({' '.join(str(error).split())[:200]}): it was saved by "
            "another version of its code."
        ) from error


class InlineRun:
    """A program driven by the thread that calls `wait`."""

    def __init__(
        self,
        program: Program,
        *,
        seed: int = 0,
        supervisor: Supervisor | None = None,
        states: Mapping[str, Any] | None = None,  # those of a run like this one, at the moment from which this goes on
    ) -> None:
        self.program = program
        self._order = {name: index for index, name in enumerate(program.nodes)}
        self.baton = Baton()
        self.supervisor = supervisor or Supervisor()
        self._supervision = Supervision(program, self, self.supervisor, seed, self.baton.monotonic)
        self._targets: dict[str, Any] = {}
        self._contexts: dict[str, Context] = {}
        self._clients: dict[str, Client] = {}  # of the driver
        self._told: list[Event] = []
        self._gone: set[str] = set()  # lost and not started again yet
        self._turns_seen = -1
        self._in_step: set[str] = set()
        self._held = states is not None  # nobody makes a step before all have their states
        self._until: Callable[[], bool] = lambda: False
        self._supervision.start_all()
        if states is not None:
            try:
                self._go_on_from(states)
            except BaseException:
                self.close()
                raise

    # ---- using it

    def client(self, handle: Any) -> Any:
        assert isinstance(handle, Handle)
        if handle.name not in self._clients:  # one for all who ask: its calls ahead have a thread
            self._clients[handle.name] = self._client("main", handle.name)
        return self._clients[handle.name]

    def wait(self, seconds: float, until: Callable[[], bool] = lambda: False) -> None:
        """Drive the nodes for `seconds` of virtual time, or `until` something is so, asked once per round of turns."""
        deadline, self._until = self.baton.after(seconds), until
        with self.baton.driving():
            while True:
                self._supervision.tick(deadline)
                if self.baton.now >= deadline or until():
                    break
        changing = self._supervision.restarting() or self._supervision.leaving() or self._supervision.finished
        stuck = [] if changing else self.baton.stuck()
        if stuck and self.baton.turns == self._turns_seen:
            raise Deadlock(deadlock_report(stuck))
        self._turns_seen = self.baton.turns

    def finished(self, handle: Any) -> bool:
        return handle.name in self._supervision.finished

    def replace(self, name: str, reason: str) -> None:
        """Nodes share a process here: none can be killed."""
        raise RuntimeError(f"node {name!r} cannot be replaced on the inline runtime ({reason})")

    def add(self, *nodes: Node) -> None:
        """Start further nodes, whose turns come after all others'."""
        for node in nodes:
            self._order.setdefault(node.name, len(self._order))
        self._supervision.add(*nodes)

    def remove(self, name: str) -> None:
        """Have a node leave after its present step, while the run goes on."""
        self._supervision.remove(name)

    def pids(self) -> dict[str, int]:
        return {}

    def machines(self) -> dict[str, str]:
        return {}

    def room(self) -> int:
        return 0

    def close(self) -> None:
        self.baton.stop()
        for target in self._targets.values():
            host.close(target)
        self._targets.clear()

    def __enter__(self) -> InlineRun:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- everything at one moment

    def place(self, name: str) -> tuple[int, ...]:
        return (self._order.get(name, -1),)

    def target(self, name: str) -> Any:
        """A node's own object; to be looked at while the driver has its turn, and never called where it may wait."""
        return self._targets.get(name)

    def still(self, ended: bool = False) -> bool:
        """Whether every node is between two steps, or where it waits and could begin its step again. One that has ended
        says nothing of where it would go on: the end of a run is no such moment until it is over."""
        if self._gone or self._supervision.restarting() or self._supervision.leaving():
            return False
        if len(self._targets) < len(self.program.nodes):
            return False
        if self._supervision.finished and not ended:
            return False
        calls = any(not task.idle and not task.ended for task in self.baton.tasks if len(task.place) > 1)
        return not calls and all(getattr(self._targets[name], "still", False) for name in self._in_step)

    def states(self, ask: Callable[[str, Any], Any]) -> dict[str, Any]:
        """What `ask(name, target)` makes of every node at this moment, and the state of what they share."""
        found = {}
        for name, target in self._targets.items():
            with self._as(name):
                found[name] = ask(name, target)
        return found | {SHARED: {"clock": self.baton.now, "generators": host.generator_states()}}

    def _go_on_from(self, states: Mapping[str, Any]) -> None:
        with self.baton.driving():
            built = self.baton.wait_for(
                lambda: bool(self._told) or len(self._targets) == len(self.program.nodes), BUILDING, "all nodes"
            )
        if not built or self._told:  # the driver's next wait says what is wrong
            self._held = False
            return
        with _taking("the clock"):
            clock = float(states[SHARED]["clock"])
            if not 0.0 <= clock <= LATEST:
                raise ValueError(f"it stood at {clock:g} seconds")
            self.baton.now = clock
        for name, target in self._targets.items():
            with self._as(name), _taking(name):
                target.load_state_dict(states[name])
        with _taking("the random generators"):
            host.load_generator_states(states[SHARED]["generators"])
        self._held = False

    @contextlib.contextmanager
    def _as(self, name: str) -> Iterator[None]:
        """As if the node itself did it."""
        before = current()
        set_current(self._contexts[name])
        try:
            with self.baton.driving():
                yield
        finally:
            set_current(before)

    # ---- what the supervision asks for

    beats = 0.0
    capabilities = CAPABILITIES

    def hear(self, timeout: float) -> list[Event]:
        """Drive the nodes until one of them ends."""
        self.baton.wait_for(lambda: bool(self._told) or self._until(), timeout, "the run")
        events, self._told = self._told, []
        return events

    def kill(self, name: str) -> None:
        raise RuntimeError(f"node {name!r} cannot be killed: it shares its process with the others")

    def stop(self, name: str) -> None:
        """Unwind a node's thread, wherever it waits."""
        self.baton.end(name)
        host.close_quietly(self._targets.pop(name, None))
        self._told.append(Lost(name, "ended as it was asked to"))

    def tell(self, name: str, method: str, *arguments: object) -> None:
        with contextlib.suppress(NodeDied):
            getattr(self.client(Handle(name)), method)(*arguments)

    def cleared(self, name: str) -> None:
        self._clients.pop(name, None)
        self.baton.end(f"main→{name}")

    def can_start(self) -> bool:
        return True

    def start(self, node: Node, context: Context) -> None:
        self._contexts[node.name] = context
        self._gone.discard(node.name)

        def body() -> None:
            steps = 0
            try:
                host.prepare(context)
                target = node.build(lambda callee: self._client(node.name, callee))
                self._targets[node.name] = target
                if not callable(getattr(target, "step", None)):
                    return
                if self._held:
                    self.baton.wait_for(lambda: not self._held, None, "the states of the others")
                while self._step(node.name, target) is not False:
                    steps += 1
                    self.baton.yield_turn()
                self._told.append(Finished(node.name))
            except Stopped:
                raise
            except BaseException as error:  # an environment may raise anything
                target = self._targets.pop(node.name, None)
                host.close_quietly(target)
                self._gone.add(node.name)
                self.baton.lose(node.name)
                self._told.append(host.failure(node.name, error, int(getattr(target, "progress", steps))))

        self.baton.spawn(node.name, self.place(node.name), body)

    def _step(self, name: str, target: Any) -> Any:
        self._in_step.add(name)
        try:
            return target.step()
        finally:
            self._in_step.discard(name)

    def _client(self, caller: str, callee: str) -> Client:
        return Client(callee, _Calls(self, callee), _Futures(self, caller, callee))

    def call(self, callee: str, method: str, args: Any, kwargs: Any, future: _InlineFuture) -> None:
        caller, task = current(), self.baton.holder
        try:
            with self.baton.driving():
                self.baton.wait_for(
                    lambda: callee in self._targets or callee in self._gone, None, f"node {callee!r} to be built"
                )
                if callee in self._gone:
                    raise NodeDied(f"node {callee!r} is gone")
                args, kwargs = _copy((args, kwargs))
                set_current(self._contexts[callee])
                task.inside.append(callee)
                try:
                    future.value = _copy(public(self._targets[callee], method)(*args, **kwargs))
                finally:
                    task.inside.pop()
        except Deadlock:
            raise
        except NodeDied as error:
            future.error = error
        except Exception as error:
            error.add_note(f"raised in node {callee!r}")
            future.error = error
        finally:
            future.ready = True
            set_current(caller)
