"""The options of `shoal serve` and `shoal.serve()`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from shoal.config import AtLeast, Between, Positive, Seconds, Seed


@dataclass(frozen=True, kw_only=True)
class ServeOptions:
    """How it is served."""

    host: str = "127.0.0.1"
    """Where it listens; any but this machine's own address needs a token."""
    port: Annotated[int, Between(0, 65_535)] = 8700
    """0: any that is free."""
    token_file: str | None = None
    """A file with the token that clients must show; else the variable SHOAL_TOKEN."""
    tls_certificate: str | None = None
    """PEM file of a certificate: clients then use wss and https."""
    tls_key: str | None = None
    """PEM file of its key."""
    name: str | None = None
    """The model's name under /v2/models; default: the run's."""
    follow: bool = False
    """Take newer checkpoints of the run, or a newer best one, without dropping a request."""
    follow_every: Annotated[float, Between(0.05, 86_400)] = 2.0
    """Seconds between two looks for a newer one."""
    explore: bool = False
    """Act as the run's actors explore; without it greedily."""
    workers: Annotated[int, Between(0, 256)] = 0
    """Processes that compute; 0: the server does itself."""
    max_batch: Annotated[int, Between(1, 4096)] = 64
    """Observations that are computed at once."""
    max_wait: Annotated[float, Between(0, 10)] = 0.0
    """Seconds that the first request of a batch waits for others; 0: a batch is what came during the last."""
    max_size: Annotated[int, Between(1024, 1 << 30)] = 16 << 20
    """Bytes of one message."""
    max_rate: Annotated[float, AtLeast(0)] = 0.0
    """Requests a second of one connection, or of one address over HTTP; 0: as many as it likes."""
    max_connections: Annotated[int, Between(1, 100_000)] = 1024
    """At once; others are told to come back later."""
    max_sessions: Annotated[int, Between(1, 10_000_000)] = 10_000
    """Of which a recurrent policy's memory is kept."""
    session_expiry: Positive = 300.0
    """Seconds after its last request that a session without a connection is remembered."""
    grace: Seconds = 10.0
    """Seconds to answer what is under way when the server is told to end."""
    device: str = "cpu"
    """What computes, as torch names it."""
    seed: Seed | None = None
    """Of the exploration; drawn anew when none is given."""
    trust: bool = False
    """Let a run that was not made on this account run the code that it names. Asked once."""
