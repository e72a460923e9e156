"""How many environments an actor steps, and how (`--vectorizer auto`: one after another, or each in a process of its
own), by what a step of the user's takes."""

from __future__ import annotations

import math
import os
import resource
import time
from typing import NamedTuple

import numpy as np

from shoal.envs.spec import EnvSpec, Vectorizer
from shoal.envs.vector import Envs

STEPS, SECONDS = 20, 0.25  # that are measured at most
WORTH_IT = 1e-3  # seconds of a step, from which on asking another process for it (about 0.1 ms) does not matter
ROW = 0.1  # seconds that a step of all environments of an actor may take: what they learn from should not be old
MANY = 16  # processes of an actor whose environments wait: each takes memory
WAITS = 0.5  # of a step's time on the processor, below which it waits for something else


class StepTime(NamedTuple):
    seconds: float = 0.0  # the shortest of several steps; 0: not measured
    waits: bool = False  # most of it passes elsewhere: in another process, on a device, asleep


class Meter:
    """Whether what is done within it, again and again, mostly waits: gives up its core, and does not have it
    taken away by others."""

    def __init__(self) -> None:
        self._passed = self._computed = 0.0
        self._given_up = 0

    def __enter__(self) -> None:
        self._before = time.perf_counter(), time.process_time(), _given_up()

    def __exit__(self, *_: object) -> None:
        passed, computed, given_up = self._before
        self._passed += time.perf_counter() - passed
        self._computed += time.process_time() - computed
        self._given_up += _given_up() - given_up

    def waits(self, times: int) -> bool:
        """Of so many steps, that were made within it."""
        return self._computed < WAITS * self._passed and 2 * self._given_up >= times


def _given_up() -> int:
    """How often this process has let others have its core, since it had nothing to do."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw


def measure(envs: Envs) -> StepTime:
    """A few steps with random actions, after the first ones."""
    spent: list[float] = []
    meter, begun = Meter(), time.perf_counter()
    while len(spent) < STEPS and time.perf_counter() - begun < SECONDS:
        action = np.stack([np.asarray(envs.action_space.sample()) for _ in range(envs.count)])
        before = time.perf_counter()
        try:
            with meter:
                step = envs.step(action)
        except Exception:  # it was tried before: what it raises later is for the run to see, which may survive it
            break
        if step.valid.all():  # a reset may take another time
            spent.append(time.perf_counter() - before)
    if not spent:
        return StepTime()
    return StepTime(min(spent) / envs.count, meter.waits(len(spent)))


def choose(spec: EnvSpec, actors: int, cores: int | None = None) -> tuple[Vectorizer, str | None]:
    """How the environments of `actors` are stepped where it is left to us, and why, if there was a choice."""
    if spec.vectorizer != "auto" or not spec.step_time[0]:
        return spec.vectorizer, None
    cores = cores or len(os.sched_getaffinity(0))
    seconds, waits = spec.step_time
    took = f"a step of {spec.name} takes {seconds * 1e3:.2g} ms"
    if spec.timeout:
        return "async", f"--vectorizer async: {took}, and --env-timeout can only end a process"
    if seconds < WORTH_IT:
        return "sync", f"--vectorizer sync: {took}, too little to ask another process for it"
    if waits:
        return "async", f"--vectorizer async: {took}, and mostly waits"
    if actors >= cores:
        return "sync", f"--vectorizer sync: {took}, and {actors} actors keep {cores} cores busy"
    return "async", f"--vectorizer async: {took}, and there are {cores} cores for {actors} actor{'s' * (actors > 1)}"


def most_environments(spec: EnvSpec, actors: int, cores: int | None = None) -> tuple[int | None, str]:
    """How many environments an actor should have at most, by what a step takes, and why; None: as many as one likes."""
    cores = cores or len(os.sched_getaffinity(0))
    seconds, waits = spec.step_time
    if seconds < WORTH_IT:
        return None, ""
    took = f"a step of {spec.name} takes {seconds * 1e3:.2g} ms"
    if spec.vectorizer == "async" and waits:
        return MANY, f"{took} and each environment has a process"
    if spec.vectorizer == "async":
        return max(2, 2 * cores // actors), f"{took} and each environment has a process, on {cores} cores"
    most = max(2, 2 ** int(math.log2(max(1.0, ROW / seconds))))
    return most, f"{took} and they are stepped one after another"
