"""Optimizers as the distribution seam: `step(loss, count)` is all that an algorithm sees.

`Local` steps on this process's gradient. Parameters and their moments are one flat tensor each, so clipping and
updating are a handful of operations however many layers there are, and the gradient can be sent or summed as a whole:
a subclass replaces `_reduce` and everything after it (clip, finiteness, update) happens on the reduced gradient.
`AllReduce` does, for several learners; `make` chooses between the two.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from shoal.errors import UserError
from shoal.services.gradients import GradientClient, GradientServer
from shoal.sync import sign_of_life


@dataclass(frozen=True)
class StepReport:
    grad_norm: float  # of the reduced gradient, before clipping
    applied: bool  # False: loss or gradient was not finite and changed nothing, or the gradient service refused it
    waited: float = 0.0  # seconds, for other nodes


Schedule = Callable[[int], float]  # updates done → learning rate


def constant(rate: float) -> Schedule:
    return lambda updates: rate


def linear(rate: float, updates: int) -> Schedule:
    """From `rate` down to 0 over the given number of updates."""
    return lambda done: rate * max(0.0, 1.0 - done / updates)


class Local:
    """Adam or RMSProp on the parameters of this process."""

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        *,
        rate: float | Schedule,
        kind: str = "adam",
        epsilon: float = 1e-8,
        decay: float | None = None,  # of the squared gradient's average; None: 0.999 for Adam, 0.99 for RMSProp
        momentum: float = 0.9,  # Adam's first average; RMSProp has none
        epsilon_inside: bool = False,  # RMSProp: √(v + ε) as TensorFlow and the papers, not √v + ε
        centred: bool = False,  # RMSProp: v is the gradient's variance, not its mean square
        clip_norm: float = 0.0,  # 0: not at all
    ) -> None:
        if kind not in ("adam", "rmsprop"):
            raise UserError(f"There is no optimizer {kind!r}: choose adam or rmsprop.")
        self.parameters = [parameter for parameter in parameters if parameter.requires_grad]
        self.flat = flatten(self.parameters)
        self.updates = 0
        self._rate = rate if callable(rate) else constant(rate)
        self._kind, self._epsilon, self._momentum = kind, epsilon, momentum
        self._decay = decay if decay is not None else (0.999 if kind == "adam" else 0.99)
        self._epsilon_inside, self._centred, self._clip_norm = epsilon_inside, centred, clip_norm or math.inf
        self._average = torch.zeros_like(self.flat)
        self._square = torch.zeros_like(self.flat)

    def step(self, loss: Tensor, count: Tensor | None = None) -> StepReport:
        """One update for a loss that is a mean over `count` rows, 0-d.

        A loss or gradient that is not finite is refused: parameters and moments keep their values.
        """
        sign_of_life()  # an update of many minibatches may take long
        gradient = flat_gradient(loss, self.parameters)
        with torch.no_grad():
            gradient, loss = self._reduce(gradient, loss.detach(), count)
            norm = float(torch.linalg.vector_norm(gradient))
            if not (math.isfinite(norm) and math.isfinite(float(loss))):
                return StepReport(norm, False)
            if norm > self._clip_norm:
                gradient.mul_(self._clip_norm / norm)
            rate = self._rate(self.updates)
            self.updates += 1
            if self._kind == "adam":
                self._adam(gradient, rate)
            else:
                self._rmsprop(gradient, rate)
        return StepReport(norm, True)

    def _reduce(self, gradient: Tensor, loss: Tensor, count: Tensor | None) -> tuple[Tensor, Tensor]:
        """The gradient and loss over all learners; with several, ranks are weighted by their `count` of valid rows."""
        return gradient, loss

    def _adam(self, gradient: Tensor, rate: float) -> None:
        self._average.lerp_(gradient, 1.0 - self._momentum)
        self._square.mul_(self._decay).addcmul_(gradient, gradient, value=1.0 - self._decay)
        correction = math.sqrt(1.0 - self._decay**self.updates)
        root = self._square.sqrt().add_(self._epsilon * correction)
        self.flat.addcdiv_(self._average, root, value=-rate * correction / (1.0 - self._momentum**self.updates))

    def _rmsprop(self, gradient: Tensor, rate: float) -> None:
        self._square.mul_(self._decay).addcmul_(gradient, gradient, value=1.0 - self._decay)
        spread = self._square
        if self._centred:
            self._average.lerp_(gradient, 1.0 - self._decay)
            spread = torch.addcmul(self._square, self._average, self._average, value=-1.0).clamp_(min=0.0)
        root = spread.add(self._epsilon).sqrt_() if self._epsilon_inside else spread.sqrt().add_(self._epsilon)
        self.flat.addcdiv_(gradient, root, value=-rate)


class Peers(Protocol):
    """The learners that train one network together; `shoal.services.group.Member` is one of them."""

    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    def sum(self, values: Tensor) -> Tensor: ...  # over all learners, the same on each; all must call it


class Alone:
    """The only learner."""

    rank, size = 0, 1

    def sum(self, values: Tensor) -> Tensor:
        return values


ALONE = Alone()


class AllReduce(Local):
    """Steps on the gradient over all learners, each weighted by its number of valid rows.

    All of them clip, judge and apply the same sum, so their parameters stay equal to the last bit.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], peers: Peers, **options: Any) -> None:
        super().__init__(parameters, **options)
        self._peers = peers

    def _reduce(self, gradient: Tensor, loss: Tensor, count: Tensor | None) -> tuple[Tensor, Tensor]:
        weight = gradient.new_ones(()) if count is None else count.to(gradient)  # dtype and device
        total = self._peers.sum(torch.cat([gradient * weight, torch.stack([loss * weight, weight])]))
        rows = total[-1].clamp(min=1.0)
        return total[:-2] / rows, total[-2] / rows


