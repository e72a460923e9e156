"""The Ray cluster of a run: joined, or started for it."""

from __future__ import annotations

import atexit
import contextlib
import os
import secrets
import signal
import socket
import tempfile
import threading
from collections.abc import Iterator
from typing import Any

import ray as typed_ray
from ray import exceptions

from shoal.errors import UserError
from shoal.runtime import host
from shoal.runtime.ray.reaper import Reaper
from shoal.types import GIVEN_UP

ray: Any = typed_ray  # its own types are incomplete
OBJECT_STORE = 1 << 27  # bytes; nothing of ours goes through it
LOOPBACK = "127.0.0.1"
ATTEMPTS = 3  # to start Ray
RECONNECTING = "RAY_gcs_rpc_server_reconnect_timeout_s"  # after which Ray ends the processes that its head has left
RAY_PATIENCE = 60.0  # seconds; what Ray does without the variable
DRIVER_PATIENCE = "600"  # the same for the driver, which ends by itself before, when it has saved what there is
LEAVING = 5.0  # seconds that leaving a silent cluster may take


class Cluster:
    """The Ray cluster of a run: the one this process is part of already, the one at `address`, or one of our own."""

    def __init__(self, address: str | None) -> None:
        self._joined = False  # whether leaving is up to us
        self.patience = float(os.environ.get(RECONNECTING, RAY_PATIENCE)) / 3  # with a head that is silent, in seconds
        self._reaper: Reaper | None = None
        if ray.is_initialized():
            return
        address = address or os.environ.get("RAY_ADDRESS")  # Ray sets it for submitted jobs
        with _own_signals():
            if address:
                with _variables({RECONNECTING: DRIVER_PATIENCE}):
                    join(address)
            else:
                self._start()
        self._joined = True
        _silence()

    def _start(self) -> None:
        """A cluster of our own. On a machine that has much else to do Ray gives up on its own processes too soon."""
        for attempt in range(1, ATTEMPTS + 1):
            directory = _short_directory()
            self._reaper = Reaper(directory)
            try:
                return _start(os.path.join(directory, "r"))  # Ray opens its directory to all, but not what is above it
            except BaseException as error:
                self._joined = ray.is_initialized()
                self.close()  # ends what has been started so far
                if not isinstance(error, Exception):
                    raise
                if attempt == ATTEMPTS:
                    raise UserError(
                        f"--runtime ray: Ray could not be started on this machine in {ATTEMPTS} attempts "
                        f"({_reason(error)}): try again when it is less busy, or take --runtime local"
                    ) from None

    def close(self, silent: bool = False) -> None:
        """Leave the cluster. One whose head is `silent` would keep us waiting: it is left to itself."""
        if self._joined and silent:
            _leave_silently()
            self._joined = False
        if self._joined:
            ray.shutdown()
            self._joined = False
            _forget_token()
        if self._reaper is not None:
            self._reaper.close()
            self._reaper = None


def _leave_silently() -> None:
    leaving = threading.Thread(target=ray.shutdown, daemon=True, name="leaving Ray")
    leaving.start()
    leaving.join(LEAVING)
    if leaving.is_alive():
        leaving.name = GIVEN_UP
        atexit.unregister(ray._private.worker.shutdown)  # it would wait there, too


def _short_directory() -> str:
    """Of this user alone. Ray's sockets lie 81 characters below the system's, and their names may have 103 at most."""
    short = len(tempfile.gettempdir()) <= 20 or not os.path.isdir("/tmp")
    return tempfile.mkdtemp(prefix="shoal-", dir=None if short else "/tmp")


def threads() -> dict[str, str]:
    """The variables that keep a process to one computing thread, unless the user set a number."""
    environment = host.single_threaded_environment()
    return {name: environment[name] for name in host.THREAD_VARIABLES}


def _reason(error: BaseException) -> str:
    """The first sentence of what Ray says."""
    return (str(error).strip() or type(error).__name__).splitlines()[0].partition(". ")[0].rstrip(".")


# ---- joining one


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
        _show_token(name.strip("[]"))
        remedy = _token_remedy()
    try:
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    except (ConnectionError, ValueError, RuntimeError, exceptions.RayError) as error:
        raise UserError(f"--ray-address {address}: {_reason(error)}; {remedy}") from None


def _show_token(name: str) -> None:
    """Use this user's token, as Ray does by itself for a cluster of this machine that it has found by itself.

    From version 2.60 on a cluster asks for a token where its user has one. To another machine Ray sends a token only
    when it was told to (`RAY_AUTH_MODE`), since it travels as it is.
    """
    if _of_this_machine(name):
        with contextlib.suppress(ImportError, AttributeError):  # older versions
            ray._private.authentication.authentication_token_setup.maybe_enable_token_auth_if_token_available(
                warn_if_disabled=False
            )


def _forget_token() -> None:
    """Have Ray look anew whether it has a token, and which: it keeps the first that it has found."""
    with contextlib.suppress(ImportError, AttributeError):  # older versions
        ray._raylet.Config.initialize("")
        ray._raylet.AuthenticationTokenLoader.instance().reset_cache()


def _token_remedy() -> str:
    if os.environ.get("RAY_AUTH_MODE", "").lower() == "token":
        return "is the token here (RAY_AUTH_TOKEN, or the file ~/.ray/auth_token) that of the cluster's head?"
    return (
        "if the cluster asks for a token (Ray 2.60 does where its user has one), copy ~/.ray/auth_token from its head "
        "to this machine and set RAY_AUTH_MODE=token"
    )


def _of_this_machine(name: str) -> bool:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(name, 0, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.bind(address)  # which is possible on the machine that has the address, and nowhere else
    except OSError:
        return False
    return True


# ---- starting one


def _start(directory: str) -> None:
    """A cluster of this machine and user alone, deaf to the network, that ends with this process."""
    variables = {
        "RAY_worker_niceness": "0",  # nodes are not second to whatever else runs here, as on the local runtime
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # nodes that ask for no GPU may see it
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    if not any(name in os.environ for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")):
        # ~/.ray/auth_token, which Ray would make and take, can be read by all users who can enter the home directory
        variables |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    with _variables(threads() | variables), _loopback():
        _forget_token()
        ray.init(
            address="local",
            include_dashboard=False,
            log_to_driver=False,
            logging_level="ERROR",
            object_store_memory=OBJECT_STORE,
            _node_ip_address=LOOPBACK,
            _temp_dir=directory,
        )


@contextlib.contextmanager
def _own_signals() -> Iterator[None]:
    """Keep this process's answers to signals: Ray replaces that to SIGTERM by an end without farewell, from Python and
    again below it. What comes while Ray starts is taken as Ctrl-C."""
    if threading.current_thread() is not threading.main_thread():  # only there can signals be handled
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    except SystemExit:  # Ray's answer
        raise KeyboardInterrupt from None
    finally:
        for number, handler in before.items():
            if handler is not None:
                signal.signal(number, handler)


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
