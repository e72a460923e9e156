"""What the parts of a program cost on this machine: the environment alone, then the program itself for some seconds.

The program runs on the local runtime with a few actors. What each of its processes takes of the processor, divided by
what it did, is the cost of that: it holds everything, calls and counting included. What an environment waits for is
told from what it computes by the clocks of its process, and time in which it was kept from a core is left out, so that
a busy machine does not make an environment look like one that waits.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from shoal import tree
from shoal.acting import Recorder
from shoal.bench.limits import seconds_of_acting
from shoal.bench.throughput import LONGEST_START, TICK, WARM_UP, Counter
from shoal.bench.updates import PREFIX, Timed
from shoal.config import replace
from shoal.envs import EnvSpec
from shoal.errors import UserError
from shoal.experiment.checks import prepare
from shoal.experiment.watching import metrics_of, take_snapshot
from shoal.learning import Update
from shoal.loops.wiring import Settings, make_envs
from shoal.loops.wrapping import wrap_learners
from shoal.options import (
    Acting,
    CentralInference,
    Data,
    Experience,
    GradientService,
    Learning,
    Rollouts,
    Sequences,
    Unrolls,
)
from shoal.planning.costs import IDLE, TOGETHER, Costs, Family, Layout
from shoal.planning.program import simulate
from shoal.program import Handle
from shoal.runs.options import RunOptions
from shoal.runs.registry import Algorithm
from shoal.runtime import Run, Supervisor, launch
from shoal.types import Arrays, Columns, Role
from shoal.versions import NONE

MOST_ACTORS = 8  # of a trial
FEWEST_UPDATES = 5  # in it
LONGEST = 60.0  # seconds of it, from the first update on
SMALL = 4  # items of a trial's batches where updates are not measured here
FIXED = ("optimizer", "target", "publication", "rest")  # parts of an update that are the same for a smaller batch
CALL = 1e-4  # seconds that a call of a replay takes, whatever it brings, where inserts and samples are told apart
BYTE = 1 / 2e9  # and for each byte of it
BATCH_BYTES = "batch_bytes"
NODES = {
    "actor": (Role.ACTOR, Role.WORKER),
    "service": (Role.REPLAY, Role.QUEUE, Role.FRONT, Role.GRADIENTS),
    "learner": (Role.LEARNER,),
    "server": (Role.INFERENCE,),
}


@dataclass(frozen=True)
class Environment:
    """A row of an actor's environments, alone."""

    cpu: float  # seconds
    wait: float


@dataclass(frozen=True, kw_only=True)
class Trial:
    """Rates of the program as it ran here, with `actors`."""

    actors: int
    env_steps: float  # per second
    updates: float
    batches: float  # of inference servers
    cpu: dict[str, float]  # cores that all nodes of a kind took
    memory: dict[str, float]  # bytes of one node of a kind
    parts: dict[str, float]  # seconds of an update's parts
    batch_bytes: float
    weights: Arrays

    def taken(self, kind: str) -> float:
        """Cores that all nodes of a kind took for what they did, in time of a core that is busy alone: in the trial
        others were busy beside it."""
        idle = IDLE * (self.actors if kind == "actor" else 1)
        load = min(1.0, sum(self.cpu.values()) / cores_here())
        return max(0.0, self.cpu[kind] - idle) * (1.0 - (1.0 - TOGETHER) * load)


@dataclass(frozen=True)
class Measured:
    costs: Costs
    environment: Environment
    trial: Trial


def family(cfg: Acting) -> Family:
    if isinstance(cfg, GradientService):
        return "gradients"
    if isinstance(cfg, Experience):
        return "replay"
    return "queue" if isinstance(cfg, Rollouts) else "rounds"


def refuse(name: str, cfg: Acting, env: EnvSpec) -> None:
    """What has no actors that could be planned, or cannot be measured here."""
    if isinstance(cfg, Data) and not getattr(cfg, "online", True):
        raise UserError(f"{name} learns from data and has no actors to plan: plan one that acts, such as impala.")
    if env.on_device:
        raise UserError(
            f"{env.name} is stepped where the learner is, and there is nothing to spread over machines: for more of it "
            "give --envs-per-actor or --learners."
        )
    if env.outside:
        raise UserError(
            "--env external is stepped by clients outside, which cannot be measured here: name an environment."
        )


