"""Starting node processes: a zygote that has imported torch forks them in milliseconds; elsewhere they are spawned.

The zygote is a fresh process with one thread (forking is unsafe otherwise, hence OMP_NUM_THREADS=1 before any import).
Every node leads a process group of its own. When a node ends, the zygote kills what its environments have started; when
the parent ends, however that happens, it kills all nodes and whatever of theirs is left, then ends. If the zygote
itself is killed the nodes go on, and another one is started.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import os
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Protocol

from shoal.runtime.host import single_threaded_environment
from shoal.runtime.local import limits
from shoal.runtime.network.transport import HAS_MEMFD, Closed, Connection, pair

PRELOAD = ("numpy", "torch", "gymnasium", "shoal.loops.wiring", "shoal.replay", "shoal.envs")
PRELOADED = ("shoal", "gymnasium")  # packages of which it imports whatever the parent has
CAN_FORK = sys.platform == "linux" and HAS_MEMFD
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
ATTEMPTS = 5  # to start a node, each with another zygote
LOOKS = 3  # at a zygote that is stopped, before another takes its place: all may be on their way from a stop
PATIENCE = 3.0  # seconds for killed processes to be gone


def _python() -> list[str]:
    """A new interpreter, which does not import what lies in the working directory under a library's name: that may be
    somebody else's. Nodes get this process's own path with their orders."""
    beside = Path(__file__).parents[3] == Path.cwd()  # Shoal itself is found there
    return [sys.executable] if beside else [sys.executable, "-P"]


class Launcher(Protocol):
    """Starts node processes and tells how they ended."""

    def start(self, name: str, control: socket.socket) -> int: ...
    def ready(self) -> bool:
        """Whether it starts processes at once: one that was lost and replaced needs seconds."""

    def ending(self, pid: int, timeout: float = 1.0) -> str: ...
    def kill(self, pid: int) -> None: ...
    def revive(self) -> str | None:
        """How the launcher's own process ended, if it has; another one is in its place then."""

    def close(self) -> None: ...


def _ended(code: int) -> str:
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"


def kill_group(pid: int) -> None:
    """Kill a node and the processes that it has started."""
    with contextlib.suppress(OSError):
        os.killpg(pid, signal.SIGKILL)


