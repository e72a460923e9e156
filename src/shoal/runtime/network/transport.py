"""Messages between processes of one machine: small parts over an AF_UNIX stream, large arrays through shared memory.

A message is a pickle whose arrays are left out of band. A small array follows the pickle on the stream. A large one
is placed in an arena of memfd segments that the sender owns (or lies there already, when it was made with
`buffers.empty`): only its place travels, and the receiver's array is a view of the same memory. When the last such
view is gone, the next message the other way gives the place back. File descriptors ride along as ancillary data.

Where memfd is missing everything travels on the stream.
"""

from __future__ import annotations

import array
import collections
import mmap
import os
import pickle
import select
import socket
import struct
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from shoal.buffers import Arena, ArenaArray

LARGE = 1 << 16  # bytes from which an array goes through shared memory; a smaller one is copied sooner than lent
ARENA_LIMIT = 1 << 31  # bytes a connection may hold per direction; beyond that arrays travel on the stream
HEADER = struct.Struct("<IIIIQ")  # pickle bytes, buffers, places given back, new segments, bytes on the stream
_PLACE = struct.Struct("<iqqq")  # segment (-1: on the stream), offset, length, loan
DESCRIPTORS = 64  # that can travel with one message
_ANCILLARY = socket.CMSG_SPACE(DESCRIPTORS * 4)
HAS_MEMFD = hasattr(os, "memfd_create")


class Closed(ConnectionError):
    """The other end is gone."""


