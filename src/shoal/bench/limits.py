"""What this machine allows: environments, inference and training each alone on one core, and the ceiling they imply.

Each part is measured in a loop of its own at the batch sizes that the run uses: stepping and inference at an actor's
number of environments, training on a batch that the program itself has gathered. A step of the run costs the sum of
their times on some core, so `cores / sum` steps per second is what nothing could exceed that does the same work. All
else (moving data, sampling, publishing, counting) is left out of the ceiling: it is what a system can be blamed for.
Training is measured as one learner does it, with the threads that --learner-threads gives it, all of whose time counts;
where it follows idle cores (auto), with one thread and with one for each core, of which the cheaper counts. What
--learners cost by sharing that work is left out of the ceiling too.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from shoal import optim, tree
from shoal.acting import Stacker
from shoal.config import replace
from shoal.envs import EnvSpec, make_tensors
from shoal.errors import UserError
from shoal.flat import flat_gradient
from shoal.learning import Update
from shoal.loops.wiring import Settings, make_envs
from shoal.loops.wrapping import wrap_learners
from shoal.nets.weights import export_weights
from shoal.options import Acting, CentralInference, Experience, GradientService, Learning, Sequences
from shoal.runs.registry import Algorithm
from shoal.runtime import Supervisor, launch
from shoal.runtime.host import keep_memory
from shoal.types import Arrays

PART_SECONDS = 1.0  # that each part is measured for
BATCHES = 10  # that are gathered, of which the last is measured: the first sequences of a run are short ones
LONGEST_GATHERING = 300.0  # seconds that this may take


@dataclass(frozen=True)
class Limits:
    """Steps per second of each part on one core, and what they come to on all of them."""

    cores: int
    environment: float
    inference: float
    training: float  # updates per second, of as many threads
    environments: int  # that are stepped at once
    inference_batch: int
    training_batch: int  # rows of an update
    threads: int = 1  # that train, each on a core

    def busy(self, env_steps: float, updates: float) -> float:
        """The share of the machine's time that steps and updates at these rates need at the least."""
        acting = env_steps * (1 / self.environment + 1 / self.inference)
        return (acting + updates * self.threads / self.training) / self.cores

    def ceiling(self, updates_per_step: float) -> float:
        """Environment steps per second when so many updates are made for each of them."""
        return 1.0 / self.busy(1.0, updates_per_step)


def measure_limits(
    algorithm: Algorithm, cfg: Acting, env: EnvSpec, seconds: float = PART_SECONDS, seed: int = 0
) -> Limits:
    """Every part alone, `seconds` each, in this process."""
    if (why := limitless(cfg)) is not None:
        raise UserError(why)
    acting = _acting_batch(cfg)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if env.on_device:  # each learner acts and learns on one
        cores = min(cores, cfg.learners if isinstance(cfg, Learning) else 1)
    if isinstance(cfg, Learning):
        cfg = replace(cfg, learners=1)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    keep_memory()  # as nodes do
    try:
        found = gathered(algorithm, cfg, env, seed)
        threads, training = _training(found, _learner_threads(cfg, cores), seconds)
        torch.set_num_threads(1)
        return Limits(
            cores=cores,
            environment=_environment(cfg, env, seconds, seed),
            inference=_inference(algorithm, cfg, env, export_weights(found.learner.network), acting, seconds),
            training=training,
            environments=cfg.envs_per_actor,
            inference_batch=acting,
            training_batch=_rows(found.batch),
            threads=threads,
        )
    finally:
        torch.set_num_threads(before)


def limitless(cfg: Acting) -> str | None:
    """Why a config has no ceiling of this kind."""
    if cfg.acting_device != "cpu" or (isinstance(cfg, Learning) and cfg.device != "cpu"):
        return "The ceiling is that of this machine's cores: leave --device and --acting-device at cpu."
    return None


def updates_per_step(cfg: Acting, rows: int) -> float | None:
    """Updates of `rows` for each step of an environment, where the config settles it: every row is trained once, or
    items as often as --samples-per-insert says."""
    if not isinstance(cfg, Experience):
        return 1.0 / rows
    period = cfg.period if isinstance(cfg, Sequences) else 1
    return cfg.samples_per_insert / (cfg.batch * period) or None  # on a device, too: what 0 means there is a choice


