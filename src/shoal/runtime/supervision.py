"""The loop under every runtime: hears what nodes tell, judges losses, finds hangs, starts again what may be lost.

A runtime only starts a node, tells what happened to its nodes, and kills one; see `Nodes`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, Protocol

from shoal.program import Capabilities, Context, Members, Node, Program, node_seed, offers
from shoal.runtime.restarts import FIRST_BACKOFF, Hang, RunFailed, Supervisor
from shoal.types import Role

SETTLING = 2.0  # seconds in which the cause of a failed call shows up: a dead node is named, not those who called it
STARTING = 60.0  # seconds, at the least, that a node's process may take to its first sign of life
LEAVING = 5.0  # seconds in which a node that is to leave comes to the end of its step
FINISHING = 2.0  # seconds that it has after that to end where it is, and to report
STOPPING = 4.0  # seconds that its process has to end
TICK = 1.0  # the most that the clock of hangs advances at once: while this process stood still, so did the others


@dataclass(frozen=True)
class Finished:
    """A node's `step` has returned False."""

    node: str


@dataclass(frozen=True)
class Beat:
    """A sign of life: the steps a node has completed, the seconds its own code has been in one of them for, and what
    it says that it is doing."""

    node: str
    progress: int | None = None
    busy: float = 0.0
    doing: str = ""


@dataclass(frozen=True)
class Lost:
    """A node is gone, with everything that was part of it."""

    node: str
    reason: str
    traceback: str | None = None
    secondary: bool = False  # only because another node is
    user_error: str | None = None
    progress: int | None = None  # None: what its last beat said
    raised: bool = False  # by an error of its own; otherwise it was ended from outside


Event = Finished | Beat | Lost


class Nodes(Protocol):
    """What a runtime provides."""

    capabilities: Capabilities
    beats: float  # seconds between two signs of life of a node; 0: there are none

    def can_start(self) -> bool:
        """Whether a node can be started without keeping everybody waiting."""

    def start(self, node: Node, context: Context) -> None:
        """Start a node. After its loss (`context.restarts`), also give its callers streams to the newcomer."""

    def hear(self, timeout: float) -> list[Event]:
        """What has happened; waits for it, at most `timeout` seconds."""

    def kill(self, name: str) -> None:
        """End a node at once; its loss is heard like any other."""

    def stop(self, name: str) -> None:
        """Have a node release what it holds, and end; its loss is heard like any other."""

    def tell(self, name: str, method: str, *arguments: object) -> None:
        """Call a node's method; nobody waits for the answer, and a node that is gone does not matter."""

    def cleared(self, name: str) -> None:
        """A node has left the program: let go of what was kept for calling it."""


@dataclass
class Leaving:
    """A node that was asked to leave, and until when the present stage of it may take."""

    node: Node
    until: float
    stage: Literal["asked", "finishing", "stopping"] = "asked"


@dataclass
class Pulse:
    """What is known of a living node."""

    started: float = 0.0  # on the clock of hangs
    progress: int | None = None
    heard: float | None = None  # on the clock of hangs; None before its first beat
    busy: float = 0.0
    doing: str = ""
    told: bool = False  # that it hangs


