"""A trained policy as one file that needs no Shoal: ONNX or torch, a contract, recorded inputs and outputs.

What is written is one greedy step: observation and memory in, action and memory after it out. It is run against what
the policy itself does before it is said to be done.
"""

from __future__ import annotations

import importlib.util
import io
import json
import logging
import os
import shutil
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from shoal import tree
from shoal.acting.network_policy import NetworkPolicy
from shoal.acting.policy import LAST_REWARD
from shoal.envs.space_records import to_record
from shoal.errors import UserError
from shoal.nets.weights import import_weights
from shoal.playing.policy import TrainedPolicy, load
from shoal.runs import directory
from shoal.types import Columns

FORMATS = {"onnx": "policy.onnx", "torch": "policy.pt2"}
STEPS, ROWS = 8, 3  # that are recorded: steps of an episode, episodes side by side
OTHER_ROWS = (1, 2, 32)  # that are played beside: a network may do otherwise with a batch of another size
TOLERANCE = 1e-5
CONTRACT, RECORDED = "contract.json", "recorded.npz"
Outputs = dict[str, np.ndarray[Any, Any]]


@dataclass(frozen=True)
class Export:
    folder: str
    file: str
    inputs: list[dict[str, Any]]
    outputs: list[dict[str, Any]]
    largest_difference: float


def export(
    source: TrainedPolicy | str | os.PathLike[str],
    folder: str | os.PathLike[str] | None = None,
    *,
    format: str = "onnx",
    trust: bool = False,
) -> Export:
    """Write a run's greedy policy into a new or empty folder, by default `export-FORMAT` in the run directory. `trust`
    as for `shoal.load`."""
    if format not in FORMATS:
        raise UserError(f"--format {format} is not known: choose one of {', '.join(FORMATS)}.")
    _need(format)
    if not isinstance(source, TrainedPolicy):
        directory.named(source, "shoal.export()")
    policy = source if isinstance(source, TrainedPolicy) else load(source, trust=trust)
    place = Path(folder) if folder is not None else policy.run / f"export-{format}"
    if place.exists() and (not place.is_dir() or any(place.iterdir())):
        raise UserError(f"--output {place} is there already: give a new or empty folder.")
    step = GreedyStep(policy)
    made = place.with_name(f".{place.name}.{os.getpid()}")
    try:
        made.mkdir(parents=True)
        recorded = _write(format, policy, step, made / FORMATS[format])
        play, choices = _player(format, made / FORMATS[format]), getattr(policy.action_space, "nvec", None)
        difference = _check(play, recorded, f"{format} export", choices)
        for rows in OTHER_ROWS if len(recorded[0]["out/action"]) == ROWS else ():
            many = "a single observation" if rows == 1 else f"{rows} observations at once"
            what = f"{format} export, given {many},"
            difference = max(difference, _check(play, _recorded(policy, step, rows), what, choices))
        inputs, outputs = _described(step, recorded[0])
        contract = _contract(policy, step, FORMATS[format], inputs, outputs)
        (made / CONTRACT).write_text(json.dumps(contract, indent=2) + "\n")
        stacked = {name: np.stack([row[name] for row in recorded]) for name in recorded[0]}
        np.savez(made / RECORDED, **stacked)  # type: ignore[arg-type]
        if place.exists():
            place.rmdir()
        os.replace(made, place)
    except OSError as error:
        raise UserError(f"--output {place} cannot be written ({error.strerror}).") from None
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return Export(str(place), FORMATS[format], inputs, outputs, difference)


def _need(format: str) -> None:
    for package in ("onnx", "onnxscript", "onnxruntime") if format == "onnx" else ():
        if importlib.util.find_spec(package) is None:
            raise UserError(f"ONNX needs a package that is not installed ({package}); run: pip install 'shoal[onnx]'")


# ---- one step --------------------------------------------------------------------------------------------------------


class GreedyStep(nn.Module):
    """Flat tensors in the order of `inputs` → tensors in the order of `outputs`: what the policy's own `greedy` gives.
    Memory that is zero is an episode's beginning."""

    def __init__(self, policy: TrainedPolicy) -> None:
        super().__init__()
        acting = policy.greedy
        if not isinstance(acting, NetworkPolicy):
            raise UserError(
                f"A policy of the kind {type(acting).__name__} cannot be exported: it has no torch network with a "
                "`greedy` step (shoal.acting.network_policy)."
            )
        _load_network(acting)
        self.network: nn.Module = acting.network
        self.space, self.native = policy.seen_space, policy.action_space
        self.observations = list(tree.leaf_spaces(self.space, "observation"))
        self.memory = list(acting.initial_state(1))
        self._acting = acting

    @property
    def inputs(self) -> list[str]:
        return [*self.observations, *(f"memory/{name}" for name in self.memory)]

    @property
    def outputs(self) -> list[str]:
        return ["action", "scores", *(f"memory/{name}" for name in self.memory if name != LAST_REWARD)]

    def forward(self, *flat: Tensor) -> tuple[Tensor, ...]:
        parts = dict(zip(self.inputs, flat))
        observation = tree.nest(self.space, parts, "observation")
        memory = {name: parts[f"memory/{name}"] for name in self.memory}
        action, scores, after = self._acting.greedy(observation, memory)
        action = _as_environment(action, self.native)
        return (action, scores, *(after[name] for name in self.memory if name != LAST_REWARD))


