"""The one setting to change where a run could be faster: from where its nodes' time went and what it was run with."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from shoal.envs import EnvSpec
from shoal.experiment.progress import WAITS, Progress, Times, by_role
from shoal.options import (
    Acting,
    ActorAndCritics,
    CentralInference,
    DuelingNetwork,
    Experience,
    GradientService,
    Learning,
    Network,
    PolicyAndValue,
    Proximal,
    RecurrentDuelingNetwork,
    Rollouts,
    Sequences,
    Unrolls,
)
from shoal.types import Role

ALL_WAIT = 0.4  # of every node's time: then none of them is the cause
QUICK = 3e-3  # seconds of an update, below which what it costs to begin one counts
FEW = 64  # environments of an actor, below which a larger batch costs inference little more
FREE = 0.6  # of a core that nobody uses, from which on another node has room
ROWS = 256  # steps in an update of a small network, up to which the same holds on a machine that has much to do
MANY = 512  # items of a batch that is not made larger
PASSES = 10  # over each batch, as many as any preset makes
WIDE = 128  # units of a layer, from which on a network is large enough for several threads, or to be made smaller


@dataclass(frozen=True)
class Advice:
    """A setting, what it is, what it should be, and why."""

    setting: str  # as typed
    value: Any
    now: Any
    why: str

    def __str__(self) -> str:
        now = "" if self.now is None else f" (now {self.now})"
        return f"{self.setting} {self.value}{now}: {self.why}"


@dataclass(frozen=True)
class Ran:
    """What there is to judge by."""

    times: Times
    cfg: Acting
    runtime: str = "local"
    updates_per_second: float = 0.0
    cores: int = 0  # 0: this machine's
    idle: float | None = None  # cores that nobody used, as the machine counted them; None: not known
    gpu: bool = False
    env_waits: bool = False  # a step of the environment mostly waits for something else than this core
    env_processes: bool = False  # each environment has a process
    roles: Mapping[str, str] = dataclasses.field(default_factory=dict)  # of the nodes

    @property
    def free(self) -> float:
        """Cores that nobody has used, on average. Where the machine does not tell: an environment that waits uses none,
        and those that compute in processes of their own use one each."""
        if self.idle is not None:
            return self.idle
        judge = Role.EVALUATOR
        cores = self.cores or len(os.sched_getaffinity(0))
        own = min(cores, self.cfg.envs_per_actor) if self.env_processes else 1
        more = (0 if self.env_waits else own) - 1
        working = (
            1.0 - waiting(parts) + more * parts.get("environment", 0.0)
            for node, parts in self.times.items()
            if self.roles.get(node, node) != judge
        )
        return cores - sum(working)

    @property
    def large(self) -> bool:
        """Whether arithmetic counts more for the network than what calls cost; one's own is taken for such."""
        cfg = self.cfg
        own = isinstance(cfg, Network) and cfg.network is not None
        widths = cfg.critic_hidden if isinstance(cfg, ActorAndCritics) else hidden(cfg)
        lstm = cfg.lstm if isinstance(cfg, PolicyAndValue | RecurrentDuelingNetwork) else 0
        return own or max(*widths, lstm, 0) >= WIDE


def hidden(cfg: Acting) -> tuple[int, ...]:
    return cfg.hidden if isinstance(cfg, PolicyAndValue | DuelingNetwork) else ()


def twice(setting: str, now: int, why: str) -> Advice:
    return Advice(setting, 2 * now, now, why)


def advise_after(progress: Progress, cfg: Acting, env: EnvSpec, runtime: str) -> str | None:
    """What is said at the end of a run."""
    seconds = progress.train_seconds
    ran = Ran(
        progress.mean_times(),
        cfg,
        runtime,
        updates_per_second=progress.count("learner_steps") / seconds if seconds else 0.0,
        roles=progress.roles,
        idle=None if runtime == "ray" else progress.idle.mean,  # of many machines there, this is one
        gpu=torch.cuda.is_available(),
        env_waits=env.step_time[1],
        env_processes=env.vectorizer == "async",
    )
    found = advise(ran)
    return None if found is None else str(found)


def waiting(parts: Mapping[str, float]) -> float:
    return sum(part for activity, part in parts.items() if activity.startswith("waiting"))


