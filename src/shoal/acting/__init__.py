"""Acting: policies, playing them, what is recorded of what they do, and how that is sent to the replay service."""

from __future__ import annotations

from shoal.acting.player import Player, Stacker, act_together
from shoal.acting.policy import FirstPriorities, GivesPriorities, PerEnvironment, Policy
from shoal.acting.recorder import Recorder
from shoal.acting.sender import Sender

__all__ = [
    "FirstPriorities",
    "GivesPriorities",
    "PerEnvironment",
    "Player",
    "Policy",
    "Recorder",
    "Sender",
    "Stacker",
    "act_together",
]
