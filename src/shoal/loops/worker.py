"""Acting and learning in one node: workers push gradients, and a publisher hands on what the service makes of them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from torch import nn

from shoal import optim, tree
from shoal.acting import Policy, Recorder
from shoal.batches import Batch, to_batch
from shoal.envs import Envs
from shoal.learning import Update
from shoal.loops.actor import RowLoop
from shoal.loops.keeper import Keeper
from shoal.loops.learner import MAX_REFUSED, NonFinite
from shoal.loops.loop import EXACT, Loop
from shoal.nets.transfer import freeze, transfer
from shoal.nets.weights import export_buffers, export_weights, import_buffers, import_weights
from shoal.program import Background, NodeDied, current, futures
from shoal.retry import retry
from shoal.services.gradients import GradientServer, states_of
from shoal.services.metrics import Metrics, Reporter
from shoal.services.weights import WeightStore
from shoal.state import Scope, State, as_arrays, as_tensors, has_state, load_state, state_of
from shoal.sync import monotonic
from shoal.types import Columns, Role
from shoal.versions import NONE, make_version

COUNTS = {  # what is reported, and what the gradient service calls it
    "learner_steps": "version",
    "gradients": "gradients",
    "stale_gradients": "stale",
    "repeated_gradients": "repeated",
    "refused_updates": "not_finite",
    "short_rounds": "short_rounds",
}
PAUSE = 0.1  # seconds after which a publisher that waits for gradients looks around


class Worker(Protocol):
    """What acts and learns with the same weights. `update` pushes a gradient of a batch, whose memory is used again,
    and takes the newest weights."""

    @property
    def policy(self) -> Policy: ...
    @property
    def network(self) -> nn.Module: ...
    def update(self, batch: Batch) -> Update: ...
    def finished(self) -> bool:
        """The service takes no further gradients."""


class WorkerLoop(RowLoop):
    """One step is one block of rows: act, learn from them, go on with the weights that come back."""

    role = Role.WORKER  # with a worker only the gradient it was working on is lost

    def __init__(
        self,
        make_envs: Callable[[int], Envs],
        make_worker: Callable[[int, Sequence[GradientServer]], Worker],
        rows: int,  # per block
        servers: Sequence[GradientServer],
        metrics: Metrics,
        *,
        observation_space: Any,
        device: str = "cpu",
        frozen: str | None = None,  # patterns of parameters that stay as they are
    ) -> None:
        seed = current().seed
        super().__init__(make_envs(seed), metrics)
        self._observation_space, self._device = observation_space, device
        self._worker = make_worker(seed + 1, servers)
        if frozen is not None:  # they are the service's too, and get a gradient of zeros
            freeze(self._worker.network, frozen)
        # No row is acted on before the weights it counts for: blocks do not overlap, so that learning is on-policy.
        # They do not leave the node either, and so hold the stacks that the policy saw.
        envs = self._runner.envs
        self._recorder = Recorder(
            self._worker.policy, envs.count, rows, self._learn, overlap=0, stacks=envs.stacks, store_stacks=True
        )
        self._servers, self._buffers, self._pushing = servers, export_buffers(self._worker.network), Background()
        self._runner.report.lap("starting")

    def step(self) -> bool:
        if self._leaving or not self._record(self._recorder):
            return self._end()
        if not self._runner.end_of_block() or self._worker.finished():
            return self._end()
        return True

    def _row_state(self, scope: Scope) -> State:
        """Where its environments stand and what its policy holds. The parameters are the service's; what it has of them
        is of use to all nodes together."""
        state = self._recorded(self._recorder)
        if scope == "own":
            return state
        exact: State = {"reporter": self._reporter.state_dict()}
        if has_state(self._worker):
            exact["worker"] = as_arrays(state_of(self._worker))
        return state | {EXACT: exact}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on in the middle of episodes; the first gradient that is pushed brings the service's parameters."""
        if "policy" in state:
            load_state(self._worker.policy, state["policy"])
        if self._runner.load_state_dict(state["environments"]):
            load_state(self._recorder, state["recorder"])
        if (exact := state.get(EXACT)) is not None:
            self._reporter.load_state_dict(exact["reporter"])
            if "worker" in exact:
                load_state(self._worker, as_tensors(exact["worker"]))

    def _learn(self, block: Columns) -> None:
        """As a batch of the replay has them: the block's rows, one more for the observation that follows them, and the
        recurrent state before them."""
        report = self._runner.report
        observation = self._recorder.player.peek(self._runner.observation)
        for name, following in tree.flatten(observation, "observation").items():
            block[name][-1] = following  # of all columns only this one is known, and looked at
        columns = {name: rows[0] if tree.is_under(name, "state") else rows for name, rows in block.items()}
        update = self._worker.update(to_batch(columns, self._observation_space, self._device))
        if update.applied:
            report.count("trained_steps", int(np.count_nonzero(block["valid"][:-1])))
        report.values.update(update.metrics)
        self._push_buffers()
        report.lap("learning", update.waited)

    def _push_buffers(self) -> None:
        """Those that the update has changed; without waiting."""
        if not self._buffers:
            return
        before, self._buffers = self._buffers, export_buffers(self._worker.network)
        if any(not np.array_equal(before[name], value) for name, value in self._buffers.items()):
            self._pushing.add(futures(self._servers[0]).push_buffers(current().name, self._buffers))


