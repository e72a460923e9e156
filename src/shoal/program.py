"""Programs: a pure description of nodes and who may call whom. Nothing runs here; a runtime runs it.

A handle given to another node's factory becomes, inside that node, a client whose method calls are remote calls:
`client.method(x)` waits for the answer, `client.future.method(x)` does not. A node with `step()` is driven in a loop
(until it returns False); any public method of any node can be called.
"""

from __future__ import annotations

import collections
import fnmatch
import inspect
import itertools
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Generic, Literal, ParamSpec, Protocol, TypeVar, cast

import numpy as np

from shoal.types import MAIN, Role

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Resources:
    """What a node asks of the machine it is placed on. Local runs read `threads`, `device` and what bounds its memory
    there, inline ones nothing."""

    cpus: float = 1.0
    gpus: float = 0.0  # a part of one is also the part of its memory that the node may take
    memory: int | None = None  # bytes
    threads: int = 1  # that torch and BLAS compute with
    device: str = "cpu"  # what the node computes on: looked for in its own process, on its own machine
    gpu_memory: int | None = None  # bytes that it may take there, in place of its part
    node: str | None = None  # the name of a machine, as a custom resource of the Ray cluster


ANYWHERE = Resources(cpus=0.0)  # what a node asks for unless it is told otherwise: all fit on one machine


@dataclass(frozen=True)
class Handle:
    """Names a node of the program; becomes a client inside the node that receives it."""

    name: str


class Offers(Protocol):
    """All that a node may offer to who runs and watches the program; every part of it may be missing.

    What stands first is said by the factory's class (`offers` asks it), before there is a node. Methods may be called
    from any thread while `step` runs in its own. Nothing else is asked of nodes.
    """

    # ---- said by the class
    role: Role  # what its nodes are there for
    restart: bool  # a lost node is started again; otherwise its loss ends the run
    spread: bool  # over the machines of a cluster; otherwise its nodes stay with the driver
    in_turns: bool  # its callers are served one at a time (decisions 0010 and 0011)
    shared_client: Callable[[Any, int], Any]  # of a client and a memory file: how callers on its machine reach it
    relayed_client: Callable[[Any, int], Any]  # how callers on another machine do, which share a memory file there
    relay: Callable[..., Any]  # of such a client: the node that fills that file

    # ---- a life
    still: bool  # its step waits, and could as well begin again: a checkpoint can be taken
    progress: int  # how far it has got in this life; without it, the steps that it has completed

    def step(self) -> bool | None:
        """Called again and again, until it returns False."""

    def share(self, fd: int) -> None:
        """Where callers come from several machines, use the memory file of those on its own, before anything calls."""

    def close(self) -> None:
        """Release what it holds, and wake everybody who waits in one of its methods."""

    def doing(self) -> tuple[str, int]:
        """What it is in the middle of, and a number that stands still while it hangs."""

    # ---- programs that grow and shrink
    def regroup(self, members: Members) -> None:
        """A group of the program has other members than before; what comes of it is the next step's to do."""

    def leave(self) -> None:
        """The program goes on without this node: end after the present step, and count what is lost by it. Without
        this method it is asked to `finish`."""

    def forget(self, name: str) -> None:
        """The node of this name has left the program: let go of what was kept for it."""

    # ---- the end
    def finish(self) -> None:
        """End with the present step."""

    def report(self) -> None:
        """Report what has been counted so far; returns when it has arrived."""

    # ---- state
    in_checkpoints: bool  # its own state is part of checkpoints, wherever the others are

    def state_dict(self, scope: Literal["own", "exact"] = "own") -> dict[str, Any] | None:
        """Its state between two steps, of arrays and numbers, or None where others hold it up. "own" is what it needs
        to go on by itself; "exact" what it needs where all nodes of one moment go on together, and stand still now."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from such a state, given before the first step."""

    # ---- learners
    updates: int

    # ---- evaluators
    def best(self) -> tuple[float, int, Any] | None:
        """The highest return, the version of the weights, and these."""

    def confirmed(self) -> tuple[int, Any] | None:
        """The weights that have reached the target."""


