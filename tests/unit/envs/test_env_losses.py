"""An environment that raises, or gives what it may not, costs its own episode, whichever vectorizer steps it."""

from __future__ import annotations

import re
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from shoal import envs
from shoal.acting import Recorder
from shoal.envs import EnvFault

NORMAL, RAISE, NAN, INFINITE, SHAPE, WORD, LEAVE = range(7)


class Faulty(gymnasium.Env[Any, Any]):
    """Observes (its seed, the time), gives 1 for each step, and does what the action says."""

    observation_space: ClassVar[Any] = spaces.Box(-1e9, 1e9, (2,), np.float32)
    action_space = spaces.Discrete(7)
    bad_resets = 0

    def __init__(self, length: int = 6) -> None:
        self.length, self.time, self.mark = length, 0, 0

    def see(self) -> Any:
        return np.array([self.mark, self.time], np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.mark, self.time = int(self.np_random.integers(1_000_000)), 0
        return self.see(), {}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self.time += 1
        reward: Any = 1.0
        seen = self.see()
        match int(action):
            case 1:
                raise ValueError("no such valve")
            case 2:
                seen = seen * np.nan
            case 3:
                reward = np.inf
            case 4:
                seen = seen[:1]
            case 5:
                reward = "much"
            case 6:
                raise SystemExit(3)
        return seen, reward, self.time == self.length, False, {}

    def state_dict(self) -> dict[str, Any]:
        return {"time": self.time, "mark": self.mark}

    def load_state_dict(self, state: Any) -> None:
        self.time, self.mark = state["time"], state["mark"]


class Nested(Faulty):
    observation_space: ClassVar[Any] = spaces.Dict({"where": Faulty.observation_space})

    def see(self) -> Any:
        return {"where": super().see()}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self.time += 1
        seen = self.see()
        if action == NAN:
            seen["where"][1] = np.nan
        elif action == SHAPE:
            seen["where"] = seen["where"][:1]
        return seen, 1.0, False, False, {}


class Wide(Faulty):
    """Its numbers are finite where they are made, and not as float32."""

    observation_space: ClassVar[Any] = spaces.Box(-np.inf, np.inf, (2,), np.float64)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self.time += 1
        return np.array([1e39 if action == NAN else 1.0, self.time]), 1.0, False, False, {}


class BadResets(Faulty):
    """Every second episode begins with what is no observation."""

    resets = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.resets += 1
        if self.resets > 1:
            raise RuntimeError("no level")
        return super().reset(seed=seed)


class NeverAgain(Faulty):
    made = 0

    def __init__(self) -> None:
        super().__init__()
        type(self).made += 1
        self.number = type(self).made

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        if self.number > 2:
            raise RuntimeError("no licence")
        return super().reset(seed=seed)


def made(kind: Any = Faulty, count: int = 3, vectorizer: Any = "sync", seed: int = 0) -> envs.Envs:
    vector = envs.make(kind, count, seed=seed, vectorizer=vectorizer, replaces=True)
    vector.reset()
    return vector


VECTORIZERS = pytest.mark.parametrize("vectorizer", ["sync", "async"])


@VECTORIZERS
@pytest.mark.parametrize(
    ("action", "why"),
    [
        (RAISE, r"number 1 raised ValueError: no such valve \(test_env_losses.py, line \d+\)"),
        (NAN, r"number 1 is at fault: its 'observation' is nan at \[0\]"),
        (INFINITE, "number 1 is at fault: its 'reward' is inf"),
        (SHAPE, r"number 1 is at fault: 'observation' has shape \(1,\), but its space says \(2,\)"),
        (WORD, "number 1 is at fault: 'reward' is 'much', but must be one number"),
        (LEAVE, r"number 1 raised SystemExit: 3 \(test_env_losses.py, line \d+\)"),
    ],
)
def test_a_fault_costs_that_environments_episode_and_no_other(vectorizer: str, action: int, why: str) -> None:
    vector = made(vectorizer=vectorizer)
    for _ in range(2):
        before = vector.step(np.zeros(3, np.int64))
    step = vector.step(np.array([NORMAL, action, NORMAL]))
    assert step.valid.tolist() == [True, False, True]
    assert step.reward.tolist() == [1.0, 0.0, 1.0]
    assert step.observation[:, 1].tolist() == [3.0, 0.0, 3.0]
    assert step.observation[1, 0] != before.observation[1, 0]  # another episode, and not the same again
    assert not (step.terminated | step.truncated).any()
    assert [(episode.return_, episode.length) for episode in vector.episodes()] == [(2.0, 2)]
    (said,) = vector.losses()
    assert re.search(f"{why}; it was replaced and its episode truncated$", said), said
    rows = [vector.step(np.zeros(3, np.int64)) for _ in range(6)]
    assert rows[2].terminated.tolist() == [True, False, True]
    assert rows[5].terminated.tolist() == [False, True, False]
    assert vector.losses() == []
    vector.close()


@VECTORIZERS
@pytest.mark.parametrize(
    ("kind", "action", "why"),
    [
        (Nested, NAN, "its 'observation/where' is nan at [1]"),
        (Nested, SHAPE, "'observation/where' has shape (1,), but its space says (2,)"),
        (Wide, NAN, "its 'observation' is 1e+39 at [0]"),
    ],
)
def test_so_does_a_fault_in_a_nested_or_a_wide_observation(vectorizer: str, kind: Any, action: int, why: str) -> None:
    vector = made(kind, 2, vectorizer)
    vector.step(np.zeros(2, np.int64))
    assert vector.step(np.array([NORMAL, action])).valid.tolist() == [True, False]
    assert why in vector.losses()[0]
    vector.close()


@VECTORIZERS
def test_so_does_a_reset_that_raises(vectorizer: str) -> None:
    vector = made(BadResets, 1, vectorizer)
    rows = [vector.step(np.zeros(1, np.int64)) for _ in range(14)]
    assert [row.valid.item() for row in rows] == ([True] * 6 + [False]) * 2
    assert [(episode.return_, episode.length) for episode in vector.episodes()] == [(6.0, 6)] * 2
    assert len(vector.losses()) == 2
    vector.close()


@VECTORIZERS
def test_an_environment_that_only_raises_is_given_up_with_one_sentence(vectorizer: str) -> None:
    vector = made(count=2, vectorizer=vectorizer)
    for _ in range(3):
        assert vector.step(np.array([NORMAL, RAISE])).valid.tolist() == [True, False]
    with pytest.raises(EnvFault, match=r"number 1 raised ValueError.*, 4 times in a row\.$"):
        vector.step(np.array([NORMAL, RAISE]))
    vector.close()


def test_an_environment_that_cannot_begin_again_is_given_up() -> None:
    vector = made(NeverAgain, 2)
    with pytest.raises(EnvFault, match=r"number 0 raised RuntimeError: no licence.*, 4 times in a row\.$"):
        vector.step(np.array([RAISE, NORMAL]))


@VECTORIZERS
def test_an_environment_that_works_in_between_may_be_lost_any_number_of_times(vectorizer: str) -> None:
    vector = made(count=1, vectorizer=vectorizer)
    for _ in range(5):
        vector.step(np.array([RAISE]))
        assert vector.step(np.array([NORMAL])).reward.tolist() == [1.0]
    assert len(vector.losses()) == 5
    vector.close()


class Nothing:
    """A policy that does what it is told."""

    def __init__(self, actions: Any) -> None:
        self.actions = iter(actions)

    def initial_state(self, count: int) -> dict[str, Any]:
        return {}

    def act(self, observation: Any, state: Any, first: Any) -> Any:
        return next(self.actions), {}, {}


def test_no_transition_leads_from_a_lost_episode_into_another() -> None:
    vector = made(count=4)
    rng = np.random.default_rng(0)
    actions = rng.choice([NORMAL, RAISE, NAN, SHAPE], (62, 4), p=[0.7, 0.1, 0.1, 0.1])
    actions[1:][actions[:-1] != NORMAL] = NORMAL
    blocks: list[Any] = []
    recorder = Recorder(Nothing(actions), 4, 60, lambda block: blocks.append(dict(block)))  # type: ignore[arg-type]
    observation = vector.reset()
    for _ in range(61):  # a block is sent when the row after it begins
        outcome = vector.step(recorder.act(observation))
        recorder.result(outcome)
        observation = outcome.observation
    seen, valid, terminated = (np.asarray(blocks[0][name]) for name in ("observation", "valid", "terminated"))
    follows = (seen[1:, :, 0] == seen[:-1, :, 0]) & (seen[1:, :, 1] == seen[:-1, :, 1] + 1)
    assert np.array_equal(follows, valid[:-1])
    assert not (terminated & ~valid).any()
    assert (~valid).sum() > len(vector.losses()) > 10


def played(vector: envs.Envs, actions: Any) -> list[Any]:
    return [vector.step(row).observation.copy() for row in actions]


def test_what_takes_a_lost_ones_place_is_the_same_in_every_repetition_and_after_a_resume() -> None:
    actions = np.array([[NORMAL, RAISE], [NORMAL, NORMAL], [NAN, NORMAL], [NORMAL, SHAPE], [NORMAL, NORMAL]])
    one, other = made(count=2), made(count=2)
    first = played(one, actions)
    assert np.array_equal(first, played(other, actions))
    other = made(count=2)
    played(other, actions[:2])
    resumed = made(count=2, seed=9)
    resumed.load_state_dict(other.state_dict())
    assert np.array_equal(first[2:], played(resumed, actions[2:]))
