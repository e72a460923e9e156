"""The actor: steps environments and sends what happened to the replay service, itself or by an inference server."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from shoal.acting import PerEnvironment, Policy, Recorder, Sender
from shoal.envs import Envs
from shoal.envs.vector import Step
from shoal.program import Future, current, futures
from shoal.replay import Pattern, Replay
from shoal.services.metrics import Metrics, Reporter
from shoal.services.weights import WeightStore
from shoal.state import has_state, load_state, state_of
from shoal.sync import sign_of_life
from shoal.types import Columns
from shoal.versions import NONE, updates_between


class EnvRunner:
    """Steps environments, with the counts that every actor reports."""

    def __init__(self, envs: Envs, metrics: Metrics) -> None:
        self.envs = envs
        self.report = Reporter(metrics)
        self.observation = envs.reset()
        self._steps = 0

    def step(self, action: Any) -> Step:
        self.report.lap("inference")
        outcome = self.envs.step(action)
        sign_of_life()
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
        replays: Sequence[Replay],
        weights: WeightStore,
        metrics: Metrics,
        *,
        synchronous: bool = False,  # after every block, wait for weights that are newer than those that acted
        first_environment: int = 0,  # the place of its environments among those of all actors
    ) -> None:
        seed = current().seed
        self._runner = EnvRunner(make_envs(seed), metrics)
        policy, count = make_policy(seed + 1), self._runner.envs.count
        self._send = Sender(policy, replays, patterns, current().name, home=first_environment // count)
        self._recorder = Recorder(policy, count, rows, self._ship, first_environment=first_environment)
        if isinstance(policy, PerEnvironment):
            policy.set_environments(self._recorder.environments)
        self._weights = weights
        self._synchronous = synchronous
        self._fetching: Future | None = None
        found = weights.wait(NONE)
        if found is not None:
            self._recorder.load(*found)
        self._runner.report.lap("starting")

    def step(self) -> None:
        recorder, runner = self._recorder, self._runner
        complete = False
        while not complete:
            outcome = runner.step(recorder.act(runner.observation))
            complete = recorder.result(outcome.reward, outcome.terminated, outcome.valid)
        runner.end_of_block()
        self._refresh()

    def state_dict(self) -> dict[str, Any]:
        """What the policy and its recorder hold; what environments hold is their own."""
        parts = {"recorder": self._recorder, "policy": self._recorder.policy}
        return {name: state_of(part) for name, part in parts.items() if has_state(part)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for name, part in (("recorder", self._recorder), ("policy", self._recorder.policy)):
            if name in state:
                load_state(part, state[name])

    def close(self) -> None:
        self._runner.envs.close()

    def _ship(self, block: Columns) -> None:
        self._send(block)
        self._runner.report.lap("waiting to insert")

    def _refresh(self) -> None:
        """Take newer weights when they have arrived; ask for them without waiting, unless synchronous."""
        if self._synchronous:
            found: Any = self._weights.wait(self._recorder.version)
            if found is not None:
                self._recorder.load(*found)
            self._runner.report.lap("waiting for weights")
            return
        if self._fetching is None:
            self._fetching = futures(self._weights).newer(self._recorder.version)
        if self._fetching is not None and self._fetching.done():
            found = self._fetching.result()
            self._fetching = None
            if found is not None:
                self._runner.report.values["acting_staleness"] = updates_between(self._recorder.version, found[0])
                self._recorder.load(*found)
        self._runner.report.lap("weights")


class RemoteActorLoop:
    """Owns no network: sends observations to the inference server and does what it answers."""

    restart = True

    def __init__(self, make_envs: Callable[[int], Envs], rows: int, inference: Any, metrics: Metrics) -> None:
        self._runner = EnvRunner(make_envs(current().seed), metrics)
        self._inference = inference
        self._rows = rows
        self._outcome: Any = None

    def step(self) -> None:
        runner, node = self._runner, current()
        for _ in range(self._rows):
            action = self._inference.act(node.name, node.restarts, runner.observation, self._outcome)
            outcome = runner.step(action)
            self._outcome = (outcome.reward, outcome.terminated, outcome.valid)
        runner.end_of_block()

    def close(self) -> None:
        self._runner.envs.close()