def make(parameters: Iterable[nn.Parameter], peers: Peers = ALONE, **options: Any) -> Local:
    """The optimizer of a learner: with `Local`'s options, over all peers where there are any."""
    return Local(parameters, **options) if peers.size == 1 else AllReduce(parameters, peers, **options)


class Remote:
    """Pushes the gradient to the gradient service, whose optimizer steps, and loads the newest parameters it answers.

    `parameters` start as the service's: this waits until somebody has initialised it. Each gradient is clipped before
    it is pushed; one that is not finite is pushed as NaN, so that every part of the service refuses it alike.
    """

    def __init__(
        self, parameters: Iterable[nn.Parameter], servers: Sequence[GradientServer], *, clip_norm: float = 0.0
    ) -> None:
        self.parameters = [parameter for parameter in parameters if parameter.requires_grad]
        self.flat = flatten(self.parameters)
        self._on_host = self.flat.cpu()  # the same tensor where the parameters are there already
        groups = [parameter.numel() for parameter in self.parameters]
        self._service = GradientClient(servers, self._on_host.numpy(), groups)
        self._clip_norm = clip_norm or math.inf  # 0: not at all
        self.finished = False  # the service takes no further gradients
        self._service.pull()
        self.flat.copy_(self._on_host)

    @property
    def version(self) -> int:
        """Steps the service had made when it sent these parameters."""
        return self._service.version

    def step(self, loss: Tensor, count: Tensor | None = None) -> StepReport:
        """Push the gradient of a loss that is a mean over `count` rows, 0-d: those rows are its weight in a step that
        takes several gradients. Refused, also when it is too stale, is reported as not applied."""
        gradient = flat_gradient(loss, self.parameters)
        with torch.no_grad():
            norm = float(torch.linalg.vector_norm(gradient))
            if not (math.isfinite(norm) and math.isfinite(float(loss))):
                gradient.fill_(math.nan)
            elif norm > self._clip_norm:
                gradient.mul_(self._clip_norm / norm)
            weight = 1.0 if count is None else float(count)
            begin = time.perf_counter()
            pushed = self._service.push(gradient.cpu().numpy(), weight)
            waited = time.perf_counter() - begin
            self.flat.copy_(self._on_host)
        self.finished = pushed.finished
        return StepReport(norm, pushed.accepted, waited)


@torch.no_grad()
def flatten(parameters: list[nn.Parameter]) -> Tensor:
    """Move parameters into one flat tensor of which each becomes a view; channels-last weights stay so."""
    flat = torch.cat([_storage_order(parameter).reshape(-1) for parameter in parameters])
    start = 0
    for parameter in parameters:
        ordered = _storage_order(parameter)
        view = flat[start : start + parameter.numel()].view(ordered.shape)
        parameter.data = view.permute(0, 3, 1, 2) if parameter.dim() == 4 else view
        start += parameter.numel()
    return flat


def flat_gradient(loss: Tensor, parameters: list[nn.Parameter]) -> Tensor:
    """The gradient as one vector in the order of `flatten`, zero for parameters that the loss does not use."""
    gradients = torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True)
    return torch.cat([_storage_order(part).reshape(-1) for part in gradients])


def _storage_order(x: Tensor) -> Tensor:
    """x with its axes in the order in which the flat tensor holds them: convolution weights channels last."""
    return x.permute(0, 2, 3, 1) if x.dim() == 4 else x
