"""Environments written in torch: step by step what Gymnasium's are, in either autoreset, and with their state."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from shoal import envs
from shoal.envs.tensor_vector import Autoreset
from shoal.envs.tensors import TensorEnvs
from shoal.envs.torch_tasks.cartpole import CartPoles
from shoal.envs.torch_tasks.catch import Catches
from shoal.envs.torch_tasks.pendulum import Pendulums
from shoal.errors import UserError

MODES: tuple[Autoreset, ...] = ("next_step", "same_step")
IDS = ("torch/CartPole-v1", "torch/Pendulum-v1", "torch/Catch-v0")


@pytest.fixture
def in_doubles() -> Iterator[None]:
    """As Gymnasium computes single environments: whole episodes can be compared then."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def episode(vector: Any, one: Any, actions: Any, mode: Autoreset) -> tuple[bool, bool]:
    """Plays both until the episode ends, and says how."""
    for action in actions:
        seen, reward, terminated, truncated, info = vector.step(torch.as_tensor(np.asarray(action)[None]))
        expected, gained, ended, cut, _ = one.step(action)
        done = ended or cut
        final = info["final_obs"] if mode == "same_step" else seen
        np.testing.assert_allclose(final[0].numpy(), expected, atol=1e-6)
        assert float(reward) == pytest.approx(gained, abs=1e-9)
        assert (bool(terminated), bool(truncated)) == (ended, cut)
        if done:
            return ended, cut
    raise AssertionError("the episode should have ended")


@pytest.mark.usefixtures("in_doubles")
@pytest.mark.parametrize("mode", MODES)
def test_cartpole_is_gymnasiums_over_whole_episodes(mode: Autoreset) -> None:
    one: Any = gymnasium.make("CartPole-v1")
    poles, rng, ends = CartPoles(1, 3, autoreset=mode), np.random.default_rng(0), set()
    for policy in ("random", "balancing", "random"):
        poles.reset()
        one.reset(seed=0)
        one.unwrapped.state = tuple(poles._state["state"][0].tolist())

        def actions(policy: str = policy) -> Iterator[int]:
            while True:
                _, _, angle, turning = one.unwrapped.state
                yield int(rng.integers(2)) if policy == "random" else int(angle + turning > 0)

        ends.add(episode(poles, one, actions(), mode))
    assert ends == {(True, False), (False, True)}, "by falling, and by the limit of 500 steps"


@pytest.mark.usefixtures("in_doubles")
@pytest.mark.parametrize("mode", MODES)
def test_pendulum_is_gymnasiums_over_whole_episodes(mode: Autoreset) -> None:
    one: Any = gymnasium.make("Pendulum-v1")
    swings, rng = Pendulums(1, 3, autoreset=mode), np.random.default_rng(0)
    for _ in range(2):
        swings.reset()
        one.reset(seed=0)
        one.unwrapped.state = np.array([float(swings._state[name]) for name in ("angle", "turning")])
        assert episode(swings, one, rng.uniform(-2.5, 2.5, (300, 1)), mode) == (False, True)


@pytest.mark.parametrize("size", [6, 5])
def test_catch_is_the_game_of_numpy(size: int) -> None:
    numpy_game: Any = gymnasium.make_vec("shoal/Catch-v0", 4, vectorization_mode="vector_entry_point", size=size)
    game, rng = Catches(4, 7, size=size), np.random.default_rng(0)
    numpy_game.reset(seed=0)
    seen, _ = game.reset()
    for _ in range(25):
        state = game._state  # the beginnings of episodes are drawn by different generators
        numpy_game._ball[:] = torch.stack([state["row"], state["column"]]).numpy()
        numpy_game._paddle = state["paddle"].numpy().copy()
        np.testing.assert_array_equal(seen.numpy(), numpy_game._draw())
        actions = rng.integers(3, size=4)
        resets = game._ended.numpy()
        seen, reward, terminated, truncated, _ = game.step(torch.from_numpy(actions))
        _, gained, down, _, _ = numpy_game.step(actions)
        np.testing.assert_array_equal(reward.numpy()[~resets], gained[~resets])
        np.testing.assert_array_equal(terminated.numpy()[~resets], down[~resets])
        assert not truncated.any()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", IDS)
def test_a_vector_goes_on_from_its_state(name: str, mode: Autoreset) -> None:
    spec = envs.describe(name, {"autoreset": mode})
    assert spec.on_device

    def begun(seed: int) -> TensorEnvs:
        made = envs.make_tensors(spec, 5, seed=seed, device="cpu")
        made.reset()
        return made

    one, other = begun(1), begun(2)
    rng = torch.Generator().manual_seed(0)
    actions = [
        torch.randint(2, (5,), generator=rng) if "Pendulum" not in name else torch.randn(5, 1, generator=rng)
        for _ in range(60)
    ]
    for action in actions[:30]:
        one.step(action)
    other.load_state_dict(one.state_dict())
    for action in actions[30:]:
        left, right = one.step(action), other.step(action)
        for a, b in zip(left, right):
            assert (a is None and b is None) or torch.equal(a, b)
    assert one.take_returns() == other.take_returns()


@pytest.mark.parametrize("name", IDS)
def test_a_seed_decides_what_an_evaluator_sees(name: str) -> None:
    def first(seed: int) -> Any:
        made = envs.make(name, 8, seed=seed)
        return made.reset()

    assert np.array_equal(first(1), first(1))
    assert not np.array_equal(first(1), first(2))


@pytest.mark.parametrize("mode", MODES)
def test_on_the_host_episodes_have_their_lengths_and_returns(mode: Autoreset) -> None:
    """As the evaluator plays them, with arrays."""
    made = envs.make("torch/Pendulum-v1", 3, seed=0, options={"autoreset": mode, "max_episode_steps": 7})
    made.reset()
    total, found = np.zeros(3), []
    for _ in range(30):
        step = made.step(np.zeros((3, 1), np.float32))
        total += step.reward
        if (step.terminated | step.truncated).all():
            found.append(total.copy())
            total[:] = 0.0
            assert (step.begins == (mode == "same_step")).all()
    episodes = made.episodes()
    assert {episode.length for episode in episodes} == {7}
    assert np.allclose([episode.return_ for episode in episodes], np.concatenate(found), rtol=1e-5)
    assert len(found) == (4 if mode == "same_step" else 3)


def test_bad_options_are_told_in_a_sentence() -> None:
    for options, sentence in (
        ({"autoreset": "never"}, "autoreset 'never' is unknown; choose from next_step, same_step"),
        ({"max_episode_steps": 0}, "max_episode_steps 0 is no such value"),
        ({"lenght": 3}, "torch/CartPole-v1 has no option 'lenght'"),
    ):
        with pytest.raises(UserError, match=sentence):
            envs.describe("torch/CartPole-v1", options)
    with pytest.raises(UserError, match="There is no environment torch/CartPole-v2"):
        envs.describe("torch/CartPole-v2")


@pytest.mark.parametrize("name", IDS)
def test_they_can_be_drawn(name: str) -> None:
    from shoal.envs.pictures import make_drawn, picture

    made = make_drawn(envs.describe(name), seed=0)
    made.reset()
    before = picture(made)
    for _ in range(3):
        made.step(np.zeros((1, *(() if made.action_space.shape == () else (1,))), np.int64))
    assert before.ndim == 3
    assert not np.array_equal(picture(made), before)
    made.close()
