"""The files of examples/cluster: scripts run with stand-ins for what a cluster has, YAML holds to its schemas.

Slurm and Kubernetes are not here: `srun`, `scontrol`, `ray` and `shoal` are stand-ins that write down how they were
called. docs/cluster.md says what has been run for real, and how.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shoal.arguments.command_options import Output
from shoal.arguments.words import read
from shoal.runs import registry
from shoal.runs.options import RunOptions

ROOT = Path(__file__).parents[2]
FILES = ROOT / "examples" / "cluster"
SCRIPTS = sorted(path.name for path in FILES.iterdir() if path.suffix in (".sh", ".sbatch"))
TRAIN = ["impala", "--env", "CartPole-v1", "--stop-steps", "1000"]
STANDINS = {
    # what is behind its options is run, as on the machine that it names
    "srun": 'while [[ $1 == -* ]]; do shift; done; exec "$@"',
    "scontrol": 'if [ "$1" = show ]; then echo one; [ "$SLURM_JOB_NUM_NODES" = 1 ] || echo two; fi',
    "ray": 'case "$*" in *--block*) exec sleep 60 ;; esac',
    "python": 'cat > /dev/null; until grep -q "^ray start" "$CALLS"; do sleep 0.02; done',  # waits for the machines
    "hostname": "echo 127.0.0.1",
    "shoal": 'trap "echo saved >> $CALLS; kill %1; exit 130" TERM; [ -z "${LONG:-}" ] || { sleep 60 & wait; }; exit 3',
}


class Called:
    """A script that runs with stand-ins in an own folder, and how these were called."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.calls = folder, folder / "calls"
        (folder / "bin").mkdir()
        for name, body in STANDINS.items():
            path = folder / "bin" / name
            path.write_text(f'#!/bin/bash\necho "{name} $*" >> "$CALLS"\n{body}\n')
            path.chmod(0o755)
        self.calls.touch()

    def begin(self, script: str, *words: str, **variables: str) -> subprocess.Popen[str]:
        environment = {
            "PATH": f"{self.folder / 'bin'}:/usr/bin:/bin",
            "HOME": str(self.folder),
            "CALLS": str(self.calls),
            "SLURM_SUBMIT_DIR": str(self.folder),
            "SLURM_JOB_ID": "77",
            "SLURM_JOB_NODELIST": "one,two",
            "SLURM_JOB_NUM_NODES": "1",
            "SLURM_CPUS_PER_TASK": "4",
            **variables,
        }
        return subprocess.Popen(
            ["bash", str(FILES / script), *words],
            cwd=self.folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def run(self, script: str, *words: str, **variables: str) -> tuple[int, str, list[str]]:
        """The exit code, what was said, and the calls."""
        with self.begin(script, *words, **variables) as process:
            out, err = process.communicate(timeout=30)
        return process.returncode, out + err, self.lines()

    def lines(self) -> list[str]:
        return self.calls.read_text().splitlines()


@pytest.fixture
def called(tmp_path: Path) -> Called:
    return Called(tmp_path)


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20.0
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def left_of(session: int) -> bool:
    """Whether a process group has members."""
    try:
        os.killpg(session, 0)
    except ProcessLookupError:
        return False
    return True


def understood(line: str) -> dict[str, Any]:
    """What a call of `shoal train` gives the run's options, as the command itself reads it."""
    words = shlex.split(line)
    assert words[:2] == ["shoal", "train"]
    typed = read(words[3:], [RunOptions, Output, registry.load(words[2]).Config], "shoal train")
    return typed.values[RunOptions]


def test_every_file_is_described() -> None:
    page = (ROOT / "docs" / "cluster.md").read_text(encoding="utf-8")
    for path in FILES.iterdir():
        assert f"examples/cluster/{path.name}" in page, path.name


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_is_bash(script: str) -> None:
    subprocess.run(["bash", "-n", str(FILES / script)], check=True)
    if script.endswith(".sh"):
        assert os.access(FILES / script, os.X_OK)


def test_a_slurm_job_starts_a_cluster_and_trains_on_it(called: Called) -> None:
    code, _, calls = called.run("slurm.sbatch", *TRAIN, RUN=str(called.folder / "run"))
    assert code == 3  # what the training ended with
    (head,) = [call for call in calls if call.startswith("ray start")]
    assert "--head --node-ip-address=127.0.0.1 --port=20077" in head
    assert "--num-cpus=4" in head
    (train,) = [call for call in calls if call.startswith("shoal")]
    asked = understood(train)
    assert (asked["runtime"], asked["ray_address"], asked["resume"]) == ("ray", "127.0.0.1:20077", "auto")
    assert asked["run_dir"] == str(called.folder / "run")
    assert not [call for call in calls if "requeue" in call]


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGTERM])
@pytest.mark.parametrize(
    ("script", "variables", "requeued"),
    [
        ("slurm.sbatch", {}, "scontrol requeue 77"),
        (
            "slurm-array.sbatch",
            {"SLURM_ARRAY_TASK_ID": "4", "SLURM_ARRAY_JOB_ID": "70"},
            "scontrol requeue 70_4",
        ),
    ],
)
def test_a_slurm_job_that_is_told_to_end_saves_and_goes_back_into_the_queue_when_its_time_is_over(
    script: str, variables: dict[str, str], requeued: str, number: signal.Signals, called: Called
) -> None:
    with called.begin(script, *TRAIN, LONG="yes", **variables) as process:
        until(lambda: any(call.startswith("shoal train") for call in called.lines()))
        time.sleep(0.3)  # until the stand-in listens
        process.send_signal(number)
        out, err = process.communicate(timeout=30)
    assert process.returncode == 130, err
    over = number == signal.SIGUSR1
    assert ("goes back into the queue" in out) == over
    assert called.lines()[-2 if over else -1 :] == (["saved", requeued] if over else ["saved"])
    until(lambda: not left_of(process.pid))


