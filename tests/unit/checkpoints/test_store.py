"""Checkpoints on the disk: complete or absent, the last few and the best kept, damage found and told."""

from __future__ import annotations

import errno
import json
import os
import random
import resource
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shoal.checkpoints import CheckpointFailed, Checkpoints, DamagedCheckpoint, store


def state(number: int) -> dict[str, Any]:
    return {"learner": {"updates": number, "weights": np.full(1000, number, np.float32)}}


def saved(directory: Path, count: int, keep: int = 3) -> Checkpoints:
    checkpoints = Checkpoints(directory, keep)
    for number in range(1, count + 1):
        checkpoints.save(state(number), {"updates": number})
    return checkpoints


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_a_pipe_in_the_place_of_a_manifest_is_damage_and_not_waited_for(tmp_path: Path) -> None:
    checkpoints = saved(tmp_path, 2)
    (tmp_path / "000002" / "manifest.json").unlink()
    os.mkfifo(tmp_path / "000002" / "manifest.json")
    newest, (complaint,) = checkpoints.newest()
    assert newest is not None
    assert newest.path.name == "000001"
    assert "It is no regular file" in complaint


def test_the_last_few_are_kept_and_the_newest_is_found(tmp_path: Path) -> None:
    checkpoints = saved(tmp_path, 5)
    assert names(tmp_path) == ["000003", "000004", "000005"]
    newest, complaints = Checkpoints(tmp_path).newest()
    assert newest is not None
    assert not complaints
    assert newest.meta == {"updates": 5}
    assert newest.parts == ("learner",)
    assert newest.part("learner")["updates"] == 5
    with pytest.raises(DamagedCheckpoint, match="no part 'replay': it has learner"):
        newest.part("replay")
    checkpoints.save(state(6), {"updates": 6})
    assert names(tmp_path) == ["000004", "000005", "000006"]


def test_the_best_is_apart_from_the_last_few_and_is_one(tmp_path: Path) -> None:
    checkpoints = saved(tmp_path, 2)
    for return_ in (10.0, 20.0):
        checkpoints.save_best({"weights": {"w": np.ones(1)}}, {"eval_return": return_})
    saved(tmp_path, 4)
    assert names(tmp_path) == ["000004", "000005", "000006", "best-000002"]
    best, _ = checkpoints.best()
    assert best is not None
    assert best.meta == {"eval_return": 20.0}


def test_no_checkpoint_is_no_complaint(tmp_path: Path) -> None:
    assert Checkpoints(tmp_path / "none").newest() == (None, [])
    assert Checkpoints(tmp_path / "none").clean() == []


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(bytes(data))


def empty(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize("harm", [cut, flip, empty, Path.unlink], ids=lambda harm: harm.__name__)
@pytest.mark.parametrize("file", ["manifest.json", "learner.json", "learner.safetensors"])
def test_damage_is_told_and_the_one_before_is_taken(tmp_path: Path, file: str, harm: Any) -> None:
    checkpoints = saved(tmp_path, 3)
    harm(tmp_path / "000003" / file)
    newest, complaints = checkpoints.newest()
    assert newest is not None
    assert newest.meta == {"updates": 2}
    (complaint,) = complaints
    assert f"000003/{file}" in complaint
    assert "damaged" in complaint or "cannot be read" in complaint
    checkpoints.save(state(4), {"updates": 4})  # what is damaged keeps its number
    assert checkpoints.newest()[0].meta == {"updates": 4}  # type: ignore[union-attr]


@pytest.mark.parametrize("place", [0, 1500, -1], ids=["first", "inner", "last"])
def test_damage_is_found_in_every_block_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: int) -> None:
    monkeypatch.setattr(store, "_BLOCK", 1024)  # of which the tensors' file has several
    saved(tmp_path, 1)
    path = tmp_path / "000001" / "learner.safetensors"
    data = bytearray(path.read_bytes())
    assert len(data) > 3 * store._BLOCK
    data[place] ^= 4
    path.write_bytes(bytes(data))
    with pytest.raises(DamagedCheckpoint, match=r"learner\.safetensors is damaged: its checksum is another one"):
        store.open_checkpoint(tmp_path / "000001")


def test_flipped_bits_of_a_manifest_are_found(tmp_path: Path) -> None:
    saved(tmp_path, 1)
    path = tmp_path / "000001" / "manifest.json"
    whole = path.read_bytes()
    for place in range(0, len(whole), 3):
        damaged = bytearray(whole)
        damaged[place] ^= 1
        path.write_bytes(bytes(damaged))
        try:
            opened = store.open_checkpoint(tmp_path / "000001")
        except DamagedCheckpoint:
            continue
        assert opened.meta == {"updates": 1}  # white space


@pytest.mark.parametrize(
    "body",
    [
        None,
        [],
        {"format": 1},
        {"format": 2, "meta": {}, "parts": [], "files": {}},
        {"format": 1, "meta": {}, "parts": ["../x"], "files": {}},
        {"format": 1, "meta": {}, "parts": [], "files": {"../../secret": [1, 2]}},
        {"format": 1, "meta": {}, "parts": [], "files": {"/dev/zero": [1, 2]}},
        {"format": 1, "meta": {}, "parts": [], "files": {"x": 3}},
        {"format": 1, "meta": [], "parts": [], "files": {}},
    ],
    ids=str,
)
def test_manifests_that_were_never_written_are_refused(tmp_path: Path, body: Any) -> None:
    saved(tmp_path, 1)
    (tmp_path / "000001" / "manifest.json").write_text(json.dumps({"crc32": store._crc_of(body), "body": body}))
    newest, (complaint,) = Checkpoints(tmp_path).newest()
    assert newest is None
    assert "damaged" in complaint or "format 2" in complaint


