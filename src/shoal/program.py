"""Programs: a pure description of nodes and who may call whom. Nothing runs here; a runtime runs it.

A handle given to another node's factory becomes, inside that node, a client whose method calls are remote calls:
`client.method(x)` waits for the answer, `client.future.method(x)` does not. A node with `step()` is driven in a loop
(until it returns False); any public method of any node can be called.
"""

from __future__ import annotations

import collections
import fnmatch
import threading
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Generic, ParamSpec, Protocol, TypeVar, cast

import numpy as np

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Resources:
    """What a node asks of the machine it is placed on. Local and inline runtimes read `gpus` only."""

    cpus: float = 1.0
    gpus: float = 0.0
    memory: int | None = None  # bytes
    threads: int = 1  # that torch and BLAS compute with
    node: str | None = None  # the name of a machine, as a custom resource of the Ray cluster


ANYWHERE = Resources(cpus=0.0)  # what a node asks for unless it is told otherwise: all fit on one machine


@dataclass(frozen=True)
class Handle:
    """Names a node of the program; becomes a client inside the node that receives it."""

    name: str


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


class Program:
    """A graph of nodes. `add` is typed as the factory's class, so wiring is checked by a type checker."""

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}

    def add(self, name: str, factory: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Add a node; what is returned is a `Handle` that stands for the factory's object in other nodes' arguments."""
        if name in self.nodes:
            raise ValueError(f"the program has a node named {name!r} already: give each node its own name")
        for handle in _handles((args, kwargs)):
            if handle.name not in self.nodes:
                raise ValueError(f"node {name!r} refers to {handle.name!r}, which is not in this program")
        restart, spread = (bool(getattr(factory, word, False)) for word in ("restart", "spread"))
        self.nodes[name] = Node(name, factory, args, dict(kwargs), restart=restart, spread=spread)
        return cast(T, Handle(name))

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


def _substitute(value: Any, client: Callable[[str], Any]) -> Any:
    if isinstance(value, Handle):
        return client(value.name)
    if type(value) in (list, tuple):
        return type(value)(_substitute(part, client) for part in value)
    if type(value) is dict:
        return {key: _substitute(part, client) for key, part in value.items()}
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
    restarts: int = 0
    address: str = "127.0.0.1"  # under which the other nodes' machines reach this one
    runtime: Capabilities = Capabilities()


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
