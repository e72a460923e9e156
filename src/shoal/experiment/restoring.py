"""Starting a new run with old weights: where they lie, whether they fit, and which parameters are not trained."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from shoal.errors import UserError
from shoal.nets.transfer import freeze, transfer
from shoal.program import Program
from shoal.runs.options import RunOptions
from shoal.runs.saved_weights import find_weights
from shoal.services.metrics import LEARNER_STEPS, with_updates
from shoal.types import Arrays, Role


@dataclass(frozen=True)
class Restored:
    """Old weights that were found to fit."""

    weights: Arrays
    partial: bool
    lines: list[str]  # what the user is told
    updates: int = 0  # that were made before, where a run goes on with its own weights
    metrics: Mapping[str, Any] | None = None  # what it had counted then

    def start(self, program: Program) -> None:
        """Have the learner begin with them."""
        state = {"updates": self.updates, "refused": 0, "weights": dict(self.weights), "partial": self.partial}
        learner = program.find(Role.LEARNER) or program.find(Role.PUBLISHER)
        assert learner is not None, "somebody begins with weights"
        program.start_from(learner.name, state)
        metrics = program.find(Role.METRICS)
        if self.metrics is not None and metrics is not None:
            program.start_from(metrics.name, with_updates(self.metrics, {LEARNER_STEPS: float(self.updates)}))


def restore(options: RunOptions, policy: Any) -> Restored | None:
    """The weights that `--restore` names, tried on a policy's network before any process is started."""
    network = getattr(policy, "network", None)  # a policy of the user's own may have none: then the learner finds out
    restored = None
    if options.restore is not None:
        weights, place, run = find_weights(options.restore, f"--restore {options.restore}")[:3]
        said = [f"starts with the weights of {run if place.parent == run else place}"]
        if isinstance(network, nn.Module):
            done = transfer(network, weights, partial=options.restore_partial)
            said += done.lines() if options.restore_partial else []
        restored = Restored(weights, options.restore_partial, said)
    if options.freeze is not None and isinstance(network, nn.Module):
        freeze(network, options.freeze)
    return restored


def check_fits(policy: Any, weights: Arrays, run: Path) -> None:
    """Refuse options with which a run that goes on would have another network."""
    network = getattr(policy, "network", None)
    if not isinstance(network, nn.Module):
        return
    found = {name: list(tensor.shape) for name, tensor in network.state_dict().items()}
    saved = {name: list(array.shape) for name, array in weights.items()}
    for name in [*saved, *found]:
        before, now = saved.get(name, "absent"), found.get(name, "absent")
        if before != now:
            raise UserError(
                f"The network cannot change when a run goes on: {name} of {run} is {before} and would be {now}. "
                f"Start a new run with --restore {run} --restore-partial instead."
            )
