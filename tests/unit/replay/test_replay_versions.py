"""Which weights an item belongs to: those of its last row, for the limiter and for the learner alike."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pytest

from shoal.replay import MinSize, Pattern, Replay, Table, Writer, n_step, rollout, sequence
from shoal.replay.messages import version_row


def sampled_versions(pattern: Pattern, layout: Literal["time", "batch"] = "time") -> list[int]:
    """Of all items, of two environments whose row r was acted with version 10 r and 10 r + 1; the first environment's
    only episode ends with row 4, the second's goes on."""
    replay = Replay([Table("items", 1000, limiter=MinSize(1))])
    valid = np.ones((8, 2), bool)
    valid[4, 0] = False
    columns = {
        "observation": np.zeros((8, 2, 1), np.float32),
        "reward": np.zeros((8, 2), np.float32),
        "terminated": np.zeros((8, 2), bool),
        "valid": valid,
        "version": 10 * np.arange(8)[:, None] + np.arange(2),
    }
    Writer(replay, {"items": pattern}).append(columns)
    sample = replay.sample("items", 500, layout=layout)
    assert sample.versions.shape == (500,)
    return sorted(set(sample.versions.tolist()))


def test_an_item_belongs_to_its_last_row() -> None:
    assert version_row(3, 1) == 3
    assert version_row(3, 5) == 7
    np.testing.assert_array_equal(version_row(np.array([0, 10]), np.array([4, 2])), [3, 11])


@pytest.mark.parametrize("layout", ["time", "batch"])
def test_a_rollouts_version_is_that_of_the_row_it_bootstraps_on(layout: Literal["time", "batch"]) -> None:
    assert sampled_versions(rollout(3), layout) == [30, 31, 60, 61]


@pytest.mark.parametrize("layout", ["time", "batch"])
def test_behind_the_end_of_a_short_sequence_there_is_no_version(layout: Literal["time", "batch"]) -> None:
    # of the first environment rows 0 to 4 in an item of seven, of which two are padding; of the second 0 to 6
    assert sampled_versions(sequence(6, period=6), layout) == [40, 61]


def test_a_transition_has_the_version_of_its_own_row() -> None:
    assert sampled_versions(n_step(1, 0.9)) == [0, 1, 10, 11, 20, 21, 30, 31, 41, 50, 51, 60, 61]
