"""Which node goes to which machine of a cluster, what is asked for it, and whether that can be had. Ray is not asked.

Learners compute where the driver is, if there is room, or where the GPUs are that they ask for; services are beside
them. Actors, workers and evaluators are spread over all machines, in proportion to the CPUs that are free there.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from shoal.errors import UserError
from shoal.program import Node
from shoal.types import Role

Amounts = dict[str, float]  # by resource

COMPUTING = (Role.ACTOR, Role.WORKER, Role.EVALUATOR, Role.LEARNER, Role.INFERENCE, Role.GATEWAY, Role.GRADIENTS)
ANCHORS = (Role.LEARNER, Role.GRADIENTS)  # who learns: services are where the first of them is
PARTS = (0.95, 0.8, 0.6, 0.4, 0.2)  # of what is free, which many nodes share: a machine gives whole shares only
SMALLEST = 0.01  # of a CPU: what is asked for a node at the least, where there are more nodes than CPUs
GRAIN = 1e-4  # Ray counts in these


@dataclass(frozen=True)
class Machine:
    """One of a cluster."""

    id: str  # as Ray calls it
    name: str  # as it is shown
    address: str
    total: Mapping[str, float]
    free: Mapping[str, float]
    labels: Mapping[str, str] = field(default_factory=dict)

    def is_called(self, label: str) -> bool:
        """Whether a user may mean it by this word: its name, its address, a resource of its own, a label of Ray's or
        that label's value."""
        named = {f"{key}:{value}" for key, value in self.labels.items()} | {*self.labels.values()}
        return label in {self.id, self.name, self.address, *self.total, *named} or f"node:{label}" in self.total


@dataclass(frozen=True, kw_only=True)
class Wishes:
    """What a user asks of placement, beside what nodes ask for themselves."""

    places: Mapping[str, str] = field(default_factory=dict)  # role -> label
    actor_cpus: float | None = None  # of each actor, worker and evaluator; None: one, or less where there are fewer

    def label(self, node: Node) -> str | None:
        return self.places.get(str(node.role))


@dataclass(frozen=True)
class Places:
    """A decision: where each node is, and what is asked for it."""

    machine: Mapping[str, str]  # node -> machine
    asked: Mapping[str, Amounts]  # node -> resources
    shared: bool = False  # nodes that compute ask for parts of a CPU, or for none, since there are too few
    beside: str | None = None  # the machine of those who learn, and of the services

    def held(self) -> dict[str, Amounts]:
        """What the nodes ask of each machine together."""
        return held(self.machine, self.asked)


def held(machine: Mapping[str, str], asked: Mapping[str, Amounts]) -> dict[str, Amounts]:
    """What nodes ask of each machine together."""
    sums: dict[str, Counter[str]] = {}
    for node, where in machine.items():
        sums.setdefault(where, Counter()).update(asked[node])
    return {where: dict(total) for where, total in sums.items()}


class NoRoom(Exception):
    """It cannot be had now, and perhaps later."""


def demand(node: Node) -> Amounts:
    """What a node asks for by itself, in Ray's names."""
    resources = node.resources
    asked = {"CPU": resources.cpus, "GPU": resources.gpus, "memory": float(resources.memory or 0)}
    if resources.node is not None:
        asked[f"node:{resources.node}"] = 0.001
    return {name: amount for name, amount in asked.items() if amount}


def check(nodes: Collection[Node], machines: Sequence[Machine], wishes: Wishes) -> None:
    """Say at once what would never be placed."""
    total: Amounts = {}
    for node in nodes:
        asked = demand(node)
        if not any(_fits(asked, machine.total) for machine in machines):
            raise UserError(
                f"node {node.name!r} asks for {amounts(asked)}, which no machine of the Ray cluster has: "
                "ask for less or add such a machine"
            )
        for name, amount in asked.items():
            total[name] = total.get(name, 0.0) + amount
        label = wishes.label(node)
        if label is not None and not any(machine.is_called(label) for machine in machines):
            raise UserError(
                f"--place {node.role}={label}: no machine of the Ray cluster is called so, or has such a label or "
                f"resource: there are {', '.join(machine.name for machine in machines)}"
            )
    offered = {name: sum(machine.total.get(name, 0.0) for machine in machines) for name in total}
    if not _fits(total, offered):
        raise UserError(
            f"the nodes ask for {amounts(total)} together, but the Ray cluster has {amounts(offered)}: "
            "ask for less or add machines"
        )
    roles = {str(node.role) for node in nodes}
    if unknown := [role for role in wishes.places if role not in roles]:
        raise UserError(f"--place {unknown[0]}=…: the program has no such role: it has {', '.join(sorted(roles))}")


