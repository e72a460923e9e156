"""What a service says about itself, and what it tells extensions."""

from __future__ import annotations

import json
import time

import numpy as np
import pytest
from replay_model import Single

from shoal.replay import FrameStack, Prioritized, Replay, Table, Writer, n_step
from shoal.replay.extras import Extension


def rows(first: int, count: int) -> dict[str, np.ndarray]:
    return {"reward": np.arange(first, first + count, dtype=np.float64)[:, None]}


def test_information_is_plain_and_right() -> None:
    replay = Replay([Table("table", 50), Table("empty", 5)])
    writer = Writer(replay, {"table": Single()})
    writer.append(rows(0, 80))
    sample = replay.sample("table", 20)
    replay.update_priorities("table", np.array([*sample.keys, 12345]), np.ones(21))
    info = replay.info()
    json.dumps(info)
    table = info["table"]
    assert (table["size"], table["capacity"], table["inserts"], table["samples"]) == (50, 50, 80, 20)
    assert (table["deletes"], table["stale_updates"]) == (30, 1)
    assert (table["age_mean"], table["age_max"]) == (24.5, 49)
    assert sum(table["times_sampled_histogram"]) == 50
    assert table["times_sampled_histogram"][0] == 50 - len(np.unique(sample.keys))
    assert table["times_sampled_mean"] == pytest.approx(20 / 50)
    assert info["empty"]["size"] == 0


def test_rates_and_ages_are_in_seconds() -> None:
    replay = Replay([Table("table", 500)])
    writer = Writer(replay, {"table": Single()})
    writer.append(rows(0, 100))
    replay.info()
    time.sleep(1.1)
    writer.append(rows(100, 100))
    table = replay.info()["table"]
    assert 20 < table["inserts_per_second"] <= 200 / 1.1
    assert 1.0 <= table["age_seconds_max"] < 10
    assert 0.4 < table["age_seconds_mean"] < table["age_seconds_max"]


def test_memory_per_item_and_per_row_is_bounded() -> None:
    replay = Replay([Table("table", 20_000, sampler=Prioritized(0.6))])
    writer = Writer(replay, {"table": n_step(1, 0.99, stack={"observation": 4})})
    block = {
        "observation": np.zeros((64, 20, 84, 84), np.uint8),
        "action": np.zeros((64, 20), np.int32),
        "reward": np.zeros((64, 20), np.float32),
        "terminated": np.zeros((64, 20), bool),
        "valid": np.ones((64, 20), bool),
    }
    for _ in range(14):
        writer.append(block)
    table = replay.info()["table"]
    assert table["item_bytes"] / table["size"] <= 64
    rows_kept = table["size"] + 2 * 64 * 20  # the newest chunks of each environment are being filled
    assert table["row_bytes"] / rows_kept <= 7056 + 64


def test_extensions_are_told_everything_in_order() -> None:
    events: list[tuple[str, list[int]]] = []

    class Recorder(Extension):
        def inserted(self, table: str, keys: np.ndarray, priorities: np.ndarray) -> None:
            assert table == "table"
            assert priorities.tolist() == [2.0] * len(keys)
            events.append(("inserted", keys.tolist()))

        def sampled(self, table: str, keys: np.ndarray) -> None:
            events.append(("sampled", keys.tolist()))

        def updated(self, table: str, keys: np.ndarray, priorities: np.ndarray) -> None:
            events.append(("updated", keys.tolist()))

        def deleted(self, table: str, keys: np.ndarray) -> None:
            events.append(("deleted", keys.tolist()))

    class Silent(Extension):
        pass

    replay = Replay([Table("table", 4)], extensions=[Recorder(), Silent()])
    writer = Writer(replay, {"table": Single()})
    writer.append(rows(0, 3), 2.0)
    keys = events[0][1]
    sample = replay.sample("table", 2)
    replay.update_priorities("table", np.array([keys[0], 999]), np.ones(2))
    replay.delete("table", np.array(keys[2:]))
    writer.append(rows(3, 3), 2.0)
    assert [kind for kind, _ in events] == ["inserted", "sampled", "updated", "deleted", "deleted", "inserted"]
    assert events[1][1] == sample.keys.tolist()
    assert events[2][1] == keys[:1]
    assert events[3][1] == keys[2:]
    assert events[4][1] == keys[:1]


@pytest.mark.parametrize("padding", ["repeat", "zero"])
def test_stacks_for_acting_are_those_of_a_sample(padding) -> None:
    from replay_streams import make_stream

    stream = make_stream(4, 60, 3, 9)
    stacker = FrameStack(4, padding)
    first = np.ones(3, bool)
    acting = []
    for row in range(60):
        acting.append(stacker.push(stream.columns["frame"][row], first).copy())
        first = ~stream.columns["valid"][row]
    replay = Replay([Table.queue("table", 1000)])
    Writer(replay, {"table": n_step(2, 0.9, stack={"frame": 4}, padding=padding)}).append(stream.columns)
    data = replay.sample("table", 1000, minimum=1).data
    for observation, stack in zip(data["observation"], data["frame"]):
        np.testing.assert_array_equal(acting[observation[1]][observation[0]], stack)
