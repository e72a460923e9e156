"""Encoders: every supported observation space becomes one vector of features."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from shoal import tree
from shoal.errors import UserError
from shoal.nets.actor_critic import ActorCritic
from shoal.nets.encoder import make_encoder
from shoal.nets.images import ImageEncoder, ResidualEncoder, compute_in

SPACES: dict[str, spaces.Space[Any]] = {
    "vector": spaces.Box(-1.0, 1.0, (3,), np.float32),
    "scalar": spaces.Box(-1.0, 1.0, (), np.float32),
    "matrix": spaces.Box(-1.0, 1.0, (2, 3), np.float32),
    "bytes": spaces.Box(0, 255, (128,), np.uint8),
    "doubles": spaces.Box(-1.0, 1.0, (3,), np.float64),
    "image": spaces.Box(0, 255, (40, 44, 3), np.uint8),
    "stacked frames": spaces.Box(0, 255, (4, 84, 84), np.uint8),
    "grey image": spaces.Box(0, 255, (36, 36), np.uint8),
    "grid": spaces.Box(0.0, 1.0, (10, 10, 4), np.float32),
    "discrete": spaces.Discrete(5, start=-2),
    "choices": spaces.MultiDiscrete([2, 3], start=[1, 5]),
    "table of choices": spaces.MultiDiscrete([[2, 3], [4, 2]]),
    "bits": spaces.MultiBinary(4),
    "stack of frames": spaces.Box(0, 255, (4, 36, 40), np.uint8),
    "stack of pictures": spaces.Box(0, 255, (2, 36, 40, 3), np.uint8),
    "pixels and numbers": spaces.Dict(
        camera=spaces.Box(0, 255, (4, 36, 36), np.uint8), arm=spaces.Box(-1.0, 1.0, (2,))
    ),
    "dict": spaces.Dict(position=spaces.Box(-1.0, 1.0, (3,)), camera=spaces.Box(0, 255, (36, 36, 3), np.uint8)),
    "tuple": spaces.Tuple((spaces.Discrete(3), spaces.Dict(x=spaces.MultiBinary(2), y=spaces.Discrete(2)))),
    "dict of numbers": spaces.Dict({"0": spaces.Discrete(2), "1": spaces.MultiBinary(3)}),
}


def samples(space: spaces.Space[Any], count: int) -> Any:
    space.seed(0)
    drawn = [space.sample() for _ in range(count)]
    return tree.map(lambda *leaves: torch.from_numpy(np.stack([np.asarray(leaf) for leaf in leaves])), *drawn)


@pytest.mark.parametrize("name", SPACES)
def test_every_supported_space_is_encoded_row_by_row(name: str) -> None:
    space = SPACES[name]
    encoder = make_encoder(space)
    observations = samples(space, 3)
    features = encoder(observations)
    assert features.shape == (3, encoder.size)
    assert features.dtype == torch.float32
    for row in range(3):
        alone = encoder(tree.map(lambda x, row=row: x[row : row + 1], observations))
        torch.testing.assert_close(alone[0], features[row])


@pytest.mark.parametrize("name", SPACES)
def test_an_actor_critic_takes_every_space_time_major(name: str) -> None:
    space = SPACES[name]
    network = ActorCritic(space, spaces.Discrete(2), hidden=(8,))
    rows = tree.map(lambda x: x.unflatten(0, (2, 3)), samples(space, 6))
    columns = tree.flatten(rows, "observation")
    parameters, values, _ = network(tree.nest(space, columns, "observation"), {}, torch.zeros(2, 3, dtype=torch.bool))
    assert parameters.shape == (2, 3, 2)
    assert values.shape == (2, 3)


def test_discrete_parts_become_one_hot_counted_from_their_start() -> None:
    found = make_encoder(spaces.Discrete(3, start=4))(torch.tensor([4, 6]))
    assert found.tolist() == [[1, 0, 0], [0, 0, 1]]
    found = make_encoder(spaces.MultiDiscrete([2, 3], start=[1, 5]))(torch.tensor([[1, 7], [2, 5]]))
    assert found.tolist() == [[1, 0, 0, 0, 1], [0, 1, 1, 0, 0]]


def test_bytes_are_scaled_to_one() -> None:
    found = make_encoder(spaces.Box(0, 255, (2,), np.uint8))(torch.tensor([[0, 255]], dtype=torch.uint8))
    assert found.tolist() == [[0.0, 1.0]]


def test_an_image_means_the_same_with_channels_first_and_last() -> None:
    first = ImageEncoder(spaces.Box(0, 255, (3, 40, 40), np.uint8))
    last = ImageEncoder(spaces.Box(0, 255, (40, 40, 3), np.uint8))
    last.load_state_dict(first.state_dict())
    image = torch.randint(0, 256, (2, 3, 40, 40), dtype=torch.uint8)
    torch.testing.assert_close(last(image.movedim(1, -1)), first(image))


def test_an_unsupported_space_is_refused_in_one_sentence() -> None:
    with pytest.raises(UserError, match="not supported"):
        make_encoder(spaces.Text(5))
    with pytest.raises(UserError, match="not supported"):
        ActorCritic(spaces.Discrete(2), spaces.MultiBinary(3))
    with pytest.raises(UserError, match="no activation 'gelu'"):
        ActorCritic(spaces.Discrete(2), spaces.Discrete(2), activation="gelu")


@pytest.mark.parametrize("shape", [(4, 84, 84), (84, 84, 3), (2, 3, 84, 84)])
def test_the_residual_network_is_that_of_impala(shape: tuple[int, ...]) -> None:
    space = spaces.Box(0, 255, shape, np.uint8)
    encoder = make_encoder(space, "resnet")
    assert isinstance(encoder, ResidualEncoder)
    assert encoder.size == 32 * 11 * 11  # 3,872 features (Espeholt 2018, figure 3, right)
    assert sum(isinstance(module, torch.nn.Conv2d) for module in encoder.modules()) == 15
    features = encoder(samples(space, 2))
    assert features.shape == (2, encoder.size)
    assert features.min() >= 0.0


def test_a_stack_of_pictures_is_their_channels_side_by_side() -> None:
    pictures = samples(spaces.Box(0, 255, (2, 36, 40, 3), np.uint8), 2)
    stack = ImageEncoder(spaces.Box(0, 255, (2, 36, 40, 3), np.uint8))
    flat = stack.pixels(pictures)
    assert flat.shape == (2, 6, 36, 40)
    torch.testing.assert_close(flat[:, 3:], pictures[:, 1].movedim(-1, 1).float() / 255.0)


@pytest.mark.parametrize("kind", ["nature", "resnet"])
def test_bfloat16_is_near_float32_which_it_gives_and_trains(kind: str) -> None:
    space = spaces.Box(0, 255, (4, 40, 40), np.uint8)
    torch.manual_seed(0)
    encoder, images = make_encoder(space, kind), samples(space, 2)
    exact = encoder(images)
    rounded = compute_in(encoder, "bfloat16")(images)
    assert rounded.dtype == torch.float32
    assert not torch.equal(rounded, exact)
    assert (rounded - exact).norm() < 0.05 * exact.norm()
    rounded.sum().backward()
    assert all(torch.isfinite(parameter.grad).all() for parameter in encoder.parameters())  # type: ignore[arg-type]
