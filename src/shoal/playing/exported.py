"""An export that plays again: a policy out of a folder with a contract and an ONNX file. Nothing in it can run code."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from shoal import tree
from shoal.acting.policy import LAST_REWARD, Acted, State
from shoal.checkpoints.state_files import plain
from shoal.envs.space_records import from_record
from shoal.errors import UserError
from shoal.playing.exporting import CONTRACT, FORMATS, onnx_player
from shoal.playing.policy import Description, TrainedPolicy
from shoal.types import Array, Arrays, Values

CONTRACTS = (1,)  # of which this version of Shoal knows what they mean
MEMORY = "memory/"


class ExportFiles(NamedTuple):
    """What an export is made of, as it was read: it may be sent elsewhere."""

    contract: str  # JSON
    model: bytes
    place: Path
    written: float = 0.0  # when


def is_export(folder: Path) -> bool:
    return (folder / CONTRACT).is_file()


def read_export(folder: Path) -> ExportFiles:
    try:
        contract = plain(folder / CONTRACT).read_text(encoding="utf-8")
        name = _field(_parsed(contract, folder), "file", str, folder)
        if name != FORMATS["onnx"]:
            raise UserError(
                f"{folder} holds {name[:80]}: ONNX exports are played here, such as shoal export RUN --format onnx "
                "writes; what torch writes may run code when it is loaded."
            )
        file = plain(folder / name)
        return ExportFiles(contract, file.read_bytes(), folder, file.stat().st_mtime)
    except (OSError, ValueError) as error:
        raise UserError(f"The export {folder} cannot be read ({getattr(error, 'strerror', None) or error}).") from None


def load_export(files: ExportFiles, threads: int = 1) -> TrainedPolicy:
    """The policy of an export: greedy, as it was written. Raises `UserError` for what is none, or is damaged."""
    if importlib.util.find_spec("onnxruntime") is None:
        raise UserError("ONNX needs a package that is not installed (onnxruntime); run: pip install 'shoal[onnx]'")
    place = files.place
    contract = _parsed(files.contract, place)
    if contract.get("contract") not in CONTRACTS:
        raise UserError(f"{place / CONTRACT} is of another version of Shoal: export the run again with this one.")
    try:
        seen, action = (from_record(contract[name]) for name in ("observation_space", "action_space"))
        inputs = [_Input(**{name: each[name] for name in _Input._fields}) for each in contract["inputs"]]
        stack = int(contract.get("stack", 1))
        policy = ExportedPolicy(files.model, seen, inputs, threads)
    except (KeyError, TypeError, ValueError, AttributeError):
        raise UserError(f"{place / CONTRACT} is damaged: it does not describe a policy.") from None
    except Exception as error:  # onnxruntime has kinds of its own
        raise UserError(f"{place} is damaged: its model cannot be loaded ({type(error).__name__}).") from None
    description = Description(seen, action, action, stack)
    made = TrainedPolicy(policy, policy, description, str(contract.get("algorithm", "export")), None, place)
    made.to_environment = lambda action: action  # it does that itself
    _try(made, place)
    return made


class _Input(NamedTuple):
    name: str
    shape: list[Any]  # "batch", or how many rows at once, and the shape of one
    dtype: str


class ExportedPolicy:
    """Acts by an ONNX model, in onnxruntime. Its actions are as the environment takes them already."""

    def __init__(self, model: bytes, space: Any, inputs: list[_Input], threads: int = 1) -> None:
        self._play = onnx_player(model, threads)
        self._leaves = list(tree.leaf_spaces(space, "observation"))
        self._inputs = {each.name: each for each in inputs}
        if missing := [name for name in self._leaves if name not in self._inputs]:
            raise ValueError(f"no input is named {missing[0]}")
        self._memory = [name.removeprefix(MEMORY) for name in self._inputs if name.startswith(MEMORY)]
        self._alone = any(each.shape[0] != "batch" for each in inputs)  # it was traced for single observations
        self._dtypes = {each.name: np.dtype(each.dtype) for each in inputs}

    def initial_state(self, count: int) -> State:
        return {name: self._zeros(f"{MEMORY}{name}", count) for name in self._memory}

    def act(self, observation: Any, state: State, first: Values) -> Acted:
        parts = tree.flatten(observation, "observation")
        given = {name: np.ascontiguousarray(parts[name], self._dtypes[name]) for name in self._leaves}
        given |= {f"{MEMORY}{name}": np.asarray(state[name]) for name in self._memory}
        if self._alone and len(first) > 1:
            rows = [self._play({name: value[i : i + 1] for name, value in given.items()}) for i in range(len(first))]
            found = {name: np.concatenate([row[name] for row in rows]) for name in rows[0]}
        else:
            found = self._play(given)
        after = {name: found[f"{MEMORY}{name}"] for name in self._memory if name != LAST_REWARD}
        if LAST_REWARD in self._memory:
            after[LAST_REWARD] = np.zeros(len(first), np.float32)  # until it is told
        return found["action"], after, {}

    def load(self, weights: Arrays) -> None:
        raise UserError("An export has its weights in its file: export the run again.")

    def _zeros(self, name: str, count: int) -> Array:
        return np.zeros((count, *self._inputs[name].shape[1:]), self._dtypes[name])


def _parsed(text: str, place: Path) -> Mapping[str, Any]:
    try:
        contract = json.loads(text)
    except (ValueError, RecursionError):
        contract = None
    if not isinstance(contract, dict):
        raise UserError(f"{place / CONTRACT} is damaged: it is no contract.")
    return contract


def _field(contract: Mapping[str, Any], name: str, kind: type, place: Path) -> Any:
    if not isinstance(contract.get(name), kind):
        raise UserError(f"{place / CONTRACT} is damaged: it does not say its {name}.")
    return contract[name]


def _try(policy: TrainedPolicy, place: Path) -> None:
    """One step on zeros: a model that does not fit its contract says so now, and not to a client."""
    leaves = tree.leaf_spaces(policy.seen_space, "observation")
    zeros = {name: np.zeros((1, *leaf.shape), leaf.dtype) for name, leaf in leaves.items()}
    observation = tree.nest(policy.seen_space, zeros, "observation")
    try:
        action, _, _ = policy.greedy.act(observation, policy.greedy.initial_state(1), np.ones(1, np.bool_))
        if np.shape(action) != (1, *(policy.action_space.shape or ())):
            raise ValueError("action")
    except Exception:
        raise UserError(f"{place} is damaged: its model does not do what its contract says.") from None
