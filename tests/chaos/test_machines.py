"""Two machines, made of network namespaces, with a Ray node in each: one of them dies and joins again."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

pytest.importorskip("ray")
pytestmark = [
    pytest.mark.ray,
    pytest.mark.slow,
    pytest.mark.timeout(1500),
    pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("ip"), reason="network namespaces need root and iproute2"),
]

NET, PORT = "10.213.77", 6397
SMALL = [
    "--envs-per-actor",
    "4",
    "--batch",
    "4",
    "--queue",
    "8",
    "--unroll",
    "5",
    "--hidden",
    "8",
    "--actors",
    "4",
    "--stop-seconds",
    "1e6",
]


def ip(words: str) -> None:
    subprocess.run(["ip", *words.split()], check=True, capture_output=True)


class Machine:
    """A namespace with one address, and whatever runs in it."""

    def __init__(self, name: str, number: int) -> None:
        self.name, self.address = name, f"{NET}.{number}"
        ip(f"netns add {name}")
        ip(f"-n {name} link set lo up")

    def command(self, *words: str) -> list[str]:
        return ["ip", "netns", "exec", self.name, *words]

    def processes(self) -> list[psutil.Process]:
        """Those whose network is this machine's."""
        pids = subprocess.run(["ip", "netns", "pids", self.name], capture_output=True, text=True).stdout.split()
        return [psutil.Process(int(pid)) for pid in pids if psutil.pid_exists(int(pid))]

    def nodes(self) -> list[psutil.Process]:
        """Forked by a zygote, each under its own name."""
        forked = [process for process in self.processes() if "shoal.runtime.local.zygote" in process.cmdline()]
        return [process for process in forked if not process.name().startswith("python")]

    def kill(self) -> None:
        for process in self.processes():
            try:
                process.kill()
            except psutil.Error:
                continue


@pytest.fixture
def machines() -> Iterator[tuple[Machine, Machine]]:
    made = [Machine(f"shoal-{os.getpid()}-{number}", number) for number in (1, 2)]
    try:
        ip(f"link add sa{os.getpid()} netns {made[0].name} type veth peer name sb{os.getpid()} netns {made[1].name}")
        for machine, end in zip(made, "ab", strict=True):
            ip(f"-n {machine.name} addr add {machine.address}/24 dev s{end}{os.getpid()}")
            ip(f"-n {machine.name} link set s{end}{os.getpid()} up")
        yield made[0], made[1]
    finally:
        for machine in made:
            machine.kill()
            ip(f"netns del {machine.name}")


@pytest.fixture
def directory() -> Iterator[Path]:
    """A short path: Ray's sockets lie in it."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as made:
        yield Path(made)


def environment(directory: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in ("RAY_ADDRESS", "RAY_AUTH_MODE")}
    paths = os.pathsep.join(path for path in sys.path if path)
    more = {"HOME": str(directory), "TMPDIR": str(directory), "PYTHONPATH": paths, "RAY_worker_niceness": "0"}
    return {**kept, **more, "RAY_AUTH_MODE": "disabled", "RAY_health_check_failure_threshold": "3"}


def start_ray(machine: Machine, directory: Path, *words: str) -> None:
    ray = str(Path(sys.executable).parent / "ray")
    options = f"--node-ip-address {machine.address} --num-cpus 2 --object-store-memory {1 << 27} --disable-usage-stats"
    command = machine.command(ray, "start", *words, *options.split())
    for _ in range(3):  # on a machine that has much to do Ray gives up on itself, now and then
        done = subprocess.run(command, env=environment(directory), capture_output=True, text=True, timeout=180)
        if done.returncode == 0:
            return
    raise AssertionError(done.stdout + done.stderr)


def rows(directory: Path, kind: str) -> list[dict[str, Any]]:
    file = directory / "run" / "metrics.jsonl"
    lines = file.read_text().splitlines() if file.exists() else []
    return [row for row in map(json.loads, lines) if row["kind"] == kind]


def updates(directory: Path) -> int:
    return max((int(row["counts"].get("learner_steps", 0)) for row in rows(directory, "progress")), default=0)


def test_a_machine_that_dies_costs_its_actors_and_gets_some_when_it_is_back(
    machines: tuple[Machine, Machine], directory: Path
) -> None:
    here, there = machines
    address = f"{here.address}:{PORT}"
    start_ray(here, directory, "--head", "--port", str(PORT), "--include-dashboard=false", f"--temp-dir={directory}/r")
    start_ray(there, directory, "--address", address)
    words = [
        "-m",
        "shoal",
        "train",
        "impala",
        *SMALL,
        "--stop-seconds",
        "1e6",
        "--run-dir",
        "run",
        "--runtime",
        "ray",
        "--ray-address",
        address,
    ]
    with (directory / "told").open("w") as told:
        driver = subprocess.Popen(
            here.command(sys.executable, *words), cwd=directory, env=environment(directory), stdout=told, stderr=told
        )

    def until(condition: Callable[[], bool], seconds: float = 400.0) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            text = (directory / "told").read_text()
            assert driver.poll() is None, text
            assert time.monotonic() < deadline, text
            time.sleep(0.2)

    try:
        until(lambda: updates(directory) > 0)
        assert there.nodes(), "actors are on both machines"
        there.kill()
        before = updates(directory)
        until(lambda: bool(rows(directory, "loss")) and updates(directory) > before + 20)
        assert {row["node"].partition("/")[0] for row in rows(directory, "loss")} <= {"actor", "evaluator"}
        start_ray(there, directory, "--address", address)
        until(lambda: len(there.nodes()) >= 2)
        before = updates(directory)
        until(lambda: updates(directory) > before + 20)
        driver.send_signal(signal.SIGINT)
        assert driver.wait(120.0) == 130, (directory / "told").read_text()
    finally:
        driver.kill()
        driver.wait()
    print((directory / "told").read_text())
