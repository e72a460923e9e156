"""What is happening now: rates, evaluations and where each node's time goes, out of snapshots of the metrics."""

from __future__ import annotations

import collections
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from shoal.experiment.cores import IdleCores
from shoal.program import Program
from shoal.types import MAIN, Role

WINDOW = 5.0  # seconds over which "now" is averaged
LATE = 1.5  # seconds after which a report is late: nodes make one every half second
LOST = ("updates", "items", "rows", "episodes")  # kinds of what is counted as lost
STARTING = "starting"  # not part of the work
MANY_LOST, LOST_SHARE = 10, 0.2  # environments, and the part of the episodes that ended so, from which on it is told
HOPELESS, HOPELESS_SHARE, HOPELESS_STEPS = 20, 0.8, 1000  # losses for each failure that a run may have, the part of
# the episodes that ended so, and the steps from one loss to the next below which a run ends by them
MANY_RESTARTS = 5  # from which on the episodes that were lost with actors are taken for their environments' doing
WAITS = 0.15  # a node that waits for less than this part of its time is not held up


Times = Mapping[str, Mapping[str, float]]  # node -> activity -> part of its time


class Curve:
    """The course of a number in a bounded number of points: when they are full, neighbours become their mean."""

    def __init__(self, limit: int = 512) -> None:
        self.points: list[float] = []
        self._limit = limit
        self._share = 1  # values per point
        self._sum, self._count = 0.0, 0

    def add(self, value: float) -> None:
        self._sum += value
        self._count += 1
        if self._count < self._share:
            return
        self.points.append(self._sum / self._count)
        self._sum, self._count = 0.0, 0
        if len(self.points) == self._limit:
            self.points = [(one + other) / 2 for one, other in zip(self.points[::2], self.points[1::2])]
            self._share *= 2


