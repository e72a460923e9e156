"""Nodes of a program that grows and shrinks; node processes import this file."""

from __future__ import annotations

import os
import time
from typing import Any

from shoal.program import Members, current
from shoal.sync import Condition, sleep


class Board:
    """Where members sign, and what is known of them."""

    def __init__(self) -> None:
        self._changed = Condition()
        self.signs: list[tuple[str, int, int, int, int]] = []
        self.lefts: list[str] = []
        self.totals = [current().members.totals]
        self.forgotten: list[str] = []

    def sign(self, name: str, life: int, seed: int, place: int, total: int) -> None:
        self.signs.append((name, life, seed, place, total))

    def left(self, name: str) -> None:
        self.lefts.append(name)

    def regroup(self, members: Members) -> None:
        self.totals.append(members.totals)

    def forget(self, name: str) -> None:
        self.forgotten.append(name)
        with self._changed:
            self._changed.notify_all()

    def hold(self, name: str) -> None:
        """Keeps its caller waiting until that is forgotten."""
        with self._changed:
            self._changed.wait_for(lambda: name in self.forgotten, None, "nobody")

    def said(self) -> dict[str, Any]:
        return {name: list(getattr(self, name)) for name in ("signs", "lefts", "totals", "forgotten")}


class Worker:
    """Signs every step with what it knows of its group."""

    restart = True

    def __init__(self, board: Board) -> None:
        self._board, self._members, self._leaving = board, current().members, False

    def regroup(self, members: Members) -> None:
        self._members = members

    def leave(self) -> None:
        self._leaving = True

    def step(self) -> bool:
        node = current()
        self._board.sign(node.name, node.restarts, node.seed, self._members.place, self._members.totals["workers"])
        if self._leaving:
            self._board.left(node.name)
            return False
        sleep(0.01)
        return True


class Held(Worker):
    """The first of them never comes to the end of its first life's step."""

    def step(self) -> bool:
        if current().name != "worker/0" or current().restarts:
            return super().step()
        self._board.sign(current().name, current().restarts, 0, 0, 0)
        self._board.hold(current().name)
        return True


class Parent(Worker):
    """Has a process that holds all its streams open, as processes of environments may."""

    def __init__(self, board: Board) -> None:
        super().__init__(board)
        if os.fork() == 0:
            time.sleep(120)
            os._exit(0)


class Deaf(Worker):
    """Does not hear that it should leave, nor that it should stop."""

    def step(self) -> bool:
        self._board.sign(current().name, current().restarts, 0, 0, 0)
        end = time.monotonic() + 3600
        while time.monotonic() < end:
            time.sleep(0.05)
        return True
