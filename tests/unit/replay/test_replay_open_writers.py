"""Writers in the middle of their streams: saved with the replay, they go on as if nothing had happened."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shoal.replay import BadCheckpoint, Fifo, Queue, Replay, ReplayTimeout, Table, Uniform, Writer, n_step, rollout
from shoal.replay.checkpoint import manifest_name
from shoal.replay.files import read_whole, write_whole

ENVIRONMENTS = 2


def rows(first: int, count: int) -> dict[str, Any]:
    number = np.arange(first, first + count)[:, None] + 1000 * np.arange(ENVIRONMENTS)[None]
    return {
        "observation": number.astype(np.float32),
        "reward": number.astype(np.float32),
        "terminated": number % 7 == 6,
        "valid": np.ones(number.shape, bool),
        "version": number.astype(np.int64),
        "state/core": number[..., None].astype(np.float32),
    }


def queue() -> Replay:
    return Replay([Table("items", 100, sampler=Fifo(), remover=Fifo(), limiter=Queue(3), max_times_sampled=1)])


def table() -> Replay:
    return Replay([Table("items", 1000, sampler=Uniform())])


def writer(replay: Replay, kind: str) -> Writer:
    patterns = {"items": rollout(4) if kind == "queue" else n_step(3, 0.9)}
    return Writer(replay, patterns, name="writer", life="1")


def blocked(replay: Replay, kind: str) -> Writer:
    """A writer whose newest block a queue holds up half way; a table lets everything in."""
    made = writer(replay, kind)
    made.append(rows(0, 5))
    try:
        made.append(rows(5, 4), timeout=0.0)
    except ReplayTimeout:
        assert kind == "queue"
    return made


def go_on(replay: Replay, made: Writer, kind: str) -> list[dict[str, Any]]:
    """What comes out from then on."""
    found = []
    if kind == "queue":
        found.append(replay.sample("items", 3).data)
        made.flush()
        found.append(replay.sample("items", 1).data)
        made.append(rows(9, 4))
        found.append(replay.sample("items", 2).data)
        return found
    made.append(rows(9, 4))
    return [replay.sample("items", 8).data for _ in range(3)]


@pytest.mark.parametrize("kind", ["queue", "table"])
def test_a_writer_and_its_replay_go_on_in_the_middle_of_a_block(kind: str, tmp_path: Path) -> None:
    make = queue if kind == "queue" else table
    replay = make()
    made = blocked(replay, kind)
    replay.save(tmp_path)
    state = made.state_dict()
    expected = go_on(replay, made, kind)
    again = make()
    again.load(tmp_path)
    other = writer(again, kind)
    other.load_state_dict(state)
    found = go_on(again, other, kind)
    for one, two in zip(expected, found, strict=True):
        assert one.keys() == two.keys()
        assert all(np.array_equal(one[name], two[name]) for name in one)
    assert replay.contents()["items"]["numbers"] == again.contents()["items"]["numbers"]
    assert replay.contents()["open"] == again.contents()["open"]


def test_rows_that_come_after_a_load_are_in_the_next_save(tmp_path: Path) -> None:
    """The chunk that was saved half full is the same one, and must be written again."""
    replay = table()
    made = blocked(replay, "table")
    replay.save(tmp_path)
    again = table()
    again.load(tmp_path)
    other = writer(again, "table")
    other.load_state_dict(made.state_dict())
    other.append(rows(9, 6))
    again.save(tmp_path)
    third = table()
    third.load(tmp_path)
    expected, found = again.contents()["items"]["rows"], third.contents()["items"]["rows"]
    for one, two in zip(expected, found, strict=True):
        assert all(np.array_equal(one[name], two[name]) for name in one)


BAD: dict[str, Any] = {
    "another store": ("store", 5),
    "no environments": ("environments", 0),
    "rows that are not there": ("rows", 10_000),
    "a beginning behind the end": ("first_row", 500),
    "a count that is none": ("accepted", {"items": -1}),
    "a table that is none": ("arriving", ["nothing"]),
    "no numbers": ("base", "0"),
}


@pytest.mark.parametrize("what", BAD)
def test_streams_that_were_never_saved_are_refused(what: str, tmp_path: Path) -> None:
    replay = queue()
    blocked(replay, "queue")
    replay.save(tmp_path)
    path = tmp_path / manifest_name(None)
    header, arrays = read_whole(path)
    field, value = BAD[what]
    header["open"]["writer"][field] = value
    write_whole(path, header, arrays)
    with pytest.raises(BadCheckpoint, match="does not hold together"):
        queue().load(tmp_path)


@pytest.mark.parametrize("change", [lambda layers: layers + 1000, lambda layers: np.zeros_like(layers)])
def test_chunks_that_are_no_stream_are_refused(change: Any, tmp_path: Path) -> None:
    replay = queue()
    blocked(replay, "queue")
    replay.save(tmp_path)
    path = tmp_path / manifest_name(None)
    header, arrays = read_whole(path)
    arrays["writer writer|layers"] = change(arrays["writer writer|layers"])
    write_whole(path, header, arrays)
    with pytest.raises(BadCheckpoint, match="does not hold together"):
        queue().load(tmp_path)