def place(
    nodes: Collection[Node],
    machines: Sequence[Machine],
    driver: str,
    wishes: Wishes,
    *,
    beside: str | None = None,  # the machine of the learners and services, where that is decided
    patient: bool = False,  # what is asked for is waited for, and not made less
    shared: bool = False,  # the run has made it less already: further nodes share what it holds
    avoided: Collection[str] = (),
    crowded: Mapping[str, int] | None = None,  # nodes that are spread, and have a place already: by machine
) -> Places:
    """Decide for all of `nodes`, or raise `NoRoom`."""
    asked = {node.name: demand(node) for node in nodes} if shared else bundles(nodes, wishes)
    given = (machines, driver, wishes)
    if shared or patient or _cpus(asked) <= sum(machine.total.get("CPU", 0.0) for machine in machines):
        return _place(nodes, *given, asked, shared, beside, avoided, crowded or {})
    for part in PARTS:
        with contextlib.suppress(NoRoom):
            parts = _parts(asked, nodes, machines, part)
            return _place(nodes, *given, parts, True, beside, avoided, crowded or {})
    raise NoRoom("all parts are too small")


def _place(
    nodes: Collection[Node],
    machines: Sequence[Machine],
    driver: str,
    wishes: Wishes,
    asked: Mapping[str, Amounts],
    shared: bool,
    beside: str | None,
    avoided: Collection[str],
    crowded: Mapping[str, int],
) -> Places:
    free = {machine.id: Counter(machine.free) for machine in machines}
    chosen: dict[str, str] = {}

    def take(node: Node, machine: str) -> None:
        chosen[node.name] = machine
        free[machine].subtract(asked[node.name])

    pinned = [node for node in nodes if not node.spread]
    for node in sorted(pinned, key=lambda node: (node.role not in ANCHORS, not demand(node))):
        order = [beside, driver, *sorted(free, key=lambda one: -free[one]["CPU"])]
        able = [machine for machine in _allowed(node, machines, wishes) if _fits(asked[node.name], free[machine])]
        if not able:
            raise NoRoom(node.name)
        machine = next(one for one in order if one in able)
        take(node, machine)
        if beside is None and node.role in ANCHORS:
            beside = machine
    weights = {machine.id: max(0.0, free[machine.id]["CPU"]) for machine in machines}
    members: Counter[str] = Counter()
    if sum(weights.values()) < SMALLEST:  # those who are there share: by the CPUs that machines have
        weights = {machine.id: machine.total.get("CPU", 0.0) for machine in machines}
        members = Counter(crowded)
    for node in (node for node in nodes if node.spread):
        able = [machine for machine in _allowed(node, machines, wishes) if _fits(asked[node.name], free[machine])]
        able = [machine for machine in able if machine not in avoided] or able
        if not able:
            raise NoRoom(node.name)
        machine = min(able, key=lambda one: ((members[one] + 1) / max(weights[one], 1e-3), one))
        members[machine] += 1
        take(node, machine)
    return Places(chosen, asked, shared, beside)


def bundles(nodes: Collection[Node], wishes: Wishes) -> dict[str, Amounts]:
    """What each node asks for: one that computes, a CPU for each of its threads, unless it was told otherwise."""
    asked = {node.name: demand(node) for node in nodes}
    for node in nodes:
        if node.role in COMPUTING and "CPU" not in asked[node.name]:
            acts = node.role in (Role.ACTOR, Role.WORKER, Role.EVALUATOR)
            cpus = wishes.actor_cpus if acts and wishes.actor_cpus is not None else float(node.resources.threads)
            asked[node.name] |= {"CPU": cpus} if cpus else {}
    return asked


def _cpus(asked: Mapping[str, Amounts]) -> float:
    return sum(amounts.get("CPU", 0.0) for amounts in asked.values())


