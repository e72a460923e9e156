"""Runtimes: the same program in one thread, in processes of one machine, or on a Ray cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from shoal.errors import UserError
from shoal.program import Node, Program
from shoal.runtime.restarts import RunFailed, Supervisor

RUNTIMES = ("inline", "local", "ray")


@dataclass(frozen=True, kw_only=True)
class OnCluster:
    """What a user asks of the Ray runtime."""

    address: str | None = None  # of a cluster that runs; None: one is started
    places: Mapping[str, str] = field(default_factory=dict)  # role -> the name or label of machines
    actor_cpus: float | None = None  # that each actor asks for; None: one, or less where there are too few for all
    wait_for_resources: float = 0.0  # seconds
    encrypted: bool = True  # calls between machines


class Run(Protocol):
    """A running program. Leaving its context ends every node."""

    program: Program
    supervisor: Supervisor

    def client(self, handle: Any) -> Any:
        """A client of a node."""

    def wait(self, seconds: float) -> None:
        """Let the run go on for `seconds`, restarting what may be lost; `RunFailed` when it cannot go on."""

    def finished(self, handle: Any) -> bool:
        """Whether the node's `step` has returned False."""

    def replace(self, name: str, reason: str) -> None:
        """Kill a node's process and start it again by the rules for a lost one."""

    def add(self, *nodes: Node) -> None:
        """Take further nodes into the running program (`program.next_member` makes one of a group) and tell those who
        want to know (`Offers.regroup`): all of them, or none where there is no room for all (`UserError`). Under a name
        that was used before a node begins a new life."""

    def remove(self, name: str) -> None:
        """Have a node leave: it ends after its present step, what it was in the middle of is counted as lost, and what
        others kept for it is released. Returns at once; `wait` sees to the rest."""

    def pids(self) -> dict[str, int]:
        """The nodes' processes, where each has one of its own."""

    def machines(self) -> dict[str, str]:
        """The name of the machine that each node is on; nothing where there is but one."""

    def room(self) -> int:
        """For how many further actors machines have CPUs that nobody holds; 0 where nobody counts."""

    def close(self) -> None: ...
    def __enter__(self) -> Run: ...
    def __exit__(self, *_: object) -> None: ...


def launch(
    program: Program,
    runtime: str = "local",
    *,
    seed: int = 0,
    supervisor: Supervisor | None = None,
    cluster: OnCluster | None = None,
    ray_address: str | None = None,
    states: Mapping[str, Any] | None = None,
    code: Sequence[str] = (),
) -> Run:
    """Start a program. Runtimes are imported only when they are used. `states` (inline) are those of all nodes of such
    a program at one moment, from which it goes on. `ray_address` alone is that of a cluster. `code` (Ray) are folders
    of modules that it names, which other machines are sent."""
    if runtime == "inline":
        from shoal.runtime.inline import InlineRun

        return InlineRun(program, seed=seed, supervisor=supervisor, states=states)
    if runtime == "local":
        from shoal.runtime.local.run import LocalRun

        return LocalRun(program, seed=seed, supervisor=supervisor)
    if runtime == "ray":
        try:
            from shoal.runtime.ray.run import RayRun
        except ModuleNotFoundError as error:
            if error.name not in ("ray", "cryptography"):
                raise
            raise UserError("--runtime ray needs Ray: install it with `pip install 'shoal[ray]'`") from None
        cluster = cluster or OnCluster(address=ray_address)
        return RayRun(program, seed=seed, supervisor=supervisor, cluster=cluster, code=code)
    raise UserError(f"--runtime {runtime} is not known: choose one of {', '.join(RUNTIMES)}")


__all__ = ["RUNTIMES", "OnCluster", "Run", "RunFailed", "Supervisor", "launch"]
