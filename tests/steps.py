"""Rows for tests: what actions gave, without an observation."""

from __future__ import annotations

import numpy as np

from shoal.step import Step
from shoal.types import Array


def outcome(reward: Array, terminated: Array, valid: Array) -> Step:
    return Step(None, reward, terminated, np.zeros_like(terminated), reset=~valid)
