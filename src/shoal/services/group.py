"""Several learners as one: where they meet, and sums over all of them.

Learners meet at the `Group` service; what they add up then travels between them directly, with torch.distributed: by
nccl where each has a GPU of its own, otherwise by gloo. On the inline runtime, where all of them live in one process
and take turns, the service itself does the adding.

A learner takes part once in its life. When one is lost the others find out at their next sum, end with `PeerLost`, and
all of them meet again, in a new generation. Nccl would wait for who is gone: before each of its sums learners come
together by gloo, which hears at once of a lost one however long the others have to wait for data; the sum itself has
little time.
"""

from __future__ import annotations

import contextlib
import ctypes
import datetime
import fcntl
import os
import socket
import stat
import struct
import sys
import uuid
from typing import Any

import numpy as np
import torch
import torch.distributed as distributed
from torch import Tensor

from shoal import sync
from shoal.program import NodeDied, current
from shoal.types import Array, Role

Address = tuple[str, int]

MEETING = datetime.timedelta(seconds=20)  # for all to connect, once all have come
SUMMING = datetime.timedelta(hours=2)  # others may have to wait for data
ADDING = datetime.timedelta(seconds=60)  # once all have come to a sum of nccl's
BACKEND = "nccl"  # of learners that have a GPU each
APART = "|"  # between a machine and the GPU that a learner has there
_ADDRESS_OF_INTERFACE = 0x8915  # SIOCGIFADDR
_ATTACH_FILTER = 26  # SO_ATTACH_FILTER


class PeerLost(NodeDied):
    """Another learner of the group is gone; this one starts again together with it."""


class Group:
    """The learners of a run. `size` of them, numbered from 0, call `join`; rank 0 then says where to connect."""

    role = Role.PEERS
    restart = True  # whoever is connected needs it no longer

    def __init__(self, size: int) -> None:
        self._size = size
        self._changed = sync.Condition()
        self._newest: dict[int, int] = {}  # life of each rank
        self._waiting: dict[int, str] = {}  # ranks that have come for the next generation, and their machines
        self._generation = -1
        self._machines: list[str] = []
        self._address: Address | None = None
        self._parts: dict[int, Array] = {}
        self._total: Array = np.zeros(0)
        self._sums = 0
        self._closed = False

    def join(self, rank: int, life: int, machine: str) -> tuple[int, list[str]]:
        """Wait until every rank has come: (generation, machine of each). `life` rises when a rank starts again.

        The generation is the highest life among them. As nobody joins twice in one life, it rises with every meeting.
        """
        with self._changed:
            if life < self._newest.get(rank, life):
                raise PeerLost(f"learner {rank} has been started again since")
            self._newest[rank] = life
            self._waiting[rank] = machine
            if len(self._waiting) == self._size:
                self._generation = max(self._newest.values())
                self._machines = [self._waiting[one] for one in range(self._size)]
                self._waiting.clear()
                self._parts.clear()
                self._address = None
            self._changed.notify_all()
            self._wait(lambda: rank not in self._waiting or self._newest[rank] > life, "the other learners to come")
            if self._newest[rank] > life:
                raise PeerLost(f"learner {rank} has been started again since")
            return self._generation, self._machines

    def announce(self, generation: int, address: Address) -> None:
        """Rank 0 says where it listens."""
        with self._changed:
            if generation == self._generation:
                self._address = address
                self._changed.notify_all()

    def address(self, generation: int) -> Address:
        """Wait for where rank 0 of this generation listens."""
        with self._changed:
            self._wait(lambda: self._address is not None or self._broken(generation), "rank 0's address")
            if self._broken(generation) or self._address is None:
                raise PeerLost("another learner has been lost while the group was connecting")
            return self._address

    def sum(self, generation: int, rank: int, values: Array) -> Array:
        """Wait until every rank has brought its values; their sum, in the order of ranks."""
        with self._changed:
            if self._broken(generation):
                raise PeerLost("another learner has been lost")
            mine = self._sums
            self._parts[rank] = np.array(values)
            if len(self._parts) == self._size:
                self._total = sum(self._parts[one] for one in range(self._size))  # type: ignore[assignment]
                self._parts.clear()
                self._sums += 1  # its total stays until the next, which nobody can complete before all have read this
                self._changed.notify_all()
            self._wait(lambda: self._sums > mine or self._broken(generation), "the other learners' values")
            if self._sums == mine:
                raise PeerLost("another learner has been lost")
            return self._total

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _broken(self, generation: int) -> bool:
        """Somebody of this generation has come again, so the one who took part is gone."""
        return generation != self._generation or bool(self._waiting)

    def _wait(self, predicate: Any, why: str) -> None:
        self._changed.wait_for(lambda: self._closed or predicate(), None, why)
        if self._closed:
            raise NodeDied("the group of learners is closed")


