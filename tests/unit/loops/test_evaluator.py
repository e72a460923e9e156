"""The numbers on which stop rule, confirmation and every curve rest, exactly."""

from __future__ import annotations

import threading
from typing import Any, cast

import numpy as np
import pytest
from scripted import RememberingPolicy, ScriptedEnvs, rounds_of

from shoal.loops.evaluator import CONFIRM, MOST_OF_TIME, Evaluator, Interrupted, evaluate
from shoal.services.metrics import Metrics
from shoal.services.weights import WeightStore
from shoal.sync import monotonic
from shoal.versions import make_version

EPISODES = 2


class Setup:
    """An evaluator of two environments, and what is around it."""

    def __init__(self, *returns: float, target: float | None = None, **envs: Any) -> None:
        self.envs = ScriptedEnvs(rounds_of(*returns, count=EPISODES), **envs)
        self.policy, self.weights, self.metrics = RememberingPolicy(), WeightStore(), Metrics()
        self.evaluator = Evaluator(
            lambda seed: cast(Any, self.envs),
            lambda seed: cast(Any, self.policy),
            self.weights,
            self.metrics,
            episodes=EPISODES,
            every=0.0,
            target=target,
        )
        self.evaluator._every = 0.0

    def publish(self, version: int) -> None:
        self.weights.publish({"w": np.array([version], np.float32)}, make_version(0, version))

    def step(self, version: int) -> bool:
        self.publish(version)
        self.evaluator._next = 0.0
        return self.evaluator.step()

    def records(self) -> list[dict[str, Any]]:
        kept = ("eval_return", "spread", "episodes", "version", "reached")
        return [{name: record[name] for name in kept} for record in self.metrics.snapshot()["evaluations"]]


def test_an_episode_is_worth_its_own_rewards_and_nothing_after_its_end() -> None:
    envs = ScriptedEnvs([[[1.0], [1000.0] * 9], [[2.0, 3.0, 4.0], [1000.0]], [[10.0] * 6, [1000.0]]])
    assert evaluate(cast(Any, envs), cast(Any, RememberingPolicy()), 3) == [1.0, 9.0, 60.0]


def test_every_environment_plays_whole_rounds_and_no_episode_too_many_counts() -> None:
    envs = ScriptedEnvs([[[1.0]], [[2.0, 2.0, 2.0]]])
    assert evaluate(cast(Any, envs), cast(Any, RememberingPolicy()), 5) == [1.0, 6.0, 1.0, 6.0, 1.0]


def test_an_evaluation_that_is_given_up_has_no_result() -> None:
    envs = ScriptedEnvs([[[1.0] * 10]])
    with pytest.raises(Interrupted):
        evaluate(cast(Any, envs), cast(Any, RememberingPolicy()), 1, lambda: envs.steps == 4)
    assert envs.steps == 4


def test_a_confirmation_that_fails_is_what_is_told_and_nothing_is_reached() -> None:
    confirming = CONFIRM // EPISODES
    setup = Setup(100.0, *[99.0] * confirming, 7.0, target=100.0)
    assert setup.step(1) is True
    assert setup.evaluator.confirmed() is None
    assert setup.step(2) is True  # and it goes on with what comes next
    assert setup.records() == [
        {"eval_return": 99.0, "spread": 0.0, "episodes": CONFIRM, "version": 1, "reached": False},
        {"eval_return": 7.0, "spread": 0.0, "episodes": EPISODES, "version": 2, "reached": False},
    ]


def test_what_is_confirmed_is_told_of_fresh_episodes_and_its_weights_are_kept() -> None:
    confirming = CONFIRM // EPISODES
    setup = Setup(50.0, 100.0, *[104.0] * confirming, target=100.0)
    assert setup.step(1) is True
    assert setup.step(2) is False  # its work is done: the last evaluation of a run is the confirmed one
    setup.publish(3)
    assert setup.evaluator.step() is False
    confirmed = setup.evaluator.confirmed()
    assert confirmed is not None
    assert confirmed[0] == make_version(0, 2)
    assert confirmed[1]["w"] == [2.0]
    assert setup.records()[1:] == [
        {"eval_return": 104.0, "spread": 0.0, "episodes": CONFIRM, "version": 2, "reached": True}
    ]


def test_a_confirmation_has_no_fewer_episodes_than_an_evaluation() -> None:
    setup = Setup(100.0, target=100.0)
    setup.evaluator._episodes = CONFIRM + 10
    setup.step(1)
    assert [record["episodes"] for record in setup.records()] == [CONFIRM + 10]


def test_without_a_target_nothing_is_confirmed() -> None:
    setup = Setup(1e6)
    setup.step(1)
    assert [record["reached"] for record in setup.records()] == [False]


def test_the_final_weights_are_evaluated_unless_they_were_the_last() -> None:
    setup = Setup(10.0, 20.0)
    setup.step(4)
    assert setup.evaluator.evaluate_final(make_version(0, 4), {"w": np.array([4.0])}, 10.0)
    assert [record["version"] for record in setup.records()] == [4]
    assert setup.evaluator.evaluate_final(make_version(0, 5), {"w": np.array([5.0])}, 10.0)
    assert [(record["version"], record["eval_return"]) for record in setup.records()] == [(4, 10.0), (5, 20.0)]
    assert setup.policy.loaded == [4.0, 5.0]


def test_a_final_evaluation_that_takes_too_long_leaves_no_number() -> None:
    setup = Setup(10.0)
    assert not setup.evaluator.evaluate_final(make_version(0, 1), {"w": np.array([1.0])}, -1.0)
    assert setup.records() == []


