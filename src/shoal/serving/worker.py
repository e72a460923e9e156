"""A process that computes batches for a server: `python -m shoal.serving.worker FD`. It holds nothing but the policy.

What it is sent: {"do": "policy", …} to be made of files that the server has read, {"do": "act", …}, {"do": "ping"}.
"""

from __future__ import annotations

import signal
import socket
import sys
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from shoal import tree
from shoal.errors import UserError
from shoal.gateway.wire import Message
from shoal.playing.exported import ExportFiles
from shoal.runs.saved_weights import Found
from shoal.serving.computing import Acts
from shoal.serving.pipes import framed, receive
from shoal.serving.sources import Making


def policy_message(files: Found | ExportFiles, making: Making, version: int) -> Message:
    """How a worker is told what to serve."""
    how = {"device": making.device, "seed": making.seed, "trust": making.trust, "explore": making.explore}
    message: Message = {"do": "policy", "version": version, "place": str(files.place), "how": how}
    if isinstance(files, ExportFiles):
        return message | {"contract": files.contract.encode(), "model": files.model}
    return message | {"run": str(files.run), "weights": dict(files.weights)}


def _files(message: Message) -> Found | ExportFiles:
    place = Path(message["place"])
    if "model" in message:
        return ExportFiles(message["contract"].decode(), message["model"], place)
    weights = {name: np.array(value) for name, value in message["weights"].items()}
    return Found(weights, place, Path(message["run"]))


class Worker:
    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._acts: Acts | None = None
        self._version = 0

    def run(self) -> None:
        while (message := receive(self._connection)) is not None:
            self._connection.sendall(framed(self._answer(message)))

    def _answer(self, message: Message) -> Message:
        match message["do"]:
            case "ping":
                return {"is": "pong"}
            case "policy":
                try:
                    making = Making(**message["how"])
                    self._acts = Acts(making.make(_files(message)), making.explore)
                except UserError as error:
                    return {"is": "refused", "sentence": str(error)}
                self._version = message["version"]
                return {"is": "ready", "version": self._version}
            case "act":
                return self._act(message)
        raise ValueError(message["do"])

    def _act(self, message: Message) -> Message:
        acts = self._acts
        assert acts is not None
        begun = perf_counter()
        flat = {name: np.array(value) for name, value in message["observation"].items()}
        state: dict[str, Any] = {name: np.array(value) for name, value in message["state"].items()}
        observation = tree.nest(acts.policy.seen_space, flat, "observation")
        first, environments = (np.array(message[name]) for name in ("first", "environments"))
        try:
            action, after = acts(message["explore"], observation, state, first, environments)
        except Exception as error:  # a network's own: the batch is told, and the worker goes on
            return {"is": "failed", "id": message["id"], "kind": type(error).__name__}
        return {
            "is": "acted",
            "id": message["id"],
            "version": self._version,
            "action": action,
            "state": after,
            "seconds": perf_counter() - begun,
        }


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the server's: it ends its workers by closing their pipes
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    with socket.socket(fileno=int(sys.argv[1])) as connection:
        try:
            Worker(connection).run()
        except (ConnectionError, BrokenPipeError):
            pass


if __name__ == "__main__":
    main()
