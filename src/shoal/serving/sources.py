"""What is served: a run, its best checkpoint, one checkpoint or an export; loaded, and again when there is newer."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from shoal import tree
from shoal.checkpoints.store import MANIFEST
from shoal.errors import UserError
from shoal.playing.exported import ExportFiles, is_export, load_export, read_export
from shoal.playing.exporting import FORMATS
from shoal.playing.policy import TrainedPolicy, rebuilt
from shoal.runs import directory
from shoal.runs.saved_weights import BEST, Found, find_weights
from shoal.serving.computing import Acts


class Loaded(NamedTuple):
    """A policy that can be served."""

    acts: Acts
    files: Found | ExportFiles | None  # of which the same can be made elsewhere
    place: str  # where it was found, for people
    order: tuple[float, ...] = ()  # larger for what is newer
    updates: int | None = None

    @property
    def policy(self) -> TrainedPolicy:
        return self.acts.policy


@dataclass(frozen=True)
class Making:
    """How a policy is made of its files."""

    device: str = "cpu"
    seed: int | None = None
    trust: bool = False
    explore: bool = False

    def make(self, files: Found | ExportFiles) -> TrainedPolicy:
        if isinstance(files, ExportFiles):
            if self.explore:
                raise UserError(f"--explore is not for an export: {files.place} holds the greedy policy alone.")
            made = load_export(files)
        else:
            made = rebuilt(files, device=self.device, seed=self.seed, trust=self.trust)
        attempt(made, self.explore)
        return made


class Source:
    """RUN, RUN:best, a checkpoint's folder or an export's, as a user names it."""

    def __init__(self, given: str | os.PathLike[str], making: Making) -> None:
        self.given = directory.named(given, "shoal.serve()")
        self.making = making
        self._export = is_export(Path(self.given))

    def load(self) -> Loaded:
        files = self._find()
        return self._loaded(files)

    def newer(self, than: Loaded) -> tuple[Loaded | None, Sequence[str]]:
        """What is newer, or None; and a sentence for each that is newer still and damaged."""
        files = self._find()
        complaints = files.complaints if isinstance(files, Found) else ()
        if _order(files) <= than.order:
            return None, complaints
        loaded = self._loaded(files)
        check_same(than.policy, loaded.policy, loaded.place)
        return loaded, complaints

    def stamp(self) -> tuple[Any, ...]:
        """It changes whenever there may be something newer, and costs next to nothing."""
        path = Path(self.given)
        if self._export:
            return (_stamp(path / FORMATS["onnx"]),)
        run = Path(self.given.removesuffix(BEST)) if self.given.endswith(BEST) and not path.is_dir() else path
        try:
            saved = sorted(each.name for each in (run / directory.CHECKPOINTS).iterdir() if each.name[:1] != ".")
        except OSError:
            saved = []
        return *saved, _stamp(run / directory.WEIGHTS), _stamp(run / directory.SUMMARY)

    def check_follows(self) -> None:
        if (Path(self.given) / MANIFEST).is_file():
            raise UserError(f"--follow: {self.given} is one checkpoint, which stays as it is; give its run's folder.")

    def _find(self) -> Found | ExportFiles:
        return read_export(Path(self.given)) if self._export else find_weights(self.given)

    def _loaded(self, files: Found | ExportFiles) -> Loaded:
        updates = files.updates if isinstance(files, Found) else None
        acts = Acts(self.making.make(files), self.making.explore)
        return Loaded(acts, files, str(files.place), _order(files), updates)


def _order(files: Found | ExportFiles) -> tuple[float, ...]:
    return files.order if isinstance(files, Found) else (files.written,)


def attempt(policy: TrainedPolicy, explore: bool) -> None:
    """One step on zeros: what cannot act is refused before anybody asks it."""
    leaves = tree.leaf_spaces(policy.seen_space, "observation")
    lowest = {name: getattr(leaf, "start", 0) for name, leaf in leaves.items()}
    zeros = {name: np.zeros((1, *leaf.shape), leaf.dtype) + lowest[name] for name, leaf in leaves.items()}
    zeros = {name: array.astype(leaves[name].dtype) for name, array in zeros.items()}
    acting = policy.exploring if explore else policy.greedy
    observation = tree.nest(policy.seen_space, zeros, "observation")
    try:
        acting.act(observation, acting.initial_state(1), np.ones(1, np.bool_))
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"The policy of {policy.run} fails on an observation of zeros ({error}).") from None


def check_same(old: TrainedPolicy, new: TrainedPolicy, place: str) -> None:
    """Clients were told the spaces, and sessions hold memory: a policy that has others cannot take the place."""
    if (old.observation_space, old.action_space) != (new.observation_space, new.action_space):
        raise UserError(f"{place} has other spaces than the policy that is served: start the server again to serve it.")
    states = [{name: value.shape for name, value in each.greedy.initial_state(1).items()} for each in (old, new)]
    if states[0] != states[1] or old.stacks != new.stacks:
        raise UserError(
            f"{place} remembers otherwise than the policy that is served: start the server again to serve it."
        )


def _stamp(file: Path) -> tuple[int, ...]:
    try:
        found = os.stat(file)
        return found.st_mtime_ns, found.st_size, found.st_ino
    except OSError:
        return ()
