"""Starting node processes: a zygote that has imported torch forks them in milliseconds; elsewhere they are spawned.

The zygote is a fresh process with one thread (forking is unsafe otherwise, hence OMP_NUM_THREADS=1 before any import).
The kernel kills it when the parent dies, and its children when it dies: nothing survives a SIGKILL of the parent.
"""

from __future__ import annotations

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
from typing import Any, Protocol

from shoal.runtime.host import single_threaded_environment
from shoal.runtime.local.transport import HAS_MEMFD, Closed, Connection, pair

PRELOAD = ("numpy", "torch", "gymnasium", "shoal.loops", "shoal.services", "shoal.replay", "shoal.envs")
CAN_FORK = sys.platform == "linux" and HAS_MEMFD
_PR_SET_PDEATHSIG = 1


class Launcher(Protocol):
    """Starts node processes and tells how they ended."""

    def start(self, name: str, control: socket.socket) -> int: ...
    def ending(self, pid: int, timeout: float = 1.0) -> str: ...
    def kill(self, pid: int) -> None: ...
    def close(self) -> None: ...


def _ended(status: int) -> str:
    code = status if -256 < status < 0 else os.waitstatus_to_exitcode(status)
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"


class Zygote:
    """The parent's side."""

    def __init__(self) -> None:
        ours, theirs = pair()
        command = [sys.executable, "-m", "shoal.runtime.local.zygote", str(theirs.fileno()), str(os.getpid())]
        self._process = subprocess.Popen(
            command, pass_fds=[theirs.fileno()], env=single_threaded_environment(), stdin=subprocess.DEVNULL, stdout=2
        )
        theirs.close()
        self._connection = Connection(ours, shared=False)
        self._exits: dict[int, int] = {}

    def start(self, name: str, control: socket.socket) -> int:
        try:
            self._connection.send(("fork", name), [control.fileno()])
            return int(self._answer("forked"))
        except Closed:
            raise RuntimeError("the process that starts the nodes is gone") from None

    def _answer(self, kind: str) -> Any:
        while True:
            message, _ = self._connection.receive()
            if message[0] == kind:
                return message[1]
            self._exits[message[1]] = message[2]

    def ending(self, pid: int, timeout: float = 1.0) -> str:
        deadline = time.monotonic() + timeout
        try:
            while pid not in self._exits and self._connection.ready(max(0.0, deadline - time.monotonic())):
                message, _ = self._connection.receive()
                self._exits[message[1]] = message[2]
        except Closed:
            return "died with the process that starts the nodes"
        return _ended(self._exits[pid]) if pid in self._exits else "closed its connection"

    def kill(self, pid: int) -> None:
        try:
            self._connection.send(("kill", pid))
        except Closed:
            pass

    def close(self) -> None:
        self._connection.close()
        try:
            self._process.wait(5.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class Spawner:
    """A fresh interpreter for every node: slow (seconds) and large, for systems where forking is unsafe."""

    def __init__(self) -> None:
        self._processes: dict[int, subprocess.Popen[bytes]] = {}

    def start(self, name: str, control: socket.socket) -> int:
        fd = control.fileno()
        command = [sys.executable, "-m", "shoal.runtime.local.node", str(fd)]
        process = subprocess.Popen(
            command, pass_fds=[fd], env=single_threaded_environment(), stdin=subprocess.DEVNULL, stdout=2
        )
        self._processes[process.pid] = process
        return process.pid

    def ending(self, pid: int, timeout: float = 1.0) -> str:
        try:
            return _ended(_as_status(self._processes[pid].wait(timeout)))
        except subprocess.TimeoutExpired:
            return "closed its connection"

    def kill(self, pid: int) -> None:
        self._processes[pid].kill()

    def close(self) -> None:
        for process in self._processes.values():
            process.kill()
            process.wait()


def _as_status(code: int) -> int:
    return code if code < 0 else code << 8


# ---- the zygote's own side ------------------------------------------------------------------------------------------


def _die_with_parent(parent: int) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before the line above
        os._exit(1)


def main(fd: int, parent: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _die_with_parent(parent)
    for module in PRELOAD:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()  # the children share these pages as long as nobody writes to them
    sock = socket.socket(fileno=fd)
    child = _serve(Connection(sock, shared=False), os.getpid())
    if child is not None:
        from shoal.runtime.local.node import main as node_main

        node_main(child)


def _serve(connection: Connection, zygote: int) -> socket.socket | None:
    """Fork on request and report exits; returns only in a child, with its control socket."""
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake_write)
    children: set[int] = set()
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    poll.register(wake_read, select.POLLIN)
    try:
        while True:
            ready = {fd for fd, _ in poll.poll()}
            if wake_read in ready:
                os.read(wake_read, 512)
                _reap(children, connection)
            if connection.fileno() not in ready:
                continue
            message, fds = connection.receive()
            if message[0] == "kill" and message[1] in children:
                os.kill(message[1], signal.SIGKILL)
            elif message[0] == "fork":
                pid = os.fork()
                if pid == 0:
                    _die_with_parent(zygote)
                    signal.set_wakeup_fd(-1)
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    os.close(wake_read)
                    os.close(wake_write)
                    connection.close()
                    return socket.socket(fileno=fds[0])
                children.add(pid)
                os.close(fds[0])
                connection.send(("forked", pid))
    except Closed:  # the run is over
        for pid in children:
            os.kill(pid, signal.SIGKILL)
        os._exit(0)


def _reap(children: set[int], connection: Connection) -> None:
    while children:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        children.discard(pid)
        connection.send(("exited", pid, status))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