@dataclass
class Progress:
    """The state of a run as the driver sees it; `take` brings it up to date."""

    target: float | None = None  # the return to be reached
    stops: Mapping[str, float] = field(
        default_factory=dict
    )  # what ends the run: "return", "steps", "updates", "seconds"
    environments: int = 1  # that are stepped at the same time
    elapsed: float = 0.0  # real seconds since the nodes were started
    train_seconds: float = 0.0  # real seconds since the first actor step
    seconds: float = 0.0  # the same on the nodes' clock, which is virtual on the inline runtime
    quiet: float = 0.0  # real seconds without news
    counts: dict[str, float] = field(default_factory=dict)
    values: dict[str, float] = field(default_factory=dict)
    rates: dict[str, float] = field(default_factory=dict)  # per second, recently
    evaluations: int = 0  # how many there were
    evaluation: dict[str, Any] | None = None  # the last one
    times: dict[str, dict[str, float]] = field(default_factory=dict)  # node -> activity -> part of its time, recently
    best: float | None = None  # the highest return of an evaluation
    confirmed: dict[str, Any] | None = None  # the evaluation that reached the target
    restarts: int = 0
    waits_for: str | None = None  # what the learner waits for before its first update, and how much of it is there
    roles: dict[str, str] = field(default_factory=dict)  # of the program's nodes; what others have reported is past
    members: dict[str, int] = field(default_factory=dict)  # of groups that may grow and shrink
    machines: dict[str, str] = field(default_factory=dict)  # of a cluster, and the nodes that are there
    evaluated: Curve = field(default_factory=Curve)
    acted: Curve = field(default_factory=Curve)  # returns of the actors' episodes, one per report
    idle: IdleCores = field(default_factory=IdleCores)  # while there was training
    _history: collections.deque[tuple[float, dict[str, float]]] = field(default_factory=collections.deque)
    _totals: dict[str, dict[str, float]] = field(default_factory=dict)
    _last: dict[str, Any] = field(default_factory=dict)
    _began: float | None = None  # elapsed seconds at the first actor step
    _earlier: dict[str, float] | None = field(default_factory=dict)  # counts of earlier lives; None: not read yet

    def pass_time(self, elapsed: float) -> None:
        """Time goes on, with or without news: rates that nobody confirms fade."""
        self.elapsed = elapsed
        if self._began is not None:
            self.train_seconds = elapsed - self._began
        self._take_rates(elapsed)

    def take(
        self, snapshot: Mapping[str, Any], elapsed: float, restarts: int, virtual: bool = False
    ) -> list[dict[str, Any]]:
        """Take in a snapshot; returns the evaluations that are new in it. `virtual`: so is the nodes' clock."""
        self.restarts = restarts
        self.seconds = snapshot["train_seconds"]
        if self._began is None and any(snapshot["counts"].get(name) for name in ("env_steps", "learner_steps")):
            self._began = self.elapsed if virtual else elapsed - self.seconds
        if self._began is not None:
            self.idle.look()
        self.counts, self.values = snapshot["counts"], snapshot["values"]
        self._earlier = dict(self.counts) if self._earlier is None else self._earlier
        self.pass_time(elapsed)
        for node, report in snapshot["nodes"].items():
            if report != self._last.get(node) and (not self.roles or node in self.roles):
                self._last[node] = report
                self._take_times(node, report["times"])
                if "actor_return" in report["values"]:
                    self.acted.add(report["values"]["actor_return"])
        new: list[dict[str, Any]] = snapshot["evaluations"]
        for record in new:
            self.evaluations += 1
            if "policy" in record:  # one beside the main one, by which the run is judged
                continue
            self.evaluation = record
            self.best = max(record["eval_return"], record["eval_return"] if self.best is None else self.best)
            self.evaluated.add(record["eval_return"])
            if self.confirmed is None and record["reached"]:
                self.confirmed = record
        return new

    def go_on(self, meta: Mapping[str, Any]) -> None:
        """Begin where a checkpoint was."""
        self.evaluations, self.evaluation, self.best = meta["evaluations"], meta["evaluation"], meta["best"]
        self._earlier = None

    def count(self, name: str) -> int:
        return int(self.counts.get(name, 0))

    def towards(self) -> dict[str, tuple[float | None, float, float | None]]:
        """How far each stop rule is: what there is (of returns the last evaluation's), what is wanted, and seconds that
        are left at the present rate, where that can be said."""
        found: dict[str, tuple[float | None, float, float | None]] = {}
        for name, wanted in self.stops.items():
            if name == "return":
                found[name] = (None if self.evaluation is None else self.evaluation["eval_return"], wanted, None)
            elif name == "seconds":
                found[name] = (self.train_seconds, wanted, max(0.0, wanted - self.train_seconds))
            else:
                counted = {"steps": "env_steps", "updates": "learner_steps"}[name]
                done, rate = self.counts.get(counted, 0.0), self.rates.get(counted, 0.0)
                found[name] = (done, wanted, max(0.0, wanted - done) / rate if rate > 0 else None)
        return found

    def lost(self) -> dict[str, int]:
        """What was lost with nodes, as far as there is any."""
        return {kind: self.count(f"lost_{kind}") for kind in LOST if self.count(f"lost_{kind}")}

    def lost_share(self) -> float | None:
        """The part of the episodes that ended because their environment was lost, or their actor again and again. None
        while it is too early to say: short episodes are counted first, and lost ones are short."""
        with_actors = self.count("lost_episodes") if self.restarts >= MANY_RESTARTS else 0
        cut = self.count("lost_environments") + with_actors
        if not cut or (cut < self.environments and self.count("episodes") < 2 * self.environments):
            return None
        return cut / max(cut, self.count("episodes") + with_actors)

    def too_many_lost(self) -> str | None:
        """A sentence where so many episodes are lost that what is learned may mean nothing."""
        share, lost = self.lost_share(), self.count("lost_environments")
        if share is None or share < LOST_SHARE or lost + self.restarts < MANY_LOST:
            return None
        how = [f"{lost:,} environments replaced"] * bool(lost) + [f"{self.restarts:,} restarts"] * bool(self.restarts)
        return (
            f"{share:.0%} of the episodes were lost by faults of the environment ({', '.join(how)}): what is learned "
            "from the rest may mean nothing; mend the environment (`shoal doctor` tries it)"
        )

    def hopeless(self, max_failures: int) -> str | None:
        """Why the run ends, where nearly all episodes of this life are lost, and after few steps."""
        earlier = self._earlier or {}
        lost, episodes, steps = (
            self.count(name) - int(earlier.get(name, 0)) for name in ("lost_environments", "episodes", "env_steps")
        )
        few = lost < max(2 * self.environments, HOPELESS * max(1, max_failures)) or lost < HOPELESS_SHARE * episodes
        if few or steps >= HOPELESS_STEPS * lost:
            return None
        return (
            f"environments fail once in {steps / lost:,.0f} steps, {lost:,} times so far, and hardly an episode ends "
            "otherwise: nothing can be learned from that; mend the environment (`shoal doctor` tries it)"
        )

    def row(self) -> dict[str, Any]:
        """The state as a row of the run's metrics."""
        return {
            "seconds": self.seconds,
            "restarts": self.restarts,
            "members": self.members,
            **({"machines": self.machines} if self.machines else {}),
            "counts": self.counts,
            "rates": self.rates,
            "values": self.values,
            "times": self.times,
        }

    def mean_times(self) -> dict[str, dict[str, float]]:
        """Where each node's time went over the whole run, as parts of it."""
        means = {}
        for node, totals in self._totals.items():
            whole = sum(totals.values()) or 1.0
            means[node] = {activity: total / whole for activity, total in totals.items()}
        return means

    def take_roles(self, program: Program) -> None:
        """The program's nodes, at the beginning and when others have come or gone."""
        self.roles = roles_of(program)
        self.times = {node: parts for node, parts in self.times.items() if node in self.roles}

    def bottleneck(self) -> str:
        if self.waits_for is not None:
            return f"learning has not begun: {self.waits_for} are there"
        return bottleneck(self.mean_times(), self.roles)

    def _take_rates(self, now: float) -> None:
        history = self._history
        if not history or self.counts != history[-1][1]:
            history.append((now, self.counts))
        while len(history) > 2 and now - history[0][0] > WINDOW:
            history.popleft()
        if len(history) == 2 and now - history[1][0] > 2 * WINDOW:
            history.popleft()
        (begin, before), (end, after) = history[0], history[-1]
        self.quiet = now - end
        between = (end - begin) / max(1, len(history) - 1)  # two reports that had news
        end = end if self.quiet < min(WINDOW, max(LATE, 2 * between)) else now  # after so long nodes do not go on
        if end > begin:
            rates = {name: (count - before.get(name, 0)) / (end - begin) for name, count in after.items()}
            self.rates = {name: max(0.0, rate) for name, rate in rates.items()}  # updates may have been lost

    def _take_times(self, node: str, times: Mapping[str, float]) -> None:
        work = {activity: part for activity, part in times.items() if activity != STARTING}
        whole = sum(work.values())
        if not whole:
            return
        totals = self._totals.setdefault(node, {})
        recent = self.times.setdefault(node, {})
        kept = 0.7 if recent else 0.0  # of what was before, so that the parts are always parts of one
        for activity in dict.fromkeys([*recent, *work]):
            part = work.get(activity, 0.0)
            totals[activity] = totals.get(activity, 0.0) + part
            recent[activity] = kept * recent.get(activity, 0.0) + (1.0 - kept) * part / whole


