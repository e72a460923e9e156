"""One definition of an image: what is stacked, what gets convolutions and what kind an environment is agree on it."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from shoal import envs
from shoal.envs import check
from shoal.errors import UserError
from shoal.nets.encoder import VectorEncoder, make_encoder
from shoal.pixels import is_image

FLOAT, BYTE = np.float32, np.uint8


class Shown(gymnasium.Env[object, int]):
    """An environment of nothing but its observation's space."""

    action_space = spaces.Discrete(2)

    def __init__(self, shape: tuple[int, ...], dtype: str) -> None:
        self.observation_space = spaces.Box(0, 255, shape, np.dtype(dtype).type)

    def reset(self, *, seed: int | None = None, options: object = None) -> tuple[object, dict[str, object]]:
        return self.observation_space.sample(), {}

    def step(self, action: int) -> tuple[object, float, bool, bool, dict[str, object]]:
        return self.observation_space.sample(), 0.0, False, False, {}


@pytest.mark.parametrize(
    ("shape", "dtype", "image"),
    [
        ((10, 10), BYTE, True),
        ((84, 84), BYTE, True),
        ((4, 40), BYTE, False),
        ((40, 40), FLOAT, False),
        ((10, 10, 4), FLOAT, True),
        ((3, 20, 20), FLOAT, True),
        ((20, 20, 3), BYTE, True),
        ((20, 4, 3), FLOAT, False),
        ((100,), BYTE, False),
    ],
    ids=str,
)
def test_stacks_convolutions_and_kinds_go_by_one_definition(
    shape: tuple[int, ...], dtype: type[np.generic], image: bool
) -> None:
    spec = envs.describe(lambda: Shown(shape, np.dtype(dtype).name), apart=False)
    space = spec.observation_space
    assert is_image(space) == image
    assert (spec.kind == "pixels") == image
    assert isinstance(make_encoder(space), VectorEncoder) != image
    stacked = check.stacked_space(space, 4)
    assert (stacked.shape, stacked.dtype) == ((4, *shape) if image else shape, space.dtype)
    assert is_image(stacked) == image, "a stack of images is one, and what is none does not become one"
    assert isinstance(make_encoder(stacked), VectorEncoder) != image
    names = {"observation": 4} if image else {}
    assert check.image_stacks(space, 4) == check.image_stacks(stacked, 4, stacked=True) == names


def test_what_is_no_box_is_no_image() -> None:
    assert not any(map(is_image, (spaces.MultiBinary((10, 10)), spaces.MultiDiscrete(np.full((10, 10), 3)))))


def test_stacks_are_not_stacked() -> None:
    with pytest.raises(UserError, match=r"--frame-stack 2 cannot stack .* stacks already: leave it out"):
        check.stacked_space(spaces.Box(0, 255, (4, 20, 20, 3), np.uint8), 2)
