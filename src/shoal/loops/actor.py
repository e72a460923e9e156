"""The actor: steps its environments with its own copy of the policy and sends what happened to the replay service."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from shoal.envs import Envs
from shoal.loops.recorder import Columns, Policy, Recorder
from shoal.program import Future, current, futures
from shoal.replay import Pattern, Replay, Writer
from shoal.services.metrics import Metrics, Reporter
from shoal.services.weights import NONE, WeightStore


class ActorLoop:
    """One step is one block of rows: act, write down, send, look for new weights."""

    restart = True  # an actor holds nothing that others need

    def __init__(
        self,
        make_envs: Callable[[int], Envs],
        make_policy: Callable[[int], Policy],
        patterns: Mapping[str, Pattern],  # the table each kind of item goes to
        rows: int,  # per block
        replay: Replay,
        weights: WeightStore,
        metrics: Metrics,
    ) -> None:
        seed = current().seed
        self._envs = make_envs(seed)
        self._writer = Writer(replay, dict(patterns))
        self._recorder = Recorder(make_policy(seed + 1), self._envs.count, rows, self._ship)
        self._weights = weights
        self._report = Reporter(metrics)
        self._fetching: Future | None = None
        found = weights.wait(NONE)
        if found is not None:
            self._recorder.load(*found)
        self._report.lap("starting")
        self._observation = self._envs.reset()

    def step(self) -> None:
        recorder, envs, report = self._recorder, self._envs, self._report
        steps = 0
        complete = False
        while not complete:
            action = recorder.act(self._observation)
            report.lap("inference")
            outcome = envs.step(action)
            self._observation = outcome.observation
            report.lap("environment")
            steps += int(outcome.valid.sum())
            complete = recorder.result(outcome.reward, outcome.terminated, outcome.valid)
        report.count("env_steps", steps)
        for episode in envs.episodes():
            report.count("episodes")
            report.values["actor_return"] = episode.return_
            report.values["episode_length"] = episode.length
        self._refresh()
        if report.due():
            report.flush()

    def close(self) -> None:
        self._envs.close()

    def _ship(self, block: Columns) -> None:
        self._report.lap("inference")
        self._writer.append(block)
        self._report.lap("waiting to insert")

    def _refresh(self) -> None:
        """Take newer weights when they have arrived; ask for them without waiting."""
        if self._fetching is None:
            self._fetching = futures(self._weights).newer(self._recorder.version)
        if self._fetching is not None and self._fetching.done():
            found: Any = self._fetching.result()
            self._fetching = None
            if found is not None:
                self._recorder.load(*found)
        self._report.lap("weights")
