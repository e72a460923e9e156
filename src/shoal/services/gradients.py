"""Gradients: workers push them as they are ready, the service applies them and answers with the newest parameters.

The parameters are one flat float32 vector with one shared optimizer. A version is the number of steps applied to it.
Large networks are cut into several servers by groups of parameters; `GradientClient` makes them look like one.
"""

from __future__ import annotations

import copy
import itertools
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from shoal import buffers
from shoal.errors import UserError
from shoal.flat import FlatOptimizer
from shoal.program import Context, Future, Members, NodeDied, current, futures
from shoal.retry import retry
from shoal.services.weights import WeightStore
from shoal.state import Scope, State, as_arrays
from shoal.sync import Condition
from shoal.types import Role
from shoal.versions import NONE

FlatArray = npt.NDArray[np.float32]
STATES = "gradients"  # what a kept snapshot calls the states of the services, by node


class Answer(NamedTuple):
    """What the service says to a worker."""

    accepted: bool  # the gradient has been, or will be, part of a step
    finished: bool  # no further gradient will be accepted
    version: int
    parameters: FlatArray
    life: int = 0  # of the service, which goes on from an older version when it was lost


class NotInitialised(RuntimeError):
    """The service has no parameters."""


class GradientServer:
    """Owns parameters and applies what workers push, each step the mean of `reduce` gradients weighted by their rows.

    Asynchronous (A3C): a push is answered at once. Synchronous (A2C): it is answered when all workers of the round
    have pushed and the step is made; workers that stay away longer than `round_timeout` are no longer waited for until
    they come back. Refused, and counted, are gradients that are too stale and those that are not finite.

    When it was lost it goes on from the state that somebody has kept among the `snapshots` (`states_of`), else from
    the parameters of the first client that finds it without any.
    """

    role = Role.GRADIENTS
    restart = True
    in_checkpoints = True

    def __init__(
        self,
        *,
        rate: float | Callable[[int], float],  # the learning rate, or a function of the steps made
        optimizer: str = "rmsprop",  # or adam, sgd
        epsilon: float = 1e-5,
        reduce: int = 1,  # gradients per step
        max_staleness: int | None = None,  # versions; None: every gradient is taken
        synchronous: int = 0,  # the number of workers in a round; 0: asynchronous
        workers: str | None = None,  # the group whose size the numbers of workers follow
        for_workers: int = 0,  # how many of them `max_staleness` is meant for; 0: it stays as it is
        round_timeout: float = 30.0,
        max_steps: int | None = None,
        snapshots: WeightStore | None = None,  # where its state is kept for its next life
        **options: Any,  # of the optimizer: decay, momentum, epsilon_inside, centred (see `flat.FlatOptimizer`)
    ) -> None:
        self._rate = rate
        if optimizer == "rmsprop":
            options = {"epsilon_inside": True, **options}  # as in the papers
        self._kind, self._options = optimizer, {"epsilon": epsilon, **options}
        FlatOptimizer(torch.zeros(1), optimizer, **self._options)  # what is wrong with the options is said now
        self._group, self._for_workers, self._given_staleness = workers, for_workers, max_staleness
        self._max_staleness = 0 if synchronous else max_staleness
        self._synchronous, self._round_timeout, self._max_steps = bool(synchronous), round_timeout, max_steps
        self._workers = synchronous  # all of them; `_expected` are those that are waited for
        self._expected = synchronous or reduce
        self._changed = Condition()
        self._version = NONE
        self._pending: dict[tuple[str, int], tuple[FlatArray, float]] = {}
        self._last: dict[str, tuple[int, bool]] = {}  # worker -> its last sequence number and whether it was accepted
        self._counts: Counter[str] = Counter()
        self._buffers: dict[str, dict[str, npt.NDArray[Any]]] = {}  # of each worker's network
        self._closed = False
        self.regroup(current().members)
        self._node, self._life = current().name, current().restarts
        if self._life and snapshots is not None:
            kept = retry(lambda: snapshots.kept_snapshot(self._node))
            if kept is not None:
                self.load_state_dict(kept)

    # ---- who works

    def regroup(self, members: Members) -> None:
        """Workers have come, and are waited for in the rounds from now on, or have gone."""
        total = members.totals.get(self._group or "")
        if total is None:
            return
        with self._changed:
            if self._synchronous:
                self._workers, self._expected = total, max(1, self._expected + total - self._workers)
                if self._pending and len(self._pending) >= self._expected:
                    self._step()
            elif self._given_staleness is not None and self._for_workers:
                self._max_staleness = self._given_staleness * total // self._for_workers
            self._changed.notify_all()

    def forget(self, name: str) -> None:
        """A worker has left: what its network measured last is no part of the mean any more."""
        with self._changed:
            if len(self._buffers) > 1:
                self._buffers.pop(name, None)

    # ---- what workers call

    def initialise(self, parameters: FlatArray, version: int = 0) -> bool:
        """Set the parameters, at version 0 where the run begins. Only the first call does, and returns True: all
        workers start equal."""
        with self._changed:
            if self._version != NONE:
                return False
            self._set_parameters(parameters)
            self._version = version
            self._changed.notify_all()
            return True

    def pull(self, than: int = NONE, timeout: float | None = None, life: int | None = None) -> Answer | None:
        """The parameters when they are newer than version `than` of the service's `life`, by default its present one,
        or final; waits for that, at most `timeout`."""
        than = than if life is None or life == self._life else NONE
        with self._changed:
            found = self._changed.wait_for(
                lambda: self._version > than or self._over(), timeout, f"parameters newer than version {than}"
            )
            return self._answer(False) if found and self._version != NONE else None

    def push(self, worker: str, sequence: int, gradient: FlatArray, version: int, weight: float = 1.0) -> Answer:
        """Take a gradient that was computed at `version` as a mean over `weight` rows.

        A worker's sequence numbers rise; one that is not higher than its last is a repeat, and never applied again.
        """
        with self._changed:
            if self._version == NONE:
                raise NotInitialised("the gradient service has no parameters yet: call initialise() first")
            if len(gradient) != len(self._parameters):
                raise ValueError(f"the gradient has {len(gradient)} numbers, the parameters {len(self._parameters)}")
            version = min(version, self._version)  # of a former life, which had come further
            last, accepted = self._last.get(worker, (NONE, False))
            if sequence > last:
                accepted = self._take(worker, sequence, gradient, version, weight)
                self._last[worker] = (sequence, accepted)
            else:
                self._counts["repeated"] += 1
                accepted = accepted and sequence == last
            if self._synchronous:
                self._wait_for_round(version)
            return self._answer(accepted)

    def push_buffers(self, worker: str, named: Mapping[str, npt.NDArray[Any]]) -> None:
        """What a worker's network measures while it is trained, such as the running statistics of batch norm."""
        with self._changed:
            self._buffers[worker] = {name: np.array(value) for name, value in named.items()}

    def mean_buffers(self) -> dict[str, npt.NDArray[Any]]:
        """The mean over workers of what they have pushed; of whole numbers, which count, the highest."""
        with self._changed:
            pushed = list(self._buffers.values())
        return {name: _together([one[name] for one in pushed]) for name in (pushed[0] if pushed else ())}

    def statistics(self) -> dict[str, int]:
        """The version, and counts since the start: gradients (that came, repeats apart), staleness (summed over them),
        stale and not_finite (refused for it), not_finite_in_a_row, repeated, short_rounds."""
        with self._changed:
            return {**self._counts, "version": self._version}

    def last_sequence(self, worker: str) -> int:
        """The highest sequence number that a worker of this name has used: one that starts again counts on from it."""
        with self._changed:
            return self._last.get(worker, (NONE, False))[0]

    def state_dict(self, scope: Scope = "own") -> State:
        """Parameters, moments, counts, and what is pending of a step: enough to go on as if nothing had happened."""
        with self._changed:
            state: dict[str, Any] = {
                "version": self._version,
                "expected": self._expected,
                "counts": dict(self._counts),
                "last": {worker: list(last) for worker, last in self._last.items()},
                "pending": [[*key, taken.copy(), weight] for key, (taken, weight) in self._pending.items()],
                "buffers": self._buffers,
            }
            if self._version != NONE:
                state |= {"parameters": self._parameters.copy(), "optimizer": as_arrays(self._optimizer.state_dict())}
            return copy.deepcopy(state)

    def named_state(self) -> tuple[str, State]:
        """Its node's name, and its state."""
        return self._node, self.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        with self._changed:
            if state["version"] != NONE:
                if self._version != NONE and len(state["parameters"]) != len(self._parameters):
                    raise ValueError(
                        f"the state has {len(state['parameters'])} parameters, this service {len(self._parameters)}"
                    )
                self._set_parameters(np.asarray(state["parameters"]))
                self._optimizer.load_state_dict(state["optimizer"])
            self._version = int(state["version"])
            expected = int(state["expected"])
            self._expected = min(expected, self._workers) if self._synchronous else expected
            self._counts = Counter(state["counts"])
            self._last = {worker: (int(number), bool(taken)) for worker, (number, taken) in state["last"].items()}
            self._pending = {
                (worker, int(number)): (np.array(taken, np.float32), float(weight))
                for worker, number, taken, weight in state["pending"]
            }
            self._buffers = copy.deepcopy(dict(state.get("buffers", {})))
            self._changed.notify_all()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    # ---- inside, with the lock held

    def _over(self) -> bool:
        return self._closed or (self._max_steps is not None and self._version >= self._max_steps)

    def _answer(self, accepted: bool) -> Answer:
        parameters = buffers.empty(self._parameters.shape, np.float32)
        np.copyto(parameters, self._parameters)
        return Answer(accepted, self._over(), self._version, parameters, self._life)

    def _take(self, worker: str, sequence: int, gradient: FlatArray, version: int, weight: float) -> bool:
        if self._over():
            return False
        counts = self._counts
        counts["gradients"] += 1
        staleness = self._version - version
        counts["staleness"] += staleness
        if self._max_staleness is not None and staleness > self._max_staleness:
            counts["stale"] += 1
            if self._expected < self._workers:  # it was not waited for, and is back
                self._expected += 1
            return False
        if self._synchronous:  # what a lost worker left in this round is replaced by its successor's
            self._pending = {key: value for key, value in self._pending.items() if key[0] != worker}
        taken = np.array(gradient, np.float32)
        finite = bool(np.isfinite(np.vdot(taken, taken)))
        if finite:
            counts["not_finite_in_a_row"] = 0
        else:
            counts["not_finite"] += 1
            counts["not_finite_in_a_row"] += 1
            if not self._synchronous:
                return False
            taken, weight = np.zeros_like(taken), 0.0  # others wait for this worker: it takes part with nothing
        self._pending[worker, sequence] = (taken, weight)
        if len(self._pending) >= self._expected:
            self._step()
        return finite

    def _wait_for_round(self, version: int) -> None:
        done = self._changed.wait_for(
            lambda: self._version > version or self._over(), self._round_timeout, "the other workers of the round"
        )
        if not done and self._pending:
            self._counts["short_rounds"] += 1
            self._expected = len(self._pending)
            self._step()

    def _set_parameters(self, parameters: FlatArray) -> None:
        self._parameters = np.array(parameters, np.float32).reshape(-1)
        self._scratch = np.empty_like(self._parameters)
        flat = torch.from_numpy(self._parameters)  # in the same memory
        self._optimizer = FlatOptimizer(flat, self._kind, **self._options)

    def _step(self) -> None:
        """One step of the optimizer along the weighted mean of what is pending."""
        pending = list(self._pending.values())
        self._pending.clear()
        total = sum(weight for _, weight in pending)
        if total > 0.0:
            gradient = pending[0][0]
            gradient *= np.float32(pending[0][1] / total)
            for other, weight in pending[1:]:
                gradient += np.multiply(other, np.float32(weight / total), out=self._scratch)
            rate = self._rate(self._version) if callable(self._rate) else self._rate
            self._optimizer.step(torch.from_numpy(gradient), rate)
        self._version += 1
        self._changed.notify_all()


