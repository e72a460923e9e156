"""The evaluator, who judges: the greedy policy on fresh episodes, in environments of its own."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from shoal.acting import Player, Policy
from shoal.envs import Envs
from shoal.envs.state import NoState
from shoal.loops.filming import Filming, Interrupted
from shoal.loops.loop import EXACT, Loop, LossReport
from shoal.program import current
from shoal.retry import retry
from shoal.services.metrics import Metrics, Reporter
from shoal.services.weights import WeightStore
from shoal.state import Scope, State, has_state, load_state, state_of
from shoal.step import Step
from shoal.sync import Condition, monotonic, sign_of_life
from shoal.types import MAIN, Columns, Role
from shoal.versions import NONE, number

MOST_OF_TIME = 0.2  # that judging may take: long episodes are judged less often
AT_ONCE = 32  # environments that are played together; more episodes are played in rounds
CONFIRM = 50  # fresh episodes before a run may say `reached`


def evaluate(
    envs: Envs,
    policy: Policy,
    episodes: int,
    give_up: Callable[[], bool] = lambda: False,
    see: Callable[[Step], None] = lambda step: None,
) -> list[float]:
    """Returns of exactly `episodes` fresh episodes. Every environment plays whole rounds of one episode each, so that
    short episodes do not count more often than long ones. `give_up` is asked before every step: `Interrupted`; `see`
    is shown what came of it."""
    returns: list[float] = []
    while len(returns) < episodes:
        observation = envs.reset()
        envs.episodes()
        player = Player(policy, envs.count, envs.stacks)
        total = np.zeros(envs.count)
        running = np.ones(envs.count, np.bool_)
        while running.any():
            if give_up():
                raise Interrupted
            step = envs.step(player.act(observation))
            sign_of_life()
            player.result(step)
            see(step)
            total += np.where(running, step.reward, 0.0)
            running &= ~(step.terminated | step.truncated | step.reset)  # a reset: it was lost and replaced
            observation = step.observation
        returns.extend(total.tolist())
    return returns[:episodes]


class Evaluator(Loop):
    """One step is one evaluation of the newest weights. A mean that reaches the target is confirmed with the same
    weights on fresh episodes; only the confirmation counts, and with it the evaluator's work is done."""

    role = Role.EVALUATOR
    restart = True
    spread = True
    most_of_time = MOST_OF_TIME

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
        filming: Callable[[int, Callable[[str], None]], Filming] | None = None,  # of a seed, and of what tells the user
    ) -> None:
        super().__init__()
        seed = current().seed
        self._envs = make_envs(seed)
        self._policy = make_policy(seed + 1)
        self._weights = weights
        self._metrics = metrics
        self._prepare_judging(metrics, episodes, every, target)
        self._losses = LossReport(self._envs, self._reporter, "lost_evaluations")
        if note is not None:
            self._reporter.note(note)
        self._filming = None if filming is None else filming(seed + 2, self._reporter.note)

    def _prepare_judging(self, metrics: Metrics, episodes: int, every: float, target: float | None) -> None:
        policy = current().policy
        self._named = {} if policy == MAIN else {"policy": policy}
        self._reporter = Reporter(metrics)
        self._episodes, self._every, self._target = episodes, every, target
        self._playing = Condition()  # the environments are used by one evaluation at a time
        self._version = NONE  # evaluated last
        self._confirmed: tuple[int, Columns] | None = None
        self._best: tuple[float, int, Columns] | None = None
        self._next = 0.0

    def _ready(self) -> bool:
        """Whether there is where to play."""
        return True

    def _load(self, version: int, weights: Columns) -> None:
        """Play with these from now on."""
        self._policy.load(weights)

    def step(self) -> bool:
        report = self._reporter
        with self._still(), self._at_work:
            self._at_work.wait_for(lambda: self._finishing, max(0.0, self._next - monotonic()), "the next evaluation")
        with self._still():
            found = None if self._finishing else retry(lambda: self._weights.wait(self._version))
        begun = monotonic()
        report.lap("waiting")
        if self._finishing or self._confirmed is not None:
            return self._end()
        if found is None:
            return True
        if not self._ready():
            self._next = begun + self._every
            return True
        try:
            self._evaluate(*found, give_up=lambda: self._finishing)
        except Interrupted:
            return self._end()
        spent = monotonic() - begun
        self._next = begun + max(self._every, spent / self.most_of_time)
        if self._confirmed is not None:
            return self._end()
        if self._filming is not None and self._filming.due():
            self._filming.film(*found, give_up=lambda: self._finishing)
            report.lap("filming")
        if report.due():
            report.flush()
        return True

    def evaluate_final(self, version: int, weights: Columns, seconds: float) -> bool:
        """Evaluate the weights with which the run ends, unless it was the last thing done; call `finish` before. False
        when it took longer than `seconds`, of the real clock: on a virtual one no time passes within a call."""
        deadline = time.monotonic() + seconds
        if version == self._version or not self._ready():
            return True
        try:
            self._evaluate(version, weights, give_up=lambda: time.monotonic() > deadline)
        except Interrupted:
            return False
        return True

    def confirmed(self) -> tuple[int, Columns] | None:
        """The version that reached the target, and its weights: those that follow are not always better."""
        return self._confirmed

    def best(self) -> tuple[float, int, Columns] | None:
        """The highest return of an evaluation, and the version and weights that it was of."""
        return self._best

    def state_dict(self, scope: Scope = "own") -> State:
        """What was evaluated last, and what has been confirmed; for all nodes together, the environments and generators
        that it plays with too."""
        version, weights = self._confirmed or (NONE, {})
        state = {"version": self._version, "confirmed": version, "weights": dict(weights)}
        if scope == "own":
            return state
        exact: State = {"next": self._next, "reporter": self._reporter.state_dict()}
        exact["best"] = None if self._best is None else list(self._best)
        if has_state(self._policy):
            exact["policy"] = state_of(self._policy)
        try:
            exact["environments"] = self._envs.state_dict()
        except NoState as reason:
            exact["why"] = str(reason)
        return state | {EXACT: exact}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._version = state["version"]
        self._confirmed = None if state["confirmed"] == NONE else (state["confirmed"], dict(state["weights"]))
        if (exact := state.get(EXACT)) is None:
            return
        self._next, self._best = exact["next"], None if exact["best"] is None else tuple(exact["best"])
        self._reporter.load_state_dict(exact["reporter"])
        if "policy" in exact:
            load_state(self._policy, exact["policy"])
        if "environments" in exact:
            self._envs.load_state_dict(exact["environments"])

    def close(self) -> None:
        self._envs.close()

    def _evaluate(self, version: int, weights: Columns, give_up: Callable[[], bool]) -> None:
        """Evaluate weights, confirm that they reach the target if they seem to, and hand the result to the metrics."""
        with self._playing:
            self._load(version, weights)
            returns = self._play(self._episodes, give_up)
            reached = False
            if self._target is not None and np.mean(returns) >= self._target:
                returns = self._play(max(CONFIRM, self._episodes), give_up)
                reached = bool(np.mean(returns) >= self._target)
            record: dict[str, Any] = {
                "eval_return": float(np.mean(returns)),
                "spread": float(np.std(returns)),
                "lowest": float(np.min(returns)),
                "highest": float(np.max(returns)),
                "episodes": len(returns),
                "version": number(version),
                "reached": reached,
                **self._named,
            }
            self._version = version
            if self._best is None or record["eval_return"] > self._best[0]:
                self._best = (record["eval_return"], version, weights)
            if reached and self._confirmed is None:  # before it is told: who hears of it may ask for the weights
                self._confirmed = (version, weights)
            self._reporter.values["eval_return"] = record["eval_return"]
            retry(lambda: self._metrics.evaluation(record))

    def _play(self, episodes: int, give_up: Callable[[], bool]) -> list[float]:
        returns = evaluate(self._envs, self._policy, episodes, give_up)
        self._losses.tell()
        self._reporter.lap("evaluating")
        return returns
