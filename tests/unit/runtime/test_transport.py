"""Messages of one machine: arrays lie in shared memory, which goes round; small parts and files ride along."""

from __future__ import annotations

import mmap
import os
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from shoal.runtime.network.transport import HAS_MEMFD, LARGE, Closed, Connection, pair

needs_memfd = pytest.mark.skipif(not HAS_MEMFD, reason="needs memfd")


@pytest.fixture(params=["shared", "stream"])
def ends(request: pytest.FixtureRequest) -> Iterator[tuple[Connection, Connection]]:
    """Two connected ends, with shared memory or without."""
    ours, theirs = (Connection(sock, shared=request.param == "shared") for sock in pair())
    yield ours, theirs
    ours.close()
    theirs.close()


@pytest.fixture
def shared() -> Iterator[tuple[Connection, Connection]]:
    ours, theirs = (Connection(sock) for sock in pair())
    yield ours, theirs
    ours.close()
    theirs.close()


def exchange(sender: Connection, receiver: Connection, message: Any) -> Any:
    """One message, sent from a thread of its own: a large one waits for its reader."""
    thread = threading.Thread(target=sender.send, args=(message,))
    thread.start()
    received, _ = receiver.receive()
    thread.join()
    return received


@pytest.mark.parametrize("size", [0, 1, LARGE - 1, LARGE, 3_000_000])
def test_arrays_of_every_size_arrive_and_may_be_written_to(ends: tuple[Connection, Connection], size: int) -> None:
    sent = np.random.default_rng(size).integers(0, 255, size, dtype=np.uint8)
    received = exchange(*ends, {"array": sent, "text": "beside"})
    np.testing.assert_array_equal(received["array"], sent)
    assert received["text"] == "beside"
    received["array"][:] = 0  # torch warns of arrays that cannot be written to
    assert size == 0 or sent.any()


def test_more_arrays_than_one_system_call_takes(ends: tuple[Connection, Connection]) -> None:
    sent = [np.full(index % 50, index) for index in range(300)]
    received = exchange(*ends, sent)
    assert all((one == other).all() for one, other in zip(sent, received, strict=True))


@needs_memfd
def test_an_array_that_lies_in_the_arena_is_not_copied(shared: tuple[Connection, Connection]) -> None:
    ours, theirs = shared
    assert ours.arena is not None
    array = ours.arena.empty((100_000,), np.float32)
    array[:] = 1.0
    received = exchange(ours, theirs, array)
    array[:] = 2.0
    assert (received == 2.0).all()


@needs_memfd
def test_a_place_is_used_again_only_after_the_reader_has_given_it_back(shared: tuple[Connection, Connection]) -> None:
    ours, theirs = shared
    assert ours.arena is not None
    kept = exchange(ours, theirs, np.full(100_000, 1, np.uint8))
    for value in range(2, 200):
        assert (exchange(ours, theirs, np.full(100_000, value, np.uint8)) == value).all()
        exchange(theirs, ours, "the answer that gives back")
    assert (kept == 1).all()
    assert ours.arena.reserved <= 1 << 20


def test_files_ride_along() -> None:
    ours, theirs = (Connection(sock, shared=False) for sock in pair())
    readable, writable = os.pipe()
    ours.send("a pipe", [writable])
    os.close(writable)
    message, (received,) = theirs.receive()
    os.write(received, b"through it")
    os.close(received)
    assert message == "a pipe"
    assert os.read(readable, 100) == b"through it"
    os.close(readable)
    ours.close()
    theirs.close()


def test_the_death_of_the_other_end_is_noticed(ends: tuple[Connection, Connection]) -> None:
    ours, theirs = ends
    ours.send("last words")
    ours.close()
    assert theirs.receive()[0] == "last words"
    with pytest.raises(Closed):
        theirs.receive()
    with pytest.raises(Closed):
        theirs.send("no answer")


def test_a_message_that_cannot_be_pickled_leaves_the_connection_as_it_was(ends: tuple[Connection, Connection]) -> None:
    ours, theirs = ends
    with pytest.raises(TypeError):
        ours.send((np.zeros(100_000), threading.Lock()))
    assert exchange(ours, theirs, "next") == "next"


@needs_memfd
def test_a_segment_is_sent_only_once_it_is_mapped(
    shared: tuple[Connection, Connection], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two threads may serve one connection: one makes a segment while the other sends."""
    ours, theirs = shared
    map_memory = mmap.mmap

    def send_meanwhile(*arguments: Any, **named: Any) -> Any:
        monkeypatch.setattr(mmap, "mmap", map_memory)
        ours.send("meanwhile")
        return map_memory(*arguments, **named)

    assert ours.arena is not None
    monkeypatch.setattr(mmap, "mmap", send_meanwhile)
    made = ours.arena.empty((LARGE,), np.uint8)
    made[:] = 7
    ours.send(made)
    assert theirs.receive()[0] == "meanwhile"
    np.testing.assert_array_equal(theirs.receive()[0], made)
