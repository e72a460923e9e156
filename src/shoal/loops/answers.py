"""What clients of a gateway are answered: the policy's actions, written down in streams; in the thread that listens."""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium import Space

from shoal.acting import Policy, act_together
from shoal.acting.portable import Portable, portable
from shoal.acting.q import QPolicy
from shoal.gateway.messages import Refused
from shoal.gateway.weights import pack_layers
from shoal.gateway.wire import Message, pack
from shoal.loops.judging import Judges
from shoal.loops.sessions import Block, BlockReader, Request, Row, Session
from shoal.loops.streams import Streams
from shoal.services.inference import Slot
from shoal.services.metrics import Reporter
from shoal.sync import monotonic
from shoal.types import Array, Columns
from shoal.versions import number

MEASURED = 1000  # of the newest times that percentiles are of


class ActingForClients:
    """The policy and the streams, behind a `Reception`.

    Those who learn are held up while blocks of experience wait to be sent, or, where learning goes in rounds of so many
    rollouts, until the weights are there that the last round has made.
    """

    def __init__(
        self,
        policy: Policy,
        version: int,
        streams: Streams,
        judges: Judges,
        report: Reporter,
        *,
        space: Space[Any],  # of observations
        rows: int,  # of a block
        round_items: int,  # rollouts per version of the weights; 0: nobody waits for a version
        failed: Callable[[BaseException], None],
    ) -> None:
        self._policy, self._streams, self._judges, self._report = policy, streams, judges, report
        self._failed, self._space, self._rows = failed, space, rows
        self._carried: Portable | None = None  # the policy as it is now, for clients that act by themselves
        self._packed: bytes | None = None
        self.version = version
        self._round = self.left = round_items  # rollouts of this version that are still to come
        self.queueing: collections.deque[float] = collections.deque(maxlen=MEASURED)
        self.inferring: collections.deque[float] = collections.deque(maxlen=MEASURED)
        self.batches: list[int] = []  # environments in each
        self._busy = 0.0  # seconds that answers have taken

    def take_busy(self) -> float:
        """The seconds that answers have taken since the last time."""
        busy, self._busy = self._busy, 0.0
        return busy

    def load(self, version: int, weights: Columns) -> None:
        """Act with these from now on."""
        self._policy.load(weights)
        self.version, self._carried, self._packed = version, None, None
        if self._round:
            self.left += self._round

    def begin_round_again(self) -> None:
        """What this version's rollouts were has been lost."""
        self.left = self._round

    @property
    def round_is_over(self) -> bool:
        return self._round > 0 and self.left <= 0

    def free(self) -> bool:
        return not self.round_is_over and self._streams.waiting <= max(1, self._streams.count)

    def welcome(self, session: Session) -> Message:
        """What a client that acts by itself is told beside the rest."""
        found = self._portable()
        if found is None:
            raise Refused(
                "protocol",
                "this run's policy cannot act on clients: it remembers, sees images or several parts, its actions are "
                "no single choice, or its network is the user's own: leave out the mode 'local'",
            )
        if session.blocks is None:
            count = session.reader.count
            session.blocks = BlockReader(self._space, count, self._rows, found.actions, found.records)
        return {"rows": self._rows, "policy": self._policy_for(session, found)}

    def answer(self, learners: list[Request], evaluators: list[Request]) -> list[Session]:
        begun = monotonic()
        answered = self._judges.act(evaluators, self._reply) if evaluators or self._judges.held else []
        if learners:
            answered += [request.session for request in learners]
            asking = [request for request in learners if not request.session.local]
            if len(asking) < len(learners):
                self._take_blocks([request for request in learners if request.session.local])
            if asking:
                self._answer_learners(asking)
            self.queueing.extend([begun - request.arrived for request in learners])
        if not answered:
            return answered
        spent = monotonic() - begun
        self._busy += spent
        self.inferring.append(spent)
        self._report.count("inference_batches")
        self.batches.append(sum([session.reader.count for session in answered]))
        return answered

    def leave(self, session: Session) -> None:
        """Its episodes end as truncated ones."""
        if session.evaluates:
            self._judges.forget(session)
            return
        if session.begun:
            self._report.count("lost_episodes", int(session.tally.open.sum()))
        self._streams.leave(session)

    def fail(self, problem: BaseException) -> None:
        self._failed(problem)

    def _answer_learners(self, requests: list[Request]) -> None:
        slots: list[Slot] = []
        observations: list[Any] = []
        finals: list[tuple[Request, int, Slot, Any]] = []
        streams, steps = self._streams, 0
        for request in requests:
            session = request.session
            own = streams.of(session)
            slots += own
            row = request.row
            assert isinstance(row, Row)
            observations += streams.parts(session, row.observation)
            if session.begun:
                steps += session.tally.count(row, self._report)
                finals += [(request, index, own[index], seen) for index, seen in streams.results(request, own)]
        self._report.count("env_steps", steps)
        if finals:  # a row of its own, in which nothing is done: what the policy makes of it may be a bootstrap
            self._act([slot for _, _, slot, _ in finals], [observation for *_, observation in finals])
            for request, index, slot, _ in finals:
                streams.cut(slot, request, index)
        actions = iter(self._act(slots, observations))
        for request in requests:
            parts = [next(actions) for _ in request.session.streams]
            self._reply(request, parts[0] if len(parts) == 1 else np.concatenate(parts), self.version)

    def _take_blocks(self, requests: list[Request]) -> None:
        """Rows of clients that act by themselves; they are told of newer weights."""
        for request in requests:
            session, block = request.session, request.row
            assert isinstance(block, Block)
            (slot,) = self._streams.of(session)
            self._report.count("env_steps", sum(session.tally.count(row, self._report) for row in block.rows))
            self._streams.block(request, slot, block)
            message: Message = {"type": "stored", "seq": request.seq, "version": number(self.version)}
            self._answered(request, message)
            if session.given != self.version:
                found = self._portable()
                assert found is not None
                policy = self._policy_for(session, found)
                session.first_reply = pack(message | {"policy": policy}, session.hello.text_keys)

    def _portable(self) -> Portable | None:
        if self._carried is None:
            self._carried = portable(self._policy)
        return self._carried

    def _policy_for(self, session: Session, found: Portable) -> Message:
        """The newest weights, and how this client's environments choose by them."""
        if self._packed is None:
            self._packed = pack_layers([(weight, bias) for weight, bias, _ in found.layers])
        session.given = self.version
        message: Message = {
            "chooses": found.chooses,
            "records": list(found.records),
            "activations": [activation for *_, activation in found.layers],
            "weights": self._packed,
            "stamp": self.version,
        }
        if isinstance(self._policy, QPolicy):
            (slot,) = self._streams.of(session)
            self._policy.set_environments(slot.recorder.player.environments, slot.recorder.player.total)
            message["epsilon"] = self._policy.exploration
        return message

    def _act(self, slots: list[Slot], observations: list[Any]) -> list[Array]:
        """The policy's actions for the rows of these streams, written down."""
        actions = act_together(self._policy, [slot.recorder.player for slot in slots], observations)
        for slot, observation, action in zip(slots, observations, actions):
            slot.recorder.version = self.version
            slot.recorder.record(observation, action)
        return actions

    @staticmethod
    def _reply(request: Request, action: Array, version: int) -> None:
        session = request.session
        prepared: Any = session.prepare(action)
        if session.hello.environments is None:
            prepared = prepared[0]
            if prepared.ndim == 0:
                prepared = prepared.item()
        ActingForClients._answered(
            request, {"type": "action", "seq": request.seq, "action": prepared, "version": number(version)}
        )

    @staticmethod
    def _answered(request: Request, message: Message) -> None:
        session = request.session
        message["stored"] = session.stored
        session.begun = True
        session.reply, session.first_reply = pack(message, session.hello.text_keys), None
        session.seq = request.seq
