"""Looking at a network in its algorithm: built, acted with, and trained for a few updates by the program itself.

The program is the one that `shoal train` would run, inline, with few environments and small batches.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from shoal import config, envs, tree
from shoal.acting import Stacker
from shoal.diagnosis.environment import Doing
from shoal.diagnosis.findings import Tell
from shoal.envs import EnvSpec
from shoal.errors import name_of
from shoal.experiment.watching import learning_is_over, metrics_of, take_snapshot, user_error
from shoal.loops.wiring import Settings
from shoal.loops.wrapping import wrap_learners
from shoal.options import Acting, CentralInference, Network
from shoal.runs.registry import Algorithm
from shoal.runtime import RunFailed, Supervisor, launch

UPDATES = 4  # TD3's actor learns at every second one
LONGEST = 40.0  # seconds that they may take


def examine(
    algorithm: Algorithm, cfg: Acting, env: EnvSpec, tell: Tell, doing: Doing, measured: dict[str, Any]
) -> bool:
    """Whether the network can be acted with and trained; a `UserError` says what of it cannot be built."""
    given = cfg.network if isinstance(cfg, Network) else None
    name = "the built-in network" if given is None else f"the network {name_of(given)}"
    doing(f"build {name} and act with it")
    policy = algorithm.make_policy(cfg, env, 0)
    _act(policy, cfg, env, name, tell, measured)
    doing(f"train {name} for {UPDATES} updates")
    return _train(algorithm, cfg, env, tell)


def _act(policy: Any, cfg: Acting, env: EnvSpec, name: str, tell: Tell, measured: dict[str, Any]) -> None:
    network = getattr(policy, "network", None)
    parameters = 0 if network is None else sum(part.numel() for part in network.parameters())
    recurrent = bool(policy.initial_state(1))
    count = cfg.envs_per_actor
    made = envs.make(env, 1, seed=0)
    try:
        one = Stacker(made.stacks).push(made.reset(), np.ones(1, np.bool_))
    finally:
        made.close()
    if hasattr(policy, "set_environments"):
        policy.set_environments(np.zeros(count, np.int64), 1)
    observation = tree.map(lambda part: np.concatenate([part] * count), one)
    state, first = policy.initial_state(count), np.ones(count, np.bool_)
    policy.act(observation, state, first)
    times = []
    for _ in range(5):
        begin = time.perf_counter()
        action, _, _ = policy.act(observation, state, first)
        times.append(time.perf_counter() - begin)
    measured |= {"parameters": parameters, "recurrent": recurrent, "act_seconds": min(times)}
    kind = "recurrent" if recurrent else "feed-forward"
    tell(
        "ok",
        "network",
        f"{name}, {kind}, {parameters:,} parameters; acts on {count} observations in {min(times) * 1e3:.2g} ms, "
        f"actions {action.dtype} {list(action.shape)}",
    )


class _Watched:
    """Stands in for a factory of learners: remembers the learner, its first parameters, and what its network gives."""

    def __init__(self, make: Callable[..., Any]) -> None:
        self._make = make
        self.network: nn.Module | None = None
        self.before: dict[str, Tensor] = {}
        self.outputs: dict[str, str] = {}

    def __call__(self, *args: Any) -> Any:
        learner = self._make(*args)
        network: nn.Module = learner.network
        self.network, self.before = network, {n: p.detach().clone() for n, p in network.named_parameters()}
        for part, module in (("", network), *network.named_children()):
            module.register_forward_hook(lambda _, __, output, part=part: self._saw(part, output))
        return learner

    def _saw(self, part: str, output: Any) -> None:
        found = output if isinstance(output, tuple | list) else (output,)
        shapes = [str(list(tensor.shape)) for tensor in found if isinstance(tensor, Tensor)]
        self.outputs.setdefault(part, ", ".join(shapes))

    def shapes(self) -> str:
        """Of the whole network where it was called as one, else of its parts."""
        if "" in self.outputs:
            return self.outputs[""]
        return "; ".join(f"{part} {shapes}" for part, shapes in self.outputs.items() if shapes)

    def unmoved(self) -> list[str]:
        assert self.network is not None
        return [n for n, p in self.network.named_parameters() if p.requires_grad and torch.equal(p, self.before[n])]


def _train(algorithm: Algorithm, cfg: Acting, env: EnvSpec, tell: Tell) -> bool:
    program = algorithm.program(small(cfg), env, Settings(evaluate=False, max_updates=UPDATES))
    watched: list[_Watched] = []

    def watch(make: Callable[..., Any]) -> _Watched:
        watched.append(_Watched(make))
        return watched[-1]

    wrap_learners(program, watch)
    begin = time.monotonic()
    try:
        with launch(program, "inline", seed=0, supervisor=Supervisor(max_failures=0)) as run:
            metrics = metrics_of(run)
            while not learning_is_over(run) and time.monotonic() - begin < LONGEST:
                run.wait(0.05)
            snapshot = take_snapshot(run, metrics, 0) or {"counts": {}, "values": {}}
    except RunFailed as failure:
        tell("fault", "learning", user_error(failure) or str(failure), "a run would end with this: correct it first")
        return False
    return _judge(snapshot["counts"], snapshot["values"], watched, time.monotonic() - begin, tell)


def _judge(
    counts: dict[str, float], values: dict[str, float], watched: list[_Watched], seconds: float, tell: Tell
) -> bool:
    updates, refused = int(counts.get("learner_steps", 0)), int(counts.get("refused_updates", 0))
    if refused:
        tell(
            "fault",
            "learning",
            f"{refused} of {updates} updates were refused: loss or gradient were not finite",
            "look for divisions, logarithms and square roots in the network that can be given 0",
        )
        return False
    if updates < UPDATES:
        tell(
            "warning",
            "learning",
            f"only {updates} of {UPDATES} small updates were made in {seconds:.0f} s",
            "expect slow training: make the network smaller or the environment faster, or give --device cuda",
        )
        return True
    losses = [f"{name} {value:.3g}" for name, value in values.items() if name.endswith("loss") and math.isfinite(value)]
    shapes = next((found.shapes() for found in watched if found.outputs), "")
    told = f"forward and backward in {updates} updates" + (f", outputs {shapes}" if shapes else "")
    tell("ok", "learning", told + (f"; {', '.join(losses)}" if losses else ""))
    unmoved = next((found.unmoved() for found in watched if found.outputs), [])
    if unmoved:
        named = ", ".join(unmoved[:3]) + (f" and {len(unmoved) - 3} more" if len(unmoved) > 3 else "")
        tell(
            "warning",
            "learning",
            f"{named} did not change in {updates} updates: no gradient comes there",
            "leave out what is not used, or look for detach() and no_grad() on the way",
        )
    return True


def small(cfg: Acting) -> Acting:
    """The config with less of everything of which there may be less."""
    less = config.small(cfg)
    return config.replace(less, inference="local") if isinstance(less, CentralInference) else less
