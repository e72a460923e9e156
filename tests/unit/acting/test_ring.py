"""A replay of tensors: items end with their episode, whenever environments reset, and all transitions are drawn."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from shoal.acting.ring import Ring
from shoal.envs.tensor_vector import Autoreset
from shoal.envs.tensors import TensorEnvs
from tensor_vectors import COUNT, SPACES, Counting

GAMMA, CPU = 0.9, torch.device("cpu")


class Forgetful(Counting):
    def step(self, action: Tensor, /) -> Any:
        return *super().step(action)[:4], {}


def filled(vector: Counting, n: int, rows: int = 40, steps: int = 100, count: int = COUNT) -> tuple[Ring, list[Tensor]]:
    """A ring of `rows`, after so many steps; what was done in each."""
    made = TensorEnvs(vector)
    ring = Ring(rows, count, n=n, discount=GAMMA, seed=0, device=CPU)
    random, actions = torch.Generator().manual_seed(1), []
    observation = made.reset()
    for _ in range(steps):
        actions.append(torch.randint(3, (count,), generator=random))
        step = made.step(actions[-1])
        ring.add(observation, actions[-1], step)
        observation = step.observation
    return ring, actions


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("mode", ["next_step", "same_step"])
def test_items_are_transitions_up_to_their_episodes_end(mode: Autoreset, n: int) -> None:
    """An environment of length L sees (episode, step) and is rewarded with its action; even episodes are cut."""
    ring, _ = filled(Counting(mode), n)
    batch = ring.sample(3_000, SPACES.observation_space)
    (episode, at), (later_episode, later) = (batch[name].unbind(1) for name in ("observation", "next_observation"))
    assert torch.equal(episode, later_episode), "never the next episode's first"
    taken = later - at
    assert ((taken >= 1) & (taken <= n)).all()
    ends_early = taken < n
    assert ends_early.any() == (n > 1)
    terminated = batch["discount"] == 0
    assert (episode[terminated] % 2 == 1).all(), "what is cut is bootstrapped, from its final observation"
    torch.testing.assert_close(batch["discount"][~terminated], GAMMA ** taken[~terminated])
    assert (~terminated & ends_early & (episode % 2 == 0)).any() == (n > 1)
    assert {int(steps) for steps in at} == set(range(COUNT + 1)), "all places in an episode are drawn"
    assert (batch["reward"][taken == 1] == batch["action"][taken == 1]).all()


def test_rewards_are_summed_and_clipped() -> None:
    made = Ring(20, COUNT, n=2, discount=0.5, reward_clip=1.0, seed=0, device=CPU)
    envs = TensorEnvs(Counting("same_step"))
    observation = envs.reset()
    for _ in range(30):
        step = envs.step(torch.full((COUNT,), 2))
        made.add(observation, torch.full((COUNT,), 2), step)
        observation = step.observation
    batch = made.sample(500, SPACES.observation_space)
    taken = batch["next_observation"][:, 1] - batch["observation"][:, 1]
    torch.testing.assert_close(batch["reward"], torch.where(taken == 1, 1.0, 1.5))


def test_where_ends_are_lost_the_last_step_of_a_cut_is_not_drawn() -> None:
    ring, _ = filled(Forgetful("same_step"), 3)
    batch = ring.sample(3_000, SPACES.observation_space)
    (episode, at), (later_episode, later) = (batch[name].unbind(1) for name in ("observation", "next_observation"))
    ended = batch["discount"] == 0
    assert torch.equal(episode[~ended], later_episode[~ended])
    assert (episode[ended] % 2 == 1).all(), "only what terminated"
    assert (at[episode % 2 == 0] < COUNT).all()
    cut = (episode % 2 == 0) & ~ended
    assert (later[cut] > at[cut]).all()


def test_every_transition_is_drawn_equally_often() -> None:
    """Also where every third row is a reset."""
    rows = 31
    ring, _ = filled(Counting("next_step", 1), 1, rows=rows, count=1)
    seen = ring.sample(60_000, SPACES.observation_space)["observation"]
    _, counts = seen.unique(dim=0, return_counts=True)
    counts = counts[counts > 100]  # the others are resets, of which all of eight draws were one
    assert len(counts) == rows * 2 // 3
    assert counts.sum() > 59_950
    assert counts.max() < 1.15 * counts.min()


def test_a_ring_goes_on_from_its_state() -> None:
    ring, _ = filled(Counting("same_step"), 2)
    other = Ring(40, COUNT, n=2, discount=GAMMA, seed=9, device=CPU)
    other.load_state_dict(ring.state_dict())
    one, two = (made.sample(64, SPACES.observation_space) for made in (ring, other))
    assert all(torch.equal(one[name], two[name]) for name in one if name != "state")
