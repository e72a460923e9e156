"""The device that a node computes on: looked for in the process that uses it, and its memory bounded there.

The driver of a cluster may have no GPU at all. Ray's parts of a GPU are bookkeeping: what a process takes of it is
bounded by torch alone, which a node is told before it takes anything.
"""

from __future__ import annotations

import socket
from typing import Any

from shoal.errors import UserError
from shoal.program import Context, Node, Resources
from shoal.types import Role


def take(node: Node, context: Context) -> None:
    """Make sure, in a node's own process, that its device is there, choose it where there are several, and bound the
    memory that this process may take of it."""
    resources = node.resources
    if resources.device == "cpu":
        return
    _choose(node, context)
    if (reason := missing(resources.device)) is not None:
        raise UserError(
            f"node {node.name!r} is to compute on {resources.device!r}, which cannot be used on the machine "
            f"{socket.gethostname()!r} ({reason}): leave --device and --acting-device at cpu, or add a machine that "
            "has one."
        )
    _bound(resources)


def missing(device: str) -> str | None:
    """Why a device cannot be used by this process; None if it can."""
    import torch

    try:
        stored = torch.zeros(1, device=device).item()  # reading it shows that there is a memory behind
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        return str(error).partition("\n")[0].rstrip(".")
    assert stored == 0.0
    return None


def known(device: str) -> str | None:
    """What is wrong with a device's name, wherever it is to be used; None if nothing is."""
    import torch

    try:
        torch.device(device)
    except RuntimeError as error:
        return str(error).partition("\n")[0].rstrip(".")
    return None


def _choose(node: Node, context: Context) -> None:
    """Of several learners each takes another of the GPUs that its process can see: `CUDA_VISIBLE_DEVICES` is the
    user's on one machine, and on Ray, which gives a process the GPUs that it has asked for, Ray's."""
    import torch

    if node.resources.device == "cuda" and node.role == Role.LEARNER and torch.cuda.is_available():
        torch.cuda.set_device(context.members.place % torch.cuda.device_count())


def _bound(resources: Resources) -> None:
    import torch

    if not resources.device.startswith("cuda"):
        return
    device: Any = (
        None if resources.device == "cuda" else torch.device(resources.device)
    )  # None: the one that was chosen
    share = resources.gpus if 0.0 < resources.gpus < 1.0 else None
    if resources.gpu_memory is not None:
        there = torch.cuda.get_device_properties(device).total_memory
        share = min(1.0, resources.gpu_memory / there)
    if share is not None:
        torch.cuda.set_per_process_memory_fraction(share, device)
