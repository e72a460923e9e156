"""Nodes that tell what their processes know of GPUs, which are fakes there. Node processes import this file."""

from __future__ import annotations

import os
import sys
from typing import Any

import numpy as np
import torch

from fake_gpus import FakeGPUs
from shoal.program import current
from shoal.services import group as meeting
from shoal.services.group import Group, Member
from shoal.types import Role

GPUS = FakeGPUs(count=2)
if "pytest" not in sys.modules:  # a node's process
    GPUS.install()


class Seer:
    """Computes on a GPU, it believes."""

    role = Role.LEARNER
    restart = False

    def told(self) -> dict[str, Any]:
        return {
            "visible": os.environ.get("CUDA_VISIBLE_DEVICES"),
            "fractions": dict(GPUS.fractions),
            "chosen": GPUS.chosen,
        }


class Adding:
    """A learner of a group that believes to have a GPU, and adds up as nccl would, by gloo."""

    role = Role.LEARNER
    restart = True

    def __init__(self, group: Group, rank: int, size: int, gpus: tuple[str, ...]) -> None:
        meeting._gpu = lambda device: gpus[rank]
        meeting.BACKEND = "gloo"
        torch.distributed.is_nccl_available = lambda: True
        self._member = Member(group, rank, size)
        self._sums = 0

    def step(self) -> None:
        total = self._member.sum(torch.full((3,), float(self._member.rank + 1)))
        np.testing.assert_array_equal(total.numpy(), sum(range(self._member.size + 1)))
        self._sums += 1

    def told(self) -> tuple[int, int, bool]:
        """Lives before, sums so far, and whether GPUs add up by themselves."""
        return current().restarts, self._sums, self._member._fast is not None
