"""A trained policy in the user's own program: loaded, asked for actions, evaluated, filmed."""

from __future__ import annotations

from shoal.playing.collecting import Collection, collect
from shoal.playing.evaluation import Evaluation, evaluate
from shoal.playing.policy import TrainedPolicy, load
from shoal.playing.recording import Recording, record

__all__ = ["Collection", "Evaluation", "Recording", "TrainedPolicy", "collect", "evaluate", "load", "record"]
