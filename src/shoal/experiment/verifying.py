"""A proof that users can run: does a run that is killed and goes on become what it would have been anyway?

Trains twice on the inline runtime: straight, and killed half way (SIGKILL) and resumed. Each life is a new interpreter
with a hash seed of its own, as after a power cut: nothing but files goes from one to the next, modules are imported
anew, and a set of strings has another order.
"""

from __future__ import annotations

import os
import pickle
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

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
from shoal.runs import registry
from shoal.runs.options import RunOptions
from shoal.runs.registry import Algorithm, short_name
from shoal.runtime import RunFailed

PARTS = 5  # checkpoints before the kill, and as many after it: the first that differs says most about why
USER_ERROR = 3  # the exit code of an interpreter that tells what went wrong
EVALUATE_EVERY = 0.01  # virtual seconds: often, as a part of what is compared


@dataclass
class Verdict:
    """What two runs came to; `--json` prints its fields."""

    algorithm: str
    env: str
    seed: int
    updates: int  # of each run
    killed_at: int  # updates of the checkpoint after which it was
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

        say(f"training {2 * updates} updates straight …")
        live(Life(options(runs[0]), 1, name, cfg, env))
        say(f"training {updates} updates, then SIGKILL …")
        live(Life(options(runs[1]), 2, name, cfg, env, dies_at=updates))
        say(f"resuming, to {2 * updates} updates …")
        live(Life(options(runs[1]), 3))
        return _judge(Verdict(short_name(name), env.name, seed, 2 * updates, updates, True, {}), runs, program)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _judge(verdict: Verdict, runs: tuple[Path, Path], program: Program) -> Verdict:
    straight, resumed = (comparing.checkpoints_by_updates(run) for run in runs)
    last = straight[max(straight)]
    verdict.cannot_be_saved = comparing.cannot_be_saved(last)
    verdict.killed_at = min((done for done in straight if done >= verdict.killed_at), default=verdict.killed_at)
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
        return [
            *lines,
            f"bit-identical over {verdict.updates} updates, killed at {verdict.killed_at}: a run that is killed and "
            "resumed becomes what it would have been",
            "(not seen: what would show later than that; --updates N compares more)",
        ]
    at = "" if verdict.first_at is None else f", seen at {verdict.first_at} updates (killed at {verdict.killed_at})"
    lines.append(f"not bit-identical: the first part that differs is {(verdict.first or '').rstrip('.')}{at}")
    if verdict.first_at is not None and verdict.first_at <= verdict.killed_at:
        lines.append(
            "It differs before the kill: two processes with this seed are not alike. Look for what a process draws for "
            "itself: random numbers at import, hash() or the order of a set of strings, the time, a process id."
        )
    return lines


# ---- one life of a run, in an interpreter of its own -----------------------------------------------------------------

INTERPRETER = """\
import pickle, sys
sys.path[:] = pickle.load(sys.stdin.buffer)
from shoal.experiment.verifying import begin_life
sys.exit(begin_life(sys.stdin.buffer))
"""


@dataclass(frozen=True)
class Life:
    """A life that begins a run, with its algorithm, config and environment; without them it goes on."""

    options: RunOptions
    hash_seed: int
    name: str | None = None
    cfg: Any = None
    env: EnvSpec | None = None
    dies_at: int | None = None  # updates, after the checkpoint of which it is killed


def live(life: Life) -> None:
    """Start an interpreter for it (all that it needs is known by names), and raise here what a user got wrong there."""
    question = pickle.dumps(sys.path) + pickle.dumps(life)
    environment = {**os.environ, "PYTHONHASHSEED": str(life.hash_seed)}
    done = subprocess.run(
        [sys.executable, "-P", "-c", INTERPRETER], input=question, env=environment, stdout=subprocess.PIPE
    )
    if done.returncode == USER_ERROR:
        raise UserError(done.stdout.decode())
    if done.returncode != (0 if life.dies_at is None else -signal.SIGKILL):
        raise RuntimeError(f"a run of the comparison ended with exit code {done.returncode}")


def begin_life(question: IO[bytes]) -> int:
    """What the new interpreter does; its exit code. What a user's code prints is no answer."""
    answer = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    try:
        life: Life = pickle.load(question)
        if life.name is None or life.env is None:
            experiment = go_on(Path(life.options.run_dir or ""), {}, {}, time.monotonic(), trust=True)
        else:
            algorithm = registry.load(life.name)
            experiment = Experiment(life.name, algorithm, life.cfg, life.env, life.options, time.monotonic())
        if (dies_at := life.dies_at) is not None:
            experiment.on_saved = lambda done: _die(done >= dies_at)
        _train(experiment)
    except (UserError, RunFailed) as error:
        if isinstance(error, RunFailed) and error.traceback and error.user_error is None:
            print(error.traceback.rstrip(), file=sys.stderr)
        os.write(answer, str(error).encode())
        return USER_ERROR
    return 0


def _train(experiment: Experiment) -> None:
    _, failure = experiment.run(view.choose(quiet=True, json=False))
    if failure is not None:
        raise failure


def _die(now: bool) -> None:
    if now:
        os.kill(os.getpid(), signal.SIGKILL)