def offers(kind: Any, name: str) -> bool:
    """Whether a factory, or a node's object, offers something of `Offers`."""
    if name not in Offers.__annotations__ and not hasattr(Offers, name):
        raise AttributeError(f"{name!r} is nothing that nodes may offer: see program.Offers")
    return getattr(kind, name, None) is not None


@dataclass(frozen=True)
class Members:
    """Where a node stands in its group (0 for the first), how many that has, and how many each of the others."""

    place: int = 0
    total: int = 1
    totals: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Node:
    name: str
    factory: Callable[..., Any]
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    resources: Resources = ANYWHERE
    restart: bool = False  # a lost node is started again; otherwise its loss ends the run
    spread: bool = False  # over the machines of a cluster; otherwise it stays with the driver
    start: Any = None  # the state that it takes when it is built
    role: Role = Role.OTHER
    group: str = ""  # by default its name: a group of its own
    policy: str = MAIN  # that it serves

    def callees(self) -> list[str]:
        """The nodes this one holds handles to, in order of appearance."""
        return list(dict.fromkeys(handle.name for handle in _handles((self.args, self.kwargs))))

    def build(self, client: Callable[[str], Any]) -> Any:
        """Make the node's object, every handle replaced by `client(name)`."""
        args, kwargs = _substitute((self.args, self.kwargs), client)
        built = self.factory(*args, **kwargs)
        if self.start is not None:
            built.load_state_dict(self.start)
        return built

    def changed(self, parameter: str, change: Callable[[Any], Any]) -> Node:
        """The same node with another value for a parameter of its factory."""
        given = inspect.signature(self.factory).bind(*self.args, **self.kwargs)
        given.arguments[parameter] = change(given.arguments[parameter])
        return replace(self, args=given.args, kwargs=given.kwargs)