def advise(ran: Ran) -> Advice | None:
    """None where no setting is known to help: nobody waits, or the machine is used up."""
    roles = by_role(ran.times, ran.roles)
    for role in (Role.EVALUATOR, Role.OTHER):  # nobody waits for it; what it is for is not known, or soon over
        roles.pop(role, None)
    waits = {role: waiting(parts) for role, parts in roles.items()}
    if len(roles) < 2 or max(waits.values()) < WAITS:
        return None
    if ran.runtime == "inline":
        return Advice("--runtime", "local", "inline", "inline lets one node work at a time, on one core")
    if Role.WORKER in roles:
        return _workers(ran, roles)
    busiest = min(waits, key=lambda role: waits[role])
    if waits[busiest] >= ALL_WAIT and not _synchronous(roles):
        return _nobody(ran)
    work = {activity: part for activity, part in roles[busiest].items() if not activity.startswith("waiting")}
    most = max(work, key=lambda activity: work[activity], default="")
    if busiest == Role.LEARNER:
        return _publishing(ran) if most == "publishing" else _learning(ran)
    if most == "weights":
        return _publishing(ran)
    return _inference(ran, busiest) if most == "inference" else _environment(ran)


def _synchronous(roles: Mapping[str, Mapping[str, float]]) -> bool:
    """Actors and learners take turns: each waits for the other by design."""
    return any(parts.get("waiting for weights", 0.0) >= WAITS for parts in roles.values())


def _environment(ran: Ran) -> Advice | None:
    if ran.env_waits and ran.env_processes:
        why = "a step of the environment mostly waits: let more of them wait together"
        return twice("--envs-per-actor", ran.cfg.envs_per_actor, why)
    if ran.env_waits and ran.cfg.vectorizer == "auto" and ran.cfg.envs_per_actor > 1:
        return Advice("--vectorizer", "async", "sync", "a step of the environment mostly waits: let them wait together")
    if ran.free >= FREE:
        return _more_actors(ran, "environments are the slow part, and cores are idle")
    if ran.runtime == "ray":
        return _more_actors(ran, "environments are the slow part: they can be stepped on more machines")
    return Advice(
        "--runtime",
        "ray",
        ran.runtime,
        "environments are the slow part and this machine's cores are used up: add others",
    )


def _inference(ran: Ran, role: str) -> Advice | None:
    cfg = ran.cfg
    if ran.gpu and cfg.acting_device == "cpu":
        return Advice("--acting-device", "cuda", "cpu", "the policy's network is the slow part")
    if role == Role.INFERENCE:
        servers = cfg.inference_servers if isinstance(cfg, CentralInference) else 1
        if servers < cfg.actors and ran.free >= FREE:
            return twice("--inference-servers", servers, "the inference server is the slow part, and cores are idle")
        return _smaller_network(ran, "the inference server is the slow part")
    if cfg.envs_per_actor < FEW:
        why = "the policy's network is the slow part: a larger batch costs it little more"
        return twice("--envs-per-actor", cfg.envs_per_actor, why)
    if ran.free >= FREE:
        return _more_actors(ran, "the policy's network is the slow part, and cores are idle")
    return _smaller_network(ran, "the policy's network is the slow part, and all cores are used")


