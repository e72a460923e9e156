"""The one setting to change where a run could be faster: from where its nodes' time went and what it was run with."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from shoal.config import option
from shoal.envs import EnvSpec
from shoal.experiment.progress import WAITS, Progress, Times, by_role
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
    cfg: Any
    runtime: str = "local"
    updates_per_second: float = 0.0
    cores: int = 0  # 0: this machine's
    gpu: bool = False
    env_waits: bool = False  # a step of the environment mostly waits for something else than this core
    roles: Mapping[str, str] = dataclasses.field(default_factory=dict)  # of the nodes

    @property
    def free(self) -> float:
        """Cores that nobody has used, on average."""
        judge = Role.EVALUATOR
        working = (1.0 - waiting(parts) for node, parts in self.times.items() if self.roles.get(node, node) != judge)
        return (self.cores or len(os.sched_getaffinity(0))) - sum(working)

    @property
    def large(self) -> bool:
        """Whether arithmetic counts more for the network than what calls cost; one's own is taken for such."""
        widths = [*(self.get("hidden") or ()), *(self.get("critic_hidden") or ()), self.get("lstm") or 0]
        return self.get("network") is not None or max(widths) >= WIDE

    def get(self, field: str) -> Any:
        return getattr(self.cfg, field, None)

    def times_two(self, field: str, why: str) -> Advice:
        now = int(self.get(field))
        return Advice(option(field), 2 * now, now, why)


def advise_after(progress: Progress, cfg: Any, env: EnvSpec, runtime: str) -> str | None:
    """What is said at the end of a run."""
    seconds = progress.train_seconds
    ran = Ran(
        progress.mean_times(),
        cfg,
        runtime,
        updates_per_second=progress.count("learner_steps") / seconds if seconds else 0.0,
        roles=progress.roles,
        gpu=torch.cuda.is_available(),
        env_waits=env.step_time[1] and env.vectorizer == "sync",
    )
    found = advise(ran)
    return None if found is None else str(found)


def waiting(parts: Mapping[str, float]) -> float:
    return sum(part for activity, part in parts.items() if activity.startswith("waiting"))


def advise(ran: Ran) -> Advice | None:
    """None where no setting is known to help: nobody waits, or the machine is used up."""
    roles = by_role(ran.times, ran.roles)
    roles.pop(Role.EVALUATOR, None)  # nobody waits for it
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
    if ran.env_waits and ran.get("vectorizer") == "auto" and (ran.get("envs_per_actor") or 1) > 1:
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
    if ran.gpu and ran.get("acting_device") == "cpu":
        return Advice("--acting-device", "cuda", "cpu", "the policy's network is the slow part")
    if role == Role.INFERENCE:
        if (ran.get("inference_servers") or 1) < (ran.get("actors") or 1) and ran.free >= FREE:
            return ran.times_two("inference_servers", "the inference server is the slow part, and cores are idle")
        return _smaller_network(ran, "the inference server is the slow part")
    if (ran.get("envs_per_actor") or FEW) < FEW:
        return ran.times_two(
            "envs_per_actor", "the policy's network is the slow part: a larger batch costs it little more"
        )
    if ran.free >= FREE:
        return _more_actors(ran, "the policy's network is the slow part, and cores are idle")
    return _smaller_network(ran, "the policy's network is the slow part, and all cores are used")


