"""Acting: policies, what is recorded of what they do, and how that is sent to the replay service."""

from __future__ import annotations

from shoal.acting.policy import GivesPriorities, PerEnvironment, Policy
from shoal.acting.recorder import Recorder, with_last_reward, zero_where
from shoal.acting.sender import Sender
from shoal.acting.stacking import Stacker

__all__ = [
    "GivesPriorities",
    "PerEnvironment",
    "Policy",
    "Recorder",
    "Sender",
    "Stacker",
    "with_last_reward",
    "zero_where",
]
