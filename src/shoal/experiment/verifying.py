"""A proof that users can run: does a run that is killed and goes on become what it would have been anyway?

Trains twice on the inline runtime: straight, and killed half way (SIGKILL) and resumed. Each run has a process of its
own, so that nothing but files goes from one life to the next.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shoal.envs import EnvSpec
from shoal.errors import UserError
from shoal.experiment import bitwise as comparing
from shoal.experiment import exact, view
from shoal.experiment.bitwise import KINDS, Difference
from shoal.experiment.experiment import Experiment
from shoal.experiment.training import go_on
from shoal.loops.wiring import Settings
from shoal.options import Acting
from shoal.program import Program
from shoal.runs.options import RunOptions
from shoal.runs.registry import Algorithm, short_name

PARTS = 5  # checkpoints before the kill, and as many after it: the first that differs says most about why
EVALUATE_EVERY = 0.01  # virtual seconds: often, as a part of what is compared


@dataclass
class Verdict:
    """What two runs came to; `--json` prints its fields."""

    algorithm: str
    env: str
    seed: int
    updates: int  # of each run
    killed_at: int  # updates
    identical: bool
    kinds: dict[str, bool]  # what was compared, and whether it is identical at the end
    first: str | None = None  # what differs first
    first_at: int | None = None  # updates at which it does
    cannot_be_saved: str | None = None  # why environments are not part of checkpoints
    lines: list[str] = field(default_factory=list)


def verify(
    name: str,
    algorithm: Algorithm,
    cfg: Acting,
    env: EnvSpec,
    *,
    updates: int,
    seed: int,
    say: Callable[[str], None] = lambda text: None,
) -> Verdict:
    """Train `2 * updates` straight, and `updates`, SIGKILL, resume, `updates`; compare everything that is left."""
    program = algorithm.program(cfg, env, Settings(max_updates=2 * updates))
    if lacking := exact.gives_no_state(program):
        raise UserError(
            f"What {', '.join(lacking)} holds cannot be saved, so that this run cannot be compared: verify it with one "
            "learner, one shard and local inference (leave out --learners, --shards and --inference)."
        )
    folder = Path(tempfile.mkdtemp(prefix="shoal-verify-"))
    try:
        runs = (folder / "straight", folder / "resumed")
        between = max(1, updates // PARTS)

        def options(run: Path) -> RunOptions:
            chosen: dict[str, Any] = {"stop_updates": 2 * updates, "checkpoint_updates": between, "keep": 1_000_000}
            chosen |= {"checkpoint_replay": True, "eval_every": EVALUATE_EVERY, "eval_episodes": 2}
            return RunOptions(runtime="inline", run_dir=str(run), seed=seed, **chosen)

        def begin(run: Path, on_saved: Callable[[int], None]) -> None:
            experiment = Experiment(name, algorithm, cfg, env, options(run), time.monotonic())
            experiment.on_saved = on_saved
            _train(experiment)

        say(f"training {2 * updates} updates straight …")
        _in_its_own_process(lambda: begin(runs[0], lambda done: None))
        say(f"training {updates} updates, then SIGKILL …")
        _in_its_own_process(lambda: begin(runs[1], lambda done: _die(done >= updates)), killed=True)
        say(f"resuming, to {2 * updates} updates …")
        _in_its_own_process(lambda: _train(go_on(runs[1], {}, {}, time.monotonic())))
        return _judge(Verdict(short_name(name), env.name, seed, 2 * updates, updates, True, {}), runs, program)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _judge(verdict: Verdict, runs: tuple[Path, Path], program: Program) -> Verdict:
    straight, resumed = (comparing.checkpoints_by_updates(run) for run in runs)
    last = straight[max(straight)]
    verdict.cannot_be_saved = comparing.cannot_be_saved(last)
    found: list[Difference] = []
    for updates in sorted({*straight, *resumed}):
        if updates in straight and updates in resumed:
            found = comparing.differences(straight[updates], resumed[updates], runs, program)
        else:
            found = [Difference(9, f"the checkpoint of {updates} updates, which one run has not", "everything else")]
        if found and verdict.first is None:
            verdict.first, verdict.first_at = found[0].words, updates
    same = comparing.evaluations(runs[0]) == comparing.evaluations(runs[1])
    different = {one.kind for one in found} | (set() if same else {"evaluations"})
    verdict.kinds = {kind: kind not in different for kind in KINDS}
    verdict.identical = verdict.first is None and same
    if verdict.cannot_be_saved is not None and not verdict.identical:
        verdict.first = f"the environment: {verdict.cannot_be_saved}"
    elif not verdict.identical and verdict.first is None:
        verdict.first = "the evaluations"
    verdict.lines = _lines(verdict)
    return verdict


def _lines(verdict: Verdict) -> list[str]:
    lines = [f"  {kind:18s} {'identical' if same else 'DIFFERENT'}" for kind, same in verdict.kinds.items()]
    if verdict.identical:
        return [*lines, "bit-identical: a run that is killed and resumed becomes what it would have been"]
    at = "" if verdict.first_at is None else f", seen at {verdict.first_at} updates (killed at {verdict.killed_at})"
    return [*lines, f"not bit-identical: the first part that differs is {(verdict.first or '').rstrip('.')}{at}"]


def _train(experiment: Experiment) -> None:
    _, failure = experiment.run(view.choose(quiet=True, json=False))
    if failure is not None:
        raise failure


def _die(now: bool) -> None:
    if now:
        os.kill(os.getpid(), signal.SIGKILL)


def _in_its_own_process(work: Callable[[], None], killed: bool = False) -> None:
    """Do it in a fork, and raise here what it raised there."""
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe(duplex=False)

    def child() -> None:
        try:
            work()
        except UserError as error:
            there.send(str(error))
            os._exit(2)

    process = context.Process(target=child)
    process.start()
    there.close()
    process.join()
    if process.exitcode == 2 and here.poll():
        raise UserError(here.recv())
    if process.exitcode != (-signal.SIGKILL if killed else 0):
        raise RuntimeError(f"a run of the comparison ended with exit code {process.exitcode}")