def _state(pid: int) -> str | None:
    """As the kernel has it: T is stopped, Z has ended; None where there is no such process."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0]
    except OSError:
        return None


class Zygote:
    """The parent's side."""

    def __init__(self) -> None:
        self._codes: dict[int, int] = {}  # how nodes have ended
        self._nodes: set[int] = set()
        self._orphans: set[int] = set()  # nodes that a former zygote has started
        self._has_forked = False
        self._ended: str | None = None  # how the former one did, where nobody has been told
        self._begin()

    def _begin(self) -> None:
        ours, theirs = pair()
        command = [*_python(), "-m", "shoal.runtime.local.zygote", str(theirs.fileno()), str(os.getpid())]
        self._process = subprocess.Popen(
            command, pass_fds=[theirs.fileno()], env=single_threaded_environment(), stdin=subprocess.DEVNULL, stdout=2
        )
        theirs.close()
        self._connection = Connection(ours, shared=False)
        self._ready = False
        self._stopped, self._next_look = 0, 0.0
        self._modules: list[str] = []  # that it was told to import

    def _share_imports(self) -> None:
        """Have the zygote import, once for all nodes, what this process has imported of ours and of the environments'
        library; a user's own modules may do what must not happen before forking."""
        modules = [name for name in sys.modules if name.partition(".")[0] in PRELOADED]
        if modules != self._modules:
            self._modules = modules
            self._connection.send(("import", modules))

    def start(self, name: str, control: socket.socket) -> int:
        for _ in range(ATTEMPTS):
            try:
                self._share_imports()
                self._has_forked = True
                self._connection.send(("fork", name), [control.fileno()])
                return self._forked()
            except Closed:
                self._ended = self.revive()
        raise RuntimeError("the process that starts the nodes ends whenever it is started")

    def _forked(self) -> int:
        while True:
            self._await_answer()
            message, _ = self._connection.receive()
            if message[0] == "forked":
                self._nodes.add(message[1])
                return int(message[1])
            self._note(message)

    def _await_answer(self) -> None:
        """It may be importing for long, but one that was stopped would be waited for for ever: it is killed, and the
        end of the stream says so."""
        while not self._connection.ready(1.0):
            if self._stands_still():
                self._process.kill()

    def _note(self, message: Any) -> None:
        match message:
            case ("ready",):
                self._ready = True
            case ("exited", pid, code):
                self._codes[pid] = code
                self._nodes.discard(pid)

    def ready(self) -> bool:
        return self._ready or self._hung_up()  # who has hung up is replaced when it is needed

    def ending(self, pid: int, timeout: float = 1.0) -> str:
        if pid in self._orphans:
            self._orphans.discard(pid)
            kill_group(pid)
            return "ended after the process that had started it"
        deadline = time.monotonic() + timeout
        with contextlib.suppress(Closed):
            while pid not in self._codes and self._connection.ready(max(0.0, deadline - time.monotonic())):
                self._note(self._connection.receive()[0])
        return _ended(self._codes.pop(pid)) if pid in self._codes else "closed its connection"

    def kill(self, pid: int) -> None:
        if pid in self._nodes | self._orphans:
            kill_group(pid)

    def revive(self) -> str | None:
        if self._ended is not None:
            ended, self._ended = self._ended, None
            return ended
        self._end_families()
        code = self._process.poll()
        if code is None and not self._hung_up() and not self._stands_still():
            return None
        stopped = self._stopped >= LOOKS
        if code is None:
            self._process.kill()
            code = self._process.wait()
        self._connection.close()
        self._orphans |= self._nodes
        self._nodes.clear()
        self._begin()
        for pid in self._orphans:
            self._connection.send(("adopt", pid))
        return "stood still and was replaced" if stopped else _ended(code)

    def _end_families(self) -> None:
        """Kill what is left of nodes that have ended after their zygote: nobody else does, and processes of their
        environments hold their streams open, so that nobody would hear of their end."""
        for pid in [pid for pid in self._orphans if _state(pid) in (None, "Z")]:
            kill_group(pid)

    def _stands_still(self) -> bool:
        """Whether it has been stopped for a while; it is looked at once a second."""
        if time.monotonic() >= self._next_look:
            self._next_look = time.monotonic() + 1.0
            self._stopped = self._stopped + 1 if _state(self._process.pid) == "T" else 0
        return self._stopped >= LOOKS

    def _hung_up(self) -> bool:
        """Take in what there is to hear; whether that was the last of it."""
        try:
            while self._connection.ready():
                self._note(self._connection.receive()[0])
        except Closed:
            return True
        return False

    def close(self) -> None:
        self._connection.close()
        if not self._has_forked:  # it may still be importing, and has nobody to end
            self._process.kill()
        try:
            self._process.wait(5.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            for pid in self._nodes | self._orphans:
                kill_group(pid)


class Spawner:
    """A fresh interpreter for every node: slow (seconds) and large, for systems where forking is unsafe."""

    def __init__(self) -> None:
        self._processes: dict[int, subprocess.Popen[bytes]] = {}

    def start(self, name: str, control: socket.socket) -> int:
        fd = control.fileno()
        command = [*_python(), "-m", "shoal.runtime.local.node", str(fd)]
        process = subprocess.Popen(
            command,
            pass_fds=[fd],
            env=single_threaded_environment(),
            stdin=subprocess.DEVNULL,
            stdout=2,
            process_group=0,
        )
        self._processes[process.pid] = process
        return process.pid

    def ready(self) -> bool:
        return True

    def ending(self, pid: int, timeout: float = 1.0) -> str:
        try:
            return _ended(self._processes[pid].wait(timeout))
        except subprocess.TimeoutExpired:
            return "closed its connection"
        finally:
            kill_group(pid)

    def kill(self, pid: int) -> None:
        kill_group(pid)

    def revive(self) -> None:
        return None

    def close(self) -> None:
        for pid, process in self._processes.items():
            kill_group(pid)
            process.wait()


# ---- the zygote's own side ------------------------------------------------------------------------------------------


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None).prctl(option, value)