def states_of(servers: Sequence[GradientServer]) -> dict[str, State]:
    """The states of servers, by node; asked for at the same time."""
    asked = [futures(server).named_state() for server in servers]
    return dict(call.result() for call in asked)


class Pushed(NamedTuple):
    accepted: bool
    finished: bool


class GradientClient:
    """A worker's side of one or several servers: pushes gradients, and keeps `parameters` the newest in place.

    With several servers each owns a run of whole parameter groups; `groups` are their sizes, in the vector's order.
    """

    def __init__(
        self,
        servers: Sequence[Any],
        parameters: FlatArray,
        groups: Sequence[int] | None = None,
        worker: str | None = None,  # names this client to the servers; None: its node's name, elsewhere a unique one
    ) -> None:
        self.parameters = parameters
        self._servers = servers
        self._parts = cut(groups or [len(parameters)], len(servers))
        self.versions, self.lives = [NONE] * len(servers), [NONE] * len(servers)
        self.lost_updates = 0  # that services had made when they were lost, and their next lives have not
        context = current()
        self._worker = worker or (context.name if context != Context() else uuid.uuid4().hex)
        # a restarted worker's numbers are higher than before, and those of a resumed run higher than what was saved
        used = self._ask("last_sequence", lambda index: (self._worker,))
        self._sequence = max(context.restarts << 32, *used)

    @property
    def version(self) -> int:
        """Of the first server; with several, each has its own, and they may differ by pushes under way."""
        return self.versions[0]

    def initialise(self, version: int = 0) -> None:
        """Offer these parameters as those to start from, and take the ones that were offered first."""
        self._ask("initialise", lambda index: (self.parameters[self._parts[index]], version))
        self.pull()

    def pull(self, steps: int = 1, timeout: float | None = None) -> bool:
        """Wait for parameters that are `steps` or more newer, or final; True when there are any newer ones."""
        before = self.versions, self.lives
        than = [version + steps - 1 if version != NONE else NONE for version in self.versions]
        lives = [None if life == NONE else life for life in self.lives]
        self._load(self._ask("pull", lambda index: (than[index], timeout, lives[index])))
        return (self.versions, self.lives) != before

    def push(self, gradient: FlatArray, weight: float = 1.0) -> Pushed:
        """Push the mean gradient over `weight` rows at these parameters, and load the newest."""
        self._sequence += 1
        versions = self.versions
        answers = self._ask(
            "push", lambda index: (self._worker, self._sequence, gradient[self._parts[index]], versions[index], weight)
        )
        self._load(answers)
        accepted = all(answer.accepted for answer in answers)
        return Pushed(accepted, any(answer.finished for answer in answers))

    def _ask(self, method: str, arguments: Callable[[int], tuple[Any, ...]]) -> list[Any]:
        """The answers of all servers, asked at the same time; one that is gone is asked again when it is back."""
        asked = [getattr(futures(server), method)(*arguments(index)) for index, server in enumerate(self._servers)]
        return [self._answer(call, index, method, arguments(index)) for index, call in enumerate(asked)]

    def _answer(self, call: Future, index: int, method: str, arguments: tuple[Any, ...]) -> Any:
        server = self._servers[index]
        lost = (NodeDied,) if self.versions[index] == NONE else (NodeDied, NotInitialised)
        try:
            return call.result()
        except lost:
            return retry(lambda: self._offer_and_call(index, getattr(server, method), arguments), lost=lost)

    def _offer_and_call(self, index: int, call: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        """One that has come back without its parameters gets those that this client has."""
        if self.versions[index] != NONE:
            self._servers[index].initialise(self.parameters[self._parts[index]], self.versions[index])
        return call(*arguments)

    def state_dict(self) -> dict[str, Any]:
        return {"versions": list(self.versions), "sequence": self._sequence}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with parameters of these versions, which the caller has put in place."""
        if len(state["versions"]) != len(self._servers):
            raise ValueError(f"the state is of {len(state['versions'])} gradient servers, not of {len(self._servers)}")
        self.versions = [int(version) for version in state["versions"]]
        self._sequence = max(self._sequence, int(state["sequence"]))

    def _load(self, answers: Sequence[Answer | None]) -> None:
        self.versions, self.lives = list(self.versions), list(self.lives)
        for index, (answer, part) in enumerate(zip(answers, self._parts)):
            if answer is not None:
                np.copyto(self.parameters[part], answer.parameters)
                self.lost_updates += max(0, self.versions[index] - answer.version)
                self.versions[index], self.lives[index] = answer.version, answer.life


def _together(values: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    stacked = np.stack(values)
    if np.issubdtype(stacked.dtype, np.floating):
        return np.asarray(stacked.mean(axis=0, dtype=np.float64), stacked.dtype)
    return np.asarray(stacked.max(axis=0))


def cut(groups: Sequence[int], parts: int) -> list[slice]:
    """Consecutive groups of the given sizes in `parts` slices, as even as whole groups allow."""
    if parts > len(groups):
        raise UserError(
            f"{len(groups)} groups of parameters cannot be divided among {parts} servers: give fewer shards."
        )
    ends = list(itertools.accumulate(groups))
    total, bounds, first = ends[-1], [0], 0
    for part in range(1, parts):
        # the end nearest to an even share that leaves a group for every part to come
        candidates = range(first, len(ends) - (parts - part))
        best = min(candidates, key=lambda index: abs(ends[index] - total * part / parts))
        bounds.append(ends[best])
        first = best + 1
    return [slice(begin, end) for begin, end in zip(bounds, [*bounds[1:], total])]
