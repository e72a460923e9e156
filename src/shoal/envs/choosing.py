"""`--vectorizer auto`: one after another, or each in a process of its own, by what a step of the user's takes."""

from __future__ import annotations

import os
import time
from typing import NamedTuple

import numpy as np

from shoal.envs.spec import EnvSpec, Vectorizer
from shoal.envs.vector import Envs

STEPS, SECONDS = 20, 0.25  # that are measured at most
WORTH_IT = 1e-3  # seconds of a step, from which on asking another process for it (about 0.1 ms) does not matter
WAITS = 0.5  # of a step's time on the processor, below which it waits for something else


class StepTime(NamedTuple):
    seconds: float = 0.0  # the shortest of several steps; 0: not measured
    waits: bool = False  # most of it passes elsewhere: in another process, on a device, asleep


def measure(envs: Envs) -> StepTime:
    """A few steps with random actions, after the first ones."""
    spent: list[float] = []
    computed, begun = 0.0, time.perf_counter()
    while len(spent) < STEPS and time.perf_counter() - begun < SECONDS:
        action = np.stack([np.asarray(envs.action_space.sample()) for _ in range(envs.count)])
        before, on_processor = time.perf_counter(), time.process_time()
        try:
            step = envs.step(action)
        except Exception:  # it was tried before: what it raises later is for the run to see, which may survive it
            break
        if step.valid.all():  # a reset may take another time
            spent.append(time.perf_counter() - before)
            computed += time.process_time() - on_processor
    if not spent:
        return StepTime()
    shortest = min(spent)
    return StepTime(shortest / envs.count, computed / len(spent) < WAITS * shortest)


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
