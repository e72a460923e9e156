"""The gateway: acts for simulators outside and writes down their experience, in the place of actors and environments.

A client is an environment, or a vector of them, that drives its own loop: it sends what it observed and waits for what
to do. Here is what an actor would have beside its environments: policy, recurrent state, unfinished blocks, writers.
Clients come and go (`loops/reception.py`); the streams of rows stay (`loops/streams.py`), and the next client goes on
where a stream was left: who dies costs the episode, which ends as a truncated one, and no row.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from shoal.acting import Policy, act_together
from shoal.envs import EnvSpec
from shoal.gateway.server import Door, DoorThread, Limits, Listen, Security
from shoal.gateway.wire import pack
from shoal.loops.judging import Judges
from shoal.loops.loop import Loop
from shoal.loops.reception import Reception
from shoal.loops.sessions import Request, Session
from shoal.loops.streams import Streams
from shoal.program import Members, current
from shoal.replay import Pattern, Replay
from shoal.retry import retry
from shoal.services.inference import IDLE, InferenceServer, Slot
from shoal.services.metrics import Metrics
from shoal.services.weights import WeightStore
from shoal.sync import monotonic
from shoal.types import Array, Columns, Role
from shoal.versions import number

LOOK = 1.0  # seconds between two looks at whether what was sent is still there, and at who has left
GOODBYE = 2.0  # seconds that clients have to hear that the run has ended


security = Security.from_files


class GatewayLoop(Loop, InferenceServer):
    """Listens in a thread of its own; a step gathers what clients have sent and answers them together."""

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
        self._limited = retry(metrics.step_limit) is not None
        self._round, self._left = round_items, round_items
        self._next_look = 0.0
        self._more = True  # the run has steps left
        self._streams = Streams(self._slots, self._open, self._shipped)
        self._reception = Reception(
            env, rows, self._report, self._wake, max_wait=max_wait, expiry=expiry, environments=environments
        )
        self._judges = Judges(
            self._reception.sessions,
            lambda: make_policy(current().seed + 1, greedy=True),
            env.stacks,
            self._requested,
        )
        limits = Limits(message_bytes=message_bytes)
        self._thread = DoorThread(Door(self._reception, Listen.parse(listen), security=security(), limits=limits))
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
        if self._finishing or not self._more:
            return self._end()
        self._refresh()
        asked, left = self._reception.take()
        if asked or self._judges.wake():
            self._answer_clients(asked)
            self._report.lap("inference")
        for session in left:
            self._let_go(session)
        self._streams.ship()
        self._report.lap("waiting to insert")
        self._hold_the_round()
        now = monotonic()
        if now >= self._next_look:
            self._next_look = now + LOOK
            self._thread.call(self._reception.see_who_left)
        if self._report.due():
            self._measure()
            self._report.values["clients"] = self._reception.present
            self._report.flush()
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
        return self._reception.ready or self._closed or self._finishing or self._judges.wake()

    # ---- answers

    def _answer_clients(self, batch: list[Request]) -> None:
        begun = monotonic()
        learners = [request for request in batch if not request.session.evaluates]
        evaluators = [request for request in batch if request.session.evaluates]
        answered = self._judges.act(evaluators, self._reply_to)
        if learners:
            self._answer_learners(learners)
            answered += [request.session for request in learners]
            self._queueing.extend(begun - request.arrived for request in learners)
        if not answered:
            return
        self._thread.call(self._reception.deliver, answered)
        self._inferring.append(monotonic() - begun)
        self._report.count("inference_batches")
        self._batches.append(sum(session.reader.count for session in answered))

    def _answer_learners(self, requests: list[Request]) -> None:
        slots: list[Slot] = []
        observations: list[Any] = []
        finals: list[tuple[Request, int, Slot, Any]] = []
        streams, steps = self._streams, 0
        for request in requests:
            session = request.session
            own = streams.of(session)
            slots += own
            observations += streams.parts(session, request.row.observation)
            if session.begun:
                steps += session.tally.count(request.row, self._report)
                finals += [(request, index, own[index], seen) for index, seen in streams.results(request, own)]
        self._report.count("env_steps", steps)
        if finals:  # a row of its own, in which nothing is done: what the policy makes of it may be a bootstrap
            self._act([slot for _, _, slot, _ in finals], [observation for *_, observation in finals])
            for request, index, slot, _ in finals:
                streams.cut(slot, request, index)
        actions = iter(self._act(slots, observations))
        for request in requests:
            parts = [next(actions) for _ in request.session.streams]
            self._reply_to(request, parts[0] if len(parts) == 1 else np.concatenate(parts), self._version)

    def _act(self, slots: list[Slot], observations: list[Any]) -> list[Array]:
        """The policy's actions for the rows of these streams, written down."""
        actions = act_together(self._policy, [slot.recorder.player for slot in slots], observations)
        for slot, observation, action in zip(slots, observations, actions):
            slot.recorder.version = self._version
            slot.recorder.record(observation, action)
        return actions

    @staticmethod
    def _reply_to(request: Request, action: Array, version: int) -> None:
        session = request.session
        prepared: Any = session.prepare(action)
        if session.hello.environments is None:
            prepared = prepared[0]
            if prepared.ndim == 0:
                prepared = prepared.item()
        message = {
            "type": "action",
            "seq": request.seq,
            "action": prepared,
            "version": number(version),
            "stored": session.stored,
        }
        session.begun = True
        session.reply = pack(message, session.hello.text_keys)
        session.seq = request.seq  # last: who sees it finds the reply

    # ---- blocks, and who brings them

    def _shipped(self, slot: Slot) -> None:
        self._left -= slot.recorder.count
        for name, lost in slot.send.take_lost().items():
            self._report.count(name, lost)
        if self._limited:
            self._more = self._report.spend_steps() and self._more

    def _let_go(self, session: Session) -> None:
        """Of one who said goodbye or did not come back: its episodes end as truncated ones."""
        if session.evaluates:
            self._judges.forget(session)
            return
        if session.begun:
            self._report.count("lost_episodes", int(session.tally.open.sum()))
        self._streams.leave(session)

    def _hold_the_round(self) -> None:
        """Where learning waits for so many rollouts of one version, acting waits for the next version after them."""
        if not self._round or self._left > 0:
            return
        while self._left <= 0 and not (self._finishing or self._closed):
            found = retry(lambda: self._weights.wait(self._version, LOOK))
            if found is not None:
                self._version, arrays = found
                self._policy.load(arrays)
                self._left += self._round
            elif current().runtime.nodes_may_die and self._rollouts_are_lost():
                self._left = self._round
        self._report.lap("waiting for weights")

    def _rollouts_are_lost(self) -> bool:
        slots = list(self._slots.values())
        return bool(slots) and all(slot.send.newest_is_lost() for slot in slots)

    def _refresh(self) -> None:
        if not self._round:
            super()._refresh()
