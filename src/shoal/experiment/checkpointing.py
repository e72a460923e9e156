"""Checkpoints of a run while it goes on: nodes are asked for their state, and a thread of the driver writes it.

Nothing waits for it: the learner gives its state between two updates, actors between two rows. Who does not answer in
time (a replay that holds an actor up) is left out: of that actor the open episodes would be lost.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from shoal.checkpoints import CheckpointFailed, Checkpoints
from shoal.experiment.ending import PATIENCE, done
from shoal.experiment.exact import EXACT, METRICS, WEIGHTS, Moment, for_others, part_of
from shoal.experiment.replay_saves import REPLAY, folder_of, is_here, saving_nodes
from shoal.loops.learner import LEARNER
from shoal.program import Future, Handle, Node, NodeDied, Program, futures, offers
from shoal.runs.options import RunOptions
from shoal.runtime import Run
from shoal.services.metrics import LEARNER_STEPS, with_updates
from shoal.types import GIVEN_UP, MAIN, Role
from shoal.versions import NONE, number

LOOKS = 60  # at nodes that have been asked, one per tick of the driver, before their answers are not waited for
SAVING_LOOKS = 6000  # the same for replays that save their tables
SAVING_ROUNDS = 300  # of waiting for them at the end
STATE_ROUNDS = 15  # of waiting at the end for a node without whose state there is no checkpoint
POLICIES = "policies"  # in a checkpoint's meta: the updates of those beside the main one
AGAIN = 5.0  # seconds after which a checkpoint that came to nothing is tried again

States = dict[str, Any]
Describe = Callable[[], dict[str, Any]]


def asked_for(program: Program) -> list[str]:
    """The nodes whose own states make a checkpoint; all learners of a group are equal."""
    leaders = {node.name for node in program.leaders()}
    return [
        name
        for name, node in program.nodes.items()
        if offers(node.factory, "in_checkpoints") and (node.role is not Role.LEARNER or name in leaders)
    ]


class Checkpointer:
    """Saves a checkpoint every so often, and one at the end."""

    def __init__(
        self,
        store: Checkpoints,
        run: Run,
        program: Program,
        options: RunOptions,
        note: Callable[[str], None],
        replays_saved: Callable[[Mapping[str, str]], None] = lambda tags: None,
    ) -> None:
        self._store, self._run, self._note = store, run, note
        self._tell_saved = replays_saved
        self._every, self._updates_between = options.checkpoint_every, options.checkpoint_updates
        self._program = program
        needed = program.with_role(Role.LEARNER, Role.GRADIENTS, Role.METRICS)
        self._needed = {node.name for node in needed} & set(asked_for(program))  # without whom there is no checkpoint
        self._replays = saving_nodes(program) if options.checkpoint_replay else []
        self._moment = Moment.of(run, program, store.directory.parent, options.checkpoint_replay)
        self._tag = ""  # of the replays' saves: the name of the checkpoint that they are for
        self._evaluator, self._weights = program.find(Role.EVALUATOR), program.find(Role.WEIGHTS)
        self._next = options.checkpoint_every if self._moment is None else None  # there the clock goes on
        begun = 0 if self._moment is None else self._moment.updates()
        self._next_updates = _following(begun, self._updates_between or 1)
        self._calls: dict[str, Future] = {}
        self._meta: dict[str, Any] = {}
        self._looks = 0
        self._writing: threading.Thread | None = None
        self._failure: str | None = None
        self._told: str | None = None
        self.on_saved: Callable[[int], None] = lambda updates: None
        best, _ = store.best()
        self._best: float | None = None if best is None else best.meta.get("eval_return")
        self.saved = 0  # checkpoints of this life
        self._seen: tuple[int, Path | None] = (0, None)

    def newest(self) -> Path | None:
        """The checkpoint that was saved last in this life."""
        if self.saved != self._seen[0]:
            names = self._store.names()[1]
            self._seen = (self.saved, self._store.directory / names[-1] if names else None)
        return self._seen[1]

    # ---- while the run goes on

    def tick(self, now: float, updates: int, best: float | None, describe: Describe) -> None:
        """To be called often; `now` are seconds of the nodes' clock since they were started."""
        self._tell_failure()
        if self._moment is not None:
            if self._updates_between is None and self._due(now, 0) and self._moment.still():
                self._schedule(now, 0)
                self._save_moment(self._moment, best, describe)
        elif self._calls:
            self._looks += 1
            waiting = [name for name, call in self._calls.items() if not done(call)]
            most = SAVING_LOOKS if any(name in self._replays for name in waiting) else LOOKS
            if not waiting or (self._looks >= most and not self._needed.intersection(waiting)):
                self._gather(now)
            elif self._looks == most:  # asked again, it would have to copy its state again for nobody
                names = ", ".join(sorted(self._needed.intersection(waiting)))
                self._note(f"the checkpoint {self._tag} waits for {names}, whose step takes long; nobody is asked anew")
        elif not self._busy() and self._due(now, updates):
            self._schedule(now, updates)
            self._meta, self._looks = describe(), 0
            self._calls = self._ask(best)

    def wait(self, seconds: float, best: float | None, describe: Describe) -> None:
        """Let the run go on for `seconds`, or until a checkpoint is due and was taken."""
        moment, between = self._moment, self._updates_between
        if moment is None or between is None:
            self._run.wait(seconds)
            return

        def due() -> bool:
            return self._due(0.0, moment.updates()) and moment.still()

        moment.wait(seconds, due)
        if due():
            self._schedule(0.0, moment.updates())
            self._save_moment(moment, best, describe)

    def _schedule(self, now: float, updates: int) -> None:
        """The next one, as this one is taken."""
        self._next = now + self._every
        between = self._updates_between or 1
        self._next_updates = updates + between if self._moment is None else _following(updates, between)

    def _save_moment(self, moment: Moment, best: float | None, describe: Describe) -> None:
        """At once, as nothing goes on meanwhile anyway: when it is done must not depend on the disk."""
        self._tag, kept = self._store.names()
        meta = describe()
        try:
            states, told = moment.take(self._tag, kept)
        except OSError as error:
            self._failure = f"the checkpoint {self._tag} could not be written: {error.strerror or error}"
            return
        except Exception as error:  # of the user's code: the others can be asked for theirs
            self._failure = f"checkpoints are not of one moment any more: {type(error).__name__}: {error}"
            self._moment = None
            return
        found = None
        if self._evaluator is not None and best is not None and (self._best is None or best > self._best):
            found = states[self._evaluator.name][EXACT]["best"]
        self._write(states, meta | told, found)

    def _due(self, now: float, updates: int) -> bool:
        if self._updates_between is not None:
            return updates >= self._next_updates
        self._next = now + self._every if self._next is None else self._next
        return self._every > 0 and now >= self._next

    def _ask(self, best: float | None) -> dict[str, Future]:
        calls = {name: self._call(name, "state_dict") for name in asked_for(self._program)}
        if self._weights is not None:
            calls[self._weights.name] = self._call(self._weights.name, "newer", NONE)
        self._tag, kept = self._store.names()
        for node in self._replays:
            folder = folder_of(self._store.directory.parent, node)
            calls[node] = self._call(node, "save", str(folder), tag=self._tag, keep=kept)
        if self._evaluator is not None and best is not None and (self._best is None or best > self._best):
            calls[self._evaluator.name] = self._call(self._evaluator.name, "best")
        return {name: call for name, call in calls.items() if call is not None}

    def _call(self, node: str, method: str, *arguments: Any, **named: Any) -> Future | None:
        try:
            call: Future = getattr(futures(self._run.client(Handle(node))), method)(*arguments, **named)
            return call
        except NodeDied:
            return None  # on its way back

    def _gather(self, now: float) -> None:
        calls, self._calls = self._calls, {}
        states = _results(calls)
        if not self._can_go_on(states) or not self._replays_saved(states, calls):
            self._next = now + AGAIN
            return
        self._writing = threading.Thread(target=self._write, args=(states, self._meta), name="checkpoint")
        self._writing.start()

    def _busy(self) -> bool:
        if self._writing is not None and not self._writing.is_alive():
            self._writing = None
        return self._writing is not None

    # ---- at the end

    def finish(
        self, ask: Callable[[dict[str, Future]], dict[str, Any]], best: float | None, describe: Describe
    ) -> None:
        """A last checkpoint, of everything as it is now; `ask` waits for calls, and gives the answers that came."""
        if self._writing is not None:
            self._writing.join()
        if self._moment is not None and self._moment.still(ended=True):
            self._save_moment(self._moment, best, describe)
            if self._moment is not None:
                self._tell_failure()
                return
        self._meta, calls = describe(), self._ask(best)
        states = ask(calls)
        for after in range(SAVING_ROUNDS):  # tables, and the state of a large network, may take longer than `ask` waits
            wanted = [*self._replays, *(self._needed if after < STATE_ROUNDS else ())]
            left = {name: calls[name] for name in wanted if name in calls and name not in states}
            left = {name: call for name, call in left.items() if not done(call)}
            if not left:
                break
            if not after:
                self._note(f"the last checkpoint waits for {', '.join(sorted(left))} (Ctrl-C ends without it)")
            states |= ask(left)
        states |= ask({name: call for name, call in calls.items() if name not in states and done(call)})
        for node in self._learners():
            store = self._program.find(Role.WEIGHTS, node.policy)
            if states.get(node.name) is None and store is not None:  # it is gone: what it left last
                call = self._call(store.name, "kept_snapshot", LEARNER)
                states |= {} if call is None else {node.name: ask({store.name: call}).get(store.name)}
        if not self._can_go_on(states):
            published = None if self._weights is None else states.get(self._weights.name)
            if published is not None and number(published[0]):  # else nothing was learned that could be lost
                names = ", ".join(sorted(name for name in self._needed if states.get(name) is None))
                self._failure = f"the checkpoint {self._tag} could not be written: {names} has not given its state"
        elif self._replays_saved(states, calls):
            self._writing = threading.Thread(target=self._write, args=(states, self._meta), daemon=True)
            self._writing.start()
            self._writing.join(PATIENCE)
            if self._writing.is_alive():
                self._note("writing the last checkpoint (Ctrl-C ends without it)")
                self._wait_for(self._writing)
        self._tell_failure()

    def _wait_for(self, writing: threading.Thread) -> None:
        try:
            writing.join()
        except KeyboardInterrupt:
            writing.name = GIVEN_UP
            raise

    def _learners(self) -> list[Node]:
        """Of every policy the one that speaks for its learners."""
        return [node for node in self._program.leaders() if node.name in self._needed]

    def _can_go_on(self, states: States) -> bool:
        """Whether there is what every policy needs: a checkpoint is complete or absent."""
        return all(states.get(name) is not None for name in self._needed)

    def _replays_saved(self, states: States, calls: Mapping[str, Future]) -> bool:
        """Whether all replays have saved their tables: a checkpoint is complete or absent."""
        saved = {node: states.pop(node, None) is not None for node in self._replays}
        for node in (node for node, there in saved.items() if not there):
            why = _why_not(calls.get(node))
            self._failure = f"the checkpoint {self._tag} could not be written: {node} has not saved its tables ({why})"
        for node in (node for node in saved if saved[node]):
            saved[node] = is_here(self._store.directory.parent, node, self._tag)
            if not saved[node]:
                self._failure = (
                    f"the checkpoint {self._tag} could not be written: {node} is on a machine that does not share "
                    f"{self._store.directory.parent} with this one"
                )
        if saved:
            self._meta[REPLAY] = dict.fromkeys(self._replays, self._tag)
        return all(saved.values())

    # ---- writing, in a thread of its own

    def _write(self, states: States, meta: dict[str, Any], best: Any = None) -> None:
        try:
            if EXACT not in meta:
                best = None if self._evaluator is None else states.pop(self._evaluator.name, None)
            others = {node.policy: states[node.name]["updates"] for node in self._learners() if node.policy != MAIN}
            parts, meta = as_parts(self._program, states, meta | ({POLICIES: others} if others else {}))
            self._store.save(parts, meta)
            self._tell_saved(dict.fromkeys(self._replays, self._tag))
            self.saved += 1
            self.on_saved(meta["updates"])
            if best is not None and (self._best is None or best[0] > self._best):
                told = {"eval_return": best[0], "updates": number(best[1])}
                self._store.save_best({"weights": best[2]}, {**meta, **told})
                self._best = best[0]
            self._failure = None
        except (CheckpointFailed, OSError) as failure:
            self._failure = str(failure)

    def _tell_failure(self) -> None:
        """Once, until another one comes."""
        if self._failure is not None and self._failure.partition(": ")[2] != self._told:
            self._told = self._failure.partition(": ")[2]
            self._note(f"{self._failure}; those before are as they were")


