"""The Ray cluster of a run: joined, or started for it; and how Ray is to run a node."""

from __future__ import annotations

import contextlib
import os
import socket
import tempfile
from collections.abc import Iterator
from typing import Any

import ray as typed_ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from shoal.errors import UserError
from shoal.program import ANYWHERE, Node
from shoal.runtime import host, placement
from shoal.runtime.reaper import Reaper
from shoal.runtime.remote import RemoteNode

ray: Any = typed_ray  # its own types are incomplete
OBJECT_STORE = 1 << 27  # bytes; nothing of ours goes through it
LOOPBACK = "127.0.0.1"


class Cluster:
    """The Ray cluster of a run: the one this process is part of already, the one at `address`, or one of our own."""

    def __init__(self, address: str | None) -> None:
        self._joined = False  # whether leaving is up to us
        self._reaper: Reaper | None = None
        self._environment: dict[str, str] = {}
        if ray.is_initialized():
            self._environment = _threads()
            return
        address = address or os.environ.get("RAY_ADDRESS")  # Ray sets it for submitted jobs
        try:
            if address:
                self._environment = _threads()
                join(address)
            else:
                directory = _short_directory()
                self._reaper = Reaper(directory)
                _start(directory)
            self._joined = True
            _silence()
        except BaseException:
            self.close()
            raise

    def options(self, node: Node) -> dict[str, Any]:
        """How Ray is to run a node. The supervisor restarts nodes, never Ray: it would repeat calls silently."""
        options: dict[str, Any] = {"max_restarts": 0, "max_task_retries": 0, "max_concurrency": RemoteNode.ORDERS}
        if self._environment:
            options["runtime_env"] = {"env_vars": self._environment}
        demand = placement.demand(node)
        options["num_cpus"] = demand.pop("CPU", 0)
        options["num_gpus"] = demand.pop("GPU", 0)
        options["memory"] = int(demand.pop("memory", 0)) or None
        if demand:
            options["resources"] = demand
        elif node.resources == ANYWHERE:
            # services stay together with the driver, what there are many of is spread over the machines
            here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=True)
            options["scheduling_strategy"] = "SPREAD" if node.restart else here
        return options

    def close(self) -> None:
        if self._joined:
            ray.shutdown()
            self._joined = False
        if self._reaper is not None:
            self._reaper.close()
            self._reaper = None


def _short_directory() -> str:
    """Ray's sockets lie 83 characters below the system's directory, and their names may not be longer than 103."""
    short = len(tempfile.gettempdir()) <= 20 or not os.path.isdir("/tmp")
    return tempfile.mkdtemp(prefix="shoal-ray-", dir=None if short else "/tmp")


def _threads() -> dict[str, str]:
    """The variables that keep a process to one computing thread, unless the user set a number."""
    environment = host.single_threaded_environment()
    return {name: environment[name] for name in host.THREAD_VARIABLES}


def join(address: str) -> None:
    """Become part of the cluster at `address`."""
    remedy = "start one with `ray start --head`, or leave --ray-address out to run on this machine"
    if address.startswith("ray://"):
        raise UserError(f"--ray-address {address}: start shoal on a machine of the cluster and give its own address")
    name, _, port = address.rpartition(":")
    if port.isdigit():
        try:  # Ray itself would try for minutes
            socket.create_connection((name.strip("[]"), int(port)), 5.0).close()
        except OSError as error:
            raise UserError(f"--ray-address {address}: no Ray cluster answers there ({error}); {remedy}") from None
    try:
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    except (ConnectionError, ValueError, RuntimeError) as error:
        reason = str(error).strip().splitlines()[0].rstrip(".")
        raise UserError(f"--ray-address {address}: {reason}; {remedy}") from None


def _start(directory: str) -> None:
    """A cluster of this machine alone, deaf to the network, that ends with this process."""
    variables = {
        "RAY_worker_niceness": "0",  # nodes are not second to whatever else runs here, as on the local runtime
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # nodes that ask for no GPU may see it
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    with _variables(_threads() | variables), _loopback():
        ray.init(
            address="local",
            include_dashboard=False,
            log_to_driver=False,
            logging_level="ERROR",
            object_store_memory=OBJECT_STORE,
            _node_ip_address=LOOPBACK,
            _temp_dir=directory,
        )


def _silence() -> None:
    """Ray would print a paragraph for every process that dies; the supervisor says it in a sentence."""
    with contextlib.suppress(AttributeError):
        worker = ray._private.worker.global_worker
        worker.threads_stopped.set()
        worker.gcs_error_subscriber.close()


@contextlib.contextmanager
def _variables(values: dict[str, str]) -> Iterator[None]:
    """Environment variables for the processes that are started within, where the user has not set them."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update({name: value for name, value in values.items() if name not in os.environ})
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]


@contextlib.contextmanager
def _loopback() -> Iterator[None]:
    """Keep Ray's ports closed to other machines, as it does by itself on systems where it cannot form clusters."""
    constants = ray._private.ray_constants
    before = constants.ENABLE_RAY_CLUSTER
    constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        constants.ENABLE_RAY_CLUSTER = before
