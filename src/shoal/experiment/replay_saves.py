"""The replay in a checkpoint: each replay saves its own tables into RUN/replay, under the checkpoint's name.

Only tables whose items are sampled again and again are saved. A queue that a learner empties holds a moment's work, and
its rounds would be of another moment than the learner that goes on; it is saved where all nodes are, at one moment
(`exact.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shoal.checkpoints import Checkpoint, DamagedCheckpoint
from shoal.program import Program
from shoal.replay import BadCheckpoint
from shoal.replay.checkpoint import manifest_name, verify
from shoal.types import Role

REPLAY = "replay"  # the folder, and what a checkpoint's meta calls the names of saves by node


def replay_nodes(program: Program) -> list[str]:
    """The nodes that hold tables of any kind."""
    return [node.name for node in program.with_role(Role.REPLAY, Role.QUEUE)]


def saving_nodes(program: Program) -> list[str]:
    """The nodes that hold tables of experience."""
    return [node.name for node in program.with_role(Role.REPLAY)]


def unsaved_note(program: Program, runtime: str) -> str | None:
    """What the user should know who asks for the replay in checkpoints, where there is none to be saved."""
    if runtime == "inline" or saving_nodes(program):
        return None
    return "--checkpoint-replay saves nothing here: this program keeps no experience" + (
        " but a queue, which holds a moment's work" if replay_nodes(program) else ""
    )


def folder_of(run: Path, node: str) -> Path:
    return run.absolute() / REPLAY / node.replace("/", "-")


def is_here(run: Path, node: str, tag: str) -> bool:
    """Whether a replay's save can be found from this process: on Ray a replay may be on a machine with other disks."""
    return (folder_of(run, node) / manifest_name(tag)).is_file()


def check_saves(run: Path, checkpoint: Checkpoint) -> None:
    """Raise `DamagedCheckpoint` unless the saves that belong to a checkpoint are there, and as they were written."""
    for node, tag in checkpoint.meta.get(REPLAY, {}).items():
        try:
            verify(folder_of(run, node), tag)
        except (BadCheckpoint, ValueError) as damage:  # which a tag that is no name raises
            raise DamagedCheckpoint(f"The replay of {checkpoint.path} is damaged: {damage}.") from None


def start_replays(program: Program, run: Path, meta: Mapping[str, Any]) -> None:
    """Have the replays of a program load what was saved with a checkpoint before anything calls them."""
    saved = meta.get(REPLAY, {})
    for node, tag in ((node, saved[node]) for node in saving_nodes(program) if node in saved):
        program.start_from(node, {"path": str(folder_of(run, node)), "tag": tag})
