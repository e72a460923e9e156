"""A trained policy in the user's own program: loaded, asked for actions, evaluated."""

from __future__ import annotations

from shoal.playing.evaluation import Evaluation, evaluate
from shoal.playing.policy import TrainedPolicy, load

__all__ = ["Evaluation", "TrainedPolicy", "evaluate", "load"]