def _following(updates: int, between: int) -> int:
    """The next multiple: a run that goes on takes its checkpoints where it would have."""
    return (updates // between + 1) * between


def as_parts(program: Program, states: States, meta: dict[str, Any]) -> tuple[States, dict[str, Any]]:
    """The parts of a checkpoint, whose counts agree with each other: the nodes were asked one after the other."""
    given = {name: state for name, state in states.items() if state is not None}
    parts = {part_of(program.nodes[name]) if name in program.nodes else name: state for name, state in given.items()}
    if WEIGHTS in parts:  # as they were published, under a version
        parts[WEIGHTS] = dict(parts[WEIGHTS][1])
    gradients = [given[node.name]["version"] for node in program.with_role(Role.GRADIENTS) if node.name in given]
    learner = program.find(Role.LEARNER)
    updates = given[learner.name]["updates"] if learner is not None else max(gradients)
    meta = {**meta, "updates": int(updates)}
    return (parts if EXACT in meta else _agreeing(parts, meta)), meta


def _agreeing(parts: States, meta: Mapping[str, Any]) -> States:
    """Parts whose counts agree, with what nodes had not reported yet left out."""
    others = {f"{policy}/{LEARNER_STEPS}": float(updates) for policy, updates in meta.get(POLICIES, {}).items()}
    metrics = {**parts[METRICS], "evaluations": meta["evaluations"]}
    return parts | {METRICS: with_updates(metrics, {LEARNER_STEPS: float(meta["updates"]), **others})}


def start_program(program: Program, parts: Mapping[str, Any], meta: Mapping[str, Any]) -> int:
    """Have the nodes of a program start from the parts of a checkpoint; how many of its actors have no place in it."""
    parts = _agreeing(for_others(program, parts) if EXACT in meta else dict(parts), meta)
    nodes = {part_of(node): node for node in program.nodes.values()}
    unplaced = 0
    for part, state in parts.items():
        if part not in nodes:
            unplaced += part != WEIGHTS
        elif nodes[part].role not in (Role.WEIGHTS, Role.EVALUATOR):  # learners publish, and all is judged anew
            program.start_from(nodes[part].name, state)
    return unplaced


def _results(calls: Mapping[str, Future]) -> States:
    """The answers that have come; an error is none."""
    found: States = {}
    for name, call in calls.items():
        try:
            if call.done():
                found[name] = call.result()
        except Exception:
            continue  # it was lost, and is the supervisor's to judge
    return found


def _why_not(call: Future | None) -> str:
    try:
        if call is None or call.done():
            return "it was lost" if call is None else str(call.result())
        return "it takes too long"
    except Exception as error:
        return str(error) or type(error).__name__
