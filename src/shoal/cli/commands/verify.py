"""`shoal verify`: whether a run that is killed and resumed becomes, to the last bit, what it would have been."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from shoal.cli.commands.algorithm import configure, take_algorithm
from shoal.cli.commands.common import ERROR, OK, Commands, print_json
from shoal.config import Count, Seed, validate


@dataclass(frozen=True, kw_only=True)
class VerifyOptions:
    """What is compared: a run of 2N updates, and one that is killed after N and resumed (inline runtime)."""

    updates: Count = 20
    """N: before the kill, and again after it."""
    seed: Seed = 0
    """Of both runs."""
    json: bool = False
    """Print one JSON object."""


def run(words: Sequence[str]) -> int:
    name, words = take_algorithm("verify", words)
    page, env, config, typed = configure("verify", name, words, VerifyOptions)
    options: VerifyOptions = typed.make(VerifyOptions)
    validate(options)
    from shoal.experiment.checks import prepare
    from shoal.experiment.verifying import verify
    from shoal.runs.options import RunOptions

    prepare(page, config, env, RunOptions(seed=options.seed, runtime="inline"))
    print(f"{name} on {env.name}, seed {options.seed}, inline runtime", file=sys.stderr, flush=True)
    verdict = verify(name, page, config, env, updates=options.updates, seed=options.seed, say=_say)
    if options.json:
        print_json({key: value for key, value in dataclasses.asdict(verdict).items() if key != "lines"})
    else:
        print("\n".join(verdict.lines))
    return OK if verdict.identical else ERROR


def _say(text: str) -> None:
    print(f"  {text}", file=sys.stderr, flush=True)


COMMANDS: Commands = {"verify": (run, (VerifyOptions,))}