def test_an_array_job_has_a_run_for_every_seed(called: Called) -> None:
    variables = {"SLURM_ARRAY_TASK_ID": "4", "SLURM_ARRAY_JOB_ID": "70"}
    code, _, calls = called.run("slurm-array.sbatch", "ppo", "--env", "CartPole-v1", **variables)
    assert code == 3
    asked = understood(calls[0])
    assert (asked["seed"], asked["resume"]) == (4, "auto")
    assert asked["run_dir"] == str(called.folder / "runs" / "slurm-70" / "seed-4")


@pytest.mark.parametrize("script", ["slurm.sbatch", "slurm-array.sbatch"])
def test_what_is_asked_of_slurm_stands_before_the_first_command(script: str) -> None:
    lines = (FILES / script).read_text().splitlines()
    first = next(number for number, line in enumerate(lines) if line and not line.startswith("#"))
    asked = dict(re.findall(r"^#SBATCH --([\w-]+)(?:=(.*))?$", "\n".join(lines[:first]), re.MULTILINE))
    assert not [line for line in lines[first:] if line.startswith("#SBATCH")]
    assert {"signal", "requeue", "open-mode", "time", "output"} <= set(asked)
    assert re.fullmatch(r"B:USR1@\d+", asked["signal"])


def test_a_cluster_by_hand(called: Called) -> None:
    code, told, calls = called.run("by-hand.sh", "head", HEAD_IP="192.0.2.1")
    assert code == 0
    assert "./by-hand.sh join 192.0.2.1" in told
    assert calls[0] == "ray get-auth-token --generate"
    assert "--head --node-ip-address=192.0.2.1 --port=6379" in calls[1]
    code, told, _ = called.run("by-hand.sh", "join", "192.0.2.1")
    assert (code, told.strip()) == (2, "Copy ~/.ray/auth_token from the head's machine first.")
    (called.folder / ".ray").mkdir()
    (called.folder / ".ray" / "auth_token").write_text("token")
    assert called.run("by-hand.sh", "join", "192.0.2.1")[0] == 0
    assert "--address=192.0.2.1:6379" in called.lines()[-1]
    called.run("by-hand.sh", "train", *TRAIN)
    asked = understood(called.lines()[-1])
    assert (asked["runtime"], asked["ray_address"]) == ("ray", "auto")
    assert called.run("by-hand.sh", "stop")[2][-1] == "ray stop"
    code, told, _ = called.run("by-hand.sh")
    assert code == 2
    assert "./by-hand.sh join HEAD_IP" in told


def test_a_job_is_submitted_with_the_folder(called: Called) -> None:
    code, told, _ = called.run("submit.sh", *TRAIN)
    assert code
    assert "RAY_ADDRESS" in told
    code, _, calls = called.run("submit.sh", *TRAIN, RAY_ADDRESS="http://192.0.2.1:8265", RUN="/shared/mine")
    assert code == 0
    before, _, train = calls[-1].partition(" -- ")
    assert before == "ray job submit --no-wait --working-dir ."
    asked = understood(train)
    assert (asked["runtime"], asked["ray_address"], asked["run_dir"]) == ("ray", "auto", "/shared/mine")


# ---- YAML


def parsed(name: str) -> Any:
    yaml = pytest.importorskip("yaml", reason="comes with Ray")
    return yaml.safe_load((FILES / name).read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", ["launcher-own-machines.yaml", "launcher-aws.yaml"])
def test_what_the_cluster_launcher_reads_holds_to_its_schema(name: str) -> None:
    ray = pytest.importorskip("ray")
    jsonschema = pytest.importorskip("jsonschema", reason="comes with Ray")
    schema = json.loads((Path(ray.__file__).parent / "autoscaler" / "ray-schema.json").read_text())
    config = parsed(name)
    jsonschema.validate(config, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**config, "max_worker": 1}, schema)
    asked = re.findall(r"'(shoal train [^']*)'", (FILES / name).read_text())
    assert [understood(line)["runtime"] for line in asked] == ["ray"]
    for key, word in (("head_start_ray_commands", "--head"), ("worker_start_ray_commands", "--address=$RAY_HEAD_IP")):
        assert any("ray start" in command and word in command for command in config[key])


def test_the_ray_job_of_kubernetes_holds_to_its_schema() -> None:
    jsonschema = pytest.importorskip("jsonschema", reason="comes with Ray")
    ray = pytest.importorskip("ray")
    job = parsed("rayjob.yaml")
    schema = json.loads((Path(__file__).parent / "rayjob_schema.json").read_text())
    jsonschema.validate(job, schema)
    cluster = job["spec"]["rayClusterSpec"]
    for wrong in (
        {**job, "spec": {**job["spec"], "entryPoint": "shoal"}},
        {**job, "spec": {**job["spec"], "rayClusterSpec": {**cluster, "headGroupSpec": {}}}},
        {**job, "spec": {**job["spec"], "backoffLimit": "two"}},
    ):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, schema)
    asked = understood(job["spec"]["entrypoint"])
    assert (asked["runtime"], asked["resume"]) == ("ray", "auto")
    mounts = cluster["headGroupSpec"]["template"]["spec"]["containers"][0]["volumeMounts"]
    assert asked["run_dir"].startswith(mounts[0]["mountPath"])
    pinned = re.search(r"^ray(?:\[.*\])?==(.*)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    image = re.search(r"^FROM rayproject/ray:([\d.]+)-py311$", (FILES / "Dockerfile").read_text(), re.MULTILINE)
    assert pinned
    assert image
    assert cluster["rayVersion"] == image[1] == pinned[1] == ray.__version__
