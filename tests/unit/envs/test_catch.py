"""Catch: what is drawn is the game, and whoever follows the ball catches it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from shoal import envs
from shoal.types import Array


def column(picture: Array, rows: slice, size: int = 6) -> int:
    """In which column of the grid something is drawn."""
    found = np.nonzero(picture[rows].max(0))[0]
    return int(found.mean()) * size // 84


@pytest.mark.parametrize("vectorizer", ["native", "sync"])
def test_who_follows_the_ball_catches_it_and_who_flees_does_not(vectorizer: Any) -> None:
    for towards, expected in ((1, 1.0), (-1, -1.0)):
        vector = envs.make("shoal/Catch-v0", 3, seed=1, vectorizer=vectorizer)
        observation, balls = vector.reset(), np.zeros(3, np.int64)
        first = np.ones(3, np.bool_)
        for _ in range(60):
            seen = np.array(
                [
                    column(picture, slice(0, 14)) if begins else ball
                    for picture, begins, ball in zip(observation, first, balls)
                ]
            )
            balls = seen
            paddles = np.array([column(picture, slice(70, 84)) for picture in observation])
            aim = balls if towards > 0 else np.where(balls > 2, 0, 5)
            step = vector.step(np.sign(aim - paddles) + 1)
            observation, first = step.observation, ~step.valid
        returns = [episode.return_ for episode in vector.episodes()]
        assert set(returns) == {expected}
        assert len(returns) == 3 * 10
        assert observation.shape == (3, 84, 84)
        vector.close()


def test_in_the_task_of_memory_the_ball_is_drawn_once() -> None:
    vector = envs.make("shoal/CatchMemory-v0", 1, seed=0)
    pictures = [vector.reset(), *(vector.step(np.ones(1, np.int64)).observation for _ in range(5))]
    vector.close()
    assert [bool(picture[0, :70].any()) for picture in pictures] == [True, False, False, False, False, False]


def test_it_is_a_task_of_pixels_with_a_threshold_whose_frames_can_be_stacked() -> None:
    found = envs.describe("shoal/Catch-v0", stack=3)
    assert (found.kind, found.reward_threshold, found.stacks) == ("pixels", 0.9, {"observation": 3})
    assert found.observation_space.shape == (3, 84, 84)
    assert envs.describe("shoal/Catch-v0").stacks == {}
