"""Names for types that every room uses; each is defined here and nowhere else."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

import numpy.typing as npt

Array = npt.NDArray[Any]
Columns = dict[str, Array]  # arrays by name: rows that are stored, a batch, a recurrent state, a network's weights
Arrays = Mapping[str, Array]  # the same where it is only read
Values = (
    Any  # a numpy array, or a tensor: code that takes either works on what it is given and copies nothing between them
)


class Role(StrEnum):
    """What a node of a program is there for: who runs and watches a program decides by it, never by a name.

    A factory's class may say it (`role = Role.ACTOR`), and a group of the program may say otherwise.
    """

    METRICS = "metrics"  # adds up what all nodes report; one for the program
    WEIGHTS = "weights"  # the newest weights of a policy
    REPLAY = "replay"  # experience that is sampled again and again
    QUEUE = "queue"  # experience that is learned from once: a moment's work, not worth saving by itself
    FRONT = "front"  # speaks for several replays, and holds nothing
    LEARNER = "learner"  # of several in one group, which are equal, the first speaks for all
    PUBLISHER = "publisher"  # hands on what a gradient service learns
    GRADIENTS = "gradients"  # applies gradients: parameters and the optimizer are there
    PEERS = "peers"  # where learners that update together meet
    ACTOR = "actor"  # steps environments
    WORKER = "worker"  # steps environments and learns from them
    INFERENCE = "inference"  # acts for actors
    GATEWAY = "gateway"  # acts for simulators outside, and writes down their experience
    EVALUATOR = "evaluator"  # judges a policy
    OTHER = "other"  # whatever else a program needs


EXTERNAL = "external"  # named in the place of an environment that is outside: clients bring it
NO_ENV = "none"  # named in the place of an environment where there are only data of one
GIVEN_UP = "given up"  # the name of a thread that is in the midst of foreign code, and not waited for
MAIN = "main"  # the policy of a program that has one: its nodes' names and numbers need not say so
