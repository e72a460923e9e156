"""Batches as learners see them: nested, with their episode starts, and in minibatches that hold every row once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from shoal.batches import episode_starts, minibatches, to_batch, training_rows, valid_rows


def columns(length: int, width: int) -> dict[str, Any]:
    number = torch.arange(length * width).view(length, width)
    return {
        "number": number,
        "vector": number.unsqueeze(-1).expand(length, width, 3).clone(),
        "valid": torch.ones(length, width, dtype=torch.bool),
        "state": {"hidden": number[0].float()},
    }


@pytest.mark.parametrize(("width", "count"), [(12, 4), (13, 4), (7, 7), (5, 1)])
def test_a_pass_holds_every_column_exactly_once_in_parts_of_nearly_one_size(width: int, count: int) -> None:
    parts = list(minibatches(columns(3, width), count, torch.Generator().manual_seed(0)))
    sizes = [part["number"].shape[1] for part in parts]
    assert len(parts) == count
    assert max(sizes) - min(sizes) <= 1
    seen = torch.cat([part["number"] for part in parts], dim=1)
    assert seen[0].sort().values.tolist() == list(range(width))


def test_what_belongs_together_stays_together() -> None:
    for part in minibatches(columns(3, 10), 3, torch.Generator().manual_seed(0)):
        assert torch.equal(part["vector"][..., 1], part["number"])
        assert torch.equal(part["state"]["hidden"], part["number"][0].float())


def test_passes_are_shuffled_anew_and_repeat_with_the_seed() -> None:
    def passes(seed: int) -> list[list[int]]:
        order = torch.Generator().manual_seed(seed)
        batch = columns(1, 32)
        return [torch.cat([part["number"][0] for part in minibatches(batch, 4, order)]).tolist() for _ in range(2)]

    first, second = passes(3)
    assert first != second
    assert passes(3) == [first, second]
    assert passes(4) != [first, second]


def test_fewer_columns_than_parts_leave_parts_that_count_for_nothing() -> None:
    parts = list(minibatches(columns(2, 3), 5, torch.Generator().manual_seed(0)))
    assert len(parts) == 5
    assert sum(int(part["valid"].sum()) for part in parts) == 2 * 3
    assert all(part["number"].shape[1] == 1 for part in parts)


def test_valid_rows_are_kept_in_order_and_the_others_dropped() -> None:
    batch = columns(2, 3)
    batch["valid"] = torch.tensor([[True, False, True], [False, True, True]])
    batch.pop("state")
    rows = valid_rows(batch, batch["valid"])
    assert rows["number"].tolist() == [[0, 2, 4, 5]]
    assert rows["vector"].shape == (1, 4, 3)
    assert rows["valid"].all()


def test_without_valid_rows_one_invalid_row_stands_for_them() -> None:
    batch = columns(2, 3)
    batch["valid"] = torch.zeros(2, 3, dtype=torch.bool)
    rows = valid_rows({name: x for name, x in batch.items() if name != "state"}, batch["valid"])
    assert rows["number"].shape == (1, 1)
    assert not rows["valid"].any()


NESTED = spaces.Dict(place=spaces.Discrete(9), views=spaces.Tuple([spaces.Box(-1.0, 1.0, (2,)), spaces.Discrete(3)]))


def test_a_batch_is_nested_as_its_space_with_the_state_apart_and_all_of_it_tensors() -> None:
    rows = np.arange(6).reshape(3, 2)
    stored = {
        "observation/place": rows,
        "observation/views/0": rows[..., None].repeat(2, -1).astype(np.float32),
        "observation/views/1": rows % 3,
        "reward": rows.astype(np.float32),
        "valid": np.array([[True, True], [False, True], [True, True]]),
        "state/core/hidden": np.ones((2, 4), np.float32),
        "state/last_reward": np.zeros(2, np.float32),
    }
    batch = to_batch(stored, NESTED)
    assert batch.keys() == {"observation", "reward", "valid", "state", "first"}
    assert batch["observation"]["place"].tolist() == rows.tolist()
    assert batch["observation"]["views"][0].shape == (3, 2, 2)
    assert batch["observation"]["views"][1].tolist() == (rows % 3).tolist()
    assert batch["state"].keys() == {"core/hidden", "last_reward"}
    assert batch["first"].tolist() == [[False, False], [False, False], [True, False]]


def test_transitions_have_two_observations_and_no_episode_starts() -> None:
    stored = {
        "observation": np.zeros((5, 2), np.float32),
        "next_observation": np.ones((5, 2), np.float32),
        "reward": np.zeros(5, np.float32),
    }
    batch = to_batch(stored, spaces.Box(-1.0, 1.0, (2,)))
    assert batch.keys() == {"observation", "next_observation", "reward", "state"}
    assert batch["state"] == {}
    assert batch["next_observation"].sum() == 10


def test_shared_memory_that_cannot_be_written_is_copied() -> None:
    rewards = np.zeros(3, np.float32)
    rewards.flags.writeable = False
    batch = to_batch({"reward": rewards}, spaces.Discrete(2))
    batch["reward"] += 1
    assert rewards.sum() == 0


def test_an_episode_starts_after_the_row_that_is_no_transition() -> None:
    valid = np.array([[True, False], [False, True], [True, False], [True, True]])
    expected = [[False, False], [False, True], [True, False], [False, True]]
    assert episode_starts(valid).tolist() == expected


def test_rows_to_train_on_leave_out_the_bootstrap_row_and_without_a_state_what_is_not_valid() -> None:
    names = ("observation", "action", "log_prob", "first")
    number = torch.arange(6).view(3, 2)
    valid = torch.tensor([[True, False], [True, True], [True, True]])
    batch = dict.fromkeys(names, number) | {"valid": valid, "state": {}}
    rows = training_rows(batch, advantage=10 * number[:-1])
    assert rows["action"].tolist() == [[0, 2, 3]]
    assert rows["advantage"].tolist() == [[0, 20, 30]]
    recurrent = training_rows(batch | {"state": {"hidden": torch.zeros(2, 1)}}, advantage=10 * number[:-1])
    assert recurrent["action"].tolist() == [[0, 1], [2, 3]]
    assert recurrent["valid"].tolist() == valid[:-1].tolist()
