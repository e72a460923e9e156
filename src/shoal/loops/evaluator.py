"""The evaluator, who judges: the greedy policy on fresh episodes, in environments of its own."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from shoal.acting import Policy, with_last_reward, zero_where
from shoal.envs import Envs
from shoal.program import current
from shoal.services.metrics import Metrics, Reporter
from shoal.services.weights import WeightStore
from shoal.sync import monotonic, sign_of_life, sleep
from shoal.types import Columns
from shoal.versions import NONE, number

MOST_OF_TIME = 0.2  # that judging may take: long episodes are judged less often
CONFIRM = 50  # fresh episodes before a run may say `reached`


def evaluate(envs: Envs, policy: Policy, episodes: int) -> list[float]:
    """Returns of exactly `episodes` fresh episodes. Every environment plays whole rounds of one episode each, so that
    short episodes do not count more often than long ones."""
    returns: list[float] = []
    while len(returns) < episodes:
        observation = envs.reset()
        envs.episodes()
        state = policy.initial_state(envs.count)
        first = np.ones(envs.count, np.bool_)
        total = np.zeros(envs.count)
        running = np.ones(envs.count, np.bool_)
        while running.any():
            action, state, _ = policy.act(observation, state, first)
            outcome = envs.step(action)
            sign_of_life()
            state = zero_where(~outcome.valid, with_last_reward(state, outcome.reward))
            total += np.where(running, outcome.reward, 0.0)
            running &= ~(outcome.terminated | outcome.truncated)
            observation, first = outcome.observation, ~outcome.valid
        returns.extend(total.tolist())
    return returns[:episodes]


class Evaluator:
    """One step is one evaluation of the newest weights. A mean that reaches the target is confirmed with the same
    weights on fresh episodes; only the confirmation counts."""

    restart = True

    def __init__(
        self,
        make_envs: Callable[[int], Envs],
        make_policy: Callable[[int], Policy],
        weights: WeightStore,
        metrics: Metrics,
        *,
        episodes: int = 10,
        every: float = 0.5,  # seconds from one evaluation to the next
        target: float | None = None,
        note: str | None = None,  # what the user should know of how it is judged
    ) -> None:
        seed = current().seed
        self._envs = make_envs(seed)
        self._policy = make_policy(seed + 1)
        self._weights = weights
        self._metrics = metrics
        self._report = Reporter(metrics)
        self._episodes, self._every, self._target = episodes, every, target
        self._version = NONE
        self._confirmed: tuple[int, Columns] | None = None
        self._next = 0.0
        if note is not None:
            self._report.note(note)

    def step(self) -> None:
        report = self._report
        sleep(max(0.0, self._next - monotonic()))
        found = self._weights.wait(self._version)
        begun = monotonic()
        report.lap("waiting")
        if found is None:
            return
        self._version, weights = found
        self._policy.load(weights)
        returns = evaluate(self._envs, self._policy, self._episodes)
        confirmed = False
        if self._target is not None and np.mean(returns) >= self._target:
            returns = evaluate(self._envs, self._policy, max(CONFIRM, self._episodes))
            confirmed = bool(np.mean(returns) >= self._target)
            if confirmed and self._confirmed is None:
                self._confirmed = found
        report.lap("evaluating")
        self._metrics.evaluation(
            {
                "eval_return": float(np.mean(returns)),
                "spread": float(np.std(returns)),
                "lowest": float(np.min(returns)),
                "highest": float(np.max(returns)),
                "episodes": len(returns),
                "version": number(self._version),
                "reached": confirmed,
            }
        )
        report.values["eval_return"] = float(np.mean(returns))
        spent = monotonic() - begun
        self._next = begun + max(self._every, spent / MOST_OF_TIME)
        if report.due():
            report.flush()

    def confirmed(self) -> tuple[int, Columns] | None:
        """The first version that reached the target, and its weights: those that follow are not always better."""
        return self._confirmed

    def close(self) -> None:
        self._envs.close()