class Member:
    """One learner's part in its group; making it waits for the others. See `shoal.optim.Peers`."""

    stateless = True  # a learner's next life has its own

    def __init__(self, group: Group, rank: int, size: int, device: str = "cpu") -> None:
        self.rank, self.size = rank, size
        self._group = group
        self._kind = torch.device(device).type
        self._fast: Any = None  # torch's group for tensors of that kind, where each learner has a GPU of its own
        self._connects = current().runtime.own_processes  # torch.distributed has one group per process
        self.generation, places = group.join(rank, current().restarts, f"{_machine()}{APART}{_gpu(device)}")
        if self._connects:
            machines, gpus = zip(*(place.split(APART) for place in places), strict=True)
            self._connect(len(set(machines)) == 1, own_gpus=all(gpus) and len(set(places)) == size)

    def sum(self, values: Tensor) -> Tensor:
        """The sum over all learners, the same to the last bit on each of them."""
        if not self._connects:
            return torch.from_numpy(self._group.sum(self.generation, self.rank, values.cpu().numpy())).to(values.device)
        by_gpu = self._fast is not None and values.device.type == self._kind
        total = values.clone() if by_gpu else values.to("cpu", copy=True)
        try:
            with sync.waiting():
                if by_gpu:
                    distributed.all_reduce(torch.zeros(1))  # all have come
                    distributed.all_reduce(total, group=self._fast)
                else:
                    distributed.all_reduce(total)
        except RuntimeError as error:
            raise PeerLost(f"learner {self.rank} lost the others: {str(error).splitlines()[0]}") from error
        return total.to(values.device)

    def largest(self, value: float) -> float:
        """The largest of all learners' values."""
        values = torch.zeros(self.size, dtype=torch.float64)
        values[self.rank] = value
        return float(self.sum(values).max())

    def _connect(self, one_machine: bool, own_gpus: bool) -> None:
        address = "127.0.0.1" if one_machine else current().address
        if (interface := interface_of(address)) is not None:  # or gloo and nccl listen where the machine's name leads
            os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
            os.environ.setdefault("NCCL_SOCKET_IFNAME", interface)
        os.environ["TORCH_GLOO_LAZY_INIT"] = "0"  # all connect here and now
        os.environ["TORCH_NCCL_BLOCKING_WAIT"] = "1"  # what takes too long raises; torch would end the process
        before = _listening()
        try:
            store = self._listen(address) if self.rank == 0 else self._call()
            store.set(f"here/{self.rank}", "")
            store.wait([f"here/{rank}" for rank in range(self.size)], MEETING)
            distributed.init_process_group("gloo", store=store, rank=self.rank, world_size=self.size, timeout=SUMMING)
            if own_gpus and distributed.is_nccl_available():
                self._fast = distributed.new_group(backend=BACKEND, timeout=ADDING)
        except RuntimeError as error:
            raise PeerLost(f"learner {self.rank} could not connect to the others: {error}") from error
        if self._fast is None:  # nccl connects at its first sum
            for descriptor in _listening() - before:
                _shut(descriptor)

    def _listen(self, host: str) -> Any:
        """On this address alone."""
        with socket.create_server((host, 0)) as listener:
            port = listener.getsockname()[1]
            store = distributed.TCPStore(  # type: ignore[attr-defined]
                host, port, self.size, True, MEETING, wait_for_workers=False, master_listen_fd=os.dup(listener.fileno())
            )
        self._group.announce(self.generation, (host, port))
        return store

    def _call(self) -> Any:
        host, port = self._group.address(self.generation)
        return distributed.TCPStore(  # type: ignore[attr-defined]
            host, port, self.size, False, MEETING, wait_for_workers=False
        )


def _listening() -> set[int]:
    """This process's descriptors on which callers are awaited by TCP; none where the system does not say."""
    if sys.platform != "linux":
        return set()
    found = set()
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        try:
            mode = os.fstat(descriptor).st_mode
            copy = os.dup(descriptor) if stat.S_ISSOCK(mode) else None
        except OSError:  # the list itself, or closed meanwhile
            continue
        if copy is not None:
            with socket.socket(fileno=copy) as sock:
                inet = sock.family in (socket.AF_INET, socket.AF_INET6) and sock.type == socket.SOCK_STREAM
                if inet and sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                    found.add(descriptor)
    return found


def _shut(descriptor: int) -> None:
    """Let nobody in any more. Those who have come stay connected; the socket itself is torch's, and stays as it is.

    Torch lets everybody in and keeps them: a stranger who calls often enough would leave it without descriptors, which
    ends the process.
    """
    drop_all = ctypes.create_string_buffer(struct.pack("HBBI", 0x06, 0, 0, 0))  # one instruction: return 0
    program = struct.pack("HP", 1, ctypes.addressof(drop_all))
    with socket.socket(fileno=os.dup(descriptor)) as sock, contextlib.suppress(OSError):  # a system may not allow it
        sock.setsockopt(socket.SOL_SOCKET, _ATTACH_FILTER, program)


def _machine() -> str:
    """Tells machines apart."""
    return f"{socket.gethostname()} {uuid.getnode():x}"


def _gpu(device: str) -> str:
    """Tells the GPUs of a machine apart; nothing where there is none. Nccl refuses two learners on one."""
    if not device.startswith("cuda") or not torch.cuda.is_available():
        return ""
    index = torch.device(device).index
    return str(torch.cuda.get_device_properties(torch.cuda.current_device() if index is None else index).uuid)


def interface_of(address: str) -> str | None:
    """The name of the network interface that has an address; None where the system does not say."""
    if sys.platform != "linux":
        names = [name for _, name in socket.if_nameindex()]
        return next((name for name in names if name.startswith("lo")), None) if address == "127.0.0.1" else None
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for _, name in socket.if_nameindex():
            try:
                found = fcntl.ioctl(any_socket, _ADDRESS_OF_INTERFACE, struct.pack("256s", name.encode()))
            except OSError:  # it has none
                continue
            if socket.inet_ntoa(found[20:24]) == address:
                return name
    return None
