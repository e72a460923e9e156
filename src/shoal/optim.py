"""Optimizers as the distribution seam: `step(loss, count)` is all that an algorithm sees.

`Local` steps on this process's gradient. Parameters and their moments are one flat tensor each (`flat.py`), so the
gradient can be sent or summed as a whole: a subclass replaces `_reduce` and everything after it (clip, finiteness,
update) happens on the reduced gradient. `AllReduce` does, for several learners; `make` chooses between the two.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from shoal.flat import FlatOptimizer, flat_gradient, flatten
from shoal.schedules import Schedule, annealed
from shoal.services.gradients import GradientClient, GradientServer
from shoal.sync import sign_of_life


@dataclass(frozen=True)
class StepReport:
    grad_norm: float  # of the reduced gradient, before clipping
    applied: bool  # False: loss or gradient was not finite and changed nothing, or the gradient service refused it
    waited: float = 0.0  # seconds, for other nodes


class Local:
    """Adam, RMSProp or SGD on the parameters of this process; `options` are those of `flat.FlatOptimizer`."""

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        *,
        rate: float | Schedule,
        kind: str = "adam",
        clip_norm: float = 0.0,  # 0: not at all
        **options: Any,
    ) -> None:
        self.parameters = [parameter for parameter in parameters if parameter.requires_grad]
        self.flat = flatten(self.parameters)
        self._rate = rate if callable(rate) else annealed(rate)
        self._clip_norm = clip_norm or math.inf
        self._optimizer = FlatOptimizer(self.flat, kind, **options)

    @property
    def updates(self) -> int:
        """Steps made, of which the schedule is a function."""
        return self._optimizer.updates

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
            self._optimizer.step(gradient, self._rate(self.updates))
        return StepReport(norm, True)

    def _reduce(self, gradient: Tensor, loss: Tensor, count: Tensor | None) -> tuple[Tensor, Tensor]:
        """The gradient and loss over all learners; with several, ranks are weighted by their `count` of valid rows."""
        return gradient, loss

    def state_dict(self) -> dict[str, Any]:
        """Moments and the count of updates, from which the schedule goes on; with several learners, alike on each."""
        return self._optimizer.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._optimizer.load_state_dict(state)


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
    stateless = True

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

    `parameters` start as the service's: this waits until somebody has initialised it. With `initialise` they are
    offered as those to start from; of several that do, the first one's are taken. Each gradient is clipped before it
    is pushed; one that is not finite is pushed as NaN, so that every part of the service refuses it alike.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        servers: Sequence[GradientServer],
        *,
        clip_norm: float = 0.0,  # 0: not at all
        initialise: bool = False,
        version: int = 0,  # steps that were made before, where it initialises
    ) -> None:
        self.parameters = [parameter for parameter in parameters if parameter.requires_grad]
        self.flat = flatten(self.parameters)
        self._on_host = self.flat.cpu()  # the same tensor where the parameters are there already
        groups = [parameter.numel() for parameter in self.parameters]
        self._service = GradientClient(servers, self._on_host.numpy(), groups)
        self._clip_norm = clip_norm or math.inf
        self.finished = False  # the service takes no further gradients
        if initialise:
            self._service.initialise(version)
        else:
            self._service.pull()
        self.flat.copy_(self._on_host)

    @property
    def version(self) -> int:
        """Steps the service had made when it sent these parameters."""
        return self._service.version

    @property
    def lives(self) -> int:
        """How often servers have been started again: after that versions may be lower than before."""
        return sum(self._service.lives)

    @property
    def lost_updates(self) -> int:
        """Steps that were lost with servers."""
        return self._service.lost_updates

    @torch.no_grad()
    def pull(self, steps: int = 1, timeout: float | None = None) -> bool:
        """Load parameters that are `steps` or more newer, waiting for them; False when there were none in time."""
        newer = self._service.pull(steps, timeout)
        self.flat.copy_(self._on_host)
        return newer

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

    def state_dict(self) -> dict[str, Any]:
        """At which versions the parameters are, and how many gradients were pushed: moments are the service's."""
        return self._service.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with the parameters that the network has by now, as gradients are made at those."""
        self._service.load_state_dict(state)
        self._on_host.copy_(self.flat)