class Publisher(Loop):
    """Gives the gradient service the parameters to start from, publishes what they become, and reports its counts.

    One step is one publication. It finishes when the service has made `max_updates` steps. Now and then it has the
    weight service keep the states of the gradient service, for when that is lost.
    """

    role = Role.PUBLISHER
    restart = True  # it holds nothing: what it counts is counted by the service

    def __init__(
        self,
        make_network: Callable[[int], nn.Module],
        servers: Sequence[GradientServer],
        weights: WeightStore,
        metrics: Metrics,
        *,
        publish_every: int = 1,  # steps of the service
        max_updates: int | None = None,
    ) -> None:
        super().__init__()
        self._network = make_network(current().seed)
        self._gradients: optim.Remote | None = None  # until it begins
        self._published, self._first = NONE, 0  # updates that were made before, where the service has none
        self._servers = servers
        self._buffered = bool(export_buffers(self._network))
        self._weights = weights
        self._keeper = Keeper(weights)
        self._publish_every, self._max_updates = publish_every, max_updates
        self._reporter = Reporter(metrics)
        self._counted: dict[str, int] = {}
        self._look_around = 0.0

    def step(self) -> bool:
        gradients = self._gradients or self._begin()
        if self._finishing or (self._max_updates is not None and gradients.version >= self._max_updates):
            return self._end()
        with self._at_work:
            with self._still():
                newer = gradients.pull(self._publish_every, max(0.0, self._look_around - monotonic()))
            self._look_around = monotonic() + PAUSE
            self._reporter.lap("waiting for gradients")
            if newer or self._keeper.lacks(self._published):
                self._publish(gradients)
            if self._keeper.due():
                self._keeper.keep(lambda: states_of(self._servers))
            self._reporter.lap("publishing")
            if self._reporter.due():
                self._count(gradients)
                self._reporter.flush()
        return True

    def report(self) -> None:
        """Publish and count what the service has come to, also when it is less than a publication."""
        if (gradients := self._gradients) is not None:
            with self._at_work:
                if gradients.pull(timeout=0.0):
                    self._publish(gradients)
                self._count(gradients)
        super().report()

    def state_dict(self, scope: Scope = "own") -> State:
        """By itself it needs nothing; with the others, what of the service's parameters has been published, and when it
        looks around next."""
        if scope == "own" or self._gradients is None:
            return {}
        exact: State = {"network": export_weights(self._network), "gradients": self._gradients.state_dict()}
        exact |= {"published": self._published, "look_around": self._look_around, "counted": dict(self._counted)}
        return {EXACT: exact | {"reporter": self._reporter.state_dict()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where it was, or begin with another run's "weights"; to be called before the first step."""
        if "weights" in state:
            transfer(self._network, state["weights"], partial=state["partial"])
            self._first = state["updates"]
        if (exact := state.get(EXACT)) is None:
            return
        self._gradients = optim.Remote(self._network.parameters(), self._servers)
        import_weights(self._network, exact["network"])
        self._gradients.load_state_dict(exact["gradients"])
        self._published, self._look_around = exact["published"], exact["look_around"]
        self._counted = dict(exact["counted"])
        self._reporter.load_state_dict(exact["reporter"])

    @property
    def updates(self) -> int:
        return 0 if self._gradients is None else self._gradients.version

    def _begin(self) -> optim.Remote:
        """Offer the service the parameters to start from, and publish what it has."""
        self._gradients = gradients = optim.Remote(
            self._network.parameters(), self._servers, initialise=True, version=self._first
        )
        self._publish(gradients)
        self._reporter.lap("starting")
        return gradients

    def _publish(self, gradients: optim.Remote) -> None:
        generation = current().restarts + gradients.lives
        self._published = make_version(generation, gradients.version)
        import_buffers(self._network, retry(self._servers[0].mean_buffers) if self._buffered else {})
        with contextlib.suppress(NodeDied):  # the service is on its way back, and gets them then
            self._weights.publish(export_weights(self._network), self._published)

    def _count(self, gradients: optim.Remote) -> None:
        """What the service has counted. All its parts see the same gradients, of which one may come too late for some
        of them only: it counts as refused."""
        parts = [retry(server.statistics) for server in self._servers]
        counted = {name: max(part.get(name, 0) for part in parts) for name in set().union(*parts)}
        counted["version"] = gradients.version  # the one that was published: the service may have gone on
        for name, source in COUNTS.items():
            self._reporter.set_lasting(name, counted.get(source, 0))
        self._reporter.set_count("lost_updates", gradients.lost_updates)
        before, self._counted = self._counted, counted
        pushed, staleness = (counted.get(name, 0) - before.get(name, 0) for name in ("gradients", "staleness"))
        if pushed > 0:
            self._reporter.values["staleness"] = staleness / pushed
        self._reporter.values["version"] = counted["version"]
        if counted.get("not_finite_in_a_row", 0) >= MAX_REFUSED:
            raise NonFinite(
                f"the gradients of all workers were not finite {MAX_REFUSED} times in a row: lower the learning rate, "
                "clip the rewards, or look for NaN in the environment's observations"
            )
