"""`shoal record`: film a trained policy."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from shoal.cli.commands.common import OK, one_run, parse, print_json
from shoal.config import Between, Positive, Whole


@dataclass(frozen=True, kw_only=True)
class RecordOptions:
    """What is filmed."""

    output: str | None = None
    """NAME.mp4 or NAME.gif; default: policy.mp4 in the run directory."""
    episodes: Annotated[int, Between(1, 1000)] = 1
    """Whole ones, played greedily, one after another."""
    seed: Whole | None = None
    """Of the environment; drawn anew when none is given."""
    fps: Positive | None = None
    """Pictures per second; default: as the environment says."""
    env: str | None = None
    """module:factory or id in place of the recorded one."""
    trust: bool = False
    """Let a run that was not made on this account run the code that it names. Asked once."""
    json: bool = False
    """Print one JSON object."""


OPTIONS = (RecordOptions,)


def run(words: Sequence[str]) -> int:
    description = (
        "Film the greedy policy of a run (RUN), of its best checkpoint (RUN:best) or of one checkpoint's folder."
    )
    typed = parse(words, "shoal record", description, RecordOptions, "RUN")
    options: RecordOptions = typed.make(RecordOptions)
    source = one_run(typed, "shoal record")
    from shoal.experiment.view import amount, many
    from shoal.playing import record

    given = {name: getattr(options, name) for name in ("episodes", "env", "seed", "fps", "trust")}
    made = record(source, options.output, **given)
    if options.json:
        print_json(dataclasses.asdict(made))
    else:
        returns = ", ".join(amount(value) for value in made.returns)
        print(f"{made.algorithm} on {made.env}: {many(made.frames, 'picture')}, return {returns}, seed {made.seed}")
        print(f"→ {made.path}")
    return OK
