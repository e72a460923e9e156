"""The node processes of one machine: started, given orders, heard, and ended, whoever runs the program they are of."""

from __future__ import annotations

import contextlib
import os
import select
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from shoal.runtime.host import legible
from shoal.runtime.local import limits
from shoal.runtime.local.node import GRACE, Start, Told
from shoal.runtime.local.zygote import CAN_FORK, Launcher, Spawner, Zygote
from shoal.runtime.network.transport import DESCRIPTORS, Closed, Connection, pair
from shoal.runtime.supervision import Lost

ZYGOTE = "zygote"
LONGEST_PRINT = 1 << 16  # bytes that are read of what a node prints at a time
_warm: list[Zygote] = []


def warm() -> None:
    """Start importing in the background for a run that will follow: the command line calls this first of all."""
    if CAN_FORK and not _warm:
        _warm.append(Zygote())


def cool() -> None:
    """End what `warm` started when no run followed."""
    while _warm:
        _warm.pop().close()


@dataclass(frozen=True)
class Printed:
    """Lines that a node has printed."""

    node: str
    text: str


@dataclass
class Process:
    name: str
    pid: int
    control: Connection
    callees: list[str]
    prints: int | None = None  # the descriptor on which it is read what it prints
    line: bytes = b""  # that it has not ended yet
    failure: Lost | None = None  # what it told before it ended


class Agent:
    """One thread uses it. When the process that it lives in ends, so do its nodes."""

    def __init__(self, fork: bool = True, prints: bool = False) -> None:
        """`prints`: what nodes print is told, in place of being shown where they are."""
        limits.raise_file_limit()
        self.processes: dict[str, Process] = {}
        self.boards: dict[str, int] = {}  # memory files that callers of a node share
        self._prints = prints
        self._launcher: Launcher = (_warm.pop() if _warm else Zygote()) if fork and CAN_FORK else Spawner()

    def ready(self) -> bool:
        """Whether a node is started at once."""
        return self._launcher.ready()

    def add_board(self, name: str) -> None:
        if name not in self.boards:
            self.boards[name] = os.memfd_create(f"shoal-{name}", os.MFD_CLOEXEC)

    def start(self, start: Start, fds: Sequence[int] = ()) -> None:
        """Start a node's process. `fds` are two per callee, which remain the caller's to close; those of the boards it
        uses follow from here."""
        name = start.context.name
        ours, theirs = pair()
        pid = self._launcher.start(name, theirs)
        theirs.close()
        process = Process(name, pid, Connection(ours, shared=False), start.callees)
        boards = [*start.boards, *([name] if start.shares else [])]
        for board in boards:
            self.add_board(board)
        descriptors = [*fds, *(self.boards[board] for board in boards)]
        if self._prints:
            start = replace(start, prints=True)
            process.prints, writing = os.pipe()
            os.set_blocking(process.prints, False)
            descriptors.append(writing)
        self.processes[name] = process
        with contextlib.suppress(Closed):  # it died at once: that will be heard
            for at in range(0, len(descriptors), DESCRIPTORS):
                process.control.send(("descriptors",), descriptors[at : at + DESCRIPTORS])
            process.control.send(start)
        if self._prints:
            os.close(writing)

    def order(self, name: str, order: tuple[object, ...], fds: Sequence[int] = ()) -> None:
        """Tell a node's process to do something; one that is gone does not matter."""
        if name in self.processes:
            with contextlib.suppress(Closed):
                self.processes[name].control.send(order, fds)

    def kill(self, name: str) -> None:
        if name in self.processes:
            self._launcher.kill(self.processes[name].pid)

    def hear(self, timeout: float, also: int = -1) -> list[Told | Printed]:
        """What has happened; waits for it, or for something to read from the descriptor `also`, for `timeout` seconds
        at the most. The loss of the zygote is told as that of a node."""
        poll = select.poll()
        streams = {process.control.fileno(): process for process in self.processes.values()}
        prints = {process.prints: process for process in self.processes.values() if process.prints is not None}
        for fd in (*streams, *prints, *([] if also < 0 else [also])):
            poll.register(fd, select.POLLIN)
        told: list[Told | Printed] = []
        for fd, _ in poll.poll(timeout * 1e3):
            if fd in streams:
                told += self._listen(streams[fd])
            elif fd in prints:
                told += self._read(prints[fd])
        if (ending := self._launcher.revive()) is not None:
            told.append(Lost(ZYGOTE, ending))
        return told

    def _listen(self, process: Process) -> list[Told | Printed]:
        """Take in one message of a node. What it told of its failure is kept until it is gone."""
        try:
            event: Told = process.control.receive()[0]
        except Closed:
            process.control.close()
            self.processes.pop(process.name, None)
            last = self._read(process, to_the_end=True)
            return [*last, process.failure or Lost(process.name, self._launcher.ending(process.pid))]
        if isinstance(event, Lost):
            process.failure = event
            return []
        return [event]

    def _read(self, process: Process, to_the_end: bool = False) -> list[Told | Printed]:
        """Whole lines of what a node has printed; the last one as it is."""
        if process.prints is None:
            return []
        data, ended = process.line, False
        try:
            while part := os.read(process.prints, LONGEST_PRINT):
                data += part
                if not to_the_end:
                    break
            else:
                ended = True
        except BlockingIOError:
            pass
        if to_the_end or ended:
            os.close(process.prints)
            process.prints, cut = None, len(data)
        else:
            cut = data.rfind(b"\n") + 1 or (len(data) if len(data) >= LONGEST_PRINT else 0)
        process.line = data[cut:]
        text = data[:cut].decode(errors="replace").strip("\n")
        return [Printed(process.name, legible(text, LONGEST_PRINT))] if text else []

    def close(self) -> None:
        """Let all nodes end by themselves for a while, then kill what is left."""
        for name in self.processes:
            self.order(name, ("stop",))
        deadline = time.monotonic() + GRACE + 1.0
        for process in list(self.processes.values()):
            while process.control.ready(max(0.0, deadline - time.monotonic())):
                if any(isinstance(told, Lost) for told in self._listen(process)):
                    break
            else:
                self._launcher.kill(process.pid)
            process.control.close()
            self._read(process, to_the_end=True)
        self.processes.clear()
        for fd in self.boards.values():
            os.close(fd)
        self.boards.clear()
        self._launcher.close()
