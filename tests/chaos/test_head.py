"""The head of a Ray cluster is killed while the command is on another machine: what was learned is saved by sockets of
our own, it is said, and `shoal resume` goes on with another cluster."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_machines import PORT, SMALL, Machine, environment, ip, start_ray, updates

pytest.importorskip("ray")
pytestmark = [
    pytest.mark.ray,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("ip"), reason="network namespaces need root and iproute2"),
]


class OwnFiles(Machine):
    """A machine that has Ray's files for itself, too, or a driver would take any Ray of this kernel for its own."""

    def __init__(self, name: str, number: int, shared: Path) -> None:
        super().__init__(name, number)
        self._shared, self._own = shared, shared.parent / name
        self._own.mkdir()

    def command(self, *words: str) -> list[str]:
        bound = f'mount --bind {self._own} {self._shared} && exec "$@"'
        return super().command("unshare", "-m", "sh", "-c", bound, "sh", *words)


@pytest.fixture
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[OwnFiles, OwnFiles, Path]]:
    """Two of them, and a folder with a short path (Ray's sockets lie in it)."""
    directory = Path(f"/tmp/shoal-h{os.getpid()}")
    (directory / "r").mkdir(parents=True)
    made = [OwnFiles(f"shoal-{os.getpid()}-{number}", number, directory / "r") for number in (1, 2)]
    try:
        ip(f"link add sa{os.getpid()} netns {made[0].name} type veth peer name sb{os.getpid()} netns {made[1].name}")
        for machine, end in zip(made, "ab", strict=True):
            ip(f"-n {machine.name} addr add {machine.address}/24 dev s{end}{os.getpid()}")
            ip(f"-n {machine.name} link set s{end}{os.getpid()} up")
        yield made[0], made[1], directory
    finally:
        for machine in made:
            machine.kill()
            ip(f"netns del {machine.name}")
        shutil.rmtree(directory, ignore_errors=True)


def start_head(machine: Machine, directory: Path) -> str:
    options = ("--include-dashboard=false", f"--temp-dir={directory}/r")
    start_ray(machine, directory, "--head", "--port", str(PORT), *options)
    return f"{machine.address}:{PORT}"


def test_a_killed_head_costs_nothing_that_was_learned(machines: tuple[OwnFiles, OwnFiles, Path]) -> None:
    head, here, directory = machines
    address = start_head(head, directory)
    start_ray(here, directory, "--address", address)
    told = directory / "told"

    def command(*words: str) -> subprocess.Popen[bytes]:
        with told.open("w") as out:
            return subprocess.Popen(
                here.command(sys.executable, "-m", "shoal", *words, "--runtime", "ray", "--ray-address", address),
                cwd=directory,
                env=environment(directory),
                stdout=out,
                stderr=out,
            )

    def until_updates(driver: subprocess.Popen[bytes], count: int) -> None:
        deadline = time.monotonic() + 200.0
        while updates(directory) < count:
            assert driver.poll() is None, told.read_text()
            assert time.monotonic() < deadline, told.read_text()
            time.sleep(0.2)

    driver = command("train", "impala", *SMALL, "--run-dir", "run")
    try:
        until_updates(driver, 20)
        killed = time.monotonic()
        head.kill()
        assert driver.wait(60.0) == 1, told.read_text()
        assert time.monotonic() - killed < 50.0, "or Ray would have ended it"
        text = told.read_text()
        assert "the head of the Ray cluster has been silent for 20 s: on another cluster `shoal resume` goes on" in text
        assert "Traceback" not in text
        run = directory / "run"
        summary = json.loads((run / "summary.json").read_text())
        assert (run / "weights.npz").exists()
        assert any(path.name.isdigit() for path in (run / "checkpoints").iterdir())
        assert summary["learner_steps"] > 20

        for machine in (head, here):
            machine.kill()
        time.sleep(1.0)
        address = start_head(here, directory)
        driver = command("resume", "run")
        until_updates(driver, summary["learner_steps"] + 50)
        driver.terminate()
        assert driver.wait(120.0) == 130, told.read_text()
    finally:
        driver.kill()
        driver.wait()