def gradients_per_update(cfg: Acting) -> int:
    """What is counted as one update may be made of several gradients, of as many workers."""
    if not isinstance(cfg, GradientService):
        return 1
    return cfg.actors if cfg.synchronous else cfg.reduce


def _seconds_each(call: Callable[[], Any], seconds: float) -> float:
    """Of one call, from as many as fit; the first, which allocates and compiles, is not counted."""
    call()
    calls, begin = 0, time.perf_counter()
    while (passed := time.perf_counter() - begin) < seconds or not calls:
        call()
        calls += 1
    return passed / calls


def _environment(cfg: Acting, env: EnvSpec, seconds: float, seed: int) -> float:
    """With actions drawn beforehand: drawing them is not the environment's work."""
    if env.on_device:
        return _environment_on_device(cfg, env, seconds, seed)
    envs = make_envs(env, cfg.envs_per_actor, cfg.vectorizer, seed)
    try:
        envs.reset()
        space = env.action_space
        space.seed(seed)
        rows = [np.stack([np.asarray(space.sample()) for _ in range(envs.count)]) for _ in range(16)]
        offset = np.asarray(getattr(space, "start", 0))  # policies count actions from 0
        actions = [row - offset if offset.any() else row for row in rows]
        index = iter(range(1 << 62))
        return envs.count / _seconds_each(lambda: envs.step(actions[next(index) % len(actions)]), seconds)
    finally:
        envs.close()


def _environment_on_device(cfg: Acting, env: EnvSpec, seconds: float, seed: int) -> float:
    """The vector itself: what `TensorEnvs` adds is the system's."""
    vector = make_tensors(env, cfg.envs_per_actor, seed=seed, device="cpu").vector
    vector.reset()
    space = vector.single_action_space
    space.seed(seed)
    rows = [np.stack([np.asarray(space.sample()) for _ in range(vector.num_envs)]) for _ in range(16)]
    actions = [torch.from_numpy(row) for row in rows]
    index = iter(range(1 << 62))
    with torch.no_grad():
        return vector.num_envs / _seconds_each(lambda: vector.step(actions[next(index) % len(actions)]), seconds)


def _inference(algorithm: Algorithm, cfg: Acting, env: EnvSpec, weights: Arrays, batch: int, seconds: float) -> float:
    """Actions per second."""
    return batch / seconds_of_acting(algorithm, cfg, env, weights, batch, seconds)