def test_files_of_a_folder_are_linked_and_stay_with_their_checkpoint(tmp_path: Path) -> None:
    live = tmp_path / "live"
    live.mkdir()
    (live / "rows-000000.log").write_bytes(b"rows" * 100)
    (live / "tables").write_bytes(b"one")
    checkpoints = Checkpoints(tmp_path / "all")
    first = checkpoints.save(state(1), {}, {"replay": live})
    os.replace(_written(live / "new", b"two"), live / "tables")
    second = checkpoints.save(state(2), {}, {"replay": live})
    one, two = first.folder("replay"), second.folder("replay")
    assert one is not None
    assert two is not None
    assert (one / "tables").read_bytes() == b"one"
    assert (two / "tables").read_bytes() == b"two"
    assert (one / "rows-000000.log").stat().st_ino == (two / "rows-000000.log").stat().st_ino
    (two / "tables").write_bytes(b"twenty")
    newest, (complaint,) = checkpoints.newest()
    assert newest is not None
    assert newest.path == first.path
    assert "replay/tables is damaged" in complaint


def _written(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EIO], ids=errno.errorcode.get)
@pytest.mark.parametrize("place", ["_sync", "_write"])
def test_a_folder_that_cannot_be_written_loses_nothing_and_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, number: int
) -> None:
    checkpoints = saved(tmp_path, 2)

    def fail(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(store, place, fail)
    with pytest.raises(CheckpointFailed, match=f"could not be written: {os.strerror(number)}$"):
        checkpoints.save(state(3), {})
    monkeypatch.undo()
    assert names(tmp_path) == ["000001", "000002"]
    assert checkpoints.newest()[0].meta == {"updates": 2}  # type: ignore[union-attr]


def test_writes_that_really_fail_are_one_sentence_too(tmp_path: Path) -> None:
    """The tensors are written by another language's code, which has errors of its own."""
    checkpoints = saved(tmp_path, 2)
    heard, say = os.pipe()
    child = os.fork()
    if child == 0:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        try:
            checkpoints.save({"learner": np.zeros(100_000)}, {})
        except CheckpointFailed as failure:
            os.write(say, str(failure).encode())
        finally:
            os._exit(0)
    os.close(say)
    os.waitpid(child, 0)
    assert os.read(heard, 4096).decode() == f"the checkpoint {tmp_path / '000003'} could not be written: File too large"
    os.close(heard)
    assert names(tmp_path) == ["000001", "000002"]


def test_a_state_that_cannot_be_saved_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(CheckpointFailed, match="learner/loss is a function, which cannot be saved"):
        Checkpoints(tmp_path).save({"learner": {"learner": {"loss": lambda: 0}}}, {})
    assert names(tmp_path) == []


def save_for_ever(directory: Path, told: int) -> None:
    """In a child: every number that it tells is one whose checkpoint was saved."""
    checkpoints = Checkpoints(directory)
    newest, _ = checkpoints.newest()
    number = 0 if newest is None else newest.meta["number"]
    while True:
        number += 1
        parts = {name: {"number": number, "rows": np.full(50_000, number)} for name in ("learner", "actors", "counts")}
        checkpoints.save(parts, {"number": number})
        os.write(told, number.to_bytes(8, "little"))


def killed_while_saving(directory: Path, after: float) -> int:
    """The last number that a child told before it was killed, some time after its first save."""
    told, tell = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            save_for_ever(directory, tell)
        finally:
            os._exit(1)
    os.close(tell)
    heard = os.read(told, 8)
    time.sleep(after)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    while more := os.read(told, 8):
        heard = more
    os.close(told)
    return int.from_bytes(heard, "little")


def test_killed_at_any_moment_there_is_a_whole_checkpoint_and_none_that_was_told_is_lost(tmp_path: Path) -> None:
    chance = random.Random(1)
    left = 0
    for _ in range(12):
        told = killed_while_saving(tmp_path, chance.random() * 0.02)
        checkpoints = Checkpoints(tmp_path)
        left += len(checkpoints.clean())
        newest, complaints = checkpoints.newest()
        assert newest is not None
        assert not complaints
        assert newest.meta["number"] >= told > 0
        assert all((newest.part(name)["rows"] == newest.meta["number"]).all() for name in newest.parts)
        assert not [name for name in names(tmp_path) if name.startswith(".")]
    assert left, "no kill fell into a save: this test would not have noticed"


def test_the_order_is_that_of_numbers_also_when_they_grow_longer(tmp_path: Path) -> None:
    checkpoints = saved(tmp_path, 1)
    os.rename(tmp_path / "000001", tmp_path / "999999")
    checkpoints.save(state(2), {"updates": 2})
    found, _ = checkpoints.newest()
    assert found is not None
    assert found.path.name == "1000000"
    assert checkpoints.names() == ("1000001", ["999999", "1000000"])


def test_the_newest_is_always_kept(tmp_path: Path) -> None:
    store = Checkpoints(tmp_path, keep=0)
    for updates in range(3):
        store.save({"learner": {"updates": updates}}, {})
    assert store.names() == ("000004", ["000003"])


def test_a_checkpoint_after_one_with_a_very_large_number_is_found(tmp_path: Path) -> None:
    saved(tmp_path, 1)
    (tmp_path / "000001").rename(tmp_path / "999999999999")
    made = Checkpoints(tmp_path).save({"learner": {}}, {"updates": 2})
    newest, _ = Checkpoints(tmp_path).newest()
    assert newest is not None
    assert newest.path == made.path