class Connection:
    """One end of a stream. One thread at a time may send, and one may receive (callers hold their own locks)."""

    def __init__(self, sock: socket.socket, shared: bool = True) -> None:
        self.sock = sock
        self.arena = Arena(self._new_segment, ARENA_LIMIT) if shared and HAS_MEMFD else None
        self._new: collections.deque[tuple[int, int]] = collections.deque()  # (fd, size) the other end has not seen
        self._lent: dict[int, Any] = {}  # what the other end still reads, by loan
        self._loans = 0
        self._mapped: list[mmap.mmap] = []  # the other end's segments
        self._leases: dict[int, tuple[weakref.ref[ArenaArray], int]] = {}
        self._give_back: collections.deque[int] = collections.deque()

    def fileno(self) -> int:
        return self.sock.fileno()

    def close(self) -> None:
        self.sock.close()
        for fd, _ in self._new:
            os.close(fd)
        self._new.clear()
        self._lent.clear()

    def shut_down(self) -> None:
        """End the stream both ways; whoever is receiving, on either end, gets `Closed`."""
        try:
            self.sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass

    # ---- sending

    def _new_segment(self, size: int) -> mmap.mmap:
        fd = os.memfd_create("shoal", os.MFD_CLOEXEC)
        try:
            os.ftruncate(fd, size)
            memory = mmap.mmap(fd, size)
        except BaseException:
            os.close(fd)
            raise
        self._new.append((fd, size))  # last: another thread may send and close it at once
        return memory

    def _place(self, buffer: pickle.PickleBuffer, on_stream: list[memoryview]) -> bytes:
        raw = buffer.raw()
        size = raw.nbytes
        if size < LARGE or self.arena is None:
            on_stream.append(raw)
            return _PLACE.pack(-1, 0, size, 0)
        view: np.ndarray[Any, Any] = np.frombuffer(raw, np.uint8)
        place = self.arena.locate(view.__array_interface__["data"][0], size)
        held: Any = buffer
        if place is None:
            block = self.arena.block(size)
            if block is None:
                on_stream.append(raw)
                return _PLACE.pack(-1, 0, size, 0)
            np.copyto(block, view)
            held, place = block, self.arena.locate(block.__array_interface__["data"][0], size)
            assert place is not None
        self._loans += 1
        self._lent[self._loans] = held
        return _PLACE.pack(*place, size, self._loans)

    def send(self, message: Any, fds: Sequence[int] = (), while_full: Callable[[], None] | None = None) -> None:
        """Send one message. `while_full` is called when the stream is full and something can be read."""
        buffers: list[pickle.PickleBuffer] = []
        body = pickle.dumps(message, protocol=5, buffer_callback=buffers.append)
        on_stream: list[memoryview] = []
        places = b"".join([self._place(buffer, on_stream) for buffer in buffers])
        returned: list[int] = []
        while self._give_back:
            returned.append(self._give_back.popleft())
        segments: list[tuple[int, int]] = []
        while self._new:
            segments.append(self._new.popleft())
        header = HEADER.pack(
            len(body), len(buffers), len(returned), len(segments), sum(part.nbytes for part in on_stream)
        )
        small = b"".join(
            [
                header,
                places,
                struct.pack(f"<{len(returned)}q", *returned),
                struct.pack(f"<{len(segments)}q", *(size for _, size in segments)),
                body,
            ]
        )
        all_fds = [fd for fd, _ in segments] + list(fds)
        assert len(all_fds) <= DESCRIPTORS, "send them in several messages"
        try:
            self._write([memoryview(small), *on_stream], all_fds, while_full)
        finally:
            for fd, _ in segments:
                os.close(fd)

    def _write(self, parts: list[memoryview], fds: Sequence[int], while_full: Callable[[], None] | None) -> None:
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        parts = [part for part in parts if part.nbytes]
        while parts:
            try:
                sent = self.sock.sendmsg(parts[:64], ancillary, socket.MSG_DONTWAIT)
            except BlockingIOError:
                self._wait_writable(while_full)
                continue
            except (BrokenPipeError, ConnectionResetError, OSError) as error:
                raise Closed(str(error)) from None
            ancillary = []
            while parts and sent >= parts[0].nbytes:
                sent -= parts.pop(0).nbytes
            if sent:
                parts[0] = parts[0].cast("B")[sent:]

    def _wait_writable(self, while_full: Callable[[], None] | None) -> None:
        poll = select.poll()
        poll.register(self.sock, select.POLLOUT | (select.POLLIN if while_full else 0))
        for _, event in poll.poll():
            if event & select.POLLIN and while_full:
                while_full()  # the other end may be stuck sending to us: two full streams would wait for ever

    def writable(self) -> bool:
        """Whether a small message can be sent without waiting."""
        poll = select.poll()
        poll.register(self.sock, select.POLLOUT)
        return bool(poll.poll(0))

    # ---- receiving

    def ready(self, timeout: float | None = 0.0) -> bool:
        """Whether something can be received within `timeout` seconds (None: for ever)."""
        poll = select.poll()
        poll.register(self.sock, select.POLLIN)
        return bool(poll.poll(None if timeout is None else timeout * 1e3))

    def receive(self) -> tuple[Any, list[int]]:
        """The next message and the file descriptors that came with it; `Closed` at the end of the stream."""
        header, fds = self._read_header()
        body_size, buffers, returned, segments, stream_size = HEADER.unpack(header)
        rest = self._read(buffers * _PLACE.size + 8 * (returned + segments) + body_size)
        stream = self._read(stream_size) if stream_size else bytearray()  # whatever fails below, the message is read
        at = buffers * _PLACE.size
        for loan in struct.unpack_from(f"<{returned}q", rest, at):
            self._lent.pop(loan, None)
        at += 8 * returned
        for size in struct.unpack_from(f"<{segments}q", rest, at):
            fd = fds.pop(0)
            self._mapped.append(mmap.mmap(fd, size))
            os.close(fd)
        at += 8 * segments
        arrays: list[Any] = []
        position = 0
        for index in range(buffers):
            segment, offset, length, loan = _PLACE.unpack_from(rest, index * _PLACE.size)
            if segment < 0:
                arrays.append(memoryview(stream)[position : position + length])
                position += length
            else:
                arrays.append(self._lease(segment, offset, length, loan))
        return pickle.loads(memoryview(rest)[at:], buffers=arrays), fds

    def _lease(self, segment: int, offset: int, length: int, loan: int) -> ArenaArray:
        block = ArenaArray(length, np.uint8, self._mapped[segment], offset)
        reference = weakref.ref(block, self._released)
        self._leases[id(reference)] = (reference, loan)
        return block

    def _released(self, gone: weakref.ref[ArenaArray]) -> None:
        self._give_back.append(self._leases.pop(id(gone))[1])

    def _read_header(self) -> tuple[bytes, list[int]]:
        try:
            data, ancillary, flags, _ = self.sock.recvmsg(HEADER.size, _ANCILLARY)
        except OSError as error:
            raise Closed(str(error)) from None
        if flags & socket.MSG_CTRUNC:
            raise Closed("this process may not open as many files as were sent: raise the limit (`ulimit -n`)")
        if not data:
            raise Closed("the other end closed the connection")
        fds = array.array("i")
        for level, kind, content in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                fds.frombytes(content[: len(content) - len(content) % fds.itemsize])
        if len(data) < HEADER.size:
            data += bytes(self._read(HEADER.size - len(data)))
        return data, list(fds)

    def _read(self, size: int) -> bytearray:
        data = bytearray(size)
        view = memoryview(data)
        while view:
            try:
                count = self.sock.recv_into(view)
            except OSError as error:
                raise Closed(str(error)) from None
            if not count:
                raise Closed("the other end closed the connection in the middle of a message")
            view = view[count:]
        return data


def pair() -> tuple[socket.socket, socket.socket]:
    """Two connected ends; nothing of them is visible in the file system."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