def _load_network(acting: NetworkPolicy[Any]) -> None:
    """The torch network has the weights also where a numpy mirror acts in its place."""
    import_weights(acting.network, acting.state_dict()["weights"])
    acting.network.eval()


def _as_environment(action: Tensor, space: spaces.Space[Any]) -> Tensor:
    """Discrete actions counted from the environment's own start, continuous ones within its bounds."""
    match space:
        case spaces.Discrete():
            return action + int(space.start)
        case spaces.MultiDiscrete():
            return action + torch.as_tensor(space.start)
        case spaces.Box():
            low, high = (torch.as_tensor(bound.astype(np.float32)) for bound in (space.low, space.high))
            return torch.minimum(torch.maximum(action, low), high)
    raise UserError(f"Actions in {space} cannot be exported.")


# ---- what is recorded, and compared ----------------------------------------------------------------------------------


@torch.no_grad()
def _recorded(policy: TrainedPolicy, step: GreedyStep, rows: int) -> list[Outputs]:
    """Inputs and outputs of a few steps; actions and memory are those of the policy itself, not this module's."""
    acting: Any = policy.greedy
    step.space.seed(0)
    memory: Columns = acting.initial_state(rows)
    first, found = np.ones(rows, np.bool_), []
    for _ in range(STEPS):
        samples = [tree.flatten(step.space.sample(), "observation") for _ in range(rows)]
        seen = {name: np.stack([np.asarray(sample[name]) for sample in samples]) for name in step.observations}
        seen = {name: value.clip(-10, 10) if value.dtype.kind == "f" else value for name, value in seen.items()}
        row: Outputs = {**seen, **{f"memory/{name}": np.array(value) for name, value in memory.items()}}
        given = [torch.from_numpy(row[name]) for name in step.inputs]
        results = {f"out/{name}": value.numpy() for name, value in zip(step.outputs, step(*given))}
        action, after, _ = acting.act(tree.nest(step.space, seen, "observation"), memory, first)
        results["out/action"] = np.asarray(policy.to_environment(action))
        results |= {f"out/memory/{name}": np.asarray(after[name]) for name in step.memory if name != LAST_REWARD}
        found.append(row | results)
        memory, first = {name: np.array(value) for name, value in after.items()}, np.zeros(rows, np.bool_)
        if LAST_REWARD in memory:
            memory[LAST_REWARD] = np.linspace(-1, 1, rows, dtype=np.float32)
    return found


Player = Callable[[Outputs], Outputs]


def _check(play: Player, recorded: list[Outputs], what: str, choices: Sequence[int] | None = None) -> float:
    """Refuse what does not do as the policy does; the largest difference of a number. `choices` says how many scores
    each part of a discrete action has, where there are several."""
    largest = 0.0
    for row in recorded:
        given = {name: value for name, value in row.items() if not name.startswith("out/")}
        for name, value in play(given).items():
            wanted = row[f"out/{name}"]
            if value.shape != wanted.shape:
                raise UserError(
                    f"The {what} gives {name} as {list(value.shape)}, and the policy as {list(wanted.shape)}."
                )
            if name == "action" and wanted.dtype.kind in "iu":
                clear = _margins(row["out/scores"], choices).reshape(wanted.shape) > 10 * TOLERANCE
                if not np.array_equal(value[clear], wanted[clear]):
                    raise UserError(f"The {what} takes other actions than the policy: it was not written.")
                continue
            scale = 1.0 + np.abs(wanted).reshape(len(wanted), -1).max(axis=1, initial=0.0)  # of each row
            apart = np.abs(value - wanted).reshape(len(wanted), -1).max(axis=1, initial=0.0)
            difference = float(np.max(apart / scale, initial=0.0))
            largest = max(largest, difference)
            if not difference <= TOLERANCE:
                raise UserError(
                    f"The {what} differs from the policy by {difference:.1e} in {name}: it was not written."
                )
    return largest


def _margins(scores: np.ndarray[Any, Any], choices: Sequence[int] | None) -> np.ndarray[Any, Any]:
    """How far the best of each choice is before the second, [rows, choices]: nearer than rounding, both are right."""
    parts = np.split(scores, np.cumsum(choices)[:-1], axis=-1) if choices is not None else [scores]
    ordered = [np.sort(part, axis=-1) for part in parts]
    return np.stack(
        [part[..., -1] - part[..., -2] if part.shape[-1] > 1 else part[..., 0] * 0 + 1 for part in ordered], -1
    )


