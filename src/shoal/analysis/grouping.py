"""Which runs belong together: by task, algorithm and settings, those that differ or those that the user names."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from shoal.config import unknown
from shoal.errors import UserError, did_you_mean
from shoal.runs.tables import is_number

SHOWN = 4  # settings in a label
NAMED_APART = ("env", "preset")  # fields that the panel names, or that only say where others come from
RUNTIME = "runtime"  # an option, but on `inline` seconds are virtual: such runs are never put together with others
OWN = ("algorithm", "env", "seed")  # of a run itself
OF_STATE = ("state", "stopped_by")  # of a run itself, and they change
STATES = ("running", "finished", "interrupted", "failed", "crashed", "resumable")


class Described(Protocol):
    """What is known of a run."""

    @property
    def env(self) -> str: ...
    @property
    def algorithm(self) -> str: ...
    @property
    def seed(self) -> int: ...
    @property
    def config(self) -> Mapping[str, Any]: ...
    @property
    def options(self) -> Mapping[str, Any]: ...


R = TypeVar("R", bound=Described)


@dataclass
class Group(Generic[R]):
    """Runs of one setting, which differ in their seeds."""

    env: str
    label: str
    values: dict[str, Any]  # of the fields by which it is told apart
    runs: list[R]


def field_of(run: Described, name: str) -> Any:
    """A field of the run itself, of its config or of its options; None where it has none."""
    if name in (*OWN, *OF_STATE):
        return getattr(run, name, None)
    return run.config.get(name, run.options.get(name))


def text_of(value: Any) -> str:
    if isinstance(value, list | tuple):
        return " ".join(map(text_of, value))
    return value if isinstance(value, str) else "none" if value is None else json.dumps(value)


def grouped(runs: Sequence[R], by: Sequence[str] = ()) -> dict[str, list[Group[R]]]:
    """Groups of every task, in the order of their values. They are told apart by algorithm and the fields `by`, or,
    where none is named, by what is not the same in all runs of an algorithm on a task."""
    check(runs, by)
    tasks: dict[str, list[Group[R]]] = {}
    for env, algorithm in dict.fromkeys((run.env, run.algorithm) for run in runs):
        alike = [run for run in runs if (run.env, run.algorithm) == (env, algorithm)]
        names = [name for name in by if name not in ("algorithm", "env")] if by else differing(alike)
        names = [name for name in names if any(has(run, name) for run in alike)]
        groups: dict[tuple[str, ...], Group[R]] = {}
        for run in alike:
            said = tuple(f"{name} {text_of(field_of(run, name))}" for name in names)
            values = {name: field_of(run, name) for name in names}
            group = groups.setdefault(said, Group(env, _label(algorithm, said), values, []))
            group.runs.append(run)
        tasks.setdefault(env, []).extend(sorted(groups.values(), key=lambda group: order(group.values)))
    return tasks


def _label(algorithm: str, said: Sequence[str]) -> str:
    more = [f"and {len(said) - SHOWN} more"] if len(said) > SHOWN else []
    return f"{algorithm}: {', '.join([*said[:SHOWN], *more])}" if said else algorithm


def order(values: Mapping[str, Any]) -> list[tuple[int, float, str]]:
    """Numbers by their size, before words."""
    numbers = {name: value for name, value in values.items() if is_number(value)}
    return [(0, numbers[name], "") if name in numbers else (1, 0.0, text_of(value)) for name, value in values.items()]


def has(run: Described, name: str) -> bool:
    return name in OWN or name in run.config or name in run.options


def check(runs: Iterable[Described], by: Sequence[str]) -> None:
    gathered = list(runs)
    known = {*OWN, *(name for run in gathered for name in (*run.config, *run.options))}
    for name in by:
        if name not in known:
            raise UserError(
                f"--by {name} is no field of these runs: see shoal config RUN.{did_you_mean(name, sorted(known))}"
            )


def differing(runs: Sequence[Described]) -> list[str]:
    """Settings that are not the same in all of these runs."""
    names = dict.fromkeys(name for run in runs for name in run.config if name not in NAMED_APART)
    return [name for name in (*names, RUNTIME) if len({text_of(field_of(run, name)) for run in runs}) > 1]


def put_together(groups: Iterable[Group[R]]) -> list[str]:
    """Settings that differ within a group: the user has named others."""
    return list(dict.fromkeys(name for group in groups for name in differing(group.runs)))


def words(text: str | None) -> list[str]:
    """Names with commas between, as they are typed."""
    return [part.strip().replace("-", "_") for part in text.split(",")] if text is not None else []


def conditions(text: str | None) -> list[tuple[str, str]]:
    """`name=value` with commas between."""
    pairs = []
    for condition in text.split(",") if text is not None else []:
        name, equals, value = condition.partition("=")
        if not equals:
            raise UserError(f"--where {condition} is no condition: give name=value, such as env=CartPole-v1.")
        pairs.append((name.strip().replace("-", "_"), value.strip()))
    return pairs


def chosen(runs: Sequence[R], text: str | None) -> list[R]:
    """Those that meet every condition; names are those of `field_of`, and a state may be `resumable`."""
    pairs = conditions(text)
    for name, value in pairs:
        known = {*OWN, *OF_STATE, *(each for run in runs for each in (*run.config, *run.options))}
        if runs and name not in known:
            near = did_you_mean(name, sorted(known))
            raise UserError(f"--where {name}={value}: none of these runs has a field {name}.{near}")
        if name == "state" and value not in STATES:
            raise UserError(unknown("--where state", value, STATES))
    return [run for run in runs if all(_meets(run, name, value) for name, value in pairs)]


def _meets(run: Described, name: str, wanted: str) -> bool:
    if name == "state" and wanted == "resumable":
        return bool(getattr(run, "resumable", False))
    found = field_of(run, name)
    if is_number(found):
        try:
            return float(wanted) == float(found)
        except ValueError:
            return False
    return text_of(found) == wanted
