"""`shoal doctor`: examine an environment and a network before a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from shoal.arguments.words import peek, read
from shoal.cli.commands.common import ERROR, OK, Commands, print_help, print_json
from shoal.config import NamedValues, Positive, validate
from shoal.errors import UserError

if TYPE_CHECKING:
    from shoal.diagnosis.findings import Finding


@dataclass(frozen=True, kw_only=True)
class DoctorOptions:
    """How it is examined."""

    algorithm: str | None = None
    """In which the network is examined; without it one is suggested. All options of that algorithm may follow."""
    timeout: Positive = 60.0
    """Seconds without an answer after which your code counts as hung."""
    json: bool = False
    """Print one JSON object."""


@dataclass(frozen=True, kw_only=True)
class ExaminedOptions:
    """What is examined."""

    env: str | None = None
    """A Gymnasium id, or module:factory."""
    env_options: NamedValues | None = None
    """An option of the environment or of your factory; give it again for another one."""
    network: str | None = None
    """module:factory of your own network."""
    vectorizer: Literal["auto", "native", "sync", "async"] = "auto"
    """As for shoal train."""


DESCRIPTION = (
    "Examine an environment and a network before a run, in a process of their own: what they return, seeds, states, "
    "limits, rewards, speed, a few updates; and suggest what to train with."
)


def run(words: Sequence[str]) -> int:
    named = peek(words, "algorithm", "")
    owner: type[Any] = ExaminedOptions
    if named and not named.startswith("-"):
        from shoal.runs import registry

        owner = registry.load(named).Config
    typed = read(words, [DoctorOptions, owner], "shoal doctor")
    if typed.help:
        print_help("shoal doctor", DESCRIPTION, DoctorOptions(), owner())
    options: DoctorOptions = typed.make(DoctorOptions)
    validate(options)
    values = typed.values[owner]
    if "env" not in values:
        raise UserError("shoal doctor needs an environment: shoal doctor --env CartPole-v1, or --env module:factory.")
    from shoal.diagnosis.doctor import doctor

    def show(finding: Finding) -> None:
        if not options.json:
            print("\n".join(finding.lines()), flush=True)

    found = doctor(**values, algorithm=options.algorithm, timeout=options.timeout, on_finding=show)
    if options.json:
        print_json(found.as_dict())
    else:
        suggested = [] if found.suggestion is None else ["", *found.suggestion.lines()]
        print("\n".join([*suggested, "", found.verdict()]))
    return ERROR if found.faults else OK


COMMANDS: Commands = {"doctor": (run, (DoctorOptions, ExaminedOptions))}
