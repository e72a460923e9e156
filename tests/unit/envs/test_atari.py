"""The Atari protocol, frame by frame beside Gymnasium's AtariPreprocessing and FrameStackObservation."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest

from shoal import envs
from shoal.acting import Stacker
from shoal.envs.atari import NativeGames, Protocol
from shoal.envs.lives import ENDED_AT_RESET, LIFE_LOST, RESET_REWARD
from shoal.errors import UserError
from shoal.types import Array

ale_py = pytest.importorskip("ale_py")
pytest.importorskip("cv2")

STEPS = 330  # over several lives, and in Breakout the end of a game
PLAIN = {"noop_max": 0}  # nothing that is drawn at random


class Reference:
    """A game as Gymnasium's wrappers play it, with stacks."""

    def __init__(self, name: str, cap: int = 108_000) -> None:
        game = gymnasium.make(name, frameskip=1, repeat_action_probability=0.0, max_num_frames_per_episode=cap)
        game = gymnasium.wrappers.AtariPreprocessing(game, noop_max=0, frame_skip=4)
        self.env = gymnasium.wrappers.FrameStackObservation(game, 4)
        self.meanings = game.unwrapped.get_action_meanings()

    def reset(self) -> Array:
        return self.env.reset(seed=3)[0]

    def step(self, action: int) -> tuple[Array, float, bool, int]:
        observation, reward, terminated, _, info = self.env.step(action)
        return observation, float(reward), terminated, info["lives"]


@pytest.mark.parametrize("vectorizer", ["native", "sync"])
@pytest.mark.parametrize(("name", "cap"), [("Pong", 501), ("Breakout", 108_000), ("SpaceInvaders", 1_000)])
def test_whole_games_are_those_of_gymnasium_frame_by_frame(name: str, cap: int, vectorizer: Any) -> None:
    options = {**PLAIN, "use_fire_reset": False, "episodic_life": False, "max_num_frames_per_episode": cap}
    vector = envs.make(f"{name}NoFrameskip-v4", 1, seed=1, options=options, vectorizer=vectorizer)
    reference, stacker = Reference(f"{name}NoFrameskip-v4", cap), Stacker(vector.stacks)
    random = np.random.default_rng(0)
    first, ends, returned, total = np.ones(1, np.bool_), 0, [], 0.0
    observation, expected, over = vector.reset(), reference.reset(), False
    for _ in range(STEPS):
        assert np.array_equal(stacker.push(observation, first)[0], expected)
        action = random.integers(vector.action_space.n)  # type: ignore[attr-defined]
        outcome = vector.step(np.array([action]))
        observation, first = outcome.observation, ~outcome.valid
        if over:
            expected, over = reference.reset(), False
            assert first[0]
            continue
        expected, reward, terminated, _ = reference.step(int(action))
        total += reward
        assert (outcome.reward[0], outcome.terminated[0]) == (reward, terminated)
        if over := bool(outcome.terminated[0] | outcome.truncated[0]):
            ends += 1
            returned.append(total)
            total = 0.0
    vector.close()
    assert ends >= 1
    assert [episode.return_ for episode in vector.episodes()] == returned


@pytest.mark.parametrize("vectorizer", ["native", "sync", "async"])
@pytest.mark.parametrize("name", ["Breakout", "SpaceInvaders"])
def test_a_lost_life_ends_the_learners_episode_and_the_game_goes_on(name: str, vectorizer: Any) -> None:
    vector = envs.make(f"{name}NoFrameskip-v4", 1, seed=1, options=PLAIN, vectorizer=vectorizer)
    reference, stacker = Reference(f"{name}NoFrameskip-v4"), Stacker(vector.stacks)
    fire = reference.meanings.index("FIRE")
    random = np.random.default_rng(0)
    observation = vector.reset()
    reference.reset()
    reference.env.unwrapped.ale.act(ale_py.Action.FIRE)  # type: ignore[attr-defined]
    first, lives, lost, over = np.ones(1, np.bool_), reference.env.unwrapped.ale.lives(), False, False  # type: ignore[attr-defined]
    total, length, deaths = 0.0, 0, 0
    expected = np.stack([observation[0]] * 4)  # after FIRE, which Gymnasium's wrapper does not press
    for _ in range(STEPS):
        assert np.array_equal(stacker.push(observation, first)[0], expected)
        action = int(random.integers(vector.action_space.n))  # type: ignore[attr-defined]
        outcome = vector.step(np.array([action]))
        observation, first = outcome.observation, ~outcome.valid
        assert first[0] == (lost or over)
        if over:
            break
        seen, reward, terminated, left = reference.step(fire if lost else action)
        total, length = total + reward, length + 1
        assert outcome.reward[0] == (0.0 if lost else reward)
        expected = np.stack([seen[-1]] * 4) if lost else np.concatenate([expected[1:], seen[-1:]])
        lost = not lost and 0 < left < lives and not terminated
        deaths += lost
        over = terminated
        assert outcome.terminated[0] == (lost or terminated)
        lives = left
    vector.close()
    assert deaths >= 1
    assert [(episode.return_, episode.length) for episode in vector.episodes()] == [(total, length)] * over
    assert over or name != "Breakout"


@pytest.mark.parametrize(
    ("name", "sticky"), [("ALE/Breakout-v5", 0.25), ("BreakoutNoFrameskip-v4", 0.0), ("Breakout-v4", 0.0)]
)
def test_the_ids_differ_in_sticky_actions_alone(name: str, sticky: float) -> None:
    from shoal.envs import atari, names

    protocol = atari.protocol_of(names.resolve(name), {})  # type: ignore[arg-type]
    assert protocol == atari.Protocol(repeat_action_probability=sticky)
    found = envs.describe(name)
    assert (found.kind, found.max_episode_steps, found.stacks) == ("atari", 27_000, {"observation": 4})
    assert found.observation_space.shape == (4, 84, 84)
    assert found.observation_bytes == 84 * 84