def seconds_of_acting(
    algorithm: Algorithm, cfg: Acting, env: EnvSpec, weights: Arrays, batch: int, seconds: float
) -> float:
    """Of a policy with these weights, for `batch` observations at once."""
    policy = algorithm.make_policy(cfg, env, 0)
    policy.load(weights)
    if env.on_device:
        seen = make_tensors(env, cfg.envs_per_actor, seed=0, device="cpu").reset()
        begins = torch.zeros(cfg.envs_per_actor, dtype=torch.bool)
        before = {name: torch.as_tensor(part) for name, part in policy.initial_state(cfg.envs_per_actor).items()}
        if hasattr(policy, "set_environments"):
            policy.set_environments(np.arange(batch), batch)
        return _seconds_each(lambda: policy.act(seen, before, begins), seconds)
    envs = make_envs(env, cfg.envs_per_actor, cfg.vectorizer, 0)
    try:
        few = Stacker(envs.stacks).push(envs.reset(), np.ones(envs.count, np.bool_))
    finally:
        envs.close()
    times = -(-batch // cfg.envs_per_actor)
    observation = tree.map(lambda part: np.concatenate([part] * times)[:batch], few)
    state, first = policy.initial_state(batch), np.zeros(batch, np.bool_)
    if hasattr(policy, "set_environments"):
        policy.set_environments(np.arange(batch), batch)
    return _seconds_each(lambda: policy.act(observation, state, first), seconds)


def _acting_batch(cfg: Acting) -> int:
    """Observations that a policy sees at once: an actor's, or those that an inference server puts together."""
    environments = cfg.envs_per_actor
    if not isinstance(cfg, CentralInference) or cfg.inference == "local":
        return environments
    together = environments * -(-cfg.actors // min(cfg.inference_servers, cfg.actors))
    return min(together, cfg.inference_batch) if cfg.inference_batch else together


class Capture:
    """Stands in for a factory of learners: remembers the learner that it makes, and the newest batch that came."""

    def __init__(self, make: Callable[..., Any]) -> None:
        self._make = make
        self.learner: Any = None
        self.batch: Any = None
        self.batches = 0

    def __call__(self, *args: Any) -> Any:
        learner = self._make(*args)
        self.learner, learner.update = learner, self._take
        return learner

    def _take(self, batch: Any) -> Any:
        self.batches += 1
        if self.batches <= BATCHES:
            self.batch = tree.map(lambda part: part.clone(), dict(batch))
        return Update({})


def gathered(algorithm: Algorithm, cfg: Acting, env: EnvSpec, seed: int) -> Capture:
    """A learner, and a batch that the program has gathered for it inline."""
    program = algorithm.program(cfg, env, Settings(evaluate=False, max_updates=BATCHES))
    captures: list[Capture] = []

    def capture(make: Callable[..., Any]) -> Capture:
        captures.append(Capture(make))
        return captures[-1]

    wrap_learners(program, capture)
    with launch(program, "inline", seed=seed, supervisor=Supervisor(max_failures=0)) as run:
        begin = time.monotonic()
        while all(capture.batches < BATCHES for capture in captures):
            run.wait(0.1)
            if time.monotonic() - begin > LONGEST_GATHERING:
                raise UserError(f"No batch was gathered within {LONGEST_GATHERING:.0f} s: nothing can be measured.")
    return next(capture for capture in captures if capture.batches >= BATCHES)


def _learner_threads(cfg: Acting, cores: int) -> list[int]:
    """The numbers of threads that a learner of this config may have."""
    if not isinstance(cfg, Learning):
        return [1]
    return sorted({1, cores}) if cfg.learner_threads == "auto" else [min(cfg.learner_threads, cores)]


def _training(found: Capture, threads: list[int], seconds: float) -> tuple[int, float]:
    """The number of threads of which an update takes the least time of all cores, and its updates per second."""
    update, costs = _update_of(found), {}
    for count in threads:
        torch.set_num_threads(count)
        costs[count] = _seconds_each(update, seconds)
    cheapest = min(costs, key=lambda count: count * costs[count])
    return cheapest, 1.0 / costs[cheapest]


def _update_of(found: Capture) -> Callable[[], Any]:
    learner, batch = found.learner, found.batch
    del learner.update  # the class's own again
    remote = getattr(learner, "optimizer", None)
    if isinstance(remote, optim.Remote):  # the service that steps is another node's: the worker's part is the gradient
        return lambda: flat_gradient(learner.loss(batch)[0], remote.parameters)
    return lambda: learner.update(dict(batch))


def _rows(batch: Any) -> int:
    """Of an update: those of slices but the last, which only bootstraps, or one per item."""
    time_and_items: tuple[int, ...] = tuple(batch["reward"].shape)
    return (time_and_items[0] - 1) * time_and_items[1] if len(time_and_items) > 1 else time_and_items[0]


# ---- how it is told


def report(limits: Limits, cfg: Acting) -> dict[str, Any]:
    ratio = updates_per_step(cfg, limits.training_batch)
    ceiling = None if ratio is None else round(limits.ceiling(ratio), 1)
    return dataclasses.asdict(limits) | {"updates_per_step": ratio, "ceiling": ceiling}


def lines(limits: Limits, cfg: Acting) -> list[str]:
    """For people: each part, and what they come to."""
    rows = limits.training_batch
    parts = [
        ("environment", limits.environment, f"steps/s on one core, {limits.environments} environments at once"),
        ("inference", limits.inference, f"actions/s on one core, {limits.inference_batch} at once"),
        ("training", limits.training * rows, f"rows/s on {_cores(limits.threads)}, {rows:,} at once"),
    ]
    told = [f"{name:12} {rate:12,.0f} {unit}" for name, rate, unit in parts]
    ratio = updates_per_step(cfg, rows)
    if ratio is None:
        acting = 1 / (1 / limits.environment + 1 / limits.inference)
        both = "acting and learning go each at its own pace (--samples-per-insert 0)"
        return [*told, f"{'ceiling':12} {acting:12,.0f} env steps/s on each core that acts; {both}"]
    trained = f"{ratio * rows:.3g} rows trained for each"
    cores = f"{limits.cores} core{'s' if limits.cores > 1 else ''}"
    return [*told, f"{'ceiling':12} {limits.ceiling(ratio):12,.0f} env steps/s on {cores}, {trained}"]


def _cores(count: int) -> str:
    return "one core" if count == 1 else f"{count} cores"