class Supervision:
    """Keeps a program's nodes going. `clock` is the runtime's own, real or virtual."""

    def __init__(
        self, program: Program, nodes: Nodes, supervisor: Supervisor, seed: int, clock: Callable[[], float]
    ) -> None:
        self.program, self.supervisor = program, supervisor
        supervisor.clock = clock
        self._nodes, self._seed, self._clock = nodes, seed, clock
        self._pulses: dict[str, Pulse] = {}  # of the living
        self.finished: set[str] = set()  # nodes whose `step` has returned False
        self._due: dict[str, float] = {}  # nodes to start again, and when
        self._victims: dict[str, tuple[float, Lost]] = {}  # until when their cause may show up
        self._cause = float("-inf")  # when somebody was lost last that is no victim
        self._replaced: dict[str, str] = {}  # nodes that were killed, and why
        self._lived = 0.0  # the clock of hangs: stands still while this process does
        self._looked = clock()
        self._members = program.members()
        self._leaving: dict[str, Leaving] = {}
        self._used = {*program.nodes}  # names that had a life
        self._learned = 0  # updates of all learners and workers, as far as their beats have told
        self._learned_before: dict[str, int] = {}  # when a node was started
        self._thread, self._ticking = threading.get_ident(), False
        self._lost: set[str] = set()  # and not started again yet
        self._over = False  # somebody was lost without whom the run cannot go on

    def start_all(self) -> None:
        for node in self.program.nodes.values():
            if self.supervisor.interrupted():
                raise KeyboardInterrupt
            self._start(node)

    def wait(self, seconds: float) -> None:
        """Let the run go on for `seconds`; `RunFailed` when it cannot."""
        deadline = self._clock() + seconds
        while True:
            self.tick(deadline)
            if self._clock() >= deadline:
                return

    def tick(self, until: float) -> None:
        """Start what is due, then hear and judge what happens, at the latest at `until`."""
        self._ticking = True
        try:
            self._tick(until)
        finally:
            self._ticking = False

    def _tick(self, until: float) -> None:
        now = self._clock()
        for name in [name for name, due in self._due.items() if due <= now]:
            if not self._nodes.can_start():
                self._due[name] = now + FIRST_BACKOFF
                continue
            del self._due[name]
            self._start(self.program.nodes[name])
        due = [*self._due.values(), *(patience for patience, _ in self._victims.values())]
        nearest = min([until, *due, *(leaving.until for leaving in self._leaving.values())])
        if self._nodes.beats:
            nearest = min(nearest, now + TICK)
        events = self._nodes.hear(max(0.0, nearest - now))
        now = self._clock()
        self._lived += min(now - self._looked, TICK)
        self._looked = now
        for event in events:
            self._note(event)
        self._handle_losses([event for event in events if isinstance(event, Lost)])
        self._press()
        self._find_hangs()

    def meanwhile(self) -> None:
        """Go on supervising while this process waits for a node's answer: that node may hang itself."""
        if threading.get_ident() == self._thread and not self._ticking:
            self.tick(self._clock())

    def leaving(self) -> bool:
        """Whether somebody is on its way out."""
        return bool(self._leaving)

    def restarting(self) -> bool:
        """Whether somebody is to be started again."""
        return bool(self._due or self._victims)

    def replace(self, name: str, reason: str) -> None:
        """Kill a node; it is started again, or ends the run, like any other that is lost, for this `reason`."""
        self._replaced[name] = reason
        self._nodes.kill(name)

    # ---- growing and shrinking

    def add(self, *nodes: Node) -> None:
        """Take further nodes into the running program. Under a name that was used before one begins a new life."""
        for node in nodes:
            self.program.insert(node)
        self._join(*(node for node in nodes if node.name not in self._leaving))  # else when that is gone

    def remove(self, name: str) -> None:
        """Have a node leave: it ends after its present step, and is not missed. The program is without it at once; the
        others are told when it is gone, as what it brings until then counts."""
        node = self.program.nodes.pop(name, None)
        if node is None:
            raise ValueError(f"the program has no node {name!r}: it has {', '.join(self.program.nodes)}")
        if callers := [other.name for other in self.program.nodes.values() if name in other.callees()]:
            self.program.nodes[name] = node
            raise ValueError(f"node {name!r} cannot leave: {', '.join(callers)} would call it")
        self._leaving[name] = Leaving(node, self._clock() + LEAVING)
        if self._due.pop(name, None) is not None or self._victims.pop(name, None) is not None:  # it is not there
            self._left(name)
        elif methods := [method for method in ("leave", "finish") if offers(node.factory, method)]:
            self._nodes.tell(name, methods[0])
        else:  # it makes no steps
            self._leaving[name].until = self._clock()

    def _join(self, *nodes: Node) -> None:
        for node in nodes:
            if node.name in self._used:
                self.supervisor.lives[node.name] += 1
            self._used.add(node.name)
        self._regroup()
        for node in nodes:
            self._start(node)

    def _regroup(self) -> None:
        """Tell everybody who wants to know how many there are now."""
        self._members = self.program.members(leaving.node for leaving in self._leaving.values())
        for name, node in self.program.nodes.items():
            if name in self._pulses and offers(node.factory, "regroup"):
                self._nodes.tell(name, "regroup", self._members[name])

    def _press(self) -> None:
        """Stop who has ended as it was asked to, or takes too long for it."""
        now = self._clock()
        for name, leaving in list(self._leaving.items()):
            if leaving.stage == "asked" and leaving.until <= now and offers(leaving.node.factory, "finish"):
                for method in ("finish", "report"):
                    self._nodes.tell(name, method)
                leaving.stage, leaving.until = "finishing", now + FINISHING
            elif leaving.stage == "stopping" and leaving.until <= now:
                leaving.until = now + STOPPING
                self._nodes.kill(name)
            elif leaving.stage != "stopping" and (name in self.finished or leaving.until <= now):
                leaving.stage, leaving.until = "stopping", now + STOPPING
                self._nodes.stop(name)

    def _left(self, name: str) -> None:
        """It is gone: who kept something for it lets go of that."""
        del self._leaving[name]
        self._pulses.pop(name, None)
        self.finished.discard(name)
        self._replaced.pop(name, None)
        self._nodes.cleared(name)
        for other, node in self.program.nodes.items():
            if other in self._pulses and offers(node.factory, "forget"):
                self._nodes.tell(other, "forget", name)
        if name in self.program.nodes:  # it was added again meanwhile
            self._join(self.program.nodes[name])
        else:
            self._regroup()

    # ---- starting

    def _start(self, node: Node) -> None:
        lives = self.supervisor.lives[node.name]
        revived = node.name in self._lost
        self._lost.discard(node.name)
        self._learned_before[node.name] = self._learned
        self._pulses[node.name] = Pulse(started=self._lived)
        self.finished.discard(node.name)
        if revived:
            node = replace(node, start=self.supervisor.states.get(node.name, lambda: None)())
        seed = node_seed(self._seed, node.name, lives)
        context = Context(node.name, seed, lives, revived, runtime=self._nodes.capabilities, policy=node.policy)
        self._nodes.start(node, replace(context, members=self._members.get(node.name, Members())))
        self.supervisor.started(node.name)

    # ---- losing

    def _note(self, event: Event) -> None:
        match event:
            case Finished(name):
                self.finished.add(name)
            case Beat(name, progress, busy, doing) if name in self._pulses:
                pulse = self._pulses[name]
                self._learn(name, pulse, progress)
                pulse.progress, pulse.busy, pulse.doing, pulse.heard = progress, busy, doing, self._lived
                pulse.told = pulse.told and busy > 0.0

    def _handle_losses(self, losses: list[Lost]) -> None:
        """Causes first: a service's death makes its callers fail, and may be heard of later than their failing. Who
        cannot be started again comes before who can: that ends the run, and is what the user should read. Who is lost
        after that is lost because of it, or would have been ended anyway."""
        left = [loss.node for loss in losses if loss.node in self._leaving]
        losses = [loss for loss in losses if loss.node not in left]
        for name in left:
            self._left(name)
        if self._over:
            return
        now = self._clock()
        for loss in losses:
            if loss.secondary and loss.node not in self._replaced:
                self._victims[loss.node] = (now + SETTLING, loss)
        for loss in sorted(losses, key=lambda loss: self.program.nodes[loss.node].restart):
            if loss.node not in self._victims:
                self._cause = now
                self._lose(loss, secondary=False)
        for name, (patience, loss) in list(self._victims.items()):
            has_cause = bool(self._due) or now - self._cause <= SETTLING
            if has_cause or patience <= now:  # nobody else is to blame after all
                del self._victims[name]
                self._lose(loss, secondary=has_cause)

    def _lose(self, loss: Lost, secondary: bool) -> None:
        name = loss.node
        pulse = self._pulses.pop(name, Pulse())
        progress = pulse.progress if loss.progress is None else loss.progress
        self._learn(name, pulse, progress)
        if progress is None:  # it has no steps to complete: what others have learned meanwhile counts
            progress = self._learned - self._learned_before.get(name, 0) or None
        self._lost.add(name)
        try:
            wait = self.supervisor.lost(
                self.program.nodes[name],
                self._replaced.pop(name, loss.reason),
                loss.traceback,
                secondary,
                user_error=loss.user_error,
                progress=progress,
                raised=loss.raised,
            )
        except RunFailed:
            self._over = True
            self._due.clear()
            self._victims.clear()
            raise
        self._due[name] = self._clock() + wait

    def _learn(self, name: str, pulse: Pulse, progress: int | None) -> None:
        """Count what a learner or worker has come to since it was heard of last."""
        node = self.program.nodes.get(name)
        if node is not None and node.role in (Role.LEARNER, Role.WORKER):
            self._learned += max(0, (progress or 0) - (pulse.progress or 0))

    # ---- hanging

    def _find_hangs(self) -> None:
        """A node whose process has stopped, or whose own code does not come back, is told once and replaced. Waiting
        for another node is not hanging, and neither is what happens while this process stands still itself (a closed
        lid): time is counted in ticks that it lived through."""
        most = self.supervisor.hang_seconds
        if not most or not self._nodes.beats:
            return
        for name, pulse in list(self._pulses.items()):
            if pulse.told or name in self._leaving:
                continue
            silent = self._lived - (pulse.started if pulse.heard is None else pulse.heard)
            patience = STARTING if pulse.heard is None else 3 * self._nodes.beats
            if silent >= max(most, patience):
                self._hangs(name, silent, f"has given no sign of life for {silent:.0f} s")
            elif pulse.busy >= most:
                self._hangs(name, pulse.busy, f"has not come back from its step for {pulse.busy:.0f} s")

    def _hangs(self, name: str, seconds: float, reason: str) -> None:
        self._pulses[name].told = True
        if doing := self._pulses[name].doing:
            reason += f" ({doing})"
        restart = self.program.nodes[name].restart
        self.supervisor.on_hang(Hang(name, seconds, reason, replaced=restart))
        if restart:
            self.replace(name, f"{reason} and was replaced (--hang-seconds {self.supervisor.hang_seconds:g})")