def main(fd: int, parent: int) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # meant for the parent, which ends the run in order
        signal.signal(number, signal.SIG_IGN)
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before the line above
        os._exit(1)
    limits.raise_file_limit()
    for module in PRELOAD:
        importlib.import_module(module)
    _prctl(_PR_SET_PDEATHSIG, 0)  # from now on the end of the stream says it, and there are nodes to be ended first
    _prctl(
        _PR_SET_CHILD_SUBREAPER, 1
    )  # whoever loses its parent among the nodes' own processes becomes a child of this
    gc.collect()
    gc.freeze()  # the children share these pages as long as nobody writes to them
    connection = Connection(socket.socket(fileno=fd), shared=False)
    with contextlib.suppress(Closed):
        connection.send(("ready",))
    child = _Forks(connection).serve()
    if child is not None:
        from shoal.runtime.local.node import main as node_main

        node_main(child)


class _Forks:
    """Forks on request and reports exits."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._nodes: set[int] = set()
        self._adopted: set[int] = set()  # of a zygote before this one
        self._wake_read, self._wake_write = os.pipe()

    def serve(self) -> socket.socket | None:
        """Returns only in a child, with its control socket."""
        os.set_blocking(self._wake_write, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wake_write)
        poll = select.poll()
        poll.register(self._connection, select.POLLIN)
        poll.register(self._wake_read, select.POLLIN)
        try:
            while True:
                ready = {fd for fd, _ in poll.poll()}
                if self._wake_read in ready:
                    os.read(self._wake_read, 512)
                    self._reap()
                if self._connection.fileno() in ready and (child := self._obey()) is not None:
                    return child
        except Closed:  # the run is over
            self._end_all()
            os._exit(0)

    def _obey(self) -> socket.socket | None:
        (order, argument), fds = self._connection.receive()
        if order == "adopt":
            self._adopted.add(argument)
            return None
        if order == "import":
            for module in argument:
                with contextlib.suppress(Exception):
                    importlib.import_module(module)
            gc.freeze()
            return None
        pid = os.fork()
        if pid == 0:
            os.setpgid(0, 0)
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.close(self._wake_read)
            os.close(self._wake_write)
            self._connection.close()
            return socket.socket(fileno=fds[0])
        with contextlib.suppress(OSError):
            os.setpgid(pid, pid)  # whichever of the two comes first
        self._nodes.add(pid)
        os.close(fds[0])
        self._connection.send(("forked", pid))
        return None

    def _reap(self) -> None:
        while (ended := _waited(os.WNOHANG)) is not None:
            pid, status = ended
            if pid in self._nodes:  # else it belonged to one
                kill_group(pid)
                self._nodes.discard(pid)
                self._connection.send(("exited", pid, os.waitstatus_to_exitcode(status)))

    def _end_all(self) -> None:
        """Kill all nodes, then, as long as there are any, those who have lost their parents by that."""
        for pid in self._nodes | self._adopted:
            kill_group(pid)
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            for pid in _children():
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            if _waited(0) is None:
                return


def _waited(options: int) -> tuple[int, int] | None:
    """A child that has ended; None when there is none (left)."""
    try:
        pid, status = os.waitpid(-1, options)
    except ChildProcessError:
        return None
    return (pid, status) if pid else None


def _children() -> list[int]:
    try:
        with open(f"/proc/self/task/{os.getpid()}/children") as file:
            return [int(pid) for pid in file.read().split()]
    except OSError:  # a kernel that does not tell
        return []


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