def _learning(ran: Ran) -> Advice | None:
    seconds = 1.0 / ran.updates_per_second if ran.updates_per_second else 0.0
    cfg = ran.cfg
    if ran.gpu and isinstance(cfg, Learning) and cfg.device == "cpu":
        return Advice("--device", "cuda", "cpu", "the learner is the slow part")
    epochs, minibatches = (cfg.epochs, cfg.minibatches) if isinstance(cfg, Proximal) else (1, 1)
    ratio = cfg.samples_per_insert if isinstance(cfg, Experience) else 0.0
    if isinstance(cfg, Rollouts | Experience):
        if cfg.batch < MANY and 0.0 < seconds < QUICK:
            return _larger_batch(
                cfg, f"an update takes {seconds * 1e3:.1f} ms, of which much is the same for any batch"
            )
        steps = cfg.unroll if isinstance(cfg, Unrolls) else cfg.length if isinstance(cfg, Sequences) else 1
        rows = cfg.batch * steps
        if rows <= ROWS and not ran.large and not ratio:
            return _larger_batch(cfg, f"an update learns from {rows:,} steps: much of it is the same for any batch")
    if epochs > PASSES:
        return _fewer_passes(epochs)
    if ran.free >= FREE and isinstance(cfg, Learning) and ran.large and cfg.learner_threads != "auto":
        now, cores = cfg.learner_threads, max(2, int(cfg.learner_threads + ran.free + 0.5))
        return Advice("--learner-threads", cores, now, "the learner is the slow part, and cores are idle")
    if minibatches > 1 and not ran.large:
        why = "the learner is the slow part: fewer and larger steps cost it less"
        return Advice("--minibatches", minibatches // 2, minibatches, why)
    if ratio:
        return Advice(
            "--samples-per-insert",
            f"{ratio / 2:g}",
            f"{ratio:g}",
            "actors wait for the learner: learn less often from each step",
        )
    if epochs > 1:
        return _fewer_passes(epochs)
    return _smaller_network(ran, "the learner is the slow part, and all cores are used")


def _larger_batch(cfg: Rollouts | Experience, why: str) -> Advice:
    """With the queue that it needs, where it would not fit."""
    now = cfg.batch
    small = isinstance(cfg, Rollouts) and cfg.queue < 2 * now
    return Advice("--batch", f"{2 * now} --queue {2 * now}" if small else 2 * now, now, why)


def _fewer_passes(now: int) -> Advice:
    return Advice("--epochs", max(1, now // 2), now, "the learner is the slow part: go over each batch less often")


def _publishing(ran: Ran) -> Advice | None:
    if not isinstance(ran.cfg, Rollouts | Experience | GradientService):
        return None
    now = ran.cfg.publish_every
    return Advice("--publish-every", 4 * now, now, "new weights are handed on too often")


def _nobody(ran: Ran) -> Advice | None:
    """All wait for each other: what is between them is too narrow."""
    cfg = ran.cfg
    if isinstance(cfg, CentralInference) and cfg.inference == "central":
        return twice("--actors", cfg.actors, "actors and inference server wait for each other: more actors overlap")
    if isinstance(cfg, Experience):
        if cfg.shards < cfg.actors:
            return twice("--shards", cfg.shards, "actors and learners both wait for the replay service")
        if cfg.samples_per_insert:
            return twice(
                "--rows", cfg.rows, "actors and learners wait for each other at the limiter: send more at once"
            )
        return twice("--rows", cfg.rows, "actors and learners both wait for the replay service: fewer, larger messages")
    if isinstance(cfg, Rollouts):
        return twice("--queue", cfg.queue, "actors and learner wait for each other at the queue: let more wait in it")
    return None


def _workers(ran: Ran, roles: Mapping[str, Mapping[str, float]]) -> Advice | None:
    """A3C: workers do everything; when they wait it is for the gradient service."""
    cfg = ran.cfg
    if waiting(roles[Role.WORKER]) >= WAITS:
        if cfg.actors > 1 and isinstance(cfg, GradientService):
            return twice("--shards", cfg.shards, "workers wait for the gradient service: divide its parameters")
        if isinstance(cfg, Unrolls):
            why = "the worker waits for the gradient service: push larger gradients less often"
            return twice("--unroll", cfg.unroll, why)
    return _more_actors(ran, "workers do all the work, and cores are idle") if ran.free >= FREE else None


def _more_actors(ran: Ran, why: str) -> Advice:
    now = ran.cfg.actors
    return Advice("--actors", now + max(1, round(ran.free)), now, why)


def _smaller_network(ran: Ran, why: str) -> Advice | None:
    control = isinstance(ran.cfg, ActorAndCritics)
    widths = ran.cfg.actor_hidden if isinstance(ran.cfg, ActorAndCritics) else hidden(ran.cfg)
    if not isinstance(ran.cfg, Network) or ran.cfg.network is not None or max(widths, default=0) < WIDE:
        return None
    half = " ".join(str(max(1, width // 2)) for width in widths)
    return Advice("--actor-hidden" if control else "--hidden", half, " ".join(map(str, widths)), why)
