"""A program on a Ray cluster: an agent on each machine forks the nodes that are placed there.

Ray finds the machines, holds what the nodes ask for, starts the agents and says when one has died. Everything else goes
over sockets of our own: orders to agents, and the calls between nodes, which by Ray would cost 1.6 to 2 ms of CPU each
(and 6 ms from 100 KB on). Nodes live as on the local runtime, so order, waiting, timeouts and failures are the same.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
import os
import pickle
import queue
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import cloudpickle
import ray as typed_ray

from shoal.errors import UserError
from shoal.program import Context, Handle, Node, Program, offers
from shoal.runtime import OnCluster
from shoal.runtime.host import BEAT
from shoal.runtime.local.agent import ZYGOTE, Agent, Printed
from shoal.runtime.local.node import Listening, Start
from shoal.runtime.network.endpoints import NOWHERE, Endpoint, connect
from shoal.runtime.network.identity import Authority
from shoal.runtime.network.presence import Network, make_lanes
from shoal.runtime.network.rpc import LocalLane
from shoal.runtime.network.transport import HAS_MEMFD
from shoal.runtime.processes import ProcessRun
from shoal.runtime.ray import placement, shipping
from shoal.runtime.ray.agents import Gone, HomeAgent, Inbox, Noted, RemoteAgent, Unfit
from shoal.runtime.ray.cluster import Cluster, threads
from shoal.runtime.ray.orders import Orders
from shoal.runtime.ray.placement import Amounts, Machine, NoRoom, Places, Wishes
from shoal.runtime.ray.remote import Welcome
from shoal.runtime.ray.reservations import Reservations
from shoal.runtime.ray.watch import LOOK, Watch
from shoal.runtime.restarts import RunFailed, Supervisor
from shoal.runtime.supervision import Beat, Event, Lost

ASKING = 8.0  # seconds after which it is told that what the nodes ask for cannot be had
ADDING = 2.0  # as many for nodes that are added, since the run stands still meanwhile
HOLDING = 2.0  # seconds that Ray may take to hold what is free
SETTLING = 1.5  # seconds for which it is waited that a run which has just ended lets go
ORDERS = 5.0  # seconds that Ray has to let go of what was held for the run
RETRY = 0.3  # seconds between two attempts
RELAY_BACKOFF = 0.5  # seconds after which a relay that was lost is started again
PLACING = 60.0  # seconds in which every agent, and every node, must have been started,
PLACING_EACH = 1.0  # and so many more for each of the nodes
SILENT = 10.0  # seconds without a word after which an agent that does not obey counts as lost
SHUNNED = 60.0  # seconds for which a machine that has lost something gets nothing new where there are others
WITH_MACHINE = "was lost with its machine"
ray: Any = typed_ray  # its own types are incomplete


@dataclass
class Process:
    """A node as the driver sees it."""

    node: Node
    context: Context
    agent: str  # its key
    endpoint: Endpoint | None = None
    pid: int | None = None
    public_key: bytes = b""
    begun: bool = False
    untold: list[tuple[str, tuple[object, ...]]] = field(default_factory=list)  # calls that wait until it has begun


class RayRun(ProcessRun):
    """A running program on the machines of a Ray cluster."""

    def __init__(
        self,
        program: Program,
        *,
        seed: int = 0,
        supervisor: Supervisor | None = None,
        cluster: OnCluster | None = None,
        code: Sequence[str] = (),
    ) -> None:
        """`code`: folders in which modules lie that the program names; those that were imported are known."""
        super().__init__(program, supervisor, seed)
        asked = cluster or OnCluster()
        self._wishes = Wishes(places=asked.places, actor_cpus=asked.actor_cpus)
        self._patience, self._encrypted = asked.wait_for_resources, asked.encrypted
        self._authority = Authority()
        self._identity = self._authority.identity()
        self._processes: dict[str, Process] = {}
        self._agents: dict[str, HomeAgent | RemoteAgent] = {}
        self._heard: dict[str, float] = {}  # when an agent was heard last
        self._shunned: dict[str, float] = {}  # machines that have lost something, and until when
        self._inbox: Inbox = queue.SimpleQueue()
        self._placing = True  # nodes begin when all of them have a place
        self._agent = Agent(prints=True)  # it imports what nodes need while Ray is being joined
        self._orders = Orders()
        self._reservations = Reservations(self._orders)
        self._code = code
        self._parcel: shipping.Parcel | None = None  # files of the user's own, for other machines
        self._is_silent = False  # Ray's head, for too long
        self._where: dict[str, str] = {}  # the machine of each node,
        self._asked: dict[str, Amounts] = {}  # what is asked for it there,
        self._keys: dict[str, str] = {}  # and the agent that starts it
        self._gpus: dict[str, float] = {}  # that an agent holds
        self._shared = False  # nodes share CPUs, of which there are too few
        self._beside: str | None = None  # the machine of the services
        self._moves: dict[str, str] = {}  # nodes that are to be on other machines when they are started again
        self._joined: set[str] = set()  # machines that were not there at the start
        self._emptier: set[str] = set()  # machines that nodes have left
        self._names: dict[str, str] = {}  # of machines, also of those that are gone
        self._numbers = itertools.count()
        self._relays: dict[str, tuple[str, str]] = {}  # what each brings, and to which agent
        self._due_relays: dict[str, float] = {}  # that are to be started again, and when
        try:
            self._cluster = Cluster(asked.address)
        except BaseException:
            self._agent.close()
            raise
        self._watch = Watch()
        try:
            self._home = ray.get_runtime_context().get_node_id()
            self._agents[self._home] = HomeAgent(self._watch.machines[self._home], self._agent, self._inbox)
            waits = self._patience > 0
            self._find_places(program.nodes.values(), self._patience if waits else ASKING, patient=waits)
            self._known = {*self._watch.machines}
            self._supervision.start_all()
            self._placed()
        except BaseException:
            self.close()
            raise

    # ---- using it

    def make_lanes(self, name: str) -> tuple[LocalLane, LocalLane]:
        return make_lanes(name, self._endpoint(name), self._identity)

    def pids(self) -> dict[str, int]:
        """The nodes' processes, each on its own machine; one that is being started is not among them."""
        return {
            name: one.pid for name, one in self._processes.items() if one.pid is not None and name not in self._relays
        }

    def machines(self) -> dict[str, str]:
        return {
            name: self._machine_name(process.agent)
            for name, process in self._processes.items()
            if name not in self._relays
        }

    def room(self) -> int:
        each = 1.0 if self._wishes.actor_cpus is None else self._wishes.actor_cpus
        if self._shared or not each:
            return 0
        free = [one.free.get("CPU", 0.0) for one in self._watch.machines.values() if one.id not in self._avoided()]
        return sum(int((cpus + placement.GRAIN) // each) for cpus in free)

    def close(self) -> None:
        for agent in self._agents.values():
            agent.end()
        for agent in self._agents.values():
            agent.close()
        if not self._agents:
            self._agent.close()
        self._agents.clear()
        self._processes.clear()
        self.close_lanes()
        self._reservations.close()
        self._watch.close()
        self._orders.close(0.0 if self._is_silent else ORDERS)
        self._cluster.close(silent=self._is_silent)

    # ---- what the supervision asks for

    beats = BEAT

    def start(self, node: Node, context: Context) -> None:
        """Have the agent of its machine start the node, which begins when it listens."""
        agent = self._agent_of(node)
        self._start_at(agent, node, context, self._boards(node, agent.key))

    def _start_at(
        self, agent: HomeAgent | RemoteAgent, node: Node, context: Context, boards: dict[str, Callable[..., Any]]
    ) -> None:
        order = Start(
            node=cloudpickle.dumps(node, protocol=pickle.HIGHEST_PROTOCOL),
            context=context,
            callees=[],
            boards=boards,
            path=sys.path,
            held=True,
            shares=HAS_MEMFD and offers(node.factory, "shared_client") and offers(node.factory, "share"),
            network=Network(self._authority.trust, agent.address, self._encrypted),
        )
        self._processes[node.name] = Process(node, context, agent.key)
        agent.put("start", order)

    def _boards(self, node: Node, key: str) -> dict[str, Callable[..., Any]]:
        """How a node uses those of its callees whose callers share memory. Where another agent than the callee's starts
        it, a relay brings there what is shared."""
        found: dict[str, Callable[..., Any]] = {}
        for callee in node.callees():
            factory: Any = self.program.nodes[callee].factory
            if HAS_MEMFD and offers(factory, "shared_client") and self._keys[callee] == key:
                found[callee] = factory.shared_client
            elif HAS_MEMFD and offers(factory, "relay"):
                found[callee] = factory.relayed_client
                self._see_to_relay(callee, key)
        return found

    def _see_to_relay(self, callee: str, key: str) -> None:
        """Have an agent start a relay, which is no node of the program but lives like one."""
        name = f"{callee} for {self._machine_name(key)}"
        if key in self._agents and name not in self._processes and callee in self.program.nodes:
            factory: Any = self.program.nodes[callee].factory
            context = Context(name, restarts=next(self._numbers), runtime=self.capabilities)
            node = Node(name, factory.relay, (Handle(callee),), restart=True)
            self._relays[name] = (callee, key)
            self._start_at(self._agents[key], node, context, {callee: factory.relayed_client})

    def hear(self, timeout: float) -> list[Event]:
        events: list[Event] = []
        try:
            heard = [self._inbox.get(timeout=timeout)]
            while not self._inbox.empty():
                heard.append(self._inbox.get_nowait())
        except queue.Empty:
            heard = []
        for key, words in heard:
            if key in self._agents:
                self._heard[key] = time.monotonic()
                events += self._hear_agent(key, words)
        self._notice_silence()
        if not self._placing:
            self._look_at_machines()
        for name in [name for name, due in self._due_relays.items() if due <= time.monotonic()]:
            del self._due_relays[name]
            self._see_to_relay(*self._relays[name])
        # who waits for its agent, or for others, does not hang
        return events + [Beat(name, 0) for name, process in self._processes.items() if not process.begun]

    def _hear_agent(self, key: str, words: list[Any] | Gone | Unfit | Noted) -> list[Event]:
        match words:
            case Gone():
                return self._lose(key, words.reason)
            case Noted():
                self.supervisor.on_note(words.text)
                return []
            case Unfit() if self._placing:
                raise UserError(words.sentence)
            case Unfit():  # it has joined, and the run can do without it
                self.supervisor.on_note(words.sentence)
                if isinstance(agent := self._agents[key], RemoteAgent):
                    agent.kill()
                events = self._lose(key, "cannot live on")
                self._shunned[key.partition("/")[0]] = math.inf
                return events
        return self._take(key, words)

    def kill(self, name: str) -> None:
        """An agent that has been silent for long would not obey: it ends, with its nodes."""
        if (process := self._processes.get(name)) is None:
            return
        agent = self._agents[process.agent]
        agent.put("kill", name)
        silent = time.monotonic() - self._heard.get(agent.key, time.monotonic())
        if isinstance(agent, RemoteAgent) and agent.up and silent > SILENT:
            agent.kill()
            self._inbox.put(
                (agent.key, Gone(f"was ended with its agent, which had said nothing for {silent:.0f} s, on"))
            )

    def stop(self, name: str) -> None:
        if name in self._processes:
            self._agents[self._processes[name].agent].put("order", name, ("stop",))

    def tell(self, name: str, method: str, *arguments: object) -> None:
        """As everywhere; a node that is being started hears it when it has begun."""
        process = self._processes.get(name)
        if process is None or process.begun:
            super().tell(name, method, *arguments)
        else:
            process.untold.append((method, arguments))

    def add(self, *nodes: Node) -> None:
        if (silent := self._watch.silent_for()) > ADDING + LOOK:
            raise UserError(f"the head of the Ray cluster has been silent for {silent:.0f} s: nothing can be added.")
        self._find_places(nodes, ADDING)
        super().add(*nodes)

    def cleared(self, name: str) -> None:
        super().cleared(name)
        if name in self.program.nodes:  # it was added again, and has a place
            return
        self._asked.pop(name, None)
        if (machine := self._where.pop(name, None)) is not None:
            self._emptier.add(machine)

    def _take(self, key: str, words: list[Any]) -> list[Event]:
        """What an agent tells of its nodes."""
        events: list[Event] = []
        for word in words:
            process = self._processes.get(word.node)
            match word:
                case Printed(name, text):
                    self.supervisor.on_print(name, self._machine_name(key), text)
                case Lost(node=node, reason=reason) if node == ZYGOTE:
                    where = ZYGOTE if key == self._home else f"{ZYGOTE} of {self._machine_name(key)}"
                    self.supervisor.lost(Node(where, Agent, restart=True), reason)
                    self.supervisor.started(where)
                case _ if process is None or process.agent != key:
                    continue
                case Listening():
                    process.endpoint, process.public_key, process.pid = word.endpoint, word.public_key, word.pid
                    if not self._placing:
                        self._begin(process)
                case Lost():
                    del self._processes[word.node]
                    if word.node in self._relays:
                        self._due_relays[word.node] = time.monotonic() + RELAY_BACKOFF
                    else:
                        events.append(self._with_machine(word, key))
                case _:
                    events.append(word)
        return events

    def _with_machine(self, loss: Lost, key: str) -> Lost:
        """What a user got wrong is told with the machine on which it shows; a module that only this one lacks is
        something that a restart does not mend."""
        sentence = loss.user_error
        if sentence is None and not loss.progress and loss.raised:
            sentence = shipping.missing_module(loss.reason)
        if sentence is None or key.partition("/")[0] == self._home:
            return loss
        return dataclasses.replace(loss, user_error=f"on the machine {self._machine_name(key)}: {sentence}")

    def _lose(self, key: str, reason: str) -> list[Event]:
        """An agent is gone, and its nodes with it. Its machine is avoided for a while."""
        del self._agents[key]
        name, machine = self._machine_name(key), key.partition("/")[0]
        if key == self._home:
            raise RunFailed("agent", f"the agent of this machine {reason}")
        self._shunned[machine] = time.monotonic() + SHUNNED
        if key == machine:
            self._reservations.release(machine)
        lost = [one for one, process in self._processes.items() if process.agent == key]
        for one in lost:
            del self._processes[one]
        return [Lost(one, f"{reason} {name}") for one in lost if self._relays.pop(one, None) is None]

    def _notice_silence(self) -> None:
        """Once: end the run while its nodes can still be asked for what they know. They are reached without Ray, which
        would end this process, and then them, a while later."""
        silent = self._watch.silent_for()
        if silent > self._cluster.patience and not self._is_silent:
            self._is_silent = True
            said = f"the head of the Ray cluster has been silent for {silent:.0f} s"
            raise RunFailed("ray", f"{said}: on another cluster `shoal resume` goes on")

    # ---- starting and connecting

    def _placed(self) -> None:
        """Wait until every node listens; say so when one does not."""
        limit = PLACING + PLACING_EACH * len(self.program.nodes)
        deadline = time.monotonic() + limit
        while unplaced := [name for name in self.program.nodes if self._endpoint(name) is NOWHERE]:
            if time.monotonic() >= deadline:
                waiting = {self._machine_name(key) for key, agent in self._agents.items() if not agent.up}
                agents = f"; Ray has not started an agent on {', '.join(sorted(waiting))}" if waiting else ""
                raise UserError(f"{_some(unplaced)} did not start within {limit:.0f} s{agents}")
            self._supervision.tick(deadline)
            if self.supervisor.interrupted():
                raise KeyboardInterrupt
        for process in self._processes.values():
            if process.endpoint is not None:  # a relay may come later
                self._begin(process)
        self._placing = False

    def _begin(self, process: Process) -> None:
        """Set a node going, whose callees must listen by now."""
        process.begun = True
        node, name = process.node, process.node.name
        callees = {callee: self._endpoint(callee) for callee in node.callees()}
        certificate = self._authority.sign(process.public_key)
        self._agents[process.agent].put("order", name, ("join", certificate, callees))
        if not self._placing and process.endpoint is not None:
            for caller in self._processes.values():  # who has begun while this node was nowhere, or elsewhere
                if caller.begun and name in caller.node.callees():
                    moved = ("moved", name, process.endpoint)
                    self._agents[caller.agent].put("order", caller.node.name, moved)
            for lane in self._lanes.get(name, ()):
                lane.replace(connect(process.endpoint, self._identity))
        untold, process.untold = process.untold, []
        for method, arguments in untold:
            self.tell(name, method, *arguments)

    def _endpoint(self, name: str) -> Endpoint:
        """Where a node listens; nowhere while it is being started again."""
        process = self._processes.get(name)
        return process.endpoint if process and process.endpoint else NOWHERE

    # ---- places

    def _find_places(self, nodes: Collection[Node], seconds: float, patient: bool = False) -> None:
        """Decide where nodes go, and hold what they ask for; say what cannot be had after so many seconds. Who is
        `patient` waits for machines that may come."""
        asked = placement.bundles(nodes, self._wishes)
        deadline, settling = time.monotonic() + seconds, time.monotonic() + SETTLING
        while True:
            machines = self._watch.refresh()
            if not patient:
                placement.check(nodes, machines, self._wishes)
            with contextlib.suppress(NoRoom):
                places = self._decide(nodes, machines, patient)
                if time.monotonic() < settling and not self._is_settled(places, nodes, machines, patient):
                    raise NoRoom("a run that has just ended still holds something where the learner should be")
                if self._reservations.hold(places.held(), HOLDING):
                    self._reservations.withdraw()
                    self._note(places, nodes)
                    return
            told = placement.told(nodes, machines, self._wishes)
            if time.monotonic() >= deadline:
                remedy = "" if patient else ", wait for it (--wait-for-resources SECONDS)"
                raise UserError(
                    f"the Ray cluster has no room: {told}. Ask for less (--actors, --actor-cpus){remedy}, "
                    "or add machines."
                )
            if patient and self._reservations.demand(asked):
                self.supervisor.on_note(f"waiting for room on the Ray cluster: {told}")
            if self.supervisor.interrupted():
                raise KeyboardInterrupt
            time.sleep(RETRY)

    def _is_settled(self, places: Places, nodes: Collection[Node], machines: Sequence[Machine], patient: bool) -> bool:
        """Whether learners and services are where they would be, were nothing held by others."""
        empty = [dataclasses.replace(machine, free=machine.total) for machine in machines]
        return places.beside == self._decide(nodes, empty, patient).beside

    def _decide(self, nodes: Collection[Node], machines: Sequence[Machine], patient: bool = False) -> Places:
        return placement.place(
            nodes,
            machines,
            self._home,
            self._wishes,
            beside=self._beside,
            patient=patient,
            shared=self._shared,
            avoided=self._avoided(),
            crowded=Counter(self._where[name] for name, process in self._processes.items() if process.node.spread),
        )

    def _note(self, places: Places, nodes: Collection[Node]) -> None:
        """Remember a decision. Nodes with GPUs get agents of their own, since Ray tells a process which ones it has."""
        self._where |= places.machine
        self._asked |= places.asked
        self._shared = self._shared or places.shared
        self._beside = places.beside
        self._keys |= places.machine
        with_gpus = [node for node in nodes if node.resources.gpus]
        for machine in dict.fromkeys(places.machine[node.name] for node in with_gpus):
            for shared in placement.bins([node for node in with_gpus if places.machine[node.name] == machine]):
                key = f"{machine}/{next(self._numbers)}"
                self._gpus[key] = sum(node.resources.gpus for node in shared)
                self._keys |= dict.fromkeys((node.name for node in shared), key)

    def _agent_of(self, node: Node) -> HomeAgent | RemoteAgent:
        """Who is to start a node, where. One whose machine was lost goes to another one."""
        machines, name = self._watch.machines, node.name
        if name in self._moves:
            self._emptier.add(self._where[name])
            self._where[name] = self._keys[name] = self._moves.pop(name)
        gone = self._where[name] not in machines or self._where[name] in self._avoided()
        if gone and self._keys[name] not in self._agents:
            self._place_again(node, [*machines.values()])
        key = self._keys[name]
        if key not in self._agents:
            machine = machines[self._where[name]]
            given = (self._authority, self._identity, self._inbox, self._orders, threads(), self._welcome(machine.id))
            self._agents[key] = RemoteAgent(key, machine, *given, gpus=self._gpus.get(key, 0.0))
        return self._agents[key]

    def _welcome(self, machine: str) -> Welcome:
        """What an agent is told first. On another machine it gets the user's own files."""
        if machine == self._home:
            return Welcome(sys.path, os.getcwd())
        if self._parcel is None:
            self._parcel, notes = shipping.pack(shipping.own_folders(self._code), os.getcwd())
            for note in notes:
                self.supervisor.on_note(note)
        return Welcome(sys.path, parcel=self._parcel)

    def _place_again(self, node: Node, machines: Sequence[Machine]) -> None:
        """Where there is no room, it shares that of others; an autoscaler sees what is missing."""
        there = [machine for machine in machines if machine.id not in self._avoided()] or machines
        self._where.pop(node.name)
        if self._beside not in {machine.id for machine in there}:
            self._beside = None
        try:
            places = self._decide([node], there)
        except NoRoom:
            squeezed = [dataclasses.replace(machine, free=machine.total) for machine in there]
            try:
                places = self._decide([node], squeezed)
            except NoRoom:
                asked = placement.amounts(placement.demand(node))
                raise UserError(
                    f"node {node.name!r} has lost its machine, and no other one of the Ray cluster has {asked} for it: "
                    "go on with `shoal resume` when there is one."
                ) from None
        self._reservations.ask(places.machine[node.name], places.asked[node.name])
        self._note(places, [node])

    def _avoided(self) -> set[str]:
        now = time.monotonic()
        return {machine for machine, until in self._shunned.items() if until > now}

    def _machine_name(self, key: str) -> str:
        machine = key.partition("/")[0]
        self._names |= {one.id: one.name for one in self._watch.machines.values()}
        return self._names.get(machine, machine[:6])

    # ---- machines that come and go

    def _look_at_machines(self) -> None:
        """Give machines that have joined the cluster their share of the nodes that are spread; give those up that Ray
        says are gone; let go of what nodes that have left were held for."""
        machines = self._watch.machines
        if machines.keys() == self._known and not self._emptier:
            return
        for key, agent in list(self._agents.items()):
            if key.partition("/")[0] in self._known - machines.keys() and isinstance(agent, RemoteAgent):
                agent.kill()
                self._inbox.put((key, Gone(WITH_MACHINE)))
        for machine in self._emptier & machines.keys():
            there = {name: where for name, where in self._where.items() if where == machine and name in self._asked}
            self._reservations.change(machine, placement.held(there, self._asked).get(machine, {}))
        self._emptier.clear()
        if machines.keys() != self._known:
            self._joined = (self._joined | machines.keys() - self._known) & machines.keys()
            self._known = {*machines}
            self._share_with_newcomers(machines)

    def _share_with_newcomers(self, machines: Mapping[str, Machine]) -> None:
        """Those that have joined since the run began get their share, also when others leave."""
        there = {name: machine for name, machine in machines.items() if name not in self._avoided()}
        spread = {
            name: self._where[name]
            for name, process in self._processes.items()
            if process.node.spread
            and not placement.demand(process.node)
            and self._where[name] in there
            and self._wishes.label(process.node) is None
        }
        weights = {name: machine.total.get("CPU", 0.0) for name, machine in there.items()}
        for name, machine in placement.moves(spread, weights, [*self._joined & there.keys()]).items():
            self._reservations.ask(machine, self._asked[name])
            self._moves[name] = machine
            self._supervision.replace(name, f"was moved to {machines[machine].name}, which has joined")


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(map(repr, names[:5]))
    return shown if len(names) <= 5 else f"{shown} and {len(names) - 5} more"
