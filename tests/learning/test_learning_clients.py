"""Simulators outside, without Shoal (clients/python/cartpole.py), learn CartPole-v1 with a run that never sees one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gateway_clients import free_port

EXAMPLE = Path(__file__).parents[2] / "clients" / "python" / "cartpole.py"


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("kind", ["learn", "local"])
@pytest.mark.parametrize("algorithm", ["impala", "ppo", "apex_dqn"])
def test_sixteen_clients_and_a_judge_reach_475(algorithm: str, kind: str, tmp_path: Path) -> None:
    assert len(EXAMPLE.read_text().splitlines()) <= 100
    port = free_port()
    alone = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    clients = [
        subprocess.Popen([sys.executable, str(EXAMPLE), f"ws://127.0.0.1:{port}", role], env=alone)
        for role in [kind] * 16 + ["judge"]
    ]
    options = ["--env", "external", "--listen", f"127.0.0.1:{port}", "--stop-return", "475", "--stop-seconds", "240"]
    try:
        command = [sys.executable, "-m", "shoal", "train", algorithm, *options, "--run-dir", str(tmp_path / "run")]
        done = subprocess.run([*command, "--json"], capture_output=True, text=True, timeout=380)
        assert done.returncode == 0, done.stderr[-3000:]
        result = json.loads(done.stdout.splitlines()[-1])
        print({name: result[name] for name in ("env_steps", "learner_steps", "train_seconds", "eval_return")})
        assert result["reached"]
        assert [client.wait(30) for client in clients] == [0] * 17, "all heard of the end"
    finally:
        for client in clients:
            client.kill()
            client.wait()
