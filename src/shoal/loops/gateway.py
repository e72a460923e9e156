"""The gateway: acts for simulators outside and writes down their experience, in the place of actors and environments.

A client is an environment, or a vector of them, that drives its own loop: it sends what it observed and waits for what
to do. Here is what an actor would have beside its environments: policy, recurrent state, unfinished blocks, writers.
Clients come and go (`loops/reception.py`) and are answered (`loops/answers.py`) in the thread that listens. Streams of
rows stay (`loops/streams.py`), and the next client goes on where one was left: who dies costs the episode, which ends
as a truncated one, and no row. The node's own thread sends blocks, waits where the learner is slower, fetches weights
and reports.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from shoal.acting import Policy
from shoal.envs import EnvSpec
from shoal.gateway.server import Door, DoorThread, Limits, Listen, Security
from shoal.loops.answers import ActingForClients
from shoal.loops.judging import Judges
from shoal.loops.loop import Loop
from shoal.loops.reception import Reception
from shoal.loops.sessions import Session
from shoal.loops.streams import Streams
from shoal.program import Members, NodeDied, current, futures, set_current
from shoal.replay import Pattern, Replay
from shoal.retry import retry
from shoal.services.inference import IDLE, InferenceServer, Slot
from shoal.services.metrics import Metrics
from shoal.services.weights import WeightStore
from shoal.sync import monotonic
from shoal.types import Columns, Role
from shoal.versions import updates_between

LOOK = 1.0  # seconds between two looks at whether what was sent is still there, and at who has left
STANDSTILL = 60.0  # seconds after which a thread that answers nothing at all is given up
GOODBYE = 2.0  # seconds that clients have to hear that the run has ended


security = Security.from_files


class GatewayLoop(Loop, InferenceServer):
    """Listens and answers in a thread of its own; a step sends what that has written down."""

    role = Role.GATEWAY
    restart = True  # clients come back by themselves

    def __init__(
        self,
        make_policy: Callable[..., Policy],
        patterns: Mapping[str, Pattern],
        rows: int,
        replays: Sequence[Replay],
        weights: WeightStore,
        metrics: Metrics,
        *,
        env: EnvSpec,
        listen: str,
        security: Callable[[], Security],
        max_wait: float,
        expiry: float = 60.0,  # seconds that a client without a connection is remembered
        environments: int = 4096,  # of all clients together
        round_items: int = 0,  # rollouts per version of the weights, after which all wait for the next; 0: nobody waits
        message_bytes: int = 16 << 20,
    ) -> None:
        Loop.__init__(self)
        InferenceServer.__init__(
            self, make_policy, patterns, rows, replays, weights, metrics,
            max_batch=1, max_wait=max_wait, stacks=env.stacks,
        )  # fmt: skip
        self._reporter = self._report
        self._limited, self._round = retry(metrics.step_limit) is not None, round_items
        self._fetched, self._loading = self._version, False  # the newest weights, and whether they are on their way
        self._next_look = 0.0
        self._looking: float | None = None  # since when the thread that answers was asked for a sign
        self._more = True  # the run has steps left
        self._problem: BaseException | None = None  # of the thread that answers
        self._streams = Streams(self._slots, self._open, self._keeps, self._shipped)
        sessions: dict[str, Session] = {}
        greedy = partial(make_policy, current().seed + 1, greedy=True)
        self._judges = Judges(sessions, greedy, env.stacks, self._requested, self._turn)
        self._answers = ActingForClients(
            self._policy,
            self._version,
            self._streams,
            self._judges,
            self._report,
            space=env.observation_space,
            rows=rows,
            round_items=round_items,
            failed=self._has_failed,
        )
        self._queueing, self._inferring = self._answers.queueing, self._answers.inferring
        self._batches = self._answers.batches
        self._reception = Reception(
            env,
            rows,
            self._report,
            self._answers,
            sessions,
            max_wait=max_wait,
            expiry=expiry,
            environments=environments,
        )
        door = Door(
            self._reception,
            Listen.parse(listen),
            security=security(),
            limits=Limits(message_bytes=message_bytes),
        )
        self._thread = DoorThread(door, partial(set_current, current()))
        self._port = self._thread.start()
        self._report.lap("starting")

    def address(self) -> tuple[str, int]:
        """Where clients find it."""
        return self._thread.door.listen.host, self._port

    def judge(self, version: int, weights: Columns, episodes: int) -> int | None:
        """As of `Judges`."""
        return self._judges.judge(version, weights, episodes)

    def judged(self, number: int, episodes: int, seconds: float) -> list[float] | None:
        """As of `Judges`."""
        return self._judges.judged(number, episodes, seconds, lambda: self._closed)

    def evaluators(self) -> int:
        """Environments of clients that evaluate, at the moment."""
        return self._judges.environments()

    # ---- the node

    def step(self) -> bool:  # type: ignore[override]  # it ends, as loops do
        with self._requested:
            self._requested.wait_for(self._has_work, IDLE, "clients")
        self._report.lap("waiting for clients")
        self._report.share("inference", self._answers.take_busy())
        if self._problem is not None:
            raise self._problem
        if self._finishing or not self._more:
            return self._end()
        if self._streams.waiting:
            self._streams.ship()
            self._report.lap("waiting to insert")
            if self._reception.held_up:
                self._turn()
        if self._needs_weights():
            self._await_weights()
        else:
            self._refresh()
        self._look()
        return True

    def finish(self) -> None:
        super().finish()
        self._wake()

    def regroup(self, members: Members) -> None:
        """Nobody acts beside it."""
        self._total = 1

    def close(self) -> None:
        self._closed = True
        self._wake()
        self._thread.run(self._say_goodbye, 2 * GOODBYE)
        self._thread.stop(grace=GOODBYE)

    async def _say_goodbye(self) -> None:
        if self._finishing or not self._more:
            await asyncio.gather(*(peer.end("the run has ended") for peer in list(self._thread.door.peers)))

    def _wake(self) -> None:
        with self._requested:
            self._requested.notify_all()

    def _has_work(self) -> bool:
        if self._streams.waiting or self._needs_weights():
            return True
        return self._closed or self._finishing or self._problem is not None

    def _needs_weights(self) -> bool:
        return self._answers.round_is_over and not self._loading

    def _turn(self) -> None:
        """Have those looked at who wait for an answer."""
        self._thread.call(self._reception.turn)

    def _look(self) -> None:
        now = monotonic()
        if now >= self._next_look:
            self._next_look = now + LOOK
            if self._looking is None:
                self._looking = now
                self._thread.call(self._see_who_left)
            elif now - self._looking > STANDSTILL:
                raise RuntimeError(f"the thread that answers clients has stood still for {STANDSTILL:g} s")
        if self._report.due():
            self._measure()
            self._report.values["clients"] = self._reception.present
            self._report.flush()

    # ---- blocks and weights

    def _shipped(self, slot: Slot) -> None:
        for name, lost in slot.send.take_lost().items():
            self._report.count(name, lost)
        if self._limited:
            self._more = self._report.spend_steps() and self._more

    def _refresh(self) -> None:
        """Take newer weights when they have arrived; ask for them without waiting."""
        if self._round:
            return
        if self._fetching is None:
            self._fetching = futures(self._weights).newer(self._fetched)
        if self._fetching is not None and self._fetching.done():
            fetching, self._fetching = self._fetching, None
            try:
                found = fetching.result()
            except NodeDied:  # on its way back: it goes on with what it has
                found = None
            if found is not None:
                self._report.values["acting_staleness"] = updates_between(self._fetched, found[0])
                self._load(*found)

    def _await_weights(self) -> None:
        """Those that the round which is over has made; where it was lost with the replay, it is played again."""
        found = retry(lambda: self._weights.wait(self._fetched, LOOK))
        if found is not None:
            self._load(*found)
        elif current().runtime.nodes_may_die and self._rollouts_are_lost():
            self._thread.call(self._answers.begin_round_again)
            self._turn()
        self._report.lap("waiting for weights")

    def _load(self, version: int, weights: Columns) -> None:
        self._fetched, self._loading = version, True
        self._thread.call(self._take_weights, version, weights)

    def _rollouts_are_lost(self) -> bool:
        slots = list(self._slots.values())
        return bool(slots) and all(slot.send.newest_is_lost() for slot in slots)

    # ---- in the thread that answers

    def _see_who_left(self) -> None:
        self._looking = None
        self._reception.see_who_left()

    def _take_weights(self, version: int, weights: Columns) -> None:
        try:
            self._answers.load(version, weights)
        except Exception as problem:
            self._has_failed(problem)
        self._loading = False
        self._reception.turn()

    def _keeps(self, slot: Slot) -> None:
        self._answers.left -= slot.recorder.count
        self._wake()

    def _has_failed(self, problem: BaseException) -> None:
        self._problem = problem
        self._wake()
