"""`shoal plan`: what a target of steps per second needs, before the machines for it are bought."""

from __future__ import annotations

import dataclasses
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from shoal.cli.commands.algorithm import configure, take_algorithm, warm
from shoal.cli.commands.common import ERROR, OK, Commands, fit, print_json
from shoal.config import Amount, Between, Positive, Seed, validate
from shoal.errors import UserError

if TYPE_CHECKING:
    from shoal.planning.costs import Costs
    from shoal.planning.trial import Environment

NETWORK = re.compile(r"(\d+(?:\.\d+)?(?:e\d+)?) ?([kmg]?)(bit|b)(?:/s|ps)?", re.IGNORECASE)
SCALES = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9}


@dataclass(frozen=True, kw_only=True)
class PlanOptions:
    """The target and the machines; what else is given (--actors, --learners, …) is kept, the rest is found."""

    steps_per_second: Positive | None = None
    """Environment steps that are wanted, of all environments together."""
    cores: Annotated[int, Between(1, 4096)] | None = None
    """Of a machine; default: those of this one."""
    machine_network: str = "10Gbit"
    """Of a machine, each way: 10Gbit, 100Mbit, 1.2GB (bytes)."""
    machines: Annotated[int, Between(1, 10_000)] | None = None
    """How many there are; default: as many as are needed."""
    env_cpu: Amount | None = None
    """Seconds that a step of one environment computes; default: measured."""
    env_wait: Amount | None = None
    """Seconds that a step of one environment waits for something else than a core; default: measured."""
    update_seconds: Positive | None = None
    """Of an update of a whole batch on a device that is not here; default: measured on a core."""
    inference_seconds: Positive | None = None
    """Of a batch of an inference server on such a device; default: measured on a core."""
    seconds: Positive = 6.0
    """That the program runs to be measured."""
    seed: Seed = 0
    """Of that run."""
    json: bool = False
    """The last line of stdout is one JSON object."""


def run(words: Sequence[str]) -> int:
    name, words = take_algorithm("plan", words)
    warm(words)
    page, env, config, typed = configure("plan", name, words, PlanOptions)
    options: PlanOptions = typed.make(PlanOptions)
    validate(options)
    if options.steps_per_second is None:
        raise UserError("--steps-per-second is missing: say how many environment steps per second you want.")
    network = bytes_per_second(options.machine_network)
    from shoal.planning.sizing import Wanted, make_plan
    from shoal.planning.telling import lines, report
    from shoal.planning.trial import cores_here, measure_costs, refuse
    from shoal.runtime import RunFailed

    refuse(name, config, env)
    given = typed.values[page.Config]
    wanted = Wanted(
        rate=options.steps_per_second,
        cores=options.cores or cores_here(),
        network=network,
        machines=options.machines,
        actors=given.get("actors"),
        learners=given.get("learners"),
        shards=given.get("shards"),
        servers=given.get("inference_servers"),
    )
    try:
        measured = measure_costs(
            page,
            config,
            env,
            seconds=options.seconds,
            seed=options.seed,
            say=_say,
            device=options.update_seconds is not None,
        )
    except RunFailed as failure:
        print(f"{failure.traceback or ''}shoal: {failure}", file=sys.stderr)
        return ERROR
    costs, inputs = with_inputs(measured.costs, measured.environment, options, config.vectorizer, env.vectorizer)
    _say("simulating …")
    plan = make_plan(costs, wanted)
    if options.json:
        print_json(report(name, env.name, measured, costs, wanted, plan) | {"inputs": inputs})
    else:
        print(fit("\n".join(lines(name, env.name, measured, costs, wanted, plan, inputs)), sys.stdout))
    return OK


def bytes_per_second(text: str) -> float:
    found = NETWORK.fullmatch(text.strip())
    if found is None or not float(found[1]):
        raise UserError(f"--machine-network {text} is no rate: give one such as 10Gbit, 100Mbit or 1.2GB.")
    bits = found[3].lower() == "bit" or found[3] == "b"
    return float(found[1]) * SCALES[found[2].lower()] / (8.0 if bits else 1.0)


def with_inputs(
    costs: Costs, alone: Environment, options: PlanOptions, vectorizer: str, chosen: str
) -> tuple[Costs, list[str]]:
    """The costs with what was given in the place of what was measured, and what that was."""
    changes: dict[str, Any] = {}
    inputs: list[str] = []
    apart = (vectorizer if vectorizer != "auto" else chosen) == "async"  # they wait side by side
    if options.env_cpu is not None:
        changes["row_cpu"] = max(0.0, costs.row_cpu - alone.cpu) + options.env_cpu * costs.envs
        inputs.append(f"a step of an environment computes for {options.env_cpu:g} s")
    if options.env_wait is not None:
        changes["row_wait"] = options.env_wait * (1 if apart else costs.envs)
        inputs.append(f"a step of an environment waits for {options.env_wait:g} s")
    if options.update_seconds is not None:
        changes |= {"update_cpu": 0.0, "update_beside": options.update_seconds}
        inputs.append(f"an update takes {options.update_seconds:g} s on the learner's device")
    if options.inference_seconds is not None:
        if not costs.central:
            raise UserError("--inference-seconds is for servers: add --inference central, or leave it out.")
        changes["answer_beside"] = options.inference_seconds
        changes |= {"answer_cpu": 0.0, "answer_each": max(0.0, costs.answer_each - costs.act_each)}
        inputs.append(f"a batch of an inference server takes {options.inference_seconds:g} s on its device")
    return dataclasses.replace(costs, **changes), inputs


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


COMMANDS: Commands = {"plan": (run, (PlanOptions,))}
