"""Ray clusters as users have them: one that a command starts for itself, and one from `ray start --head`."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from leftovers import marked_processes
from shoal.runtime.ray.reaper import users

pytestmark = [pytest.mark.ray, pytest.mark.timeout(400)]
pytest.importorskip("ray")

SMALL = ("--envs-per-actor", "4", "--batch", "4", "--queue", "8", "--unroll", "5")
PYTHONPATH = os.pathsep.join([str(Path(__file__).parent), *sys.path])


def variables(**more: str) -> dict[str, str]:
    """This session's, without what Ray has set for the cluster that other tests share."""
    kept = {name: value for name, value in os.environ.items() if name not in ("RAY_AUTH_MODE", "RAY_ADDRESS")}
    return {**kept, "PYTHONPATH": PYTHONPATH, **more}


@pytest.fixture(params=["started", "joined"])
def running(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A command that would never end by itself, with updates in its metrics; `tmp_path / "t"` is its temporary
    directory."""
    words = ["train", "impala", *SMALL, "--stop-return", "1e9", "--run-dir", "run", "--json", "--runtime", "ray"]
    environment = variables()
    if request.param == "joined":
        words += ["--ray-address", request.getfixturevalue("ray_cluster")]
        environment["RAY_AUTH_MODE"] = os.environ.get("RAY_AUTH_MODE", "disabled")
    with tempfile.TemporaryDirectory() as directory:  # a short one: Ray's sockets lie in it
        environment["TMPDIR"] = directory
        process = subprocess.Popen(
            [sys.executable, "-m", "shoal", *words],
            cwd=tmp_path,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        metrics = tmp_path / "run" / "metrics.jsonl"
        deadline = time.monotonic() + 300.0
        try:
            while not (metrics.exists() and "learner_steps" in metrics.read_text()):
                assert process.poll() is None, process.communicate()
                assert time.monotonic() < deadline
                time.sleep(0.1)
            yield process
        finally:
            process.kill()
            process.wait()


def test_sigterm_ends_a_run_on_ray_in_order(running: subprocess.Popen[str], tmp_path: Path) -> None:
    directory = Path(psutil.Process(running.pid).environ()["TMPDIR"])
    for made in directory.glob("shoal-*"):
        assert made.stat().st_mode & 0o777 == 0o700, "others of this machine may look into Ray's logs and sockets"
    running.send_signal(signal.SIGTERM)
    out, err = running.communicate(timeout=120)
    assert running.returncode == 130, err
    assert "Traceback" not in err
    assert json.loads(out.splitlines()[-1])["stopped_by"] == "interrupt"
    assert {"config.json", "metrics.jsonl", "summary.json"} <= set(os.listdir(tmp_path / "run"))
    assert any(name.startswith("weights") for name in os.listdir(tmp_path / "run"))


JOIN = """
import sys
from probe_nodes import Service
from shoal.program import Program
from shoal.runtime import launch

program = Program()
service = program.add("service", Service)
with launch(program, "ray", ray_address=sys.argv[1]) as run:
    print(run.client(service).echo("joined"))
"""


@pytest.fixture
def head() -> Iterator[tuple[str, dict[str, str]]]:
    """A cluster of `ray start --head`, whose user has a token: its address, and its user's environment."""
    with tempfile.TemporaryDirectory() as directory:
        home = Path(directory, "h")
        (home / ".ray").mkdir(parents=True)
        (home / ".ray" / "auth_token").write_text("0123456789abcdef" * 4)
        environment = variables(HOME=str(home), RAY_TMPDIR=directory, RAY_worker_niceness="0")
        try:
            yield start_head(directory, environment), environment
        finally:
            end(directory)


def start_head(directory: str, environment: dict[str, str]) -> str:
    """Its address. On a machine that has much to do Ray gives up on itself, now and then."""
    told = ""
    for _ in range(3):
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
        command = f"{Path(sys.executable).parent}/ray start --head --port {port} --node-ip-address 127.0.0.1"
        options = f"--include-dashboard false --num-cpus 1 --object-store-memory {1 << 27} --temp-dir {directory}/r"
        words = [*command.split(), *options.split(), "--disable-usage-stats"]
        done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=120)
        if done.returncode == 0:
            return f"127.0.0.1:{port}"
        told = done.stdout + done.stderr
        end(directory)
    raise AssertionError(told)


def end(directory: str) -> None:
    """End the processes of a cluster whose files lie in a directory."""
    deadline = time.monotonic() + 20.0
    while time.monotonic() < deadline:
        named = {process.pid for process in marked_processes() if directory in " ".join(process.cmdline())}
        left = named | set(users(directory, os.getpid()))
        if not left:
            return
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.1)


def test_a_cluster_of_ray_start_that_asks_for_a_token_is_joined(head: tuple[str, dict[str, str]]) -> None:
    address, environment = head
    command = [sys.executable, "-c", JOIN, address]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=250)
    assert done.stdout.split() == ["joined"], done.stderr
