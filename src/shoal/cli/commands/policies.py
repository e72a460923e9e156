"""Commands that play a trained policy again: `shoal eval`, `record` and `export`."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from shoal.cli.commands.common import OK, Commands, fit, parse, print_json, warn
from shoal.config import Between, Count, Episodes, NamedValues, Positive, Seed, Share, Whole
from shoal.errors import UserError


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
    """An option of the environment, beside the recorded ones or in place of the one of that name."""
    network: str | None = None
    """module:factory in place of the recorded one."""
    core: str | None = None
    """module:factory in place of the recorded one."""
    trust: bool = False
    """Let a run that was not made on this account run the code that it names. Asked once."""
    json: bool = False
    """Print one JSON object."""


def run_eval(words: Sequence[str]) -> int:
    description = (
        "Play fresh greedy episodes with the policy of a run (RUN), of its best checkpoint (RUN:best) or of one "
        "checkpoint's folder."
    )
    options, (source,) = parse(words, "shoal eval", description, EvalOptions, "RUN")
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


def run_record(words: Sequence[str]) -> int:
    description = (
        "Film the greedy policy of a run (RUN), of its best checkpoint (RUN:best) or of one checkpoint's folder."
    )
    options, (source,) = parse(words, "shoal record", description, RecordOptions, "RUN")
    from shoal.experiment.view import amount, many
    from shoal.playing import record

    given = {name: getattr(options, name) for name in ("episodes", "env", "seed", "fps", "trust")}
    made = record(source, options.output, **given, tell=warn)
    if options.json:
        print_json(dataclasses.asdict(made))
    else:
        returns = ", ".join(amount(value) for value in made.returns)
        print(f"{made.algorithm} on {made.env}: {many(made.frames, 'picture')}, return {returns}, seed {made.seed}")
        print(f"→ {made.path}")
    return OK


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """What is written."""

    format: Literal["onnx", "torch"] = "onnx"
    """onnx: for onnxruntime and others; torch: for torch.export.load."""
    output: str | None = None
    """A new or empty folder; default: export-FORMAT in the run directory."""
    trust: bool = False
    """Let a run that was not made on this account run the code that it names. Asked once."""
    json: bool = False
    """Print one JSON object."""


def run_export(words: Sequence[str]) -> int:
    description = (
        "Write the greedy policy of a run (RUN), of its best checkpoint (RUN:best) or of one checkpoint's folder as a "
        "file, with a contract and recorded inputs and outputs, against which it was checked."
    )
    options, (source,) = parse(words, "shoal export", description, ExportOptions, "RUN")
    from shoal.playing.exporting import export

    made = export(source, options.output, format=options.format, trust=options.trust)
    if options.json:
        print_json(dataclasses.asdict(made))
        return OK
    for kind, tensors in (("in ", made.inputs), ("out", made.outputs)):
        for tensor in tensors:
            print(f"{kind}  {tensor['name']}  {tensor['dtype']} {tensor['shape']}")
    print(f"the same as the policy to {made.largest_difference:.0e} on recorded steps\n→ {made.folder}/{made.file}")
    return OK


@dataclass(frozen=True, kw_only=True)
class CollectOptions:
    """What is played and written."""

    output: str | None = None
    """The dataset: a new folder, or minari:ID."""
    episodes: Episodes = 100
    """Whole ones."""
    policy: Literal["greedy", "exploring", "random"] = "greedy"
    """exploring: as the run's actors acted; random: every action alike."""
    seed: Seed | None = None
    """Of the first episode, each has its own; drawn anew when none is given."""
    env: str | None = None
    """module:factory or id in place of the recorded one."""
    env_options: NamedValues | None = None
    """An option of the environment, beside the recorded ones or in place of the one of that name."""
    trust: bool = False
    """Let a run that was not made on this account run the code that it names. Asked once."""
    json: bool = False
    """Print one JSON object."""