def measure_costs(
    algorithm: Algorithm,
    cfg: Acting,
    env: EnvSpec,
    *,
    seconds: float,
    seed: int,
    say: Callable[[str], None],
    device: bool = False,
) -> Measured:
    """Costs of the config's own sizes, from a trial that takes about `seconds`. Where updates are made on a `device`
    that is not here, the trial makes small ones, and what a batch costs others is taken in proportion."""
    here = _for_a_trial(cfg, SMALL if device else 1 << 62)
    prepare(algorithm, here, env, RunOptions(seed=seed))
    say(f"measuring {env.name} alone …")
    alone = measure_environment(here, env, min(2.0, seconds), seed)
    here = replace(here, actors=_enough_actors(alone))
    say(f"running the program for {seconds:g} s, with {here.actors} actor{'s' if here.actors > 1 else ''} …")
    trial = run_trial(algorithm, here, env, seconds, seed)
    block = _block(algorithm, here, env, trial.weights, seed)
    answers = _answers(algorithm, here, env, trial) if _central(cfg) else (0.0, 0.0, 0.0)
    larger = getattr(cfg, "batch", 1) / getattr(here, "batch", 1)
    costs = make_costs(cfg, alone, trial, block, answers, larger)
    as_it_ran = dataclasses.replace(costs, batch_items=costs.batch_items / larger, update_cpu=costs.update_cpu / larger)
    return Measured(dataclasses.replace(costs, row_late=lateness(as_it_ran, trial)), alone, trial)


def lateness(costs: Costs, trial: Trial) -> float:
    """By how much a row of the trial took longer than it does in the simulation of that trial, as far as that is not
    because others held the actor up."""
    servers = int(costs.central)
    learners = 0 if costs.family == "gradients" else 1
    layout = Layout(cores=cores_here(), network=1e12, actors=(trial.actors,), learners=learners, servers=servers)
    found = simulate(costs, layout)
    rows = trial.actors * costs.envs  # a second in which every actor makes one row
    return max(0.0, rows / trial.env_steps - rows / found.rate) * max(0.0, 1.0 - found.waiting)


def cores_here() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _for_a_trial(cfg: Acting, most: int) -> Acting:
    """One of everything, `most` items in a batch, and a replay that is soon full enough."""
    changes: dict[str, Any] = {}
    if isinstance(cfg, Rollouts | Experience):
        changes |= {"batch": min(cfg.batch, most)}
    if isinstance(cfg, Learning):
        changes |= {"learners": 1, "learner_threads": 1}
    if isinstance(cfg, Experience):
        batch = min(cfg.batch, most)
        least = min(cfg.learning_starts, 2 * batch)
        room = max(20 * batch, 2 * least, 4 * cfg.envs_per_actor * cfg.rows)
        changes |= {"shards": 1, "learning_starts": least, "capacity": room, "prefill": None}
    if isinstance(cfg, CentralInference):
        changes |= {"inference_servers": 1}
    if isinstance(cfg, GradientService):
        changes |= {"shards": 1}
    return replace(cfg, actors=1, **changes)


def _enough_actors(alone: Environment) -> int:
    """As many as leave most of a machine idle while their environments wait, and one where these compute."""
    return int(np.clip(alone.wait / max(alone.cpu, 1e-3), 1, MOST_ACTORS))


def _central(cfg: Acting) -> bool:
    return isinstance(cfg, CentralInference) and cfg.inference == "central"


# ---- the environment alone


def measure_environment(cfg: Acting, env: EnvSpec, seconds: float, seed: int) -> Environment:
    """With actions drawn beforehand."""
    before = set(_family(os.getpid()))
    envs = make_envs(env, cfg.envs_per_actor, cfg.vectorizer, seed)
    try:
        envs.reset()
        space = env.action_space
        space.seed(seed)
        offset = np.asarray(getattr(space, "start", 0))  # policies count actions from 0
        actions = [np.stack([np.asarray(space.sample()) for _ in range(envs.count)]) - offset for _ in range(8)]
        actions = [row.astype(env.action_space.dtype) for row in actions]
        envs.step(actions[0])
        own, children = os.getpid(), set(_family(os.getpid())) - before
        begin, rows = _Clocks([own], children), 0
        while (passed := time.perf_counter() - begin.wall) < seconds or rows < 3:
            envs.step(actions[rows % len(actions)])
            rows += 1
        end = _Clocks([own], children)
        mine, theirs = end.own - begin.own, end.others - begin.others
        # processes that step side by side are waited for by as much as one of them computes
        waits = passed - (end.delayed - begin.delayed) - mine - theirs / envs.count
        return Environment((mine + theirs) / rows, max(0.0, waits) / rows)
    finally:
        envs.close()


class _Clocks:
    """Where the clocks of processes stand."""

    def __init__(self, own: Iterable[int], others: Iterable[int]) -> None:
        self.wall = time.perf_counter()
        self.own, self.others = (sum(map(cpu_seconds, pids)) for pids in (own, others))
        self.delayed = _delayed()


