"""What is sampled how often: against the probabilities that it should have."""

from __future__ import annotations

import numpy as np
import pytest
from replay_model import Single

from shoal.replay import Prioritized, Replay, Sample, ShardedReplay, Table, Uniform, Writer


def chi_square(counts: np.ndarray, expected: np.ndarray) -> float:
    """The statistic as standard deviations from its mean: about normal for many cells."""
    possible = expected > 0
    assert not counts[~possible].any(), "something impossible was sampled"
    statistic = float(((counts - expected)[possible] ** 2 / expected[possible]).sum())
    freedom = int(possible.sum()) - 1
    return (statistic - freedom) / np.sqrt(2 * freedom)


class Filled:
    """A table in which item i is the row with reward i."""

    def __init__(self, sampler: object, capacity: int = 400, shards: int = 0, seed: int = 0) -> None:
        table = Table("table", capacity, sampler=sampler)
        self.generator = np.random.default_rng(seed)
        if shards:
            services = [Replay([table], seed=seed + index) for index in range(shards)]
            self.replay: Replay | ShardedReplay = ShardedReplay(services, seed=seed)
            self.writers = [
                Writer(ShardedReplay(services, home=index), {"table": Single()}, priority_columns=["reward"])
                for index in range(shards)
            ]
        else:
            self.replay = Replay([table], seed=seed)
            self.writers = [Writer(self.replay, {"table": Single()}, priority_columns=["reward"])]
        self.count = 0
        self.priorities: dict[int, float] = {}

    def insert(self, count: int, writer: int = 0) -> None:
        rewards = np.arange(self.count, self.count + count, dtype=np.float64)
        given = self.generator.gamma(0.7, size=count)
        given[self.generator.random(count) < 0.05] = 0.0
        self.writers[writer].append({"reward": rewards[:, None]}, lambda data: given)
        self.priorities.update(zip(range(self.count, self.count + count), given.tolist()))
        self.count += count

    def draw(self, batches: int, batch: int = 256) -> tuple[np.ndarray, Sample]:
        counts = np.zeros(self.count, int)
        for _ in range(batches):
            sample = self.replay.sample("table", batch)
            np.add.at(counts, sample.data["reward"][0].astype(int), 1)
        return counts, sample

    def expected(self, present: np.ndarray, exponent: float) -> np.ndarray:
        weights = np.zeros(self.count)
        weights[present] = np.array([self.priorities[int(index)] for index in present]) ** exponent
        return weights / weights.sum()


@pytest.mark.parametrize("shards", [0, 3])
@pytest.mark.parametrize("exponent", [0.0, 0.6, 1.0])
def test_items_are_drawn_in_proportion_to_their_weights(exponent: float, shards: int) -> None:
    table = Filled(Prioritized(exponent), shards=shards)
    for writer in range(max(1, shards)):
        table.insert(100 + 60 * writer, writer)
    probabilities = table.expected(np.arange(table.count), exponent)
    counts, sample = table.draw(600)
    assert abs(chi_square(counts, probabilities * counts.sum())) < 5
    drawn = sample.data["reward"][0].astype(int)
    np.testing.assert_allclose(sample.probabilities, probabilities[drawn], rtol=1e-9)
    assert sample.table_size == table.count


@pytest.mark.parametrize("shards", [0, 3])
def test_updates_and_evictions_change_the_distribution_as_they_should(shards: int) -> None:
    table = Filled(Prioritized(0.8), capacity=150, shards=shards)
    for _ in range(7):
        for writer in range(max(1, shards)):
            table.insert(45, writer)
    seen: dict[int, int] = {}
    for _ in range(400):
        sample = table.replay.sample("table", 128)
        seen.update(zip(sample.data["reward"][0].astype(int).tolist(), sample.keys.tolist()))
    chosen = table.generator.choice(list(seen), 40, replace=False)
    new = table.generator.gamma(0.7, size=40)
    assert table.replay.update_priorities("table", np.array([seen[index] for index in chosen]), new) == 40
    table.priorities.update(zip(chosen.tolist(), new.tolist()))
    # each shard keeps its 150 newest; writers took turns of 45
    owner = (np.arange(table.count) // 45) % max(1, shards)
    present = np.concatenate([np.flatnonzero(owner == index)[-150:] for index in range(max(1, shards))])
    probabilities = table.expected(present, 0.8)
    counts, _ = table.draw(1200, 128)
    assert abs(chi_square(counts, probabilities * counts.sum())) < 5


@pytest.mark.parametrize("shards", [0, 2])
def test_uniform_draws_every_item_alike(shards: int) -> None:
    table = Filled(Uniform(), shards=shards)
    for writer in range(max(1, shards)):
        table.insert(90 + 50 * writer, writer)
    counts, sample = table.draw(400)
    assert abs(chi_square(counts, np.full(table.count, counts.sum() / table.count))) < 5
    np.testing.assert_allclose(sample.probabilities, 1 / table.count)


@pytest.mark.parametrize("shards", [0, 3])
def test_importance_weights_are_those_of_the_whole_table(shards: int) -> None:
    table = Filled(Prioritized(0.6), shards=shards)
    for writer in range(max(1, shards)):
        table.insert(100, writer)
    sample = table.replay.sample("table", 300)
    probabilities = table.expected(np.arange(table.count), 0.6)[sample.data["reward"][0].astype(int)]
    weights = (table.count * probabilities) ** -0.4
    np.testing.assert_allclose(sample.importance_weights(0.4), weights / weights.max(), rtol=1e-6)
    assert sample.importance_weights(0.4).dtype == np.float32


def test_a_table_of_zero_priorities_is_drawn_from_uniformly() -> None:
    replay = Replay([Table("table", 50, sampler=Prioritized(1.0))])
    Writer(replay, {"table": Single()}).append({"reward": np.arange(20.0)[:, None]}, 0.0)
    counts = np.zeros(20, int)
    for _ in range(50):
        sample = replay.sample("table", 40)
        np.add.at(counts, sample.data["reward"][0].astype(int), 1)
    assert abs(chi_square(counts, np.full(20, 100.0))) < 5
    np.testing.assert_allclose(sample.probabilities, 1 / 20)


def test_sampling_is_reproducible_from_the_seed() -> None:
    batches = []
    for seed in (1, 1, 2):
        table = Filled(Prioritized(0.6), seed=0)
        table.replay = Replay([Table("table", 400, sampler=Prioritized(0.6))], seed=seed)
        table.writers = [Writer(table.replay, {"table": Single()}, priority_columns=["reward"])]
        table.insert(200)
        batches.append(table.replay.sample("table", 64).data["reward"])
    np.testing.assert_array_equal(batches[0], batches[1])
    assert (batches[0] != batches[2]).any()
