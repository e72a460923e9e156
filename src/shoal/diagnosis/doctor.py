"""`shoal.doctor`: examine an environment and a network in a process of their own, and say what was found.

The child writes findings as it comes to them, so that what ends it, or keeps it for too long, costs nothing that was
found before; the parent says what the user's code was asked for last.
"""

from __future__ import annotations

import io
import os
import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, BinaryIO

import cloudpickle
from gymnasium.envs import registration

from shoal.config import Positive, apply_preset, validate, validate_fields
from shoal.diagnosis import advice, learning
from shoal.diagnosis.environment import Environment
from shoal.diagnosis.findings import Diagnosis, Finding, Level, Suggestion, Tell
from shoal.envs import names, trial
from shoal.envs.faults import what_was_raised
from shoal.errors import UserError, name_of
from shoal.experiment.environments import describe_env
from shoal.runs import registry

SILENCE = 60.0  # seconds after which the user's code counts as hung


@dataclass(frozen=True)
class Asked:
    """What is examined; sent to the child."""

    algorithm: str | None
    values: dict[str, Any] = field(default_factory=dict)  # fields of the algorithm's config, among them env
    registered: registration.EnvSpec | None = None  # an id that only this process knows

    @property
    def name(self) -> str:
        return name_of(self.values["env"])


@dataclass(frozen=True)
class _How:
    algorithm: str | None
    timeout: Positive


def doctor(
    env: Any,
    *,
    network: Any = None,
    algorithm: str | None = None,
    timeout: float = SILENCE,
    on_finding: Callable[[Finding], None] = lambda finding: None,
    **options: Any,
) -> Diagnosis:
    """Examine an environment, and a network in an algorithm, before anything is trained with them.

    `env` and `network` are as in an algorithm's config; `options` are further fields of it, such as `env_options`.
    Without an algorithm one is suggested, and the network examined in it. The user's code runs in a process of its own:
    what ends it, or does not come back for `timeout` seconds, is a fault among the findings.
    """
    validate(_How(algorithm, timeout))
    given = {"env": env, **({} if network is None else {"network": network}), **options}
    if algorithm is not None:
        validate_fields(registry.load(algorithm).Config(**given))
    asked = Asked(algorithm, given, names.registered_by_user(env))
    found = Diagnosis(asked.name)
    hearing = _Hearing(found, on_finding)
    try:
        question = cloudpickle.dumps(asked)
    except Exception as error:
        raise UserError(f"{asked.name} cannot be sent to a process of its own: {what_was_raised(error)}.") from None
    code, answer = trial.ask(
        reply,
        question,
        lambda child, file: trial.while_it_answers(child, file, timeout, lambda: hearing.look(file)),
    )
    hearing.take(answer)
    if not hearing.ended:
        hearing.tell(_broken(code, asked.name, hearing.doing, timeout))
    return found


def _broken(code: int | None, name: str, doing: str, timeout: float) -> Finding:
    if code is None:
        return Finding(
            "fault",
            "hang",
            f"nothing came back for {timeout:.0f} s when it was asked to {doing}",
            "run it by itself to see where it waits; --timeout gives it more time",
        )
    return Finding(
        "fault",
        "crash",
        f"{name} {trial.ending(code)}, when it was asked to {doing}",
        "run it by itself to see why; os._exit, a signal or a crash of a library ends an actor in the same way",
    )


class _Hearing:
    """Takes in what the child has written so far."""

    def __init__(self, found: Diagnosis, on_finding: Callable[[Finding], None]) -> None:
        self._found, self._on_finding, self._read = found, on_finding, 0
        self.doing, self.ended = "be imported", False

    def look(self, file: int) -> None:
        """The file's place is the child's: nothing here may move it."""
        self.take(os.pread(file, os.fstat(file).st_size, 0))

    def take(self, written: bytes) -> None:
        stream = io.BytesIO(written)
        stream.seek(self._read)
        while True:
            try:
                kind, value = pickle.load(stream)
            except (EOFError, pickle.UnpicklingError, ValueError):  # the rest is still being written
                return
            self._read = stream.tell()
            if kind == "finding":
                self.tell(value)
            elif kind == "doing":
                self.doing = value
            elif kind == "measured":
                self._found.measured = value
            elif kind == "suggestion":
                self._found.suggestion = value
            elif kind == "end":
                self.ended = True

    def tell(self, finding: Finding) -> None:
        self._found.findings.append(finding)
        self._on_finding(finding)


# ---- in the child


def reply(question: BinaryIO, answer: BinaryIO) -> None:
    """Examine what was asked for, and write down what is found, one thing after another."""
    trial.begin()

    def write(kind: str, value: Any) -> None:
        pickle.dump((kind, value), answer)
        answer.flush()

    def tell(level: Level, about: str, text: str, remedy: str | None = None) -> None:
        write("finding", Finding(level, about, text, remedy))

    measured: dict[str, Any] = {}
    suggestion = None
    try:
        asked: Asked = pickle.load(question)
        names.know(asked.registered)
        suggestion = examine(asked, tell, lambda text: write("doing", text), measured)
    except UserError as error:
        text, _, remedy = str(error).partition("; ")
        tell("fault", "cannot run", text, remedy or "shoal train would say the same and end")
    except BaseException as error:
        tell("fault", "cannot run", what_was_raised(error), "run it by itself to see the whole traceback")
    write("measured", measured)
    write("suggestion", suggestion)
    write("end", None)
    trial.leave(answer)


def examine(asked: Asked, tell: Tell, doing: Callable[[str], None], measured: dict[str, Any]) -> Suggestion | None:
    """The environment, then the network in the algorithm that was given or is suggested."""
    doing("be imported, made, reset and stepped once")
    values = dict(asked.values)
    first = registry.load(asked.algorithm or "impala")
    cfg = _config(first, values)
    spec = describe_env(cfg, apart=False)
    environment = Environment(spec, tell, doing, measured=measured)
    if not environment.examine():
        return None
    name, why = asked.algorithm, "as you asked"
    if name is None:
        name, why = advice.choose_algorithm(spec, measured)
    algorithm = registry.load(name)
    cfg = apply_preset(_config(algorithm, values), algorithm.PRESETS, spec.kind)
    suggestion = advice.suggest(registry.short_name(name), why, cfg, environment, asked.values)
    try:
        works = learning.examine(algorithm, cfg, spec, tell, doing, measured)
    except UserError as error:
        remedy = "name the algorithm that it is for: --algorithm" if asked.algorithm is None else None
        other = advice.choose_algorithm(spec, measured)[0]
        if asked.algorithm is not None and "network" not in values and other != name:
            remedy = f"for this environment: --algorithm {other}"
        tell("fault", "network" if "network" in values else "algorithm", str(error), remedy)
        return None
    return suggestion if works else None


def _config(algorithm: Any, values: Mapping[str, Any]) -> Any:
    return algorithm.Config(**values)
