"""What is known of an environment that is outside: the spaces that a file, or the first client, says it has."""

from __future__ import annotations

import json
import queue
import sys
from pathlib import Path
from typing import Any

from gymnasium import Space

from shoal.config import validate
from shoal.envs import EnvSpec, describe_data
from shoal.envs.check import action_space, observation_space
from shoal.errors import UserError
from shoal.gateway.messages import Refused, read_space
from shoal.gateway.server import Door, DoorThread, Listen, Peer, Security
from shoal.gateway.wire import Message, WireError
from shoal.options import Acting, Outside
from shoal.types import EXTERNAL

RESTARTS = 1012  # the close code that asks a client to come back soon
LOOK = 0.5  # seconds between two looks at whether the wait was interrupted


def describe_outside(cfg: Acting) -> EnvSpec:
    """The environment that clients bring, by the spaces that --spaces names or the first client states."""
    if not isinstance(cfg, Outside):
        raise UserError(
            "--env external needs an algorithm whose policy can act apart from its environments: one with the option "
            "--listen, such as impala, ppo, apex_dqn or sac."
        )
    validate(cfg)
    observation, action = _from_file(cfg.spaces) if cfg.spaces is not None else _from_first_client(cfg)
    observed, acted = observation_space(observation, EXTERNAL), action_space(action, EXTERNAL)
    return describe_data(EXTERNAL, observed, acted, action, stack=cfg.frame_stack, env=EXTERNAL)


def _from_file(path: str) -> tuple[Space[Any], Space[Any]]:
    try:
        if not Path(path).is_file() and Path(path).exists():  # a pipe would be waited for
            raise UserError(f"--spaces {path} is no regular file.")
        found = json.loads(Path(path).read_text(encoding="utf-8"))
        return read_space(found["observation"]), read_space(found["action"])
    except OSError as problem:
        raise UserError(f"--spaces {path} cannot be read: {problem.strerror}.") from None
    except (ValueError, KeyError, TypeError, RecursionError, WireError) as problem:
        raise UserError(
            f"--spaces {path} holds no records of 'observation' and 'action' as docs/external-simulators.md has them: "
            f"{problem!s:.200}."
        ) from None


class FirstClient:
    """Waits for somebody who says what is observed and what can be done."""

    kind = "train"

    def __init__(self) -> None:
        self.stated: queue.Queue[tuple[Space[Any], Space[Any]]] = queue.Queue()

    def metadata(self) -> Message:
        return {}

    async def talk(self, peer: Peer) -> None:
        hello = peer.hello
        if hello is None or hello.role == "player":
            raise Refused("protocol", "this server will train: say hello as an environment or an evaluator")
        if hello.observation_space is None or hello.action_space is None:
            raise Refused("full", "the run waits for a client that states its spaces: state them, or come back later")
        try:
            observation_space(hello.observation_space, "the client")
            action_space(hello.action_space, "the client")
        except UserError as problem:
            raise Refused("spaces", str(problem)) from None
        self.stated.put((hello.observation_space, hello.action_space))
        await peer.close(RESTARTS, "the run starts now")


def _from_first_client(cfg: Outside) -> tuple[Space[Any], Space[Any]]:
    assert cfg.listen is not None  # by its constraint
    service, listen = FirstClient(), Listen.parse(cfg.listen)
    if listen.port == 0:
        raise UserError("--listen with port 0 needs --spaces: the first client could not find the run again.")
    security = Security.from_files(cfg.token_file, cfg.tls_certificate, cfg.tls_key)
    thread = DoorThread(Door(service, listen, security=security))
    thread.start()
    try:
        print(f"waiting on {listen} for a client that states its spaces …", file=sys.stderr, flush=True)
        while True:
            try:
                return service.stated.get(timeout=LOOK)
            except queue.Empty:
                continue
    finally:
        thread.stop(grace=1.0, code=RESTARTS)
