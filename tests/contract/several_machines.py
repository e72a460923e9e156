"""A cluster of three machines, as Ray counts them, on this one: what happens there is printed as JSON."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

import ray  # noqa: E402
from ray.cluster_utils import Cluster  # noqa: E402
from test_programs import TINY, tiny_program  # noqa: E402

from shoal.program import Handle  # noqa: E402
from shoal.runtime.ray.run import RayRun  # noqa: E402
from shoal.runtime.restarts import Loss, Supervisor  # noqa: E402


def main() -> None:
    TINY["actors"] = 4
    cluster: Any = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    for _ in range(2):
        cluster.add_node(num_cpus=2)
    ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
    told: dict[str, Any] = {}
    losses: list[tuple[float, Loss]] = []
    supervisor = Supervisor(on_loss=lambda loss: losses.append((time.monotonic(), loss)))
    program = tiny_program("impala", updates=1_000_000)
    with RayRun(program, supervisor=supervisor) as run:

        def updates() -> int:
            return int(run.client(Handle("metrics")).snapshot()["counts"].get("learner_steps", 0))

        def learn(more: int) -> None:
            goal, deadline = updates() + more, time.monotonic() + 60.0
            while updates() < goal:
                assert time.monotonic() < deadline, "it does not learn"
                run.wait(0.05)

        learn(3)
        told["places"] = before = run.machines()
        told["free"] = ray.available_resources().get("CPU", 0.0)
        victim = before["actor/0"]
        agent = next(one for one in run._agents.values() if run._machine_name(one.key) == victim)
        killed = time.monotonic()
        os.kill(int(agent.pid or 0), signal.SIGKILL)
        while len([name for name in run.machines() if name.startswith("actor")]) == 4 and not losses:
            run.wait(0.05)
        told["told after"] = losses[0][0] - killed
        while len(run.pids()) < len(program.nodes):
            run.wait(0.05)
        told["replaced after"] = time.monotonic() - killed
        learn(3)
        told["losses"] = {loss.node: loss.reason for _, loss in losses}
        told["after"], told["victim"] = run.machines(), victim
        run.add(*program.next_members("actors", 2))
        learn(3)
        told["members"] = len(run.machines())
    deadline = time.monotonic() + 10.0
    while (free := ray.available_resources().get("CPU", 0.0)) < 5.0 and time.monotonic() < deadline:
        time.sleep(0.1)
    told["free at the end"] = free
    ray.shutdown()
    cluster.shutdown()
    print(json.dumps(told))


if __name__ == "__main__":
    main()
