"""The gateway's side of its door: who comes, asks, is answered and leaves, in the thread that listens.

Messages have numbers, so that what is sent again is known; a client that has lost its connection is remembered for a
while and goes on with its session. What came in one turn of the event loop is answered together, in the same thread: to
hand it over to another one takes longer than to answer.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterable
from typing import Protocol

from shoal.envs import EnvSpec
from shoal.envs.check import action_space, observation_space
from shoal.envs.vector import action_converter
from shoal.errors import UserError
from shoal.gateway.messages import Hello, Refused, RowReader, kind_of, whole, write_spaces
from shoal.gateway.server import Gone, Peer
from shoal.gateway.wire import Message
from shoal.loops.sessions import Request, Session
from shoal.services.metrics import Reporter
from shoal.sync import monotonic

MOST_SESSIONS = 4096  # that are remembered at once, with and without a connection


class Answers(Protocol):
    """What is asked for actions, in the thread that listens."""

    def free(self) -> bool:
        """Whether those who learn are answered now; otherwise they wait until `Reception.turn` is called again."""

    @property
    def version(self) -> int:
        """Of the weights that act."""

    def welcome(self, session: Session) -> Message:
        """What a client that acts by itself is told beside the rest; `Refused` where the policy cannot be sent."""

    def answer(self, learners: list[Request], evaluators: list[Request]) -> list[Session]:
        """Give requests their replies, evaluators perhaps later; those that have one now."""

    def leave(self, session: Session) -> None:
        """A client will not come back, and has nothing under way."""

    def fail(self, problem: BaseException) -> None:
        """Nothing more can be answered."""


class Reception:
    """A `Service` behind a door, in its event loop."""

    kind = "train"

    def __init__(
        self,
        env: EnvSpec,
        rows: int,  # of a block, which is what a client may lose with a server
        report: Reporter,
        answers: Answers,
        sessions: dict[str, Session],  # by their names: those that are remembered
        *,
        max_wait: float,  # seconds that who learns waits for others, to be answered together
        expiry: float,  # seconds that a client without a connection is remembered
        environments: int,  # of all clients together
    ) -> None:
        self._env, self._rows, self._report, self._answers = env, rows, report, answers
        self._max_wait, self._expiry, self._most = max_wait, expiry, environments
        self._native = env.native_action_space or env.action_space
        self._spaces = write_spaces(env.frame_space, self._native)
        self._life = secrets.token_hex(4)  # sessions of another one were lost with it
        self._learners: list[Request] = []
        self._evaluators: list[Request] = []
        self._gathered = False  # those who learn have waited for others
        self._left: list[Session] = []  # for good
        self._turning = False  # the next turn is on its way
        self._timer: asyncio.TimerHandle | None = None
        self._closing: set[asyncio.Future[None]] = set()  # connections that were taken over
        self._learning = self._evaluating = 0  # sessions with a connection
        self.sessions = sessions

    @property
    def held_up(self) -> bool:
        """Whether some who learn wait for their answer."""
        return bool(self._learners)

    @property
    def present(self) -> int:
        """Clients with a connection."""
        return self._learning + self._evaluating

    # ---- a connection

    def metadata(self) -> Message:
        return {"spaces": self._spaces}

    async def talk(self, peer: Peer) -> None:
        hello = peer.hello
        if hello is None or hello.role == "player":
            raise Refused(
                "protocol", "this server trains: say hello as an environment or an evaluator; shoal serve has policies"
            )
        session, resumed = self._enter(hello)
        before, session.peer, session.left = session.peer, peer, None
        session.waits = session.slow = False
        if before is None:
            self._connected(session, 1)
        else:  # it may be dead and not know it: nobody waits for its goodbye
            self._forget_connection(session)
            closing = asyncio.ensure_future(self._turn_away(before))
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)
        try:
            await peer.send(
                {
                    "type": "welcome",
                    "session": session.id,
                    "seq": session.seq,
                    "asked": session.asked,
                    "resumed": resumed,
                    "mode": hello.mode,
                    "spaces": self._spaces,
                }
                | (self._answers.welcome(session) if session.local else {})
            )
            await self._listen(peer, session)
        finally:
            if session.peer is peer:
                self._connected(session, -1)
                session.peer, session.left = None, monotonic()
                self._forget_connection(session)
                if session.asked == session.seq and not session.begun and not session.local:  # nothing to come back for
                    self._depart(session)

    async def _listen(self, peer: Peer, session: Session) -> None:
        """Read what the client asks. Answers are written by `turn`, but to who does not take them."""
        while True:
            message = await peer.receive()
            if session.peer is not peer:
                raise Gone
            kind = kind_of(message)
            if kind == "bye":
                self._depart(session)
                await peer.end("goodbye")
                return
            if kind != ("block" if session.local else "step"):
                sends = "'block'" if session.local else "'step'"
                raise Refused("message", f"such a client sends {sends} or 'bye', and not {kind[:40]!r}")
            known = self._ask(session, message)
            if not known and session.slow:
                session.answered = asyncio.get_running_loop().create_future()
                await session.answered
                known = True
            if known:
                await peer.send_packed(session.take_reply())  # waits until the client has taken what it was sent
                session.slow = False

    def _ask(self, session: Session, message: Message) -> bool:
        """Whether the answer is there; otherwise it comes."""
        seq = whole(message, "seq", 1, 1 << 62)
        if seq == session.seq and session.reply:
            self._report.count("repeated_messages")
            return True
        if session.waits or seq != session.seq + 1:
            raise Refused("seq", f"the next message of this session is number {session.seq + 1}, and not {seq}")
        if seq == session.asked:  # it came on a connection that was lost meanwhile
            self._report.count("repeated_messages")
        else:
            blocks = session.blocks
            row = session.read(message) if blocks is None else blocks.read(message, self._answers.version)
            session.asked = seq
            self._put(Request(session, seq, row, monotonic()))
        session.waits = True
        return False

    async def _turn_away(self, peer: Peer) -> None:
        await peer.refuse(Refused("session", "the session goes on with another connection"))
        await peer.close(1008, "session")

    @staticmethod
    def _forget_connection(session: Session) -> None:
        if session.answered is not None and not session.answered.done():
            session.answered.set_exception(Gone())
        session.answered = None

    def _connected(self, session: Session, more: int) -> None:
        if session.evaluates:
            self._evaluating += more
        else:
            self._learning += more

    # ---- answers

    def _put(self, request: Request) -> None:
        """What one turn of the event loop has brought is answered together; who learns may wait for others too, but
        not for longer than the first of them may. Who evaluates plays one episode after another and waits for
        nobody."""
        if request.session.evaluates:
            self._evaluators.append(request)
            self._turn_soon()
            return
        self._learners.append(request)
        if self._max_wait <= 0.0 or len(self._learners) >= self._learning:
            self._gathered = True
            self._turn_soon()
        elif self._timer is None and not self._gathered:
            self._timer = asyncio.get_running_loop().call_later(self._max_wait, self._in_time)

    def _in_time(self) -> None:
        self._timer, self._gathered = None, True
        self.turn()

    def _turn_soon(self) -> None:
        if not self._turning:
            self._turning = True
            asyncio.get_running_loop().call_soon(self.turn)

    def turn(self) -> None:
        """Answer what has come, and let those go who have left."""
        self._turning = False
        try:
            learners: list[Request] = []
            if self._gathered and self._learners and self._answers.free():
                learners, self._learners, self._gathered = self._learners, [], False
                if self._timer is not None:
                    self._timer.cancel()
                    self._timer = None
            evaluators, self._evaluators = self._evaluators, []
            self._deliver(self._answers.answer(learners, evaluators))
            if self._left:
                under_way = {id(request.session) for request in self._learners}
                leaving = [session for session in self._left if id(session) not in under_way]
                self._left = [session for session in self._left if id(session) in under_way]
                for session in leaving:
                    self._answers.leave(session)
        except Exception as problem:
            self._answers.fail(problem)

    def _deliver(self, sessions: Iterable[Session]) -> None:
        """Tell those who wait what was answered."""
        for session in sessions:
            peer = session.peer
            if peer is None or not session.waits:
                continue  # it asks again when it comes back
            session.waits = False
            if session.answered is not None:
                if not session.answered.done():
                    session.answered.set_result(None)
                session.answered = None
                continue
            try:
                session.slow = not peer.write(session.take_reply())
            except Gone:
                pass  # who reads hears of it too

    # ---- sessions

    def see_who_left(self) -> None:
        """Forget those who did not come back."""
        now = monotonic()
        for session in list(self.sessions.values()):
            if session.left is not None and now - session.left > self._expiry:
                self._report.count("expired_sessions")
                self._depart(session)

    def _depart(self, session: Session) -> None:
        if self.sessions.pop(session.id, None) is not None:
            self._left.append(session)
            self._turn_soon()

    def _enter(self, hello: Hello) -> tuple[Session, bool]:
        """The session that a client goes on with, or a new one."""
        if hello.mode == "local" and (hello.role == "evaluator" or hello.autoreset == "same_step"):
            raise Refused(
                "protocol", "who evaluates, or resets within a step, is answered here: leave out the mode 'local'"
            )
        known = self.sessions.get(hello.session) if hello.session else None
        if known is not None:
            said = known.hello
            same = (said.role, said.environments, said.autoreset, said.mode)
            if same != (hello.role, hello.environments, hello.autoreset, hello.mode):
                raise Refused("session", "the session is of another role, number of environments, autoreset or mode")
            known.hello = hello
            self._report.count("reconnections")
            return known, True
        self._check_spaces(hello)
        if len(self.sessions) >= MOST_SESSIONS:
            raise Refused("full", "there are too many clients: come back later")
        used = sum(one.reader.count for one in self.sessions.values())
        if used + hello.count > self._most:
            raise Refused("full", f"there are {used} environments of at most {self._most}: come back later")
        session = Session(
            f"{self._life}{secrets.token_hex(16)}",
            hello,
            RowReader(self._env.observation_space, hello.environments, self._env.stack),
            action_converter(self._native),
        )
        self.sessions[session.id] = session
        self._report.count("clients")
        if hello.session and not hello.session.startswith(self._life):  # of a server that was lost with its open blocks
            self._report.count("lost_sessions")
            most, each = (3, self._rows) if session.local else (2 * self._rows + 2, 1)
            lost = min(max(0, hello.seq - hello.stored), most) * each
            self._report.count("lost_steps", lost * session.reader.count)
        return session, False

    def _check_spaces(self, hello: Hello) -> None:
        """Those that a client states are those of the run."""
        stated = (
            (hello.observation_space, self._env.frame_space, observation_space),
            (hello.action_space, self._env.action_space, action_space),
        )
        for (space, own, normal), what in zip(stated, ("observation", "action")):
            if space is None:
                continue
            try:
                same = normal(space, "the client") == own
            except UserError as problem:
                raise Refused("spaces", str(problem)) from None
            if not same:
                raise Refused("spaces", f"the run's {what} space is {own!s:.200}, and not {space!s:.200}")
