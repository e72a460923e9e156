"""The actor: steps environments and sends what happened to the replay service, itself or by an inference server."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from shoal.envs import Envs
from shoal.envs.vector import Step
from shoal.loops.recorder import Columns, Placed, Policy, Recorder, Sender
from shoal.program import Future, current, futures
from shoal.replay import Pattern, Replay
from shoal.services.metrics import Metrics, Reporter
from shoal.services.weights import NONE, WeightStore, updates_between


class Driven:
    """Environments as an actor drives them, with the counts that every actor reports."""

    def __init__(self, envs: Envs, metrics: Metrics) -> None:
        self.envs = envs
        self.report = Reporter(metrics)
        self.observation = envs.reset()
        self._steps = 0

    def step(self, action: Any) -> Step:
        self.report.lap("inference")
        outcome = self.envs.step(action)
        self.observation = outcome.observation
        self._steps += int(outcome.valid.sum())
        self.report.lap("environment")
        return outcome

    def end_of_block(self) -> None:
        report = self.report
        report.count("env_steps", self._steps)
        self._steps = 0
        for episode in self.envs.episodes():
            report.count("episodes")
            report.values["actor_return"] = episode.return_
            report.values["episode_length"] = episode.length
        if report.due():
            report.flush()


class ActorLoop:
    """Acts with its own copy of the policy. One step is one block of rows: act, write down, send, take new weights."""

    restart = True  # an actor holds nothing that others need

    def __init__(
        self,
        make_envs: Callable[[int], Envs],
        make_policy: Callable[[int], Policy],
        patterns: Mapping[str, Pattern],  # the table each kind of item goes to
        rows: int,  # per block
        replay: Replay | list[Replay],
        weights: WeightStore,
        metrics: Metrics,
        *,
        synchronous: bool = False,  # after every block, wait for weights that are newer than those that acted
        first_environment: int = 0,  # the place of its environments among those of all actors
    ) -> None:
        seed = current().seed
        self._driven = Driven(make_envs(seed), metrics)
        policy, count = make_policy(seed + 1), self._driven.envs.count
        self._send = Sender(policy, replay, patterns, current().name, home=first_environment // count)
        self._recorder = Recorder(policy, count, rows, self._ship, first_environment=first_environment)
        if isinstance(policy, Placed):
            policy.place(self._recorder.environments)
        self._weights = weights
        self._synchronous = synchronous
        self._fetching: Future | None = None
        found = weights.wait(NONE)
        if found is not None:
            self._recorder.load(*found)
        self._driven.report.lap("starting")

    def step(self) -> None:
        recorder, driven = self._recorder, self._driven
        complete = False
        while not complete:
            outcome = driven.step(recorder.act(driven.observation))
            complete = recorder.result(outcome.reward, outcome.terminated, outcome.valid)
        driven.end_of_block()
        self._refresh()

    def close(self) -> None:
        self._driven.envs.close()

    def _ship(self, block: Columns) -> None:
        self._send(block)
        self._driven.report.lap("waiting to insert")

    def _refresh(self) -> None:
        """Take newer weights when they have arrived; ask for them without waiting, unless synchronous."""
        if self._synchronous:
            found: Any = self._weights.wait(self._recorder.version)
            if found is not None:
                self._recorder.load(*found)
            self._driven.report.lap("waiting for weights")
            return
        if self._fetching is None:
            self._fetching = futures(self._weights).newer(self._recorder.version)
        if self._fetching is not None and self._fetching.done():
            found = self._fetching.result()
            self._fetching = None
            if found is not None:
                self._driven.report.values["acting_staleness"] = updates_between(self._recorder.version, found[0])
                self._recorder.load(*found)
        self._driven.report.lap("weights")


class RemoteActorLoop:
    """Owns no network: sends observations to the inference server and does what it answers."""

    restart = True

    def __init__(self, make_envs: Callable[[int], Envs], rows: int, inference: Any, metrics: Metrics) -> None:
        self._driven = Driven(make_envs(current().seed), metrics)
        self._inference = inference
        self._rows = rows
        self._outcome: Any = None

    def step(self) -> None:
        driven, node = self._driven, current()
        for _ in range(self._rows):
            action = self._inference.act(node.name, node.restarts, driven.observation, self._outcome)
            outcome = driven.step(action)
            self._outcome = (outcome.reward, outcome.terminated, outcome.valid)
        driven.end_of_block()

    def close(self) -> None:
        self._driven.envs.close()
