"""Several machines, as Ray counts them: agents on each, one of which is killed, and what the run holds of them."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import pytest
from test_ray_clusters import end, variables

pytestmark = [pytest.mark.ray, pytest.mark.timeout(200)]
pytest.importorskip("ray")


def test_agents_hold_cpus_start_nodes_and_are_replaced() -> None:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:
        command = [sys.executable, str(Path(__file__).with_name("several_machines.py"))]
        try:
            done = subprocess.run(
                command, env=variables(RAY_TMPDIR=directory), capture_output=True, text=True, timeout=180
            )
        finally:
            end(directory)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    places = told["places"]
    home = places["learner"]
    assert {places[name] for name in ("metrics", "weights", "replay")} == {home}
    actors = Counter(place for name, place in places.items() if name.startswith("actor"))
    assert sorted(actors.values()) == [2, 2], "in proportion to the CPUs that are free"
    assert home not in actors
    assert told["free"] == 0.0
    gone = {name for name, place in places.items() if place == told["victim"]}
    assert set(told["losses"]) == gone
    assert all(told["victim"] in reason for reason in told["losses"].values())
    assert told["told after"] < 5.0
    assert told["replaced after"] < 15.0
    assert told["victim"] not in told["after"].values(), "a machine that has just lost something is avoided"
    assert told["members"] == len(places) + 2
    assert told["free at the end"] == 5.0
