"""Calls over a connection: a client's lane on one end, a thread that serves the node's object on the other."""

from __future__ import annotations

import collections
import pickle
import threading
import traceback
from collections.abc import Callable
from typing import Any

from shoal import buffers, sync
from shoal.program import Context, NodeDied, public, set_current
from shoal.runtime import cores
from shoal.runtime.network.transport import Closed, Connection

LOOK_AROUND = 0.5  # seconds


class RemoteError(RuntimeError):
    """Stands for a remote exception that could not be sent as it was."""


class LaneFuture:
    """Resolved by whoever reads the lane: answers come in the order of the calls."""

    __slots__ = ("_error", "_lane", "_value", "ready")

    def __init__(self, lane: LocalLane) -> None:
        self._lane = lane
        self._value: Any = None
        self._error: BaseException | None = None
        self.ready = False

    def done(self) -> bool:
        if not self.ready:
            self._lane.drain()
        return self.ready

    def result(self) -> Any:
        if not self.ready:
            self._lane.read_until(self)
        if self._error is not None:
            raise self._error
        return self._value

    def resolve(self, value: Any, error: BaseException | None) -> None:
        self._value, self._error = value, error
        self.ready = True


class LocalLane:
    """The calling end. There is no reader thread: an answer is read when somebody asks for it."""

    def __init__(self, callee: str, connection: Connection) -> None:
        self._callee = callee
        self._connection = connection
        self._pending: collections.deque[LaneFuture] = collections.deque()
        self._sending = threading.Lock()
        self._receiving = threading.RLock()
        self._dead: str | None = None
        self.while_waiting: Callable[[], None] | None = None  # called now and then by who waits for an answer

    def send(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> LaneFuture:
        """Make a call. Of a node that is gone it is the answer that fails: whoever does not ask for it goes on."""
        future = LaneFuture(self)
        with self._sending:
            if self._dead:
                future.resolve(None, NodeDied(self._dead))
                return future
            self._pending.append(future)
            try:
                with sync.waiting():
                    self._connection.send((method, args, kwargs), while_full=self.drain)
            except Closed:
                self._die()
                return future
            except BaseException:
                self._pending.remove(future)
                raise
        if len(self._pending) > 1:
            self.drain()
        return future

    def replace(self, connection: Connection) -> None:
        """The node was started again: calls under way have failed, the next ones go to the newcomer."""
        self._connection.shut_down()  # wakes whoever waits on it still: a machine may die without a farewell
        with self._sending, self._receiving:
            self._die()
            self._connection.close()
            self._connection = connection
            self._dead = None

    def hang_up(self) -> None:
        """Close the lane from another thread: whoever waits for an answer on it gets `NodeDied`."""
        self._connection.shut_down()

    def close(self) -> None:
        self._die()
        self._connection.close()

    def drain(self) -> None:
        """Take in the answers that are there already."""
        if not self._receiving.acquire(blocking=False):
            return
        try:
            while self._pending and self._connection.ready():
                self._receive()
        finally:
            self._receiving.release()

    def read_until(self, future: LaneFuture) -> None:
        with sync.waiting(), self._receiving:
            while not future.ready:
                if self.while_waiting is not None and not self._connection.ready(LOOK_AROUND):
                    self.while_waiting()
                else:
                    self._receive()

    def _receive(self) -> None:
        try:
            (ok, value), _ = self._connection.receive()
        except Closed:
            self._die()
            return
        except Exception as error:  # the answer has come, and cannot be unpickled here: it is still this call's own
            error.add_note(f"while the answer of node {self._callee!r} was unpickled")
            self._pending.popleft().resolve(None, error)
            return
        self._pending.popleft().resolve(value if ok else None, None if ok else _revive(self._callee, *value))

    def _die(self) -> None:
        self._dead = f"node {self._callee!r} is gone"
        while self._pending:
            self._pending.popleft().resolve(None, NodeDied(f"node {self._callee!r} died before it answered"))


def _revive(node: str, text: str, pickled: bytes | None) -> BaseException:
    error: BaseException
    try:
        error = pickle.loads(pickled) if pickled else RemoteError(text.strip().splitlines()[-1])
    except Exception:
        error = RemoteError(text.strip().splitlines()[-1])
    error.add_note(f"raised in node {node!r}:\n{text}")
    return error


def describe(error: BaseException) -> tuple[str, bytes | None]:
    """An exception as it travels: its traceback, and itself when that can be pickled."""
    text = "".join(traceback.format_exception(error))
    try:
        pickled: bytes | None = pickle.dumps(error)
        pickle.loads(pickled or b"")
    except Exception:
        pickled = None
    return text, pickled


def serve(target: Any, connection: Connection, context: Context) -> None:
    """Answer one caller's calls, until it hangs up."""
    _Caller(target, connection, context).serve()


class _Caller:
    """Calls of one caller: begun in order, one at a time, and answered in the same order.

    Of a target that is served `in_turns`, a call that only copies what it has found lets the next one begin meanwhile
    (`sync.work_beside_others`), in a second thread: while one batch is gathered, another is chosen and a third is sent.
    """

    def __init__(self, target: Any, connection: Connection, context: Context) -> None:
        self._target, self._connection, self._context = target, connection, context
        self._beginning = threading.Lock()  # held by the thread that receives a call, until the next one may begin
        self._held = threading.local()  # whether this thread holds it
        self._answering = threading.Condition()
        self._begun = self._answered = 0  # calls
        self._threads = 1
        self._failed = False

    def serve(self) -> None:
        set_current(self._context)
        if getattr(self._target, "in_turns", False):
            cores.keep_to_one_core()
            sync.set_when_beside(self._work_beside)
        try:
            while self._begin_and_answer():
                pass
        except BaseException:
            self._failed = True
            self._connection.shut_down()  # the caller hears of it, and so does the other thread
            raise
        finally:
            with self._answering:
                self._answering.notify()
                self._threads -= 1
                if not self._threads:
                    self._connection.close()

    def _begin_and_answer(self) -> bool:
        self._beginning.acquire()
        self._held.yes = True
        try:
            return self._call()
        finally:
            if self._held.yes:
                self._beginning.release()

    def _work_beside(self, alone: bool) -> None:
        """A call works beside the others now, on any core; if it concerns nobody else, the next one may begin."""
        cores.use_all_cores()
        if alone:
            self._let_next_begin()

    def _let_next_begin(self) -> None:
        if not self._held.yes:
            return
        self._held.yes = False
        self._beginning.release()
        if self._threads == 1:
            self._threads = 2
            name = threading.current_thread().name
            try:
                threading.Thread(target=self.serve, daemon=True, name=name).start()
            except RuntimeError:  # no more threads on this machine: the next call waits for this one
                self._threads = 1

    def _call(self) -> bool:
        """Receive a call, do it and answer; False when the caller has hung up."""
        try:
            (method, args, kwargs), _ = self._connection.receive()
        except Closed:
            return False
        except Exception as error:  # arguments that cannot be unpickled here
            return self._answer(self._next_number(), (False, describe(error)))
        number = self._next_number()
        try:
            with buffers.serving(self._connection.arena):
                answer = (True, public(self._target, method)(*args, **kwargs))
        except Exception as error:
            answer = (False, describe(error))
        del args, kwargs  # what the call brought in shared memory can go back with the answer
        return self._answer(number, answer)

    def _next_number(self) -> int:
        self._begun += 1
        return self._begun - 1

    def _answer(self, number: int, answer: tuple[bool, Any]) -> bool:
        """Send it when those to the calls before are sent; False when the caller has hung up."""
        with self._answering:
            while self._answered != number and not self._failed:
                self._answering.wait()
            if self._failed:
                return False
            try:
                try:
                    self._connection.send(answer)
                except Closed:
                    raise
                except Exception as error:
                    self._connection.send((False, describe(error)))
            except Closed:
                return False
            finally:
                self._answered += 1
                self._answering.notify()
        return True