def test_every_vectorizer_gives_the_same_observations_and_the_evaluator_plays_whole_games() -> None:
    shapes = set()
    for vectorizer in ("native", "sync", "async"):
        vector = envs.make("ALE/Pong-v5", 2, seed=0, vectorizer=vectorizer)  # type: ignore[arg-type]
        shapes.add((vector.reset().shape, str(vector.observation_space), *vector.stacks.items()))
        vector.close()
    assert shapes == {((2, 84, 84), "Box(0, 255, (84, 84), uint8)", ("observation", 4))}
    whole = {"episodic_life": False, "fire_each_life": True}
    assert envs.describe("ALE/Pong-v5").for_evaluation().options == whole
    without = envs.describe("ALE/Pong-v5", {"episodic_life": False})  # such a policy has to press FIRE itself
    assert without.for_evaluation().options == {"episodic_life": False}
    own = envs.describe("ALE/Pong-v5", evaluation_options={"episodic_life": True, "noop_max": 5})
    assert own.for_evaluation().options == {"episodic_life": True, "noop_max": 5}


@pytest.mark.parametrize("vectorizer", ["native", "sync"])
@pytest.mark.parametrize("fires", [True, False])
def test_who_is_used_to_fire_after_a_lost_life_has_it_in_whole_games_too(vectorizer: Any, fires: bool) -> None:
    """Breakout's next ball waits for FIRE: a policy that never presses it would play on without one until it is cut."""
    options = {"episodic_life": False, "fire_each_life": fires}
    vector = envs.make("BreakoutNoFrameskip-v4", 1, seed=1, options=options, vectorizer=vectorizer)
    vector.reset()
    right = np.array([2])
    ended = [bool(vector.step(right).terminated[0]) for _ in range(600)]
    vector.close()
    assert any(ended) == fires
    assert [episode.length for episode in vector.episodes()][:1] == ([ended.index(True) + 1] if fires else [])


def test_a_limit_is_the_games_own_cap_so_that_no_other_game_is_cut() -> None:
    vector = envs.make("PongNoFrameskip-v4", 2, seed=0, limit=20)
    vector.reset()
    ends = [vector.step(np.zeros(2, np.int64)).truncated.tolist() for _ in range(20)]
    vector.close()
    assert ends == [[False, False]] * 19 + [[True, True]]


def test_all_actions_and_colours_can_be_asked_for() -> None:
    options = {"full_action_space": True, "grayscale": False, "img_height": 40, "img_width": 60, "stack_num": 2}
    for vectorizer in ("native", "sync"):
        vector = envs.make("ALE/Pong-v5", 1, seed=0, options=options, vectorizer=vectorizer)  # type: ignore[arg-type]
        assert vector.reset().shape == (1, 40, 60, 3)
        assert vector.action_space.n == 18  # type: ignore[attr-defined]
        assert vector.stacks == {"observation": 2}
        vector.close()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"frame_skip": 2}, "ALE/Pong-v5 has no option 'frame_skip'. Did you mean frameskip?"),
        ({"reward_clipping": True}, "clip what the learner sees with --reward-clip"),
        ({"frameskip": 0}, "frameskip=0"),
        ({"repeat_action_probability": 2.0}, "repeat_action_probability from 0 to 1"),
        ({"episodic_life": "no"}, "give True or False"),
    ],
)
def test_options_that_cannot_be_are_one_sentence(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError) as error:
        envs.describe("ALE/Pong-v5", options)
    assert sentence in str(error.value)


def test_a_misspelt_game_is_suggested() -> None:
    with pytest.raises(UserError, match="Did you mean Breakout"):
        envs.describe("BreakoutNoFrameskp-v4")


class Scripted:
    """A vector of two games whose lives, rewards and ends are what the test says."""

    def __init__(self, *rows: tuple[list[int], list[float], list[bool]]) -> None:
        self.rows, self.actions = list(rows), list[Any]()

    def step(self, actions: Any) -> Any:
        self.actions.append(list(actions))
        lives, reward, ended = self.rows.pop(0)
        none = np.zeros(2, np.bool_)
        return np.zeros((2, 1, 4, 4), np.uint8), np.array(reward), np.array(ended), none, {"lives": np.array(lives)}


def test_a_life_is_lost_once_and_the_row_after_it_begins_the_next() -> None:
    games: Any = object.__new__(NativeGames)
    games.num_envs, games._protocol, games._next_life = 2, Protocol(), 1
    games._lives, games._lost = np.array([3, 2]), np.zeros(2, np.bool_)
    games.env = Scripted(
        ([2, 2], [1.0, 1.0], [False, False]),  # the first game loses a life
        ([1, 1], [5.0, 1.0], [False, False]),  # and at once another, in the row that begins the next: no second end
        ([0, 1], [1.0, 1.0], [False, False]),  # what has no lives left and goes on is no end either
        ([0, 1], [1.0, 1.0], [True, False]),
    )
    found = [games.step(np.array([7, 8])) for _ in range(4)]
    assert games.env.actions == [[7, 8], [1, 8], [7, 1], [7, 8]], "FIRE, whatever was chosen"
    assert [row[2].tolist() for row in found] == [[True, False], [False, True], [False, False], [True, False]]
    told = [{name: value.tolist() for name, value in row[4].items()} for row in found]
    assert told == [
        {LIFE_LOST: [True, False]},
        {RESET_REWARD: [5.0, 0.0], ENDED_AT_RESET: [False, False], LIFE_LOST: [False, True]},
        {RESET_REWARD: [0.0, 1.0], ENDED_AT_RESET: [False, False]},
        {},
    ]