def _learning(ran: Ran) -> Advice | None:
    seconds = 1.0 / ran.updates_per_second if ran.updates_per_second else 0.0
    if ran.gpu and ran.get("device") == "cpu":
        return Advice("--device", "cuda", "cpu", "the learner is the slow part")
    batch, epochs = ran.get("batch"), int(ran.get("epochs") or 1)
    if batch and batch < MANY and 0.0 < seconds < QUICK:
        return _larger_batch(ran, f"an update takes {seconds * 1e3:.1f} ms, of which much is the same for any batch")
    rows = (batch or MANY) * (ran.get("unroll") or ran.get("length") or 1)
    if rows <= ROWS and not ran.large and not ran.get("samples_per_insert"):
        return _larger_batch(ran, f"an update learns from {rows:,} steps: much of it is the same for any batch")
    if epochs > PASSES:
        return _fewer_passes(epochs)
    if ran.free >= FREE and ran.get("learner_threads") is not None and ran.large:
        cores = max(2, int(ran.get("learner_threads") + ran.free + 0.5))
        return Advice(
            "--learner-threads", cores, ran.get("learner_threads"), "the learner is the slow part, and cores are idle"
        )
    if (ran.get("minibatches") or 1) > 1 and not ran.large:
        now = int(ran.get("minibatches"))
        return Advice(
            "--minibatches", now // 2, now, "the learner is the slow part: fewer and larger steps cost it less"
        )
    if ran.get("samples_per_insert"):
        ratio = float(ran.get("samples_per_insert"))
        return Advice(
            "--samples-per-insert",
            f"{ratio / 2:g}",
            f"{ratio:g}",
            "actors wait for the learner: learn less often from each step",
        )
    if epochs > 1:
        return _fewer_passes(epochs)
    return _smaller_network(ran, "the learner is the slow part, and all cores are used")


def _larger_batch(ran: Ran, why: str) -> Advice:
    """With the queue that it needs, where it would not fit."""
    now = int(ran.get("batch"))
    queue = ran.get("queue")
    value = 2 * now if queue is None or queue >= 2 * now else f"{2 * now} --queue {2 * now}"
    return Advice("--batch", value, now, why)


def _fewer_passes(now: int) -> Advice:
    return Advice("--epochs", max(1, now // 2), now, "the learner is the slow part: go over each batch less often")


def _publishing(ran: Ran) -> Advice | None:
    now = ran.get("publish_every")
    return None if now is None else Advice("--publish-every", 4 * now, now, "new weights are handed on too often")


def _nobody(ran: Ran) -> Advice | None:
    """All wait for each other: what is between them is too narrow."""
    if ran.get("inference") == "central":
        return ran.times_two("actors", "actors and inference server wait for each other: more actors overlap")
    if ran.get("shards") is not None:
        actors = ran.get("actors") or 1
        if ran.get("shards") < actors:
            return ran.times_two("shards", "actors and learners both wait for the replay service")
        if ran.get("samples_per_insert"):
            return ran.times_two("rows", "actors and learners wait for each other at the limiter: send more at once")
        return ran.times_two("rows", "actors and learners both wait for the replay service: fewer, larger messages")
    if ran.get("queue") is not None:
        return ran.times_two("queue", "actors and learner wait for each other at the queue: let more wait in it")
    return None


def _workers(ran: Ran, roles: Mapping[str, Mapping[str, float]]) -> Advice | None:
    """A3C: workers do everything; when they wait it is for the gradient service."""
    if waiting(roles[Role.WORKER]) >= WAITS:
        if (ran.get("actors") or 1) > 1 and ran.get("shards") is not None:
            return ran.times_two("shards", "workers wait for the gradient service: divide its parameters")
        return ran.times_two("unroll", "the worker waits for the gradient service: push larger gradients less often")
    return _more_actors(ran, "workers do all the work, and cores are idle") if ran.free >= FREE else None


def _more_actors(ran: Ran, why: str) -> Advice:
    now = int(ran.get("actors") or 1)
    return Advice("--actors", now + max(1, round(ran.free)), now, why)


def _smaller_network(ran: Ran, why: str) -> Advice | None:
    for field in ("hidden", "actor_hidden"):
        widths = ran.get(field)
        if widths and ran.get("network") is None and max(widths) >= WIDE:
            half = " ".join(str(max(1, width // 2)) for width in widths)
            return Advice(option(field), half, " ".join(map(str, widths)), why)
    return None
