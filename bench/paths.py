"""How many files of src/shoal a transition, a checkpoint with its resume and `shoal train` to the first node cross.

    python -m bench.paths            # the numbers
    python -m bench.paths --files    # and the files

What is counted is what runs: files of which a function is called, on the inline runtime, after everything was imported.
With PYTHONPATH at another tree it counts that one.
"""

from __future__ import annotations

import sys
import tempfile
import threading
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import shoal
from shoal.__main__ import main
from shoal.algorithms import apex_dqn

ROOT = str(Path(shoal.__file__).parent)
SMALL: dict[str, Any] = {"env": "CartPole-v1", "envs_per_actor": 2, "batch": 8, "learning_starts": 64, "hidden": (8,)}


class Recorder:
    """The files whose functions are called while `wanted(thread)` holds; `seen` is told of every call and return."""

    def __init__(self) -> None:
        self.files: set[str] = set()
        self.functions: set[tuple[str, str]] = set()
        self.wanted: Callable[[str], bool] = lambda thread: False
        self.seen: Callable[[str, str, str], None] = lambda event, file, function: None

    def profile(self, frame: Any, event: str, argument: Any) -> None:
        file = frame.f_code.co_filename
        if event not in ("call", "return") or not file.startswith(ROOT):
            return
        name, function = file[len(ROOT) + 1 :], frame.f_code.co_qualname
        if event == "call":
            self.seen(event, name, function)
        if event == "call" and self.wanted(threading.current_thread().name):
            self.files.add(name)
            self.functions.add((name, function))
        if event == "return":
            self.seen(event, name, function)

    def __enter__(self) -> Recorder:
        threading.setprofile(self.profile)
        sys.setprofile(self.profile)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)


def train(run: Path, **options: Any) -> Any:
    return shoal.train(apex_dqn.Config(**SMALL), quiet=True, runtime="inline", run_dir=str(run), **options)


def transition(folder: Path) -> Recorder:
    """What actor and learner do, from the first report of progress on, with the services that they call."""
    with Recorder() as found:

        def begin(told: Any) -> None:
            found.wanted = lambda thread: thread.startswith(("actor", "learner"))

        train(folder / "transition", stop_updates=400, on_progress=begin)
    return found


def checkpoint(folder: Path) -> Recorder:
    """What the driver's checkpointer does and calls; then everything from `shoal.resume` to the program's start."""
    depth = 0
    with Recorder() as found:

        def saving(event: str, file: str, function: str) -> None:
            nonlocal depth
            if file.endswith("checkpointing.py") and threading.current_thread() is threading.main_thread():
                depth += 1 if event == "call" else -1

        found.seen, found.wanted = saving, lambda thread: depth > 0 and thread == "MainThread"
        train(folder / "checkpoint", stop_updates=100, checkpoint_updates=50, checkpoint_replay=True)

        going_on = True

        def resuming(event: str, file: str, function: str) -> None:
            nonlocal going_on
            if event == "return" and function == "launch":
                going_on = False

        found.seen, found.wanted = resuming, lambda thread: going_on
        shoal.resume(folder / "checkpoint", quiet=True, stop_updates=120)
    return found


def shoal_command(words: list[str]) -> None:
    before, sys.argv = sys.argv, ["shoal", *words]
    try:
        main()
    finally:
        sys.argv = before


def command(folder: Path) -> Recorder:
    """From the command's first line to the making of the first node."""
    before = True
    words = ["train", "apex_dqn", "--env", "CartPole-v1", "--runtime", "inline", "--stop-updates", "1"]
    words += ["--envs-per-actor", "2", "--batch", "8", "--learning-starts", "64", "--run-dir"]
    with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
        shoal_command([*words, str(folder / "imports")])
        with Recorder() as found:

            def made(event: str, file: str, function: str) -> None:
                nonlocal before
                if function == "Node.build":
                    before = False

            found.seen, found.wanted = made, lambda thread: before
            shoal_command([*words, str(folder / "command")])
    return found


def run(files: bool) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        train(folder / "imports-1", stop_updates=100, checkpoint_updates=50, checkpoint_replay=True)
        shoal.resume(folder / "imports-1", quiet=True, stop_updates=120)
        for path in (transition, checkpoint, command):
            found = path(folder)
            print(f"{path.__name__}: {len(found.files)} files, {len(found.functions)} functions")
            if files:
                print(*(f"  {file}" for file in sorted(found.files)), sep="\n")


if __name__ == "__main__":
    run("--files" in sys.argv)
