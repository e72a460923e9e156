"""Your own training loop on Shoal's services: workers push gradients, and keep the best weights by compare-and-set.

    python examples/own_training_loop.py [local|inline|ray]

Nothing here is about reinforcement learning: three workers fit a small network to noisy samples of a curve. The
gradient service owns the parameters and the optimizer. The weight service holds the best network found so far, with
its error on fixed points: any worker may replace it, and none overwrites a better one that another has just put there.
"""

from __future__ import annotations

import sys

import numpy as np
import torch
from torch import Tensor, nn

from shoal import optim
from shoal.program import Handle, Program, current
from shoal.runtime import launch
from shoal.schedules import annealed
from shoal.services.gradients import GradientServer
from shoal.services.modules import SharedModule
from shoal.services.weights import WeightStore

WORKERS, STEPS, JUDGE_EVERY = 3, 900, 20  # judged after so many of a worker's own steps


def make_network(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))


def curve(x: Tensor) -> Tensor:
    return torch.sin(3.0 * x) + 0.5 * x


class Starter:
    """Gives the service the parameters that everybody starts from. It has no `step`: its work is done when built."""

    def __init__(self, gradients: GradientServer) -> None:
        optim.Remote(make_network(current().seed).parameters(), [gradients], initialise=True)


class Worker:
    """One step is one gradient."""

    restart = True  # should it be killed, it is started again, and only the gradient it was working on is lost

    def __init__(self, gradients: GradientServer, best: WeightStore) -> None:
        self._random = torch.Generator().manual_seed(current().seed)
        self._network = make_network(0)
        self._optimizer = optim.Remote(self._network.parameters(), [gradients], clip_norm=1.0)  # waits for the starter
        self._best = SharedModule(best, self._network)
        self._steps = 0

    def step(self) -> bool:
        x = torch.rand(64, 1, generator=self._random) * 4.0 - 2.0
        y = curve(x) + 0.1 * torch.randn(64, 1, generator=self._random)
        self._optimizer.step((self._network(x) - y).square().mean())
        self._steps += 1
        if self._steps % JUDGE_EVERY == 0:
            self._keep_if_best()
        return not self._optimizer.finished

    @torch.no_grad()
    def _keep_if_best(self) -> None:
        x = torch.linspace(-2.0, 2.0, 101).unsqueeze(1)
        error = float((self._network(x) - curve(x)).square().mean())
        while error < float(self._best.notes.get("error", np.inf)):  # of the best network that this worker knows
            if self._best.publish_if_newest(error=error):
                break
            self._best.look()  # another was faster: compare with what it has put there


def main(runtime: str) -> float:
    program = Program()
    gradients = program.add("gradients", GradientServer, rate=annealed(0.01, STEPS), max_staleness=10, max_steps=STEPS)
    best = program.add("best", WeightStore)
    program.add("starter", Starter, gradients)
    for index in range(WORKERS):
        program.add(f"worker/{index}", Worker, gradients, best)
    with launch(program, runtime, seed=1) as run:
        while not all(run.finished(Handle(f"worker/{index}")) for index in range(WORKERS)):
            run.wait(0.05)
        counts = run.client(gradients).statistics()
        found = SharedModule(run.client(best), make_network(0))
        found.refresh()
    error = float(found.notes["error"])
    print(f"{counts['version']} steps from {counts['gradients']} gradients, {counts.get('stale', 0)} too stale")
    print(f"the best network, after {found.version + 1} improvements: mean squared error {error:.4f}")
    return error


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "local")
