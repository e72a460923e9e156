"""A plan as people and programs read it."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

from shoal.planning.costs import Costs, Layout
from shoal.planning.sizing import FULL, Plan, Wanted
from shoal.planning.trial import Measured

SERVICES = {"queue": "queue", "rounds": "queue", "replay": "replay services", "gradients": "gradient services"}
SHOWN_LIMITS = 3


def lines(
    name: str, env: str, measured: Measured, costs: Costs, wanted: Wanted, plan: Plan, inputs: Sequence[str]
) -> list[str]:
    """For people: what is needed, machine by machine, what is full first, and what all of it stands on."""
    layout, outcome = plan.layout, plan.outcome
    told = [f"{name} on {env}: {wanted.rate:,.0f} env steps/s wanted, {outcome.rate:,.0f} reached in the simulation"]
    if not outcome.settled:
        told[0] += " (which had not settled: take it as a hint)"
    told += ["", *_table(_needs(costs, plan), words=(0, 2)), ""]
    told += [*_table(_machines(costs, plan), words=(0, 1)), ""]
    told += _saturation(wanted, plan)
    told += ["", "Measured here:", *(f"  {line}" for line in costs_lines(measured, costs))]
    if inputs:
        told += ["Given, not measured:", *(f"  {line}" for line in inputs)]
    told += ["Assumed:", *(f"  {line}" for line in assumptions(costs, layout))]
    return told


def _needs(costs: Costs, plan: Plan) -> list[tuple[str, ...]]:
    layout, outcome = plan.layout, plan.outcome
    rows: list[tuple[str, ...]] = [("", "number", "each", "busy")]
    rows.append(("actors", f"{layout.all_actors:,}", _count(costs.envs, "environment"), _share(1.0 - outcome.waiting)))
    rows.append(("environments", f"{layout.all_actors * costs.envs:,}", "", ""))
    if layout.servers:
        rows.append(("inference servers", f"{layout.servers:,}", "", _share(max(outcome.servers))))
    kept = f"{_bytes(costs.stored_bytes / layout.shards)} stored" if costs.stored_bytes else ""
    rows.append((SERVICES[costs.family], f"{layout.shards:,}", kept, _share(max(outcome.services))))
    if layout.learners:
        updates = f"{outcome.updates:,.3g} updates/s"
        rows.append(("learners", f"{layout.learners:,}", f"{updates} together", _share(outcome.learner)))
    rows.append(("machines", f"{layout.machines:,}", f"{layout.cores} cores, {_bits(layout.network)}", ""))
    return rows


def _machines(costs: Costs, plan: Plan) -> list[tuple[str, ...]]:
    """Neighbours that are alike in one row."""
    layout, outcome = plan.layout, plan.outcome
    rows: list[tuple[str, ...]] = [("machine", "what is there", "cores busy", "memory", "sends", "receives")]

    def alike(place: int) -> tuple[str, ...]:
        return (*_there(costs, layout, place), str(layout.actors[place]))

    for _, group in itertools.groupby(range(layout.machines), alike):
        places = list(group)
        number = str(places[0] + 1) if len(places) == 1 else f"{places[0] + 1} to {places[-1] + 1}"
        there = ", ".join([*_there(costs, layout, places[0]), _count(layout.actors[places[0]], "actor")])
        busy, memory, sent, received = (
            max(values[place] for place in places)
            for values in (outcome.cores, plan.memory, outcome.sent, outcome.received)
        )
        rows.append((number, there, _share(busy), _bytes(memory), _bits(sent), _bits(received)))
    return rows


def _there(costs: Costs, layout: Layout, place: int) -> list[str]:
    kinds = ["learner"] * layout.learners
    kinds += [
        {"queue": "queue", "rounds": "queue", "replay": "replay service"}.get(costs.family, "gradient service")
    ] * layout.shards
    kinds += ["inference server"] * layout.servers
    own = [kind for kind, home in zip(kinds, layout.homes()) if home == place]
    return [_count(own.count(kind), kind) for kind in dict.fromkeys(own)]


def _saturation(wanted: Wanted, plan: Plan) -> list[str]:
    first, *others = plan.limits[:SHOWN_LIMITS]
    told = []
    if not plan.reached:
        free = first.busy < FULL and wanted.actors is not None
        why = f"{first.what} {'are' if first.what.endswith('s') else 'is'} full"
        told.append(f"The target is NOT reached: {'more actors than you gave are needed' if free else why}.")
    told.append(
        f"Full first: {first.what}, at {first.rate:,.0f} env steps/s"
        + "".join(f"; then {limit.what}, at {limit.rate:,.0f}" for limit in others)
        + "."
    )
    return told


def costs_lines(measured: Measured, costs: Costs) -> list[str]:
    """Each part, per unit."""
    alone, trial = measured.environment, measured.trial
    computes, waits = (_seconds(seconds / costs.envs) for seconds in (alone.cpu, alone.wait))
    told = {
        "environment": f"{computes} of a core and {waits} of waiting a step",
        "actor": f"{_seconds(costs.row_cpu)} of a core a row of {_count(costs.envs, 'environment')}, all in all",
    }
    if costs.central:
        whole, each = _seconds(costs.answer_cpu), _seconds(costs.answer_each)
        told["inference"] = f"{whole} of a core a batch and {each} an environment"
    if costs.family == "gradients":
        told["gradient"] = f"{_seconds(costs.insert_cpu)} of a core, at the service"
    else:
        block, batch = _bytes(costs.block_bytes), _bytes(costs.batch_bytes)
        insert, sample = _seconds(costs.insert_cpu), _seconds(costs.sample_cpu)
        service = "replay" if costs.family == "replay" else "queue"
        told[service] = f"{insert} of a core a block of {block}, {sample} a batch of {batch}"
        seconds = _seconds(costs.update_beside or costs.update_cpu)
        where = "beside the cores" if costs.update_beside else "of a core"
        told["update"] = f"{seconds} {where}, of which {costs.update_fixed:.0%} stay when learners share a batch"
    told["weights"] = f"{_bytes(costs.weights_bytes)} a version"
    rates = f"{trial.env_steps:,.0f} env steps/s and {trial.updates:,.3g} updates/s"
    told["by"] = f"a trial of {_count(trial.actors, 'actor')}, which made {rates}"
    return [f"{part:12} {cost}" for part, cost in told.items()]


def assumptions(costs: Costs, layout: Layout) -> list[str]:
    told = [
        f"the machines' cores are like those here; {1 - costs.together:.0%} of them are lost when all are busy",
        "learners and services are beside each other on the first machine while each has a core there",
        "actors are spread in proportion to the cores that are left; the evaluator is not counted",
    ]
    if layout.machines > 1:
        call, megabyte = _seconds(costs.call_cpu), _seconds(costs.byte_cpu * 1e6)
        told.append(f"a message between machines costs {call} of a core at each end, and {megabyte} a MB (TLS)")
        told.append("each version of the weights crosses once for every machine")
    if costs.family != "gradients":
        told.append(
            "a learner computes with one thread" if not costs.update_beside else "a learner's device needs no core"
        )
    return told


def report(name: str, env: str, measured: Measured, costs: Costs, wanted: Wanted, plan: Plan) -> dict[str, Any]:
    """For programs."""
    layout, outcome = plan.layout, plan.outcome
    trial = {key: value for key, value in dataclasses.asdict(measured.trial).items() if key != "weights"}
    return {
        "plan": name,
        "env": env,
        "wanted": dataclasses.asdict(wanted),
        "reached": plan.reached,
        "env_steps_per_second": round(outcome.rate, 1),
        "updates_per_second": round(outcome.updates, 3),
        "actors": layout.all_actors,
        "envs_per_actor": costs.envs,
        "environments": layout.all_actors * costs.envs,
        "learners": layout.learners,
        "shards": layout.shards,
        "inference_servers": layout.servers,
        "machines": [
            {
                "actors": actors,
                "cores_busy": outcome.cores[place],
                "memory_bytes": plan.memory[place],
                "sent_bytes_per_second": outcome.sent[place],
                "received_bytes_per_second": outcome.received[place],
            }
            for place, actors in enumerate(layout.actors)
        ],
        "full_first": [
            {"what": limit.what, "env_steps_per_second": limit.rate, "busy": limit.busy} for limit in plan.limits
        ],
        "settled": outcome.settled,
        "costs": costs.as_dict(),
        "environment": dataclasses.asdict(measured.environment),
        "trial": trial,
        "assumptions": assumptions(costs, layout),
    }


# ---- numbers


def _table(rows: Sequence[tuple[str, ...]], words: Sequence[int]) -> list[str]:
    """Columns as wide as they must be; those of words on the left, numbers on the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(
            cell.ljust(width) if column in words else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths))
        ).rstrip()
        for row in rows
    ]


def _count(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def _share(value: float) -> str:
    return f"{value:.0%}"


def _seconds(value: float) -> str:
    for unit, factor in (("s", 1.0), ("ms", 1e3)):
        if value * factor >= 1.0:
            return f"{value * factor:.3g} {unit}"
    return f"{value * 1e6:.3g} µs"


def _bytes(value: float) -> str:
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if value >= factor:
            return f"{value / factor:.3g} {unit}"
    return f"{value:.0f} B"


def _bits(value: float) -> str:
    """Of bytes per second."""
    for unit, factor in (("Gbit/s", 1e9), ("Mbit/s", 1e6), ("kbit/s", 1e3)):
        if value * 8 >= factor:
            return f"{value * 8 / factor:.3g} {unit}"
    return f"{value * 8:.0f} bit/s"