def _parts(
    asked: Mapping[str, Amounts], nodes: Collection[Node], machines: Sequence[Machine], part: float
) -> dict[str, Amounts]:
    """Where nodes that compute would ask for more CPUs than the whole cluster has, all of them share `part` of what is
    free, each with a part of a CPU: a run must be able to start on a laptop, too."""
    own = {node.name: demand(node).get("CPU", 0.0) for node in nodes}
    free = sum(machine.free.get("CPU", 0.0) for machine in machines)
    share = part * max(0.0, free - sum(own.values())) / (_cpus(asked) - sum(own.values()))
    found = {}
    for name, amounts in asked.items():
        found[name] = dict(amounts)
        if "CPU" in amounts and not own[name]:
            found[name]["CPU"] = round(max(SMALLEST, share * amounts["CPU"]) // GRAIN * GRAIN, 4)
    return found


def _allowed(node: Node, machines: Sequence[Machine], wishes: Wishes) -> list[str]:
    label = wishes.label(node)
    return [machine.id for machine in machines if label is None or machine.is_called(label)]


def bins(nodes: Sequence[Node]) -> list[list[Node]]:
    """Which nodes with GPUs share a process that holds these: parts of one GPU go together, whole ones stay alone."""
    found: list[list[Node]] = []
    for node in sorted(nodes, key=lambda node: -node.resources.gpus):
        for shared in found:
            if node.resources.gpus < 1.0 and sum(one.resources.gpus for one in shared) + node.resources.gpus <= 1.0001:
                shared.append(node)
                break
        else:
            found.append([node])
    return found


def _fits(asked: Amounts, offer: Mapping[str, float]) -> bool:
    return all(offer.get(name, 0.0) >= amount - GRAIN / 2 for name, amount in asked.items())


def moves(places: Mapping[str, str], weights: Mapping[str, float], joined: Collection[str]) -> dict[str, str]:
    """Which nodes move to machines that have `joined`, so that each of these gets its share: node -> machine.

    `places` says on which machine each node is now, `weights` what share a machine should have. Those that have most
    beyond theirs give first.
    """
    left = {machine: [node for node, place in places.items() if place == machine] for machine in weights}
    whole = sum(weights.values()) or 1.0
    share = {machine: len(places) * weight / whole for machine, weight in weights.items()}
    found: dict[str, str] = {}
    for newcomer in joined:
        while len(left[newcomer]) + 1 <= share[newcomer] + 1e-9:
            givers = [machine for machine in weights if machine not in joined and left[machine]]
            most = max(givers, key=lambda one: len(left[one]) - share[one], default=None)
            if most is None or len(left[most]) <= share[most]:
                break
            node = left[most].pop()
            left[newcomer].append(node)
            found[node] = newcomer
    return found


# ---- in words


def amounts(resources: Mapping[str, float]) -> str:
    words = []
    for name, amount in sorted(resources.items()):
        if name == "object_store_memory" or name.startswith("node:__"):
            continue
        if name.startswith("node:"):
            words.append(f"the machine {name.removeprefix('node:')!r}")
        elif name == "memory":
            words.append(f"{amount / 2**30:.3g} GB of memory")
        else:
            words.append(f"{amount:.4g} {name}")
    return ", ".join(words) or "nothing"


def told(nodes: Collection[Node], machines: Sequence[Machine], wishes: Wishes) -> str:
    """What was asked for, and what there is."""
    total = Counter[str]()
    for one in bundles(nodes, wishes).values():
        total.update({name: amount for name, amount in one.items() if not name.startswith("node:")})
    there = [
        f"{machine.name} {_share(machine, total)}" for machine in sorted(machines, key=lambda machine: machine.name)
    ]
    return f"the nodes ask for {amounts(total)}; free are {'; '.join(there)}"


def _share(machine: Machine, names: Iterable[str]) -> str:
    parts = []
    for name in sorted({*names} or {"CPU"}):
        free, total = (offer.get(name, 0.0) for offer in (machine.free, machine.total))
        scale, unit = (2**30, "GB of memory") if name == "memory" else (1, name)
        parts.append(f"{free / scale:.3g} of {total / scale:.3g} {unit}")
    return ", ".join(parts)


def named(machines: Sequence[Machine]) -> list[Machine]:
    """Each with a name of its own: that of its host, or its address where several have the same."""
    names, addresses = (Counter(getattr(one, word) for one in machines) for word in ("name", "address"))
    found = []
    for machine in machines:
        name = machine.name
        if names[name] > 1 or not name:
            name = machine.address if addresses[machine.address] == 1 else f"{machine.address} ({machine.id[:6]})"
        found.append(dataclasses.replace(machine, name=name))
    return found
