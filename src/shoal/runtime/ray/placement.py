"""What nodes ask of a cluster's machines, in Ray's names, and whether that can ever be had."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from shoal.errors import UserError
from shoal.program import Node, Program

Amounts = dict[str, float]  # by resource
STEP = 1e-4  # in which Ray counts: sums of parts may be off by less


def check(program: Program, machines: list[Amounts]) -> None:
    """Say at once what would never be placed; Ray would wait for ever."""
    total: Amounts = {}
    for node in program.nodes.values():
        asked = demand(node)
        if not any(_fits(asked, machine) for machine in machines):
            raise UserError(
                f"node {node.name!r} asks for {amounts(asked)}, which no machine of the Ray cluster has: "
                "ask for less or add such a machine"
            )
        for name, amount in asked.items():
            total[name] = total.get(name, 0.0) + amount
    offered = {name: sum(machine.get(name, 0.0) for machine in machines) for name in total}
    if not _fits(total, offered):
        raise UserError(
            f"the nodes ask for {amounts(total)} together, but the Ray cluster has {amounts(offered)}: "
            "ask for less or add machines"
        )


def demand(node: Node) -> Amounts:
    """A node's resources in Ray's names."""
    resources = node.resources
    asked = {"CPU": resources.cpus, "GPU": resources.gpus, "memory": float(resources.memory or 0)}
    if resources.node is not None:
        asked[f"node:{resources.node}"] = 0.001
    return {name: amount for name, amount in asked.items() if amount}


def _fits(asked: Amounts, offer: Amounts) -> bool:
    return all(offer.get(name, 0.0) >= amount - STEP / 2 for name, amount in asked.items())


def amounts(resources: Amounts) -> str:
    """In words."""
    words = []
    for name, amount in sorted(resources.items()):
        if name == "object_store_memory" or name.startswith("node:__"):
            continue
        if name.startswith("node:"):
            words.append(f"the machine {name.removeprefix('node:')!r}")
        elif name == "memory":
            words.append(f"{amount / 2**30:.3g} GB of memory")
        else:
            words.append(f"{amount:g} {name}")
    return ", ".join(words) or "nothing"


def moves(places: Mapping[str, str], machines: Collection[str], joined: Collection[str]) -> dict[str, str]:
    """Which nodes move to machines that have `joined`, so that each of these gets its share: node -> machine.

    `places` says on which machine each node is now. Those that have most give first.
    """
    left = {machine: [node for node, place in places.items() if place == machine] for machine in machines}
    share, found = len(places) // len(machines) if machines else 0, {}
    for newcomer in joined:
        while len(left[newcomer]) < share:
            most = max((machine for machine in machines if machine != newcomer), key=lambda one: len(left[one]))
            if len(left[most]) <= share:
                break
            node = left[most].pop()
            left[newcomer].append(node)
            found[node] = newcomer
    return found
