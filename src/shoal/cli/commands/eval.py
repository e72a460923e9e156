"""`shoal eval`: play a trained policy again, from its run directory."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from shoal.cli.commands.common import OK, fit, one_run, parse, print_json, warn
from shoal.config import Episodes, NamedValues, Seed


@dataclass(frozen=True, kw_only=True)
class EvalOptions:
    """How it is played."""

    episodes: Episodes = 50
    """Fresh ones, played greedily."""
    seed: Seed | None = None
    """Of the environments; drawn anew when none is given."""
    env: str | None = None
    """module:factory or id in place of the recorded one."""
    env_options: NamedValues | None = None
    """An option of the environment; all of them together in place of the recorded ones."""
    network: str | None = None
    """module:factory in place of the recorded one."""
    core: str | None = None
    """module:factory in place of the recorded one."""
    trust: bool = False
    """Let a run that was not made on this account run the code that it names. Asked once."""
    json: bool = False
    """Print one JSON object."""


OPTIONS = (EvalOptions,)


def run(words: Sequence[str]) -> int:
    description = (
        "Play fresh greedy episodes with the policy of a run (RUN), of its best checkpoint (RUN:best) or of one "
        "checkpoint's folder."
    )
    typed = parse(words, "shoal eval", description, EvalOptions, "RUN")
    options: EvalOptions = typed.make(EvalOptions)
    source = one_run(typed, "shoal eval")
    from shoal.experiment.view import amount
    from shoal.playing import evaluate

    given = {
        name: getattr(options, name) for name in ("episodes", "env", "env_options", "seed", "network", "core", "trust")
    }
    found = evaluate(source, **given, tell=warn)
    if options.json:
        print_json(dataclasses.asdict(found))
    else:
        told = (
            f"{found.algorithm} on {found.env}: {amount(found.eval_return, found.spread)} over "
            f"{found.episodes} fresh greedy episodes (lowest {amount(found.lowest)}, highest {amount(found.highest)}, "
            f"seed {found.seed})"
        )
        print(fit(told, sys.stdout))
    return OK
