"""How Ray is started, and what is said when it cannot be had; without starting it."""

from __future__ import annotations

import os
import signal
import socket
from types import SimpleNamespace
from typing import Any

import pytest

from shoal.errors import UserError

pytestmark = pytest.mark.ray
pytest.importorskip("ray")

from shoal.runtime.ray import cluster  # noqa: E402 - only where Ray is installed

# ---- starting


class Starting:
    """Stands in for the start of Ray, which fails for the first so many times."""

    def __init__(self, failures: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.failures = failures
        self.directories: list[str] = []
        monkeypatch.delenv("RAY_ADDRESS", raising=False)
        monkeypatch.setattr(cluster, "_start", self)
        monkeypatch.setattr(cluster, "_silence", lambda: None)

    def __call__(self, directory: str) -> None:
        os.mkdir(directory)
        os.chmod(directory, 0o777)  # as Ray does
        self.directories.append(os.path.dirname(directory))
        assert os.stat(self.directories[-1]).st_mode & 0o777 == 0o700, "others of this machine have no way in"
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # as Ray does
        if len(self.directories) <= self.failures:
            raise Exception("The current node timed out during startup. This could happen because of anything.")


def test_a_start_that_fails_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    starting = Starting(cluster.ATTEMPTS - 1, monkeypatch)
    made = cluster.Cluster(None)
    assert [os.path.exists(directory) for directory in starting.directories] == [False, False, True]
    made._joined = False  # there is no Ray to leave
    made.close()
    assert not os.path.exists(starting.directories[-1])


def test_a_start_that_keeps_failing_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    starting = Starting(cluster.ATTEMPTS, monkeypatch)
    sentence = (
        r"^--runtime ray: Ray could not be started on this machine in 3 attempts \(The current node timed out during "
        r"startup\): try again when it is less busy, or take --runtime local$"
    )
    with pytest.raises(UserError, match=sentence):
        cluster.Cluster(None)
    assert not any(os.path.exists(directory) for directory in starting.directories)


def test_answers_to_signals_are_this_process_s_own_again(monkeypatch: pytest.MonkeyPatch) -> None:
    Starting(cluster.ATTEMPTS, monkeypatch)
    mine = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        ours = signal.getsignal(signal.SIGTERM)
        with pytest.raises(UserError):
            cluster.Cluster(None)
        assert signal.getsignal(signal.SIGTERM) is ours
    finally:
        signal.signal(signal.SIGTERM, mine)


def test_sigterm_while_ray_starts_is_taken_as_ctrl_c(monkeypatch: pytest.MonkeyPatch) -> None:
    starting = Starting(0, monkeypatch)

    def interrupted(directory: str) -> None:
        starting(directory)
        raise SystemExit(15)  # Ray's own handler

    monkeypatch.setattr(cluster, "_start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        cluster.Cluster(None)
    assert not any(os.path.exists(directory) for directory in starting.directories)


TOKENS = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")


def tokens_of_two_starts(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, str]]:
    seen: list[dict[str, str]] = []

    def init(**_: Any) -> None:
        seen.append({name: os.environ[name] for name in TOKENS if name in os.environ})

    private = SimpleNamespace(ray_constants=SimpleNamespace(ENABLE_RAY_CLUSTER=True))
    monkeypatch.setattr(cluster, "ray", SimpleNamespace(init=init, _private=private))
    for _ in range(2):
        cluster._start("nowhere")
    return seen


def test_a_cluster_of_our_own_has_a_token_that_lies_in_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in TOKENS:
        monkeypatch.delenv(name, raising=False)
    seen = tokens_of_two_starts(monkeypatch)
    assert [one["RAY_AUTH_MODE"] for one in seen] == ["token", "token"]
    assert len({one["RAY_AUTH_TOKEN"] for one in seen}) == 2
    assert not any(name in os.environ for name in TOKENS)


@pytest.mark.parametrize("name", TOKENS)
def test_a_token_that_the_user_has_chosen_is_kept(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for one in TOKENS:
        monkeypatch.delenv(one, raising=False)
    monkeypatch.setenv(name, "disabled")
    assert tokens_of_two_starts(monkeypatch) == [{name: "disabled"}] * 2


# ---- joining


@pytest.mark.parametrize(
    ("mode", "sentence"),
    [
        (None, r"Failed to connect; if the cluster asks for a token .* copy ~/.ray/auth_token from its head .*=token$"),
        ("token", r"Failed to connect; is the token here \(RAY_AUTH_TOKEN, or .*\) that of the cluster's head\?$"),
    ],
)
def test_a_cluster_that_does_not_let_us_in_is_one_sentence_about_tokens(
    monkeypatch: pytest.MonkeyPatch, mode: str | None, sentence: str
) -> None:
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    if mode:
        monkeypatch.setenv("RAY_AUTH_MODE", mode)

    def refuse(**_: object) -> None:
        raise ConnectionError("Failed to connect. And a paragraph\nof advice")

    monkeypatch.setattr(cluster, "ray", SimpleNamespace(init=refuse))
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(UserError, match=f"^--ray-address {address}: {sentence}"):
            cluster.join(address)


def test_addresses_of_this_machine_are_known() -> None:
    assert cluster._of_this_machine("127.0.0.1")
    assert cluster._of_this_machine("localhost")
    assert not cluster._of_this_machine("192.0.2.77")
