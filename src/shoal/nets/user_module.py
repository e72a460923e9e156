"""Making and trying a user's own module: what is wrong with it is one sentence that says where."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from shoal import tree
from shoal.errors import UserError, name_of
from shoal.factories import Factory, load_factory
from shoal.functional.arrays import zero_where
from shoal.nets.actor_critic import State


def make(factory: Factory, what: str, *arguments: Any) -> Any:
    """What the user's factory returns for these arguments; `what` is the option's word for it."""
    return _guarded(f"The {what} {name_of(factory)} could not be made", load_factory(factory, what), *arguments)


def attempt(module: nn.Module, what: str, *inputs: Any) -> Any:
    """What a module, which must be trainable, gives for inputs that it will meet; `what` names it."""
    parameters = dict(module.named_parameters())
    if not any(parameter.requires_grad for parameter in parameters.values()):
        raise UserError(f"{what} has no parameters to train: give it layers, or registered nn.Parameters.")
    for name, parameter in parameters.items():
        if parameter.dtype != torch.float32:
            raise UserError(
                f"{what} has a parameter {name} of {parameter.dtype}: it is trained in torch.float32, so end the "
                "factory with .float()."
            )
        if not parameter.isfinite().all():
            raise UserError(f"{what} has numbers in its parameter {name} that are not finite: look at how it is begun.")
    before = {name: parameter.detach().clone() for name, parameter in parameters.items()}
    versions = [tensor._version for tensor in _tensors(inputs)]  # which every operation in place raises
    with torch.enable_grad():
        outputs = _guarded(f"{what} failed on a batch of {_describe(inputs)}", module, *inputs)
    if versions != [tensor._version for tensor in _tensors(inputs)]:
        raise UserError(
            f"{what} overwrites its input, which others read after it: compute in a new tensor, as x = x / 255 does "
            "and x /= 255 does not."
        )
    for name, parameter in parameters.items():
        if not torch.equal(parameter, before[name]):
            raise UserError(
                f"{what} changes its own parameter {name} in forward: what is not learned belongs into a buffer."
            )
    if _has_nan(outputs):  # zeros may be what a network divides by: another input has to agree
        other = tree.map(lambda x: torch.full_like(x, 0.5) if x.is_floating_point() else x, inputs)
        if _has_nan(_guarded(f"{what} failed on a batch of {_describe(inputs)}", module, *other)):
            raise UserError(
                f"{what} gives numbers that are none (nan): look for divisions, logarithms and square roots that can "
                "be given 0."
            )
    given = outputs if isinstance(outputs, tuple) else (outputs,)
    tensors = [part for part in given if isinstance(part, torch.Tensor)]
    if tensors and not any(tensor.requires_grad for tensor in tensors):
        raise UserError(
            f"{what} gives outputs that no parameter has a part in, so that nothing could be learned: is there a "
            "torch.no_grad() or a detach() in its forward?"
        )
    return outputs


def step_through(module: nn.Module, inputs: tuple[Any, ...], state: State, first: Tensor) -> tuple[list[Tensor], State]:
    """A one-step module over rows [T, B, ...] of nested inputs, its state zeroed before rows that begin an episode: its
    outputs, each [T, B, ...], and the state after them."""
    rows = []
    for t, begins in enumerate(first):
        *row, state = module(*tree.map(lambda x, t=t: x[t], inputs), zero_where(begins, state))
        rows.append(row)
    return [torch.stack(outputs) for outputs in zip(*rows)], state


def _tensors(part: Any) -> list[Tensor]:
    """Those of a nested value."""
    if isinstance(part, Tensor):
        return [part]
    parts = part.values() if isinstance(part, dict) else part if isinstance(part, tuple | list) else ()
    return [tensor for inner in parts for tensor in _tensors(inner)]


def _has_nan(outputs: Any) -> bool:
    return any(bool(tensor.isnan().any()) for tensor in _tensors(outputs))


def _guarded(message: str, function: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return function(*arguments)
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"{message}: {type(error).__name__}: {_first_line(error)}{_where(error)}.") from error


def _where(error: Exception) -> str:
    """The place in the user's file, of all the frames the last that is not in an installed package."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "site-packages" not in frame.filename]
    frames = [frame for frame in frames if frame.filename != __file__]
    return f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""


def _first_line(error: Exception) -> str:
    return (str(error).strip() or "no message").splitlines()[0].rstrip(".")


def _describe(inputs: tuple[Any, ...]) -> str:
    def one(part: Any) -> str:
        if isinstance(part, torch.Tensor):
            return f"{str(part.dtype).removeprefix('torch.')} {list(part.shape)}"
        if isinstance(part, dict):
            return "{" + ", ".join(f"{key}: {one(value)}" for key, value in part.items()) + "}"
        return "(" + ", ".join(map(one, part)) + ")"

    return ", ".join(one(part) for part in inputs if part is not None and part != {})
