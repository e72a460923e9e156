"""What a run is asked for beside the algorithm's config, and what it gives back."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any, Literal

from shoal import config, films
from shoal.config import Amount, Count, Episodes, Positive, Seconds, Seed, Whole
from shoal.errors import UserError
from shoal.runs import sinks
from shoal.runs.tables import Table, metrics
from shoal.types import Role

Runtime = Literal["local", "inline", "ray"]


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """How it runs, when it stops, what is saved: the same for every algorithm."""

    runtime: Runtime = "local"
    """Processes of this machine, one thread (reproducible), or Ray actors."""
    ray_address: str | None = None
    """Of a running Ray cluster (auto: this machine's); without it one is started."""
    place: str | None = None
    """ROLE=LABEL[,…]: machines of a Ray cluster for a role, by their name, address, label or resource."""
    actor_cpus: Amount | None = None
    """That each actor asks of a Ray cluster; default: 1, or less where there are too few for all."""
    most_actors: Count | None = None
    """On a Ray cluster actors are added while CPUs are free, up to so many: --actors 8..64, or auto, says both."""
    wait_for_resources: Seconds = 0.0
    """Seconds to wait for CPUs and GPUs that a Ray cluster has not free now."""
    encryption: bool = True
    """Of calls between the machines of a Ray cluster; without it they are still proven."""
    seed: Seed = 0
    """Of the run; every node derives its own."""
    stop_return: float | None = None
    """Stop when 50 fresh evaluation episodes confirm this mean return."""
    stop_steps: Count | None = None
    """Stop after so many environment steps."""
    stop_updates: Count | None = None
    """Stop after exactly so many learner updates."""
    stop_seconds: Positive | None = None
    """Stop after so many seconds of training, from the first actor step."""
    run_dir: str | None = None
    """A new or empty folder; default: a new one in runs/."""
    hang_seconds: Amount = 30.0
    """After which a node that stands still is told of and replaced; 0: never."""
    max_failures: Whole = 5
    """Losses of one node in a row before the run gives up; 4 times as many errors of short lives."""
    checkpoint_every: Amount = 60.0
    """Seconds between two checkpoints; 0: only at the end."""
    checkpoint_updates: Count | None = None
    """Learner updates between two checkpoints, in place of seconds."""
    checkpoint_replay: bool = False
    """Checkpoints hold the items of the replay too."""
    keep: Count = 3
    """Checkpoints that are kept; beside them the best by evaluated return."""
    resume: Literal["never", "auto"] = "never"
    """auto: go on with the run in --run-dir, if there is one."""
    restore: str | None = None
    """Start with the weights of RUN, RUN:best or one checkpoint's folder."""
    restore_partial: bool = False
    """Load what fits of them, and tell what does not."""
    freeze: str | None = None
    """Names or patterns of parameters that are not trained, such as torso or "torso.*"."""
    eval_every: Seconds = 0.5
    """Seconds from one evaluation to the next."""
    eval_episodes: Episodes = 10
    """Of each evaluation."""
    record_every: Seconds = 0.0
    """Seconds between two films of the greedy policy, in the run directory; 0: none."""
    record_format: Literal["mp4", "gif"] = "mp4"
    """Of these films."""
    record_data: str | None = None
    """A new folder in which what the actors do is kept as a dataset, whole episodes."""
    log: str | None = None
    """tensorboard, wandb, or both with a comma: where metrics go beside the run directory."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            object.__setattr__(self, field.name, config.plain(getattr(self, field.name)))

    def check(self) -> None:
        config.validate(self)
        if self.record_every and self.runtime == "ray":
            raise UserError(
                "--record-every needs the local or the inline runtime: on Ray the evaluator writes elsewhere."
            )
        if self.record_every:
            films.writer_for(f".{self.record_format}")  # what is missing is said now, and not after an hour
        if self.restore_partial and self.restore is None:
            raise UserError("--restore-partial needs --restore: give the run whose weights are to be loaded.")
        if self.ray_address is not None and self.runtime != "ray":
            raise UserError(f"--ray-address needs the ray runtime: add --runtime ray (it is {self.runtime}).")
        asked = {
            "--place": self.place is not None,
            "--actor-cpus": self.actor_cpus is not None,
            "--most-actors": self.most_actors is not None,
            "--wait-for-resources": bool(self.wait_for_resources),
            "--no-encryption": not self.encryption,
        }
        if self.runtime != "ray" and (given := [name for name, is_given in asked.items() if is_given]):
            raise UserError(f"{given[0]} needs the ray runtime: add --runtime ray (it is {self.runtime}).")
        self.places()
        sinks.named(self.log)

    def places(self) -> dict[str, str]:
        """What `--place` says: role -> label."""
        found = {}
        for part in (self.place or "").split(",") if self.place is not None else []:
            role, _, label = (word.strip() for word in part.partition("="))
            if role not in {*Role} or not label:
                known = ", ".join(Role)
                raise UserError(
                    f"--place {part!r} is no ROLE=LABEL: give for instance actor=pool-a; roles are {known}."
                )
            found[role] = label
        return found

    def with_threshold(self, threshold: float | None) -> RunOptions:
        """Where no stop is given, the return at which the environment counts as solved, if it has one registered."""
        stops = (self.stop_return, self.stop_steps, self.stop_updates, self.stop_seconds)
        if threshold is None or any(stop is not None for stop in stops):
            return self
        return dataclasses.replace(self, stop_return=float(threshold))

    def stops(self) -> dict[str, float]:
        """The stop rules that were given."""
        stops = {
            "return": self.stop_return,
            "steps": self.stop_steps,
            "updates": self.stop_updates,
            "seconds": self.stop_seconds,
        }
        return {name: value for name, value in stops.items() if value is not None}

    def stop_line(self) -> str:
        given = [f"{name} {value:,.12g}" for name, value in self.stops().items()]
        return "stops at " + " or ".join(given) if given else "runs until Ctrl-C"


StoppedBy = Literal["return", "steps", "updates", "seconds", "callback", "interrupt", "failure"]


@dataclass(frozen=True, kw_only=True)
class Result:
    """What a run came to; its fields are those of the last line that `--json` prints."""

    algorithm: str
    env: str
    runtime: str
    seed: int
    env_steps: int
    learner_steps: int
    env_steps_per_second: float  # over train_seconds
    wall_seconds: float  # from the start of the command
    train_seconds: float  # from the first actor step to the stop
    eval_return: float | None  # of the saved weights, unless the versions differ; None when there was no evaluation
    eval_version: int | None  # learner updates behind the weights that eval_return is of
    saved_version: int | None  # learner updates behind the weights that were saved; None when there were none
    reached: bool  # confirmed by the evaluator on fresh episodes
    seconds_to_target: float | None  # train_seconds when it was confirmed
    restarts: int
    lost: dict[str, int] = dataclasses.field(default_factory=dict)  # with nodes: updates, items, rows, open episodes
    lost_environments: int = 0  # that raised, crashed, hung or gave what they may not, and were replaced
    lost_share: float | None = None  # of the episodes, ended by such a loss; None: none, or too few to say
    too_many_lost: str | None = None  # a sentence where that is too much to learn from
    run_dir: str
    stopped_by: StoppedBy
    preset: str
    trained_steps: int  # environment steps the learner has used
    refused_updates: int  # not finite, and therefore not applied
    first_update_seconds: float | None  # of the learner, from the start of the command
    target: float | None
    bottleneck: str
    advice: str | None = None  # the one setting to change for more speed; None when none is known to help

    @staticmethod
    def of_summary(summary: Mapping[str, Any], run: Path) -> Result:
        """What a run's summary.json tells."""
        names = {field.name for field in dataclasses.fields(Result)}
        try:
            return Result(**{key: value for key, value in summary.items() if key in names} | {"run_dir": str(run)})
        except TypeError:
            raise UserError(
                f"The summary of {run} lacks what a result has: it is another version's, or damaged."
            ) from None

    @property
    def exit_code(self) -> int:
        """0: the stop rule was met; 3: time ran out before the return was reached, or before any update; 130: Ctrl-C;
        1: failure, or neither a step nor an update was made."""
        missed = self.learner_steps == 0 or (self.target is not None and not self.reached)
        codes = {"interrupt": 130, "failure": 1, "seconds": 3 if missed else 0}
        code = codes.get(self.stopped_by, 0)
        nothing = self.env_steps == 0 and self.learner_steps == 0  # who learns from data makes no step
        return 1 if nothing and self.stopped_by != "interrupt" else code

    @property
    def metrics(self) -> Table:
        """The run's progress as columns, a row each second: counts, rates, losses. `.frame()` is a DataFrame."""
        return metrics(self.run_dir)

    @property
    def evaluations(self) -> Table:
        """Every evaluation as columns: eval_return, spread, env_steps, seconds, …"""
        return metrics(self.run_dir, "evaluation")

    def _repr_html_(self) -> str:
        """A table, in a notebook: what is known of the run, without what there is none of."""
        shown = {name: value for name, value in self.as_dict().items() if value not in (None, {})}
        rows = (f"<tr><th>{name}</th><td>{escape(_shown(value))}</td></tr>" for name, value in shown.items())
        return f"<table>{''.join(rows)}</table>"

    def as_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def _shown(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:,.6g}"
