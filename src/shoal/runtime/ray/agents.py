"""The driver's end of its agents: one in this process, for its own machine, and one behind a stream for each other."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import threading
import time
from dataclasses import dataclass
from typing import Any

import ray as typed_ray
from ray import exceptions
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from shoal.errors import UserError
from shoal.runtime.local.agent import Agent
from shoal.runtime.local.node import GRACE
from shoal.runtime.network.endpoints import connect
from shoal.runtime.network.identity import Authority, Identity
from shoal.runtime.network.transport import Closed, Connection
from shoal.runtime.ray.orders import Orders
from shoal.runtime.ray.placement import Machine
from shoal.runtime.ray.remote import AgentActor, AgentLoop, Welcome, Word, watch_closely
from shoal.runtime.ray.shipping import compare, installed, missing_module

ray: Any = typed_ray  # its own types are incomplete


@dataclass(frozen=True)
class Gone:
    """An agent has ended, with its nodes, or could not be started."""

    reason: str


@dataclass(frozen=True)
class Unfit:
    """A machine on which the program's nodes cannot live, and why."""

    sentence: str


@dataclass(frozen=True)
class Noted:
    """What should be known of a machine."""

    text: str


Heard = tuple[str, list[Word] | Gone | Unfit | Noted]  # by whom, and what
Inbox = queue.SimpleQueue[Heard]


class HomeAgent:
    """Of the driver's own machine, in a thread of this process."""

    pid = os.getpid()
    up = True

    def __init__(self, machine: Machine, agent: Agent, inbox: Inbox) -> None:
        self.key, self.address, self._inbox = machine.id, machine.address, inbox
        self._loop = AgentLoop(agent, lambda words: inbox.put((machine.id, words)))
        self._thread = threading.Thread(target=self._run, daemon=True, name="agent")
        self._thread.start()

    def put(self, *order: Any) -> None:
        self._loop.put(*order)

    def _run(self) -> None:
        try:
            self._loop.run()
        except BaseException as error:
            self._inbox.put((self.key, Gone(f"could not be heard: {error}")))

    def end(self) -> None:
        self.put("end")

    def close(self) -> None:
        self._thread.join()


class RemoteAgent:
    """Of another machine, or of GPUs, which Ray hands to the process that asks for them. What it is told is kept until
    it can be reached."""

    def __init__(
        self,
        key: str,
        machine: Machine,
        authority: Authority,
        identity: Identity,
        inbox: Inbox,
        ray_orders: Orders,
        variables: dict[str, str],
        welcome: Welcome,
        gpus: float = 0.0,
    ) -> None:
        self.key, self.machine, self.address = key, machine, machine.address
        self.pid: int | None = None
        self.up = False  # it can be reached
        self._authority, self._identity, self._inbox, self._ray = authority, identity, inbox, ray_orders
        self._orders: queue.SimpleQueue[tuple[Any, ...] | None] = queue.SimpleQueue()
        self._ended = threading.Event()
        self._gpus, self._variables, self._welcome = gpus, variables, welcome
        self._actor: Any = None
        self._connection: Connection | None = None
        threading.Thread(target=self._live, daemon=True, name=f"agent of {machine.name}").start()

    def put(self, *order: Any) -> None:
        self._orders.put(order)

    def _live(self) -> None:
        """Reach the agent, then pass orders on, each as it comes: nobody else waits for a stream that is full."""
        there = NodeAffinitySchedulingStrategy(self.machine.id, soft=False)
        options = {"num_cpus": 0, "num_gpus": self._gpus, "max_concurrency": 4}
        options |= {"max_restarts": 0, "max_task_retries": 0}  # the supervisor starts nodes again, never Ray
        try:
            made = ray.remote(AgentActor).options(**options, scheduling_strategy=there)
            self._actor = made.remote(self._authority.trust.authority, self.machine.address, self._variables)
            endpoint, public_key, self.pid, there_installed = ray.get(self._actor.listen.remote())
            if (differing := compare(self.machine.name, installed(), there_installed)) is not None:
                self._inbox.put((self.key, Noted(differing)))
            ray.get(self._actor.join.remote(self._authority.sign(public_key)))
            self._connection = connection = connect(endpoint, self._identity)
            watch_closely(connection)
            connection.send(self._welcome)
            self.up = True
            threading.Thread(target=self._listen, daemon=True, name=f"words of {self.machine.name}").start()
            while (order := self._orders.get()) is not None:
                connection.send(order)
        except UserError as error:
            self._refuse(str(error))
        except (Closed, exceptions.RayError) as error:
            if (remedy := missing_module(str(error))) is not None:
                self._refuse(f"on the machine {self.machine.name} {remedy}.")
            self._lose(_ending(error))

    def _listen(self) -> None:
        assert self._connection is not None
        try:
            while True:
                self._inbox.put((self.key, self._connection.receive()[0]))
        except Closed:
            self._lose("was lost with its machine")

    def _refuse(self, sentence: str) -> None:
        """This machine will not do, now or later."""
        if not self._ended.is_set():
            self._ended.set()
            self._inbox.put((self.key, Unfit(sentence)))

    def _lose(self, reason: str) -> None:
        if not self._ended.is_set():
            self._ended.set()
            self._inbox.put((self.key, Gone(reason)))

    def end(self) -> None:
        """Have it end its nodes, and itself."""
        self.put("end")

    def close(self) -> None:
        """Wait for that, then see to it."""
        deadline = time.monotonic() + GRACE + 2.0
        while self.up and not self._ended.wait(0.05) and time.monotonic() < deadline:
            pass
        self._leave()

    def kill(self) -> None:
        """End it at once, with its nodes. Ray asks a process to end itself, which one that is stopped does not hear:
        the kernel of its machine is asked too."""
        self._leave()
        if self.pid is not None:
            there = NodeAffinitySchedulingStrategy(self.machine.id, soft=False)
            ended = ray.remote(_kill).options(num_cpus=0, max_retries=0, scheduling_strategy=there)
            self._ray.put(lambda: ended.remote(self.pid))

    def _leave(self) -> None:
        self._ended.set()
        self._orders.put(None)
        if self._connection is not None:
            self._connection.shut_down()
        if self._actor is not None:
            self._ray.put(lambda: ray.kill(self._actor))


def _kill(pid: int) -> None:
    with contextlib.suppress(OSError):
        os.kill(pid, signal.SIGKILL)


def _ending(error: Exception) -> str:
    if isinstance(error, exceptions.OutOfMemoryError):
        return "was killed by Ray because its machine ran out of memory"
    if isinstance(error, exceptions.RuntimeEnvSetupError):
        return "could not be started: Ray failed to prepare its environment"
    if isinstance(error, exceptions.RayError) and "its node has died" not in str(error):
        return f"could not be started: {str(error).strip().splitlines()[-1]}"
    return "was lost with its machine"
