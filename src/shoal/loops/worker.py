"""Acting and learning in one node: workers push gradients, and a publisher hands on what the service makes of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from shoal import tree
from shoal.envs import Envs
from shoal.loops.actor import Driven
from shoal.loops.learner import MAX_REFUSED, NonFinite
from shoal.loops.recorder import Array, Columns, Policy, Recorder
from shoal.program import current
from shoal.services.gradients import GradientClient, GradientServer
from shoal.services.metrics import Metrics, Reporter
from shoal.services.weights import Weights, WeightStore, make_version

PAUSE = 0.1  # seconds after which a publisher that waits for gradients looks around


class Worker(Protocol):
    """What acts and learns with the same weights. `update` pushes a gradient and takes the newest weights; it returns
    measurements, among them `applied` (False: the gradient was refused) and `waited` (seconds, for the service)."""

    @property
    def policy(self) -> Policy: ...
    def update(self, batch: Columns) -> dict[str, Any]: ...
    def finished(self) -> bool:
        """The service takes no further gradients."""


class WorkerLoop:
    """One step is one block of rows: act, learn from them, go on with the weights that come back."""

    restart = True  # with a worker only the gradient it was working on is lost

    def __init__(
        self,
        make_envs: Callable[[int], Envs],
        make_worker: Callable[[int, Sequence[GradientServer]], Worker],
        rows: int,  # per block
        servers: Sequence[GradientServer],
        metrics: Metrics,
    ) -> None:
        seed = current().seed
        self._driven = Driven(make_envs(seed), metrics)
        self._worker = make_worker(seed + 1, servers)
        # No row is acted on before the weights it counts for: blocks do not overlap, so that learning is on-policy.
        self._recorder = Recorder(self._worker.policy, self._driven.envs.count, rows, self._learn, overlap=0)
        self._driven.report.lap("starting")

    def step(self) -> bool:
        recorder, driven = self._recorder, self._driven
        complete = False
        while not complete:
            outcome = driven.step(recorder.act(driven.observation))
            complete = recorder.result(outcome.reward, outcome.terminated, outcome.valid)
        driven.end_of_block()
        if self._worker.finished():
            driven.report.flush().result()
            return False
        return True

    def close(self) -> None:
        self._driven.envs.close()

    def _learn(self, block: Columns) -> None:
        """The block's rows, the observation that follows them, and the recurrent state before them."""
        report = self._driven.report
        batch = {name: column[0] if name.startswith("state/") else column for name, column in block.items()}
        for name, last in tree.flatten(self._driven.observation, "observation").items():
            batch[name] = np.concatenate([block[name], last[None]])
        measured = self._worker.update(batch)
        if measured.pop("applied"):
            report.count("trained_steps", int(block["valid"].sum()))
        waited = measured.pop("waited")
        report.values.update(measured)
        report.lap("learning", waited)


class Publisher:
    """Gives the gradient service the parameters to start from, publishes what they become, and reports its counts.

    One step is one publication. It finishes when the service has made `max_updates` steps.
    """

    def __init__(
        self,
        make_parameters: Callable[[int], tuple[Array, Sequence[int], Weights]],
        servers: Sequence[GradientServer],
        weights: WeightStore,
        metrics: Metrics,
        *,
        publish_every: int = 1,  # steps of the service
        max_updates: int | None = None,
    ) -> None:
        # the flat parameters, the sizes of their groups, and the named weights, which are views of them
        flat, groups, self._named = make_parameters(current().seed)
        self._client = GradientClient(servers, flat, groups)
        self._servers = servers
        self._weights = weights
        self._publish_every, self._max_updates = publish_every, max_updates
        self._report = Reporter(metrics)
        self._counted: dict[str, int] = {"version": 0}
        self._client.initialise()
        self._publish()
        self._report.lap("starting")

    def step(self) -> bool:
        report = self._report
        newer = self._client.pull(self._publish_every, PAUSE)
        report.lap("waiting for gradients")
        if newer:
            self._publish()
            report.lap("publishing")
        finished = self._max_updates is not None and self._client.version >= self._max_updates
        if finished or report.due():
            self._count()
            sent = report.flush()
            if finished:
                sent.result()  # who sees that this node has finished finds everything reported
        return not finished

    def _publish(self) -> None:
        self._weights.publish(self._named, make_version(current().restarts, self._client.version))

    def _count(self) -> None:
        """What the service has counted since the last time. All its parts see the same gradients, of which one may come
        too late for some of them only: it counts as refused."""
        report, parts = self._report, [server.statistics() for server in self._servers]
        counted = {name: max(part.get(name, 0) for part in parts) for name in set().union(*parts)}
        new = {name: count - self._counted.get(name, 0) for name, count in counted.items()}
        self._counted = counted
        report.count("learner_steps", new["version"])
        report.count("gradients", new.get("gradients", 0))
        report.count("stale_gradients", new.get("stale", 0))
        report.count("repeated_gradients", new.get("repeated", 0))
        report.count("refused_updates", new.get("not_finite", 0))
        report.count("short_rounds", new.get("short_rounds", 0))
        if new.get("gradients"):
            report.values["staleness"] = new["staleness"] / new["gradients"]
        report.values["version"] = counted["version"]
        if counted.get("not_finite_in_a_row", 0) >= MAX_REFUSED:
            raise NonFinite(
                f"the gradients of all workers were not finite {MAX_REFUSED} times in a row: lower the learning rate, "
                "clip the rewards, or look for NaN in the environment's observations"
            )
