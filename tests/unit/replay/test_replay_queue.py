"""The on-policy path: rollouts through a queue."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from shoal.replay import Replay, ReplayClosed, ReplayTimeout, Table, Writer, rollout


def rows(count: int, environments: int, first: int = 0) -> dict[str, np.ndarray]:
    step = np.arange(first, first + count)[:, None] + np.zeros((1, environments), int)
    environment = np.zeros((count, 1), int) + np.arange(environments)
    return {
        "observation": np.stack([step, environment], -1).astype(np.float32),
        "reward": step.astype(np.float32),
        "terminated": np.zeros((count, environments), bool),
        "valid": np.ones((count, environments), bool),
        "state/core": np.stack([step, environment], -1).astype(np.float64),
    }


def test_rollouts_tile_the_stream_and_share_one_row_with_their_neighbour() -> None:
    replay = Replay([Table.queue("rollouts", 100)])
    writer = Writer(replay, {"rollouts": rollout(4)})
    writer.append(rows(5, 3))
    writer.append(rows(4, 3, first=5))
    writer.append(rows(3, 3, first=9))
    assert replay.info()["rollouts"]["size"] == 6
    sample = replay.sample("rollouts", 6)
    assert sample.data["observation"].shape == (5, 6, 2)
    np.testing.assert_array_equal(sample.data["observation"][:, :3, 0], np.arange(5)[:, None] + np.zeros((1, 3)))
    np.testing.assert_array_equal(sample.data["observation"][:, 3:, 0], np.arange(4, 9)[:, None] + np.zeros((1, 3)))
    np.testing.assert_array_equal(sample.data["observation"][0, :, 1], [0, 1, 2, 0, 1, 2])


def test_a_state_is_the_one_of_the_items_first_row() -> None:
    replay = Replay([Table.queue("rollouts", 100)])
    writer = Writer(replay, {"rollouts": rollout(4)})
    for first in range(0, 40, 3):
        writer.append(rows(3, 2, first=first))
    sample = replay.sample("rollouts", 20, minimum=1)
    np.testing.assert_array_equal(sample.data["state/core"][:, 0], sample.data["observation"][0, :, 0])
    np.testing.assert_array_equal(sample.data["state/core"][:, 1], sample.data["observation"][0, :, 1])
    assert sample.data["state/core"].dtype == np.float64


def test_batch_major_is_the_transpose_of_time_major() -> None:
    batches = []
    for layout in ("time", "batch"):
        replay = Replay([Table.queue("rollouts", 100)])
        Writer(replay, {"rollouts": rollout(4)}).append(rows(9, 3))
        batches.append(replay.sample("rollouts", 6, layout=layout).data)
    for name in ("observation", "reward"):
        np.testing.assert_array_equal(batches[0][name].swapaxes(0, 1), batches[1][name])
        assert batches[1][name].flags.c_contiguous


def test_an_item_is_read_once() -> None:
    replay = Replay([Table.queue("rollouts", 100)])
    Writer(replay, {"rollouts": rollout(4)}).append(rows(5, 3))
    replay.sample("rollouts", 3)
    with pytest.raises(ReplayTimeout, match="a reader waits for 1 items of table 'rollouts'"):
        replay.sample("rollouts", 1, timeout=0.01)


def test_a_full_queue_admits_a_prefix_and_the_same_call_goes_on_later() -> None:
    replay = Replay([Table.queue("rollouts", 2)])
    writer = Writer(replay, {"rollouts": rollout(4)}, name="alice")
    with pytest.raises(ReplayTimeout, match="writer 'alice' waits to insert 1 items into table 'rollouts', where 2 of"):
        writer.append(rows(5, 3), timeout=0.01)
    assert replay.info()["rollouts"]["size"] == 2
    replay.sample("rollouts", 2)
    assert writer.flush().accepted == {"rollouts": 3}
    assert replay.sample("rollouts", 1).data["observation"][0, 0].tolist() == [0.0, 2.0]


def test_a_waiting_reader_and_a_waiting_writer_wake_each_other() -> None:
    replay = Replay([Table.queue("rollouts", 2)])
    writer = Writer(replay, {"rollouts": rollout(1)})
    count = 400
    feeder = threading.Thread(target=lambda: [writer.append(rows(1, 1, first=first)) for first in range(count + 1)])
    feeder.start()
    seen = [int(replay.sample("rollouts", 1, timeout=20).data["reward"][0, 0]) for _ in range(count)]
    feeder.join(20)
    assert seen == list(range(count))


def test_closing_wakes_everybody() -> None:
    replay = Replay([Table.queue("rollouts", 2)])
    raised: list[BaseException] = []

    def read() -> None:
        try:
            replay.sample("rollouts", 1)
        except ReplayClosed as error:
            raised.append(error)

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    replay.close()
    for reader in readers:
        reader.join(5)
    assert len(raised) == 3
    with pytest.raises(ReplayClosed):
        replay.sample("rollouts", 1)
