"""`shoal serve`: a finished policy, or the newest of a run that is being trained, for programs that ask for actions."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from shoal.cli.commands.common import OK, Commands, fit, parse, warn
from shoal.serving import need_gateway
from shoal.serving.options import ServeOptions

if TYPE_CHECKING:
    from shoal.serving.server import PolicyServer


def run_serve(words: Sequence[str]) -> int:
    description = (
        "Serve the policy of a run (RUN), of its best checkpoint (RUN:best), of one checkpoint's folder or of an ONNX "
        "export's: websockets with msgpack (also openpi's client), and HTTP with Open Inference v2 on the same port. "
        "SIGTERM and Ctrl-C answer what is under way and end it."
    )
    options, (source,) = parse(words, "shoal serve", description, ServeOptions, "RUN")
    need_gateway()
    from shoal.serving.server import PolicyServer, run_until_told

    run_until_told(PolicyServer(source, options, tell=warn), _started)
    return OK


def _started(server: PolicyServer) -> None:
    policy = server.loaded.policy
    told = f"{policy.algorithm} of {server.loaded.place}: {policy.observation_space} → {policy.action_space}"
    print(fit(told, sys.stdout))
    print(f"listening on {server.url}", flush=True)


COMMANDS: Commands = {"serve": (run_serve, (ServeOptions,))}
