"""The lock of a run directory: one holder, who is named, and whose death frees it."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from shoal.checkpoints import RunLock
from shoal.errors import UserError


def child(work: Callable[[int], None]) -> tuple[int, str]:
    """A process that does `work`, which may say one line, and the line."""
    heard, say = os.pipe()
    made = os.fork()
    if made == 0:
        try:
            work(say)
        except UserError as error:
            os.write(say, f"{error}".encode())
        finally:
            os._exit(0)
    os.close(say)
    line = os.read(heard, 4096).decode()
    os.close(heard)
    return made, line


def end(process: int) -> None:
    os.kill(process, signal.SIGKILL)
    try:
        os.waitpid(process, 0)
    except ChildProcessError:
        pass  # not ours: the child's child


def test_the_lock_names_its_holder_and_dies_with_it_though_its_child_lives_on(tmp_path: Path) -> None:
    def hold(say: int) -> None:
        RunLock(tmp_path).acquire()
        below = os.fork()
        if below:
            os.write(say, str(below).encode())
        time.sleep(60)  # the child outlives its parent, with every descriptor that it had

    holder, grandchild = child(hold)
    with pytest.raises(UserError, match=rf"belongs to a run that is going on \(process {holder} on "):
        RunLock(tmp_path).acquire()
    end(holder)
    with RunLock(tmp_path):
        os.kill(int(grandchild), 0)  # it is there still
    end(int(grandchild))


def test_one_process_cannot_take_it_twice_nor_lose_it_by_trying(tmp_path: Path) -> None:
    with RunLock(tmp_path):
        with pytest.raises(UserError, match="this very process"):
            RunLock(tmp_path / ".").acquire()

        def try_it(say: int) -> None:
            RunLock._held.clear()  # what a process that was not forked from this one has
            RunLock(tmp_path).acquire()

        process, sentence = child(try_it)
        os.waitpid(process, 0)
        assert f"process {os.getpid()} on" in sentence
    with RunLock(tmp_path):
        pass


def test_one_process_cannot_take_it_twice_under_another_name_of_the_directory(tmp_path: Path) -> None:
    run, beside, link = (tmp_path / name for name in ("run", "beside", "link"))
    run.mkdir()
    beside.mkdir()
    link.symlink_to(run)
    with RunLock(run):
        for name in (link, beside / ".." / "run"):
            with pytest.raises(UserError, match="this very process"), RunLock(name):
                pass


def test_a_directory_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be written"):
        RunLock(tmp_path / "none").acquire()


def test_nothing_is_left_of_a_longer_signature_before(tmp_path: Path) -> None:
    (tmp_path / "run.lock").write_text("x" * 500)
    with RunLock(tmp_path):
        assert set(json.loads((tmp_path / "run.lock").read_text())) == {"pid", "host", "since"}