def cpu_seconds(pid: int) -> float:
    """Of the processor that a process has taken, all its threads together; 0 when it is gone."""
    with contextlib.suppress(OSError):
        return time.clock_gettime((~pid << 3) | 2)  # the clock of another process, see clock_getcpuclockid(3)
    return 0.0


def _delayed() -> float:
    """Seconds in which this thread wanted a core and had none, where the system tells."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) * 1e-9
    return 0.0


def _family(pid: int) -> list[int]:
    """A process and those that it has started."""
    found = [pid]
    with contextlib.suppress(OSError):
        for file in Path(f"/proc/{pid}/task").glob("*/children"):
            for child in file.read_text().split():
                found += _family(int(child))
    return found


def _memory(pids: Iterable[int]) -> float:
    """Bytes, those that are shared by parts."""
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    total += 1024 * int(line.split()[1])
    return float(total)


# ---- the program


class Weighed:
    """Stands in for a factory of learners: the parts of an update are timed, and batches are weighed."""

    def __init__(self, make: Callable[..., Any]) -> None:
        self._make = Timed(make)

    def __call__(self, *args: Any) -> Any:
        learner = self._make(*args)
        timed = learner.update

        def update(batch: Any) -> Update:
            found: Update = timed(batch)
            size = sum(part.nbytes for part in tree.flatten(dict(batch)).values())
            return dataclasses.replace(found, metrics={**found.metrics, BATCH_BYTES: size})

        learner.update = update
        return learner


def run_trial(algorithm: Algorithm, cfg: Acting, env: EnvSpec, seconds: float, seed: int) -> Trial:
    """Over `seconds` from `WARM_UP` after the first update on, or as long as a few updates take."""
    program = algorithm.program(cfg, env, Settings(evaluate=False))
    if isinstance(cfg, Learning):
        wrap_learners(program, Weighed)
    steps, updates, batches = Counter(), Counter(), Counter()
    with launch(program, "local", seed=seed, supervisor=Supervisor(max_failures=0)) as run:
        metrics, begin = metrics_of(run), time.monotonic()
        warm: float | None = None
        first: tuple[float, dict[str, float]] | None = None
        made = 0.0
        while True:
            run.wait(TICK)
            now, snapshot = time.monotonic(), take_snapshot(run, metrics, 0)
            if snapshot is None:
                continue
            counts = snapshot["counts"]
            if warm is None:
                if counts.get("learner_steps"):
                    warm = now + WARM_UP
                elif now - begin > LONGEST_START:
                    raise UserError(f"The learner made no update within {LONGEST_START:.0f} s: nothing can be planned.")
                continue
            if now < warm:
                continue
            if first is None:
                first, made = (now, _cpu(run)), counts["learner_steps"]
            steps.take(now, counts.get("env_steps", 0))
            updates.take(now, counts["learner_steps"])
            batches.take(now, counts.get("inference_batches", 0))
            enough = counts["learner_steps"] - made >= FEWEST_UPDATES and steps.rate() and updates.rate()
            if now >= warm + seconds and (enough or now >= warm + LONGEST):
                break
        passed, after = time.monotonic() - first[0], _cpu(run)
        if not steps.rate() or not updates.rate():
            raise UserError(f"Less than two updates were made within {LONGEST:.0f} s: nothing can be planned.")
        values = snapshot["values"]
        return Trial(
            actors=cfg.actors,
            env_steps=steps.rate(),
            updates=updates.rate(),
            batches=batches.rate(),
            cpu={kind: (after[kind] - first[1][kind]) / passed for kind in NODES},
            memory={kind: _memory(pids) / max(1, count) for kind, count, pids in _processes(run)},
            parts={name.removeprefix(PREFIX): value for name, value in values.items() if name.startswith(PREFIX)},
            batch_bytes=values.get(BATCH_BYTES, 0.0),
            weights=_weights(run),
        )


def _processes(run: Run) -> Iterator[tuple[str, int, list[int]]]:
    """Kinds of nodes: how many there are, and their processes with those that these have started."""
    pids = run.pids()
    for kind, roles in NODES.items():
        nodes = run.program.with_role(*roles)
        yield kind, len(nodes), [pid for node in nodes for pid in _family(pids[node.name])]


def _cpu(run: Run) -> dict[str, float]:
    return {kind: sum(map(cpu_seconds, pids)) for kind, _, pids in _processes(run)}


def _weights(run: Run) -> Arrays:
    (node, *_) = run.program.with_role(Role.WEIGHTS)
    found = run.client(Handle(node.name)).newer(NONE)
    weights: Arrays = {} if found is None else found[1]
    return weights


# ---- sizes


def _block(algorithm: Algorithm, cfg: Acting, env: EnvSpec, weights: Arrays, seed: int) -> float:
    """Bytes of a row of one environment, as it is sent and stored."""
    sent: list[Columns] = []
    envs = make_envs(env, 1, "auto" if cfg.vectorizer == "async" else cfg.vectorizer, seed)
    try:
        policy = algorithm.make_policy(cfg, env, seed)
        policy.load(weights)
        recorder = Recorder(policy, 1, 2, lambda block: sent.append(dict(block)), stacks=envs.stacks)
        if hasattr(policy, "set_environments"):
            policy.set_environments(np.arange(1), 1)
        observation = envs.reset()
        while not sent:
            step = envs.step(recorder.act(observation))
            observation = step.observation
            recorder.result(step)
    finally:
        envs.close()
    rows = len(sent[0]["valid"])
    return sum(column.nbytes for column in sent[0].values()) / rows


def _answers(algorithm: Algorithm, cfg: Acting, env: EnvSpec, trial: Trial) -> tuple[float, float, float]:
    """Seconds of a server for a batch, for each environment in it, and how much of that is the policy's: the first and
    the last from the policy alone at two sizes, the second from what the server took in the trial."""
    few, many = cfg.envs_per_actor, 4 * cfg.envs_per_actor
    of_few, of_many = (seconds_of_acting(algorithm, cfg, env, trial.weights, size, 0.5) for size in (few, many))
    each = max(0.0, of_many - of_few) / (many - few)
    whole = max(0.0, of_few - few * each)
    rest = (trial.taken("server") - trial.batches * whole) / trial.env_steps
    return whole, max(each, rest), each


# ---- what it comes to


def make_costs(
    cfg: Acting,
    alone: Environment,
    trial: Trial,
    row_bytes: float,
    answers: tuple[float, float, float] = (0.0, 0.0, 0.0),
    larger: float = 1.0,
) -> Costs:
    """The costs of a config, from what a trial has shown whose batches are so many times smaller."""
    kind, envs = family(cfg), cfg.envs_per_actor
    rows = cfg.unroll if isinstance(cfg, Unrolls) else cfg.rows if isinstance(cfg, Experience) else 1
    steps = envs * rows
    period = cfg.period if isinstance(cfg, Sequences) else 1
    blocks = trial.env_steps / steps  # per second
    updates = trial.updates * (trial.actors if kind == "rounds" else 1)  # of rounds, in actors' blocks
    cpu = {kind: trial.taken(kind) for kind in NODES}
    block_bytes = row_bytes * steps
    inserting = blocks * (CALL + BYTE * block_bytes)
    sampling = 0.0 if kind == "gradients" else trial.updates * (CALL + BYTE * trial.batch_bytes)
    parts = {name: seconds for name, seconds in trial.parts.items() if name != "waiting"}
    weights = float(sum(value.nbytes for value in trial.weights.values()))
    central = isinstance(cfg, CentralInference) and cfg.inference == "central"
    return Costs(
        family=kind,
        envs=envs,
        rows=rows,
        row_cpu=cpu["actor"] / (trial.env_steps / envs),
        row_wait=alone.wait,
        block_bytes=weights if kind == "gradients" else block_bytes,
        block_items=steps / period if kind == "replay" else envs,
        insert_cpu=cpu["service"] * inserting / (inserting + sampling) / blocks,
        sample_cpu=larger * cpu["service"] * sampling / (inserting + sampling) / updates if sampling else 0.0,
        batch_items=envs if kind == "rounds" else getattr(cfg, "batch", 1),
        batch_bytes=larger * trial.batch_bytes / (trial.actors if kind == "rounds" else 1),
        room=cfg.queue if isinstance(cfg, Rollouts) else 0,
        ratio=cfg.samples_per_insert if isinstance(cfg, Experience) else 1.0,
        stored_bytes=cfg.capacity * period * row_bytes if isinstance(cfg, Experience) else 0.0,
        update_cpu=larger * cpu["learner"] / updates,
        update_fixed=sum(parts.get(name, 0.0) for name in FIXED) / max(1e-12, sum(parts.values())) if parts else 0.0,
        publish_every=getattr(cfg, "publish_every", 1),
        weights_bytes=weights,
        central=central,
        answer_cpu=answers[0],
        answer_each=answers[1],
        act_each=answers[2],
        answer_wait=cfg.inference_wait if isinstance(cfg, CentralInference) else 0.0,
        answer_most=cfg.inference_batch if isinstance(cfg, CentralInference) else 0,
        request_bytes=row_bytes * envs if central else 0.0,
        actor_memory=trial.memory["actor"],
        learner_memory=trial.memory["learner"],
        service_memory=trial.memory["service"],
        server_memory=trial.memory["server"],
    )
