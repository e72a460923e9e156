"""What a `Stateful` saves: everything that changes while it learns, and nothing is left out without a word."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from shoal.errors import UserError
from shoal.state import Stateful


@dataclass(frozen=True)
class Config:
    rate: float = 0.5


@dataclass
class Changing:
    count: int = 0


class Learner(Stateful):
    not_state = ("log",)

    def __init__(self) -> None:
        self.cfg, self.name, self.peers, self.device = Config(), "mine", None, torch.device("cpu")
        self.space, self.shapes, self.law = spaces.Discrete(2), (1, 2), np.tanh.__class__
        self.log: list[int] = []
        self.updates, self.share, self.told, self.scale = 0, 0.25, False, np.float32(1.0)
        self.moving = torch.zeros(2)


def test_numbers_are_saved_and_come_back_as_they_were() -> None:
    first = Learner()
    first.updates, first.share, first.told, first.scale = 7, 0.125, True, np.float32(2.0)
    first.moving += 1.0
    state = first.state_dict()
    assert state.keys() == {"updates", "share", "told", "scale", "moving"}
    first.updates += 1
    second = Learner()
    second.load_state_dict(state)
    assert (second.updates, second.share, second.told, second.scale) == (7, 0.125, True, 2.0)
    assert second.moving.tolist() == [1.0, 1.0]
    assert type(second.updates) is int


def test_a_number_that_was_saved_as_a_tensor_comes_back_as_a_number() -> None:
    learner = Learner()
    learner.load_state_dict(learner.state_dict() | {"updates": torch.tensor(9)})
    assert (learner.updates, type(learner.updates)) == (9, int)


@pytest.mark.parametrize("part", [[1.0], {"a": 1}, {1}, Changing(), object()])
def test_what_nobody_can_judge_is_refused_with_the_remedy(part: Any) -> None:
    learner = Learner()
    learner.seen = part  # type: ignore[attr-defined]
    with pytest.raises(UserError, match=r'Learner\.seen is a .*not_state = \("seen",\)'):
        learner.state_dict()