@dataclass(frozen=True)
class Group:
    """Nodes of a program with the same role, which may serve a policy. `add` is that of the program."""

    program: Program
    name: str
    role: Role | None = None  # None: as the factory's class says
    policy: str = MAIN

    def add(self, name: str, factory: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        node = self.program.described(name, factory, args, kwargs)
        self.program.insert(replace(node, group=self.name, role=self.role or node.role, policy=self.policy))
        return cast(T, Handle(name))

    def add_alike(self, stem: str, count: int, factory: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> list[T]:
        """Add `stem/0`, `stem/1`, …, all made in the same way: each finds its place, and how many there are, in
        `current().members`. A running program can take further ones (`Program.next_member`)."""
        self.program.stems[self.name] = stem
        return [self.add(f"{stem}/{index}", factory, *args, **kwargs) for index in range(count)]

    @property
    def members(self) -> list[Node]:
        return [node for node in self.program.nodes.values() if node.group == self.name]


class Program:
    """A graph of nodes. `add` is typed as the factory's class, so wiring is checked by a type checker."""

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}
        self.stems: dict[str, str] = {}  # of the names in groups whose members are made alike

    def add(self, name: str, factory: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Add a node; what is returned is a `Handle` that stands for the factory's object in other nodes' arguments."""
        return Group(self, name).add(name, factory, *args, **kwargs)

    def group(self, name: str, role: Role | None = None, policy: str = MAIN) -> Group:
        """Where nodes are added that belong together: `program.group("actors", Role.ACTOR).add(…)`."""
        return Group(self, name, role, policy)

    def described(self, name: str, factory: Callable[..., Any], args: Any, kwargs: Any) -> Node:
        """A node by what its factory's class says of it."""
        restart, spread = (bool(getattr(factory, word, False)) for word in ("restart", "spread"))
        role = Role(getattr(factory, "role", Role.OTHER))
        return Node(name, factory, tuple(args), dict(kwargs), restart=restart, spread=spread, role=role, group=name)

    def insert(self, node: Node) -> None:
        """Take a node whose name is new, and that calls only nodes which are there."""
        if node.name in self.nodes:
            raise ValueError(f"the program has a node named {node.name!r} already: give each node its own name")
        for callee in node.callees():
            if callee not in self.nodes:
                raise ValueError(f"node {node.name!r} refers to {callee!r}, which is not in this program")
        self.nodes[node.name] = node

    # ---- who is who

    def find(self, role: Role, policy: str = MAIN) -> Handle | None:
        """The first node of a role that serves a policy."""
        return next((Handle(node.name) for node in self.with_role(role) if node.policy == policy), None)

    def with_role(self, *roles: Role) -> list[Node]:
        return [node for node in self.nodes.values() if node.role in roles]

    def leaders(self) -> list[Node]:
        """Who knows how far learning has come: of each group of learners or publishers the first."""
        learning = self.with_role(Role.LEARNER, Role.PUBLISHER)
        return list({node.group: node for node in reversed(learning)}.values())[::-1]

    def members(self, leaving: Iterable[Node] = ()) -> dict[str, Members]:
        """What each node is told of the groups, to which those who are `leaving` still belong."""
        totals: collections.Counter[str] = collections.Counter()
        places: dict[str, tuple[int, str]] = {}
        for node in [*self.nodes.values(), *leaving]:
            places.setdefault(node.name, (totals[node.group], node.group))
            totals[node.group] += 1
        return {name: Members(place, totals[group], dict(totals)) for name, (place, group) in places.items()}

    def next_member(self, group: str) -> Node:
        """A node as the group's others are, under the lowest number that is free."""
        return self.next_members(group, 1)[0]

    def next_members(self, group: str, count: int) -> list[Node]:
        """So many of them, under the lowest numbers."""
        alike = self.group(group).members
        if group not in self.stems or not alike:
            known = ", ".join(self.stems) or "none"
            raise ValueError(f"the program has no group {group!r} whose members are made alike (there are: {known})")
        names = (f"{self.stems[group]}/{index}" for index in itertools.count())
        free = itertools.islice((name for name in names if name not in self.nodes), count)
        return [replace(alike[0], name=name, start=None) for name in free]

    # ---- what belongs to a node

    def start_from(self, name: str, state: Any) -> None:
        """Have a node take a state (`load_state_dict`) when it is started for the first time, before anything calls
        it. What it takes in later lives is the supervisor's to say."""
        self.nodes[name] = replace(self.nodes[name], start=state)

    def place(self, pattern: str, resources: Resources | None = None, restart: bool | None = None) -> None:
        """Attach resources or a restart rule to the nodes whose names match a shell pattern such as `actor/*`."""
        names = fnmatch.filter(self.nodes, pattern)
        if not names:
            raise ValueError(f"no node matches {pattern!r}: the program has {', '.join(self.nodes)}")
        for name in names:
            node = self.nodes[name]
            self.nodes[name] = replace(
                node,
                resources=node.resources if resources is None else resources,
                restart=node.restart if restart is None else restart,
            )


def _handles(value: Any) -> Iterator[Handle]:
    if isinstance(value, Handle):
        yield value
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _handles(part)
    elif isinstance(value, dict):
        yield from _handles(list(value.values()))
    elif isinstance(value, partial):
        yield from _handles((value.args, value.keywords))


def _substitute(value: Any, client: Callable[[str], Any]) -> Any:
    if isinstance(value, Handle):
        return client(value.name)
    if type(value) in (list, tuple):
        return type(value)(_substitute(part, client) for part in value)
    if type(value) is dict:
        return {key: _substitute(part, client) for key, part in value.items()}
    if type(value) is partial:
        args, keywords = _substitute((value.args, value.keywords), client)
        return partial(value.func, *args, **keywords)
    return value


# ---- inside a node -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Capabilities:
    """What a runtime can do, as far as a node has to know. The defaults are those of a process per node."""

    asks_ahead: bool = True  # a call can be under way while its caller goes on
    nodes_may_die: bool = True  # at any time, also while somebody waits for them; otherwise only by their own errors
    own_processes: bool = True  # a node has one to itself, with its own global state (torch.distributed's, say)
    report_seconds: float = 0.5  # between two reports of a node, on the runtime's clock
    restart_seconds: float = 60.0  # in which a node that was lost can be called again


@dataclass(frozen=True)
class Context:
    """Where a factory finds out which node it is building, and on what kind of runtime."""

    name: str = "main"
    seed: int = 0
    restarts: int = 0  # lives that the node had before: seeds and names of streams must not repeat
    revived: bool = False  # the life before was lost, with what it was in the middle of
    address: str = "127.0.0.1"  # under which the other nodes' machines reach this one
    runtime: Capabilities = Capabilities()
    policy: str = MAIN  # that the node serves
    members: Members = Members()  # when it was started; later changes are told (`Offers.regroup`)


class _Current(threading.local):
    context = Context()  # outside of any node


_current = _Current()


def current() -> Context:
    """The node this thread works for."""
    return _current.context


def set_current(context: Context) -> None:
    _current.context = context


def node_seed(run_seed: int, name: str, restarts: int = 0) -> int:
    """A seed of its own for every node; it includes the restart count, or a restarted actor repeats its episodes."""
    sequence = np.random.SeedSequence([run_seed, zlib.crc32(name.encode()), restarts])
    return int(sequence.generate_state(1)[0])


class Future(Protocol):
    """The answer to a call that may still be under way."""

    def result(self) -> Any: ...
    def done(self) -> bool: ...


class NodeDied(ConnectionError):
    """The node that should have answered is gone."""


def public(target: Any, method: str) -> Callable[..., Any]:
    """A method that other nodes may call."""
    found = None if method.startswith("_") else getattr(target, method, None)
    if not callable(found):
        raise AttributeError(f"{type(target).__name__} has no public method {method!r}")
    return cast(Callable[..., Any], found)


class Done:
    """A future that is there already."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def result(self) -> Any:
        return self._value

    def done(self) -> bool:
        return True


class Failed:
    """A future that has come to an error."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def result(self) -> Any:
        raise self._error

    def done(self) -> bool:
        return True


class Background:
    """Calls whose answers nobody waits for. They are looked at when the next one is made, so that no error is lost."""

    def __init__(self) -> None:
        self._calls: collections.deque[Future] = collections.deque()
        self.lost = 0  # calls whose node was gone: it is the supervisor's to judge

    def add(self, call: Future) -> None:
        self.check()
        self._calls.append(call)

    def check(self) -> None:
        """Raise what a call that has been answered has raised."""
        while self._calls and self._calls[0].done():
            try:
                self._calls.popleft().result()
            except NodeDied:
                self.lost += 1


class Lane(Protocol):
    """Calls that one node makes to another, answered in order."""

    def send(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Future: ...


class _Methods:
    def __init__(self, lane: Lane, wait: bool) -> None:
        self._lane, self._wait = lane, wait

    def __getattr__(self, method: str) -> Callable[..., Any]:
        if method.startswith("_"):
            raise AttributeError(method)
        lane = self._lane

        if self._wait:

            def call(*args: Any, **kwargs: Any) -> Any:
                return lane.send(method, args, kwargs).result()
        else:

            def call(*args: Any, **kwargs: Any) -> Any:
                return lane.send(method, args, kwargs)

        setattr(self, method, call)  # the next use finds it without coming here
        return call


class Client(_Methods):
    """A remote node as an object. Waiting calls and futures travel on lanes of their own, each in order, so that a
    sample asked for ahead of time does not hold up the next call."""

    def __init__(self, name: str, calls: Lane, futures: Lane) -> None:
        super().__init__(calls, wait=True)
        self._name = name
        self.future = _Methods(futures, wait=False)

    def __repr__(self) -> str:
        return f"Client({self._name!r})"


class _Immediate(Generic[T]):
    def __init__(self, target: T) -> None:
        self._target = target

    def __getattr__(self, method: str) -> Callable[..., Future]:
        bound = getattr(self._target, method)

        def call(*args: Any, **kwargs: Any) -> Future:
            try:
                return Done(bound(*args, **kwargs))
            except Exception as error:  # as of any future, it is the answer
                return Failed(error)

        return call


def futures(target: Any) -> Any:
    """`client.future`, or for a plain object calls that answer at once: loops work with either.

    They answer at once in a node whose runtime does not ask ahead, too: there no call of a node is under way but the
    one that it waits in, and a checkpoint can be taken at any moment.
    """
    asks_ahead = current().runtime.asks_ahead and hasattr(target, "future")
    return target.future if asks_ahead else _Immediate(target)