# ---- files -----------------------------------------------------------------------------------------------------------


def _write(format: str, policy: TrainedPolicy, step: GreedyStep, path: Path) -> list[Outputs]:
    """For batches of any size, or, where a network cannot be traced so, for one row; what was recorded of it."""
    recorded = _recorded(policy, step, ROWS)
    program = _traced(step, recorded[0], any_size=True)
    if program is None:
        recorded = _recorded(policy, step, 1)
        program = _traced(step, recorded[0], any_size=False)
    if format == "torch":
        memory = io.BytesIO()
        torch.export.save(program, memory)
        path.write_bytes(memory.getvalue())  # torch itself ends in a C++ error where a disk is full
    else:
        names: dict[str, Any] = {"input_names": step.inputs, "output_names": [f"out/{name}" for name in step.outputs]}
        logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # it tells what of torchvision it does without
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.onnx.export(program, (), str(path), external_data=False, verbose=False, **names)
    return recorded


def _traced(step: GreedyStep, row: Outputs, any_size: bool) -> Any:
    given = tuple(torch.from_numpy(row[name]) for name in step.inputs)
    batch = torch.export.Dim("batch", min=1)
    shapes = {"flat": tuple({0: batch} for _ in given)} if any_size else None
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            return torch.export.export(step, given, dynamic_shapes=shapes)
    except Exception as error:
        if any_size:
            return None
        raise UserError(f"The network cannot be exported by torch: {str(error).splitlines()[0]}") from None


def _player(format: str, path: Path) -> Player:
    if format == "onnx":
        return onnx_player(path.read_bytes())
    return _torch_player(path)


def onnx_player(model: bytes, threads: int = 1) -> Player:
    """Of a model's bytes: a file could name others, which would be read with it."""
    import onnxruntime

    onnxruntime.disable_telemetry_events()  # nothing is told to anybody
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    wanted = {each.name for each in session.get_inputs()}

    def play(given: Outputs) -> Outputs:
        found = session.run(names, {name: value for name, value in given.items() if name in wanted})
        return {name.removeprefix("out/"): value for name, value in zip(names, found)}

    return play


def _torch_player(path: Path) -> Player:
    module = torch.export.load(path).module()

    def play(given: Outputs) -> Outputs:
        with torch.no_grad():
            found = module(*(torch.from_numpy(value) for value in given.values()))
        names = ["action", "scores", *(name for name in given if name.startswith("memory/"))]
        names = [name for name in names if name != f"memory/{LAST_REWARD}"]
        return {name: value.numpy() for name, value in zip(names, found)}

    return play


def _described(step: GreedyStep, row: Outputs) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    inputs = [_tensor(name, row[name]) for name in step.inputs]
    outputs = [_tensor(name, row[f"out/{name}"]) | {"name": f"out/{name}"} for name in step.outputs]
    for output, name in zip(outputs, step.outputs):
        if name.startswith("memory/"):
            output["feeds"] = name
    return inputs, outputs


def _tensor(name: str, value: np.ndarray[Any, Any]) -> dict[str, Any]:
    size = "batch" if len(value) == ROWS else len(value)
    return {"name": name, "shape": [size, *value.shape[1:]], "dtype": str(value.dtype)}


def _meaning(space: spaces.Space[Any]) -> str:
    match space:
        case spaces.Discrete():
            return f"a whole number from {space.start} to {space.start + space.n - 1}"
        case spaces.MultiDiscrete():
            return f"{len(space.nvec)} whole numbers, each within its own range"
    return "numbers in its own units, within its bounds"


def _contract(policy: TrainedPolicy, step: GreedyStep, file: str, inputs: Any, outputs: Any) -> dict[str, Any]:
    from shoal import __version__

    rules = [f"out/action is the greedy action as the environment takes it: {_meaning(policy.action_space)}."]
    if step.memory:
        rules.append(
            "Where an episode begins, every input memory/… is zero; else it is the last step's output that feeds it."
        )
    if policy.wants_reward:
        rules.append(f"memory/{LAST_REWARD} is what the last action gave.")
    if policy.stacks:
        rules.append(
            f"Images are stacks of the last {next(iter(policy.stacks.values()))} frames, oldest first; at an "
            "episode's beginning its first frame is repeated."
        )
    return {
        "contract": 1,
        "shoal": __version__,
        "algorithm": policy.algorithm,
        "file": file,
        "inputs": inputs,
        "outputs": outputs,
        "observation_space": to_record(step.space),
        "action_space": to_record(policy.action_space),
        "stack": next(iter(policy.stacks.values()), 1),
        "rules": rules,
        "recorded": f"{RECORDED}: {STEPS} steps, arrays [step, row, …] by the names above",
    }