def test_an_evaluator_that_is_asked_to_finish_gives_its_evaluation_up() -> None:
    setup = Setup(*[10.0] * 9, at_step=lambda: setup.evaluator.finish())
    assert setup.step(1) is False
    assert setup.envs.steps == 1
    assert setup.records() == []


def test_an_evaluator_that_waits_for_its_next_turn_finishes_at_once() -> None:
    setup = Setup(10.0)
    setup.step(1)
    setup.evaluator._next = monotonic() + 1000.0
    ended: list[bool] = []
    thread = threading.Thread(target=lambda: ended.append(setup.evaluator.step()))
    thread.start()
    setup.evaluator.finish()
    thread.join(10.0)
    assert ended == [False]


def test_what_was_evaluated_and_confirmed_goes_on_after_a_restart() -> None:
    confirming = CONFIRM // EPISODES
    setup = Setup(100.0, *[104.0] * confirming, target=100.0)
    setup.step(3)
    again = Setup(1.0, target=100.0)
    again.evaluator.load_state_dict(setup.evaluator.state_dict())
    confirmed = again.evaluator.confirmed()
    assert confirmed is not None
    assert (confirmed[0], float(confirmed[1]["w"][0])) == (make_version(0, 3), 3.0)
    assert again.evaluator.evaluate_final(make_version(0, 3), {}, 10.0)
    assert again.records() == []
    fresh = Setup(1.0)
    fresh.evaluator.load_state_dict(Setup(1.0).evaluator.state_dict())
    assert fresh.evaluator.confirmed() is None


def test_a_record_tells_the_spread_the_lowest_and_the_highest_return() -> None:
    setup = Setup()
    setup.envs = ScriptedEnvs([[[2.0]], [[1.0]], [[9.0]]])
    returns = evaluate(cast(Any, setup.envs), cast(Any, setup.policy), 3)
    assert returns == [2.0, 1.0, 9.0]
    setup.evaluator._envs, setup.evaluator._episodes = cast(Any, setup.envs), 3
    setup.step(1)
    (record,) = setup.metrics.snapshot()["evaluations"]
    assert (record["lowest"], record["highest"], record["eval_return"]) == (1.0, 9.0, 4.0)
    assert record["spread"] == pytest.approx((38.0 / 3) ** 0.5)


def test_the_best_evaluation_is_kept_with_its_weights() -> None:
    setup = Setup(5.0, 8.0, 8.0, 6.0)
    assert setup.evaluator.best() is None
    for version in (1, 2, 3, 4):
        setup.step(version)
    best = setup.evaluator.best()
    assert best is not None
    assert (best[0], best[1], float(best[2]["w"][0])) == (8.0, make_version(0, 2), 2.0)


def test_evaluating_takes_no_more_than_its_share_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr("shoal.loops.evaluator.monotonic", lambda: clock[0])

    def play() -> None:
        clock[0] += 3.0

    setup = Setup(10.0, 10.0, at_step=play)  # an episode of two steps: 6 seconds
    setup.step(1)
    assert setup.evaluator._next == pytest.approx(100.0 + 6.0 / MOST_OF_TIME)
    setup.evaluator._every = 1000.0
    clock[0] = 200.0
    setup.step(2)
    assert setup.evaluator._next == pytest.approx(1200.0)


def test_a_policy_is_told_where_an_episode_begins() -> None:
    class Watching(RememberingPolicy):
        def __init__(self) -> None:
            super().__init__()
            self.firsts: list[list[bool]] = []

        def act(self, observation: Any, state: Any, first: Any) -> Any:
            self.firsts.append(first.tolist())
            return super().act(observation, state, first)

    watching = Watching()
    evaluate(cast(Any, ScriptedEnvs([[[1.0], [1.0, 1.0]], [[1.0] * 4]])), cast(Any, watching), 2)
    # of the first environment the second row is the one that resets: the episode begins with the third
    assert watching.firsts == [[True, True], [False, False], [True, False], [False, False]]


def test_what_was_confirmed_first_stays_confirmed() -> None:
    confirming = CONFIRM // EPISODES
    setup = Setup(*[104.0] * (1 + confirming), *[110.0] * (1 + confirming), target=100.0)
    assert setup.step(1) is False
    assert setup.evaluator.evaluate_final(make_version(0, 2), {"w": np.array([2.0])}, 10.0)
    assert [record["reached"] for record in setup.records()] == [True, True]
    confirmed = setup.evaluator.confirmed()
    assert confirmed is not None
    assert confirmed[0] == make_version(0, 1)


def test_what_a_policy_remembers_is_zero_where_an_episode_begins() -> None:
    class Counting(RememberingPolicy):
        def __init__(self) -> None:
            super().__init__()
            self.seen: list[list[float]] = []

        def initial_state(self, count: int) -> dict[str, Any]:
            return {"rows": np.zeros(count), "last_reward": np.zeros(count, np.float32)}

        def act(self, observation: Any, state: Any, first: Any) -> Any:
            self.seen.append([*state["rows"], *state["last_reward"]])
            return np.zeros(len(first), np.int64), {**state, "rows": state["rows"] + 1}, {}

    counting = Counting()
    evaluate(cast(Any, ScriptedEnvs([[[7.0], [8.0, 8.0]], [[5.0] * 4]])), cast(Any, counting), 2)
    assert counting.seen == [[0, 0, 0, 0], [1, 1, 7, 5], [0, 2, 0, 5], [1, 3, 8, 5]]
