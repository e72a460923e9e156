"""What a run holds of a cluster's machines: placement groups of one bundle each, so that other runs, and an autoscaler,
see it. They end with the run's driver."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection, Mapping
from typing import Any

import ray as typed_ray
from ray.util.placement_group import placement_group, remove_placement_group

from shoal.runtime.ray.orders import Orders
from shoal.runtime.ray.placement import Amounts

ray: Any = typed_ray  # its own types are incomplete
NODE_ID = "ray.io/node-id"  # a label that every machine has
NOT_HELD = ("GPU",)  # by a group: the process that uses a GPU holds it, since Ray tells it which one


class Reservations:
    """Of one run."""

    def __init__(self, orders: Orders) -> None:
        self._orders = orders
        self._groups: dict[str, list[Any]] = {}  # by machine
        self._demand: Any = None  # a group that an autoscaler shall make room for

    def hold(self, wanted: Mapping[str, Amounts], timeout: float) -> bool:
        """Hold so much on each of these machines, all of it or nothing; whether that could be had in time."""
        made = {machine: self._ask(machine, amounts) for machine, amounts in wanted.items()}
        groups = {machine: group for machine, group in made.items() if group is not None}
        deadline = time.monotonic() + timeout
        for group in groups.values():
            if not group.wait(max(0.01, deadline - time.monotonic())):
                for one in groups.values():
                    _remove(one)
                return False
        for machine, group in groups.items():
            self._groups.setdefault(machine, []).append(group)
        return True

    def ask(self, machine: str, amounts: Amounts) -> None:
        """Hold it as soon as it can be had; until then it is a demand that an autoscaler sees."""

        def ask() -> None:
            if (group := self._ask(machine, amounts)) is not None:
                self._groups.setdefault(machine, []).append(group)

        self._orders.put(ask)

    def demand(self, asked: Mapping[str, Amounts]) -> bool:
        """Have an autoscaler see what nodes ask for, on whatever machines; False while there is room for it."""
        if self._demand is None:
            self._demand = placement_group([bundle for one in asked.values() if (bundle := _bundle(one, ()))])
            return True
        if self._demand.wait(0.01):
            self.withdraw()
            return False
        return True

    def withdraw(self) -> None:
        if self._demand is not None:
            _remove(self._demand)
            self._demand = None

    def _ask(self, machine: str, amounts: Amounts) -> Any:
        if not (bundle := _bundle(amounts, NOT_HELD)):
            return None
        return placement_group([bundle], bundle_label_selector=[{NODE_ID: machine}])

    def change(self, machine: str, amounts: Amounts) -> None:
        """Hold so much in place of what is held there now."""
        self.release(machine)
        self.ask(machine, amounts)

    def release(self, machine: str) -> None:
        self._orders.put(lambda: self._release(machine))

    def _release(self, machine: str) -> None:
        for group in self._groups.pop(machine, []):
            _remove(group)

    def close(self) -> None:
        self._orders.put(self._close)

    def _close(self) -> None:
        self.withdraw()
        for machine in list(self._groups):
            self._release(machine)


def _bundle(amounts: Amounts, without: Collection[str]) -> Amounts:
    """In the form that Ray takes. A machine's name is no amount that is used up."""
    bundle = {name: amount for name, amount in amounts.items() if amount > 0 and name not in without}
    bundle = {name: amount for name, amount in bundle.items() if not name.startswith("node:")}
    if "memory" in bundle:
        bundle["memory"] = int(bundle["memory"])
    return bundle


def _remove(group: Any) -> None:
    with contextlib.suppress(Exception):  # with Ray gone, so is what was held
        remove_placement_group(group)