def roles_of(program: Program) -> dict[str, str]:
    """What each node of a program is there for, as it is shown; of a policy that is not the only one, with its name."""
    own = {node.name: "" if node.policy == MAIN else f"{node.policy} " for node in program.nodes.values()}
    return {name: f"{policy}{program.nodes[name].role}" for name, policy in own.items()}


def by_role(times: Times, roles: Mapping[str, str]) -> dict[str, dict[str, float]]:
    """Nodes of one role together, their times averaged."""
    together: dict[str, list[Mapping[str, float]]] = {}
    for node, parts in times.items():
        together.setdefault(roles.get(node, node), []).append(parts)
    merged = {}
    for role, several in sorted(together.items()):
        activities = dict.fromkeys(activity for parts in several for activity in parts)
        merged[role] = {a: sum(parts.get(a, 0.0) for parts in several) / len(several) for a in activities}
    return merged


def titles(times: Times, roles: Mapping[str, str]) -> dict[str, str]:
    """What the nodes of each role are called together: "2 actors"."""
    counts = collections.Counter(roles.get(node, node) for node in times)
    return {role: role if count == 1 else f"{count} {role}s" for role, count in counts.items()}


def bottleneck(times: Times, roles: Mapping[str, str]) -> str:
    """Who keeps the others waiting, in one phrase: the role that waits least, when another waits a good deal."""
    called, shares = titles(times, roles), by_role(times, roles)
    shares = {
        role: parts for role, parts in shares.items() if role.split()[-1] != Role.EVALUATOR
    }  # who nobody waits for
    if not shares:
        return "none seen: the run was too short"
    waits = {role: {a: part for a, part in parts.items() if a.startswith("waiting")} for role, parts in shares.items()}
    waiting = {role: sum(parts.values()) for role, parts in waits.items()}
    busiest, idlest = min(waiting, key=lambda role: waiting[role]), max(waiting, key=lambda role: waiting[role])
    if waiting[idlest] < WAITS:
        return "none: no node waits for another"
    work = {activity: part for activity, part in shares[busiest].items() if activity not in waits[busiest]}
    most = max(work, key=lambda activity: work[activity], default="waiting")
    why = max(waits[idlest], key=lambda activity: waits[idlest][activity])
    return f"{called[busiest]}, mostly {most} ({called[idlest]} {why} {waits[idlest][why]:.0%} of the time)"
