"""Looking at a run from outside: the metrics as they are now, whether the stop rule is met, and what a failure says."""

from __future__ import annotations

from typing import Any

from shoal.experiment.progress import Progress
from shoal.program import Future, Handle, NodeDied, futures
from shoal.runs.options import RunOptions, StoppedBy
from shoal.runtime import Run, RunFailed
from shoal.types import Role

SOON, LATE = 0.005, 1.0  # seconds between two looks for an answer of the metrics, and after which it is not waited for
START = 60.0  # seconds that a run whose time is limited may take to its first step


def stop_reason(options: RunOptions, progress: Progress, finished: bool, interrupted: bool) -> StoppedBy | None:
    """Why the run ends now, if it does."""
    if interrupted:
        return "interrupt"
    if options.stop_return is not None and progress.confirmed is not None:
        return "return"
    steps = options.stop_steps is not None and progress.count("env_steps") >= options.stop_steps
    if finished:  # one that acts itself has ended with its steps, if its updates were not over
        updates = options.stop_updates is not None and progress.count("learner_steps") >= options.stop_updates
        return "steps" if steps and not updates else "updates"
    if steps:
        return "steps"
    if options.stop_seconds is not None and (
        progress.train_seconds >= options.stop_seconds or progress.elapsed >= options.stop_seconds + START
    ):
        return "seconds"
    return None


def metrics_of(run: Run) -> Any:
    """A client of the metrics."""
    return run.client(run.program.find(Role.METRICS))


def learning_is_over(run: Run) -> bool:
    """Whether the learners of all policies have made their updates; they have reported everything then."""
    leaders = run.program.leaders()
    return bool(leaders) and all(run.finished(Handle(leader.name)) for leader in leaders)


def take_snapshot(run: Run, metrics: Any, evaluations_from: int) -> dict[str, Any] | None:
    """The metrics as they are now; None when they do not come in time, or are being started again."""
    try:
        snapshot: dict[str, Any] | None = _answer(run, futures(metrics).snapshot(evaluations_from))
        return snapshot
    except NodeDied:
        run.wait(LATE)  # the supervisor finds out, and raises when the run cannot go on
        return None


def _answer(run: Run, call: Future) -> Any:
    """What was asked for; None when it does not come in time."""
    waited = 0.0
    while not call.done():
        if waited >= LATE:
            return None
        run.wait(SOON)
        waited += SOON
    return call.result()


class Waited:
    """What keeps the learners of a run waiting that has made no update."""

    def __init__(self, run: Run) -> None:
        holders = run.program.with_role(Role.FRONT) or run.program.with_role(Role.REPLAY, Role.QUEUE)
        self._run, self._replays = run, [run.client(Handle(node.name)) for node in holders]

    def told(self) -> str | None:
        """'150 of 200 sequences', of every table that somebody waits for."""
        try:
            tables = [_answer(self._run, futures(replay).info()) or {} for replay in self._replays]
        except NodeDied:
            return None
        said = [
            f"{min(table['size'], table['needed']):,} of {table['needed']:,} {name}"
            for of_one in tables
            for name, table in of_one.items()
            if table["sample_waiting"]
        ]
        return ", ".join(said) or None


def user_error(failure: Exception) -> str | None:
    """The sentence of a `UserError` that was raised inside a node."""
    return failure.user_error if isinstance(failure, RunFailed) else None