def run_collect(words: Sequence[str]) -> int:
    description = (
        "Play whole episodes with the policy of a run (RUN), of its best checkpoint (RUN:best) or of one checkpoint's "
        "folder, and write them as a dataset to learn from."
    )
    options, (source,) = parse(words, "shoal collect", description, CollectOptions, "RUN")
    if options.output is None:
        raise UserError("shoal collect needs --output: a new folder for the dataset, or minari:ID.")
    from shoal.experiment.view import amount, many
    from shoal.playing import collect

    given = {name: getattr(options, name) for name in ("episodes", "policy", "seed", "env", "env_options", "trust")}
    made = collect(source, options.output, **given, tell=warn)
    if options.json:
        print_json(dataclasses.asdict(made))
        return OK
    told = (
        f"{made.algorithm} on {made.env}, {made.policy}: {many(made.episodes, 'episode')}, {made.steps:,} steps, "
        f"return {amount(made.mean_return, made.spread)}, seed {made.seed}"
    )
    print(fit(told, sys.stdout))
    print(f"→ {made.path}")
    return OK


@dataclass(frozen=True, kw_only=True)
class JudgeOptions:
    """By what it is judged."""

    data: str | None = None
    """The dataset: a folder that `shoal data import` or `shoal collect` made."""
    env: str | None = None
    """module:factory or id in which checkpoints are played, to see how far estimates can be trusted; without it the
    run's own, if it has one."""
    updates: Count = 3_000
    """Of fitted Q evaluation, for each set of weights."""
    episodes: Episodes = 20
    """Played with each set of weights, where there is an environment."""
    gamma: Share | None = None
    """Discount; without it the run's."""
    checkpoints: bool = True
    """Judge the run's checkpoints too, where there is an environment."""
    seed: Seed = 0
    """Of bootstraps, networks and environments."""
    trust: bool = False
    """Let a run that was not made on this account run the code that it names. Asked once."""
    json: bool = False
    """Print one JSON object."""


def run_judge(words: Sequence[str]) -> int:
    description = (
        "Judge the greedy policy of a run by logged data, without playing it: fitted Q evaluation and importance "
        "sampling, each with an interval of 95 %, and how far to trust them."
    )
    options, (source,) = parse(words, "shoal judge", description, JudgeOptions, "RUN")
    from shoal.experiment.view import amount
    from shoal.playing.judging import judge, trust_of

    if options.data is None:
        raise UserError("--data is missing: name the dataset by which the policy is judged.")
    names = ("env", "updates", "episodes", "gamma", "checkpoints", "seed", "trust")
    found = judge(source, options.data, **{name: getattr(options, name) for name in names}, tell=warn)
    if options.json:
        print_json(dataclasses.asdict(found) | {"trust": trust_of(found)})
        return OK

    def line(name: str, estimate: Sequence[float], more: str = "") -> str:
        value, low, high = map(amount, estimate)
        return f"  {name:22} {value:>10}   [{low}, {high}]{more}"

    print(f"{found.algorithm} of {found.run_dir}, by {found.episodes:,} episodes of {found.data}")
    print(f"returns discounted by {found.gamma:g}, with intervals of 95 % by bootstraps of the episodes")
    print(f"  {'the data themselves':22} {amount(found.data_value):>10}")
    print(line("fitted Q evaluation", found.judged[0].fitted_q))
    if found.importance is None:
        print(f"  {'importance sampling':22} {'none':>10}   {found.why_no_importance}")
    else:
        print(line("importance sampling", found.importance, f", of which {found.effective:.1f} episodes count"))
    played = [each for each in found.judged if each.played is not None]
    if played:
        print("fitted Q evaluation beside what was played, which is not discounted:")
    for each in played:
        print(line(each.weights, each.fitted_q, f"   played {amount(each.played or 0.0)}"))
    print(fit(trust_of(found), sys.stdout))
    return OK


COMMANDS: Commands = {
    "collect": (run_collect, (CollectOptions,)),
    "eval": (run_eval, (EvalOptions,)),
    "judge": (run_judge, (JudgeOptions,)),
    "record": (run_record, (RecordOptions,)),
    "export": (run_export, (ExportOptions,)),
}
