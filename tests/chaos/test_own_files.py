"""The user's own files reach a machine that has none of them, and what it lacks is told with its name."""

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
from test_head import OwnFiles, start_head
from test_machines import SMALL, environment, ip, start_ray

pytest.importorskip("ray")
pytestmark = [
    pytest.mark.ray,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("ip"), reason="network namespaces need root and iproute2"),
]

ENVIRONMENT = """
import os
from pathlib import Path

import gymnasium

def make_env(**options):
    import helper  # late, as users do
    assert Path(__file__).with_name("level.txt").read_text() == Path("level.txt").read_text() == "easy"
    print("made in", os.getcwd(), flush=True)
    return helper.make()
"""


class Apart(OwnFiles):
    """A machine on which some folders are empty."""

    def __init__(self, name: str, number: int, shared: Path, hidden: list[Path]) -> None:
        super().__init__(name, number, shared)
        self._hidden, self._empty = hidden, shared.parent / f"{name}-empty"
        self._empty.mkdir()

    def command(self, *words: str) -> list[str]:
        binds = " && ".join(f"mount --bind {self._empty} {path}" for path in self._hidden)
        return super().command("sh", "-c", f'{binds} && cd / && exec "$@"', "sh", *words)


@pytest.fixture
def machines() -> Iterator[tuple[OwnFiles, Apart, Path]]:
    """The second has neither the project nor the installed module of the first, and its Ray works in another folder."""
    directory = Path(f"/tmp/shoal-s{os.getpid()}")
    for name in ("r", "project", "only_here"):
        (directory / name).mkdir(parents=True)
    here = OwnFiles(f"shoal-{os.getpid()}-1", 1, directory / "r")
    there = Apart(f"shoal-{os.getpid()}-2", 2, directory / "r", [directory / "project", directory / "only_here"])
    try:
        ip(f"link add sa{os.getpid()} netns {here.name} type veth peer name sb{os.getpid()} netns {there.name}")
        for machine, end in ((here, "a"), (there, "b")):
            ip(f"-n {machine.name} addr add {machine.address}/24 dev s{end}{os.getpid()}")
            ip(f"-n {machine.name} link set s{end}{os.getpid()} up")
        yield here, there, directory
    finally:
        for machine in (here, there):
            machine.kill()
            ip(f"netns del {machine.name}")
        shutil.rmtree(directory, ignore_errors=True)


def test_own_files_reach_every_machine_and_what_one_lacks_is_named(machines: tuple[OwnFiles, Apart, Path]) -> None:
    here, there, directory = machines
    project, only_here = directory / "project", directory / "only_here" / "site-packages"
    only_here.mkdir()
    (only_here / "a_simulator.py").write_text("import gymnasium\nmake = lambda: gymnasium.make('CartPole-v1')\n")
    (project / "my_env.py").write_text(ENVIRONMENT)
    (project / "level.txt").write_text("easy")
    (project / "helper.py").write_text("import gymnasium\nmake = lambda: gymnasium.make('CartPole-v1')\n")
    address = start_head(here, directory)
    start_ray(there, directory, "--address", address)

    def train(run: str) -> tuple[subprocess.CompletedProcess[str], float]:
        words = ["-m", "shoal", "train", "impala", "--env", "my_env:make_env", *SMALL, "--stop-updates", "30"]
        words += ["--run-dir", run, "--runtime", "ray", "--ray-address", address, "--json", "--max-failures", "3"]
        variables = environment(directory)
        variables["PYTHONPATH"] += f"{os.pathsep}{only_here}"
        command, began = here.command(sys.executable, *words), time.monotonic()
        done = subprocess.run(command, cwd=project, env=variables, capture_output=True, text=True, timeout=200)
        return done, time.monotonic() - began

    done, _ = train("run")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["restarts"] == 0, done.stderr
    (unpacked,) = directory.glob(f"{there.name}/session_*/shoal-*/0")
    assert sorted(path.name for path in unpacked.iterdir()) == ["helper.py", "level.txt", "my_env.py"]

    (project / "helper.py").write_text("import a_simulator\nmake = a_simulator.make\n")
    done, seconds = train("other")
    assert done.returncode == 2, done.stderr
    assert f"on the machine {there.address}" in done.stderr.replace("'", "")
    assert "a_simulator" in done.stderr
    assert seconds < 60.0
    assert "Traceback" not in done.stderr
