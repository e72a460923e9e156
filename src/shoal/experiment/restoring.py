"""Starting a new run with old weights: where they lie, whether they fit, and which parameters are not trained."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from shoal.checkpoints import Checkpoint, Checkpoints
from shoal.checkpoints.store import MANIFEST, open_checkpoint
from shoal.errors import UserError
from shoal.experiment import directory
from shoal.experiment.directory import Weights
from shoal.experiment.ending import WEIGHTS
from shoal.experiment.options import Options
from shoal.nets.transfer import freeze, transfer
from shoal.program import Program
from shoal.versions import NONE

BEST = ":best"


@dataclass(frozen=True)
class Restored:
    """Old weights that were found to fit."""

    weights: Weights
    partial: bool
    lines: list[str]  # what the user is told

    def start(self, program: Program) -> None:
        """Have the learner begin with them: it takes what the weight service keeps for it."""
        snapshot = {"updates": 0, "refused": 0, "weights": dict(self.weights), "partial": self.partial}
        program.start_from(WEIGHTS.name, {"version": NONE, "weights": {}, "snapshot": snapshot})


def restore(options: Options, policy: Any) -> Restored | None:
    """The weights that `--restore` names, tried on a policy's network before any process is started."""
    network = getattr(policy, "network", None)  # a policy of the user's own may have none: then the learner finds out
    restored = None
    if options.restore is not None:
        weights, place = find_weights(options.restore)
        said = [f"starts with the weights of {place}"]
        if isinstance(network, nn.Module):
            done = transfer(network, weights, partial=options.restore_partial)
            said += done.lines() if options.restore_partial else []
        restored = Restored(weights, options.restore_partial, said)
    if options.freeze is not None and isinstance(network, nn.Module):
        freeze(network, options.freeze)
    return restored


def check_fits(policy: Any, weights: Weights, run: Path) -> None:
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


def find_weights(source: str) -> tuple[Weights, str]:
    """Of RUN, RUN:best, or the folder of one checkpoint; and where they were."""
    path = Path(source.removesuffix(BEST))
    if (path / MANIFEST).is_file():
        if source.endswith(BEST):
            raise UserError(f"--restore {source} names one checkpoint: leave out {BEST}, or give its run's folder.")
        return _of_checkpoint(open_checkpoint(path), source)
    directory.read_config(path)  # says what is wrong where this is no run
    if not source.endswith(BEST):
        return directory.read_weights(path), str(path)
    found, complaints = Checkpoints(path / directory.CHECKPOINTS).best()
    if found is None:
        why = complaints[0] if complaints else "it has evaluated none before a checkpoint."
        raise UserError(f"--restore {source} cannot be used: {why}")
    return _of_checkpoint(found, source)


def _of_checkpoint(found: Checkpoint, source: str) -> tuple[Weights, str]:
    if "weights" not in found.parts:
        raise UserError(f"--restore {source} cannot be used: {found.path} holds no weights.")
    weights: Weights = found.part("weights")
    return weights, str(found.path)
