"""The gateway: acts for simulators outside and writes down their experience, in the place of actors and environments.

A client is an environment, or a vector of them, that drives its own loop: it sends what it observed and waits for what
to do. Here is what an actor would have beside its environments: policy, recurrent state, unfinished blocks, writers.
Clients come and go; the streams of rows stay, and the next client goes on where a stream was left: who dies costs the
episode, which ends as a truncated one, and no row. Messages have numbers, so that what is sent again is known.
"""

from __future__ import annotations

import asyncio
import collections
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from shoal import tree
from shoal.acting import Player, Policy, act_together
from shoal.envs import EnvSpec
from shoal.envs.check import action_space, observation_space
from shoal.envs.vector import action_converter
from shoal.errors import UserError
from shoal.gateway.messages import Hello, Refused, RowReader, whole, write_spaces
from shoal.gateway.server import Door, DoorThread, Gone, Limits, Listen, Peer, Security
from shoal.gateway.wire import Message, WireError, pack
from shoal.loops.evaluator import Evaluator
from shoal.loops.filming import Interrupted
from shoal.loops.loop import Loop
from shoal.program import Members, current
from shoal.replay import Pattern, Replay
from shoal.retry import retry
from shoal.services.inference import IDLE, InferenceServer, Slot
from shoal.services.metrics import Metrics
from shoal.services.weights import WeightStore
from shoal.step import Step
from shoal.sync import monotonic, sign_of_life
from shoal.types import Array, Columns, Role
from shoal.versions import NONE, number

LOOK = 1.0  # seconds between two looks at whether what was sent is still there, and at who has left
MOST_SESSIONS = 4096  # that are remembered at once, with and without a connection
GOODBYE = 2.0  # seconds that clients have to hear that the run has ended


security = Security.from_files


class Row(NamedTuple):
    """What one message of a client says of its environments."""

    observation: tree.Tree  # [B, ...]
    reward: Array
    terminated: Array
    truncated: Array
    reset: Array
    final: tree.Tree  # [B, ...] where an episode ended within the step, of who resets by itself; None of others


@dataclass
class Request:
    """A message that waits for its answer."""

    session: Session
    seq: int
    row: Row
    arrived: float


class Session:
    """A client by what is remembered of it, whether it is connected at the moment or not."""

    def __init__(self, hello: Hello, reader: RowReader, prepare: Callable[[Array], Array]) -> None:
        self.id = secrets.token_hex(16)
        self.hello, self.reader, self.prepare = hello, reader, prepare
        self.evaluates = hello.role == "evaluator"
        self.streams: list[str] = []  # of slots
        self.player: Player | None = None  # an evaluator's
        self.begun = False  # its first message has come: rows of its streams wait for what they gave
        self.done = np.zeros(reader.count, np.bool_)  # episodes that have ended, where the client resets
        self.returns, self.lengths = np.zeros(reader.count), np.zeros(reader.count, np.int64)
        self.judged = np.zeros(reader.count, np.int64)  # an evaluator's episodes that counted
        self.counts = np.zeros(reader.count, np.bool_)  # its episodes that will
        self.seq, self.stored = hello.seq, hello.seq
        self.asked = hello.seq  # the newest message that came
        self.reply = b""  # to the message `seq`
        self.peer: Peer | None = None
        self.answered: asyncio.Future[bytes] | None = None
        self.left: float | None = None  # when its connection was lost

    def read(self, message: Message) -> Row:
        """What a step says, checked against what was said before."""
        reader, same = self.reader, self.hello.autoreset == "same_step"
        if message.get("action_mask") is not None:
            raise Refused("message", "masks of actions are not obeyed yet: leave out 'action_mask'")
        observation = reader.observation(message.get("observation"))
        reward = reader.numbers(message, "reward")
        terminated, truncated, reset = (reader.truths(message, name) for name in ("terminated", "truncated", "reset"))
        ended, final = terminated | truncated, None
        if np.any(reset & ended):
            raise WireError("a row cannot be a reset and the end of an episode")
        if same:
            if np.any(reset) and self.begun:
                raise WireError("with autoreset 'same_step' there are no rows that are resets")
            if ended.any():
                final = reader.observation(message.get("final_observation"))
        elif np.any(self.done & ~reset):
            raise WireError(
                "after the end of an episode the next row is a reset, with the next one's first observation"
            )
        if not self.begun:
            reset = np.ones_like(reset)
        return Row(
            observation, np.where(reset, np.float32(0), reward), terminated & ~reset, truncated & ~reset, reset, final
        )


class Judgement:
    """Weights that are being evaluated by clients."""

    def __init__(self, number: int, version: int, weights: Columns, quota: int) -> None:
        self.number, self.version, self.weights = number, version, weights
        self.loaded = False
        self.quota = quota  # episodes of each environment
        self.returns: list[float] = []


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
        max_batch: int = 0,  # environments answered at once; 0: those of all clients
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
        self._env, self._limit, self._expiry, self._most_environments = env, max_batch, expiry, environments
        self._native = env.native_action_space or env.action_space
        self._spaces = write_spaces(env.frame_space, self._native)
        self._limited = retry(metrics.step_limit) is not None
        self._sessions: dict[str, Session] = {}
        self._free: list[str] = []  # streams without a client
        self._leaving: list[Session] = []  # whose streams are to be freed
        self._requests: collections.deque[Request] = collections.deque()
        self._round, self._left = round_items, round_items
        self._round_version = self._version
        self._next_look = 0.0
        self._closing: set[asyncio.Future[None]] = set()  # connections that were taken over
        self._more = True  # the run has steps left
        self._judge: Judgement | None = None
        self._greedy: Policy | None = None
        self._make_policy = make_policy
        self._held: list[Request] = []  # of evaluators while nothing is judged
        self._judgements = 0
        self._thread = DoorThread(
            Door(self, Listen.parse(listen), security=security(), limits=Limits(message_bytes=message_bytes))
        )
        self._port = self._thread.start()
        self._report.lap("starting")

    def address(self) -> tuple[str, int]:
        """Where clients find it."""
        return self._thread.door.listen.host, self._port

    # ---- the service behind the door, in the thread that listens

    kind = "train"

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
        if before is not None:  # which may be dead and not know it: nobody waits for its goodbye
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
                    "mode": "central",
                    "spaces": self._spaces,
                }
            )
            while True:
                message = await peer.receive()
                kind = message.get("type")
                if kind == "bye":
                    self._depart(session)
                    await peer.end("goodbye")
                    return
                if kind != "step":
                    raise Refused("message", f"an environment sends 'step' or 'bye', and not {str(kind)[:40]!r}")
                await peer.send_packed(await self._ask(session, message))
        finally:
            if session.peer is peer:
                session.peer, session.left = None, monotonic()
                if not session.begun and session.asked == session.seq:  # there is nothing to come back for
                    self._depart(session)

    async def _turn_away(self, peer: Peer) -> None:
        await peer.refuse(Refused("session", "the session goes on with another connection"))
        await peer.close(1008, "session")

    def _enter(self, hello: Hello) -> tuple[Session, bool]:
        """The session that a client goes on with, or a new one."""
        if hello.mode == "local":
            raise Refused("protocol", "clients that act by themselves (mode 'local') are not served by this version")
        known = self._sessions.get(hello.session) if hello.session else None
        if known is not None:
            said = known.hello
            if (said.role, said.environments, said.autoreset) != (hello.role, hello.environments, hello.autoreset):
                raise Refused("session", "the session is of another role, number of environments or autoreset")
            known.hello = hello
            self._report.count("reconnections")
            return known, True
        self._check_spaces(hello)
        session = Session(
            hello, RowReader(self._env.observation_space, hello.environments, self._env.stack), self._prepare()
        )
        with self._requested:
            if len(self._sessions) >= MOST_SESSIONS:
                raise Refused("full", "there are too many clients: come back later")
            used = sum(one.reader.count for one in self._sessions.values())
            if used + session.reader.count > self._most_environments:
                raise Refused(
                    "full", f"there are {used} environments of at most {self._most_environments}: come back later"
                )
            self._sessions[session.id] = session
        self._report.count("clients")
        if hello.session:  # of a server that was lost with its open blocks
            self._report.count("lost_sessions")
            self._report.count(
                "lost_steps", min(max(0, hello.seq - hello.stored), self._rows + 2) * session.reader.count
            )
        return session, False

    def _prepare(self) -> Callable[[Array], Array]:
        return action_converter(self._native)

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

    async def _ask(self, session: Session, message: Message) -> bytes:
        """The answer to a step: at once where it was given before, or when the node has come to it."""
        seq = whole(message, "seq", 1, 1 << 62)
        if seq == session.seq and session.reply:
            self._report.count("repeated_messages")
            return session.reply
        if seq == session.asked and seq == session.seq + 1:  # it came on a connection that was lost meanwhile
            self._report.count("repeated_messages")
        elif seq == session.seq + 1:
            row = session.read(message)
            session.asked = seq
            with self._requested:
                self._requests.append(Request(session, seq, row, monotonic()))
                self._requested.notify_all()
        else:
            raise Refused("seq", f"the next message of this session is number {session.seq + 1}, and not {seq}")
        if session.answered is not None and not session.answered.done():
            session.answered.set_exception(Gone())  # who asked on a connection that was lost
        session.answered = asyncio.get_running_loop().create_future()
        if seq == session.seq:  # it was answered in between
            return session.reply
        return await session.answered

    def _deliver(self, sessions: list[Session]) -> None:
        """Wake who waits for an answer that is there."""
        for session in sessions:
            if session.answered is not None and not session.answered.done():
                session.answered.set_result(session.reply)

    def _depart(self, session: Session) -> None:
        with self._requested:
            if self._sessions.pop(session.id, None) is not None:
                self._leaving.append(session)
                self._requested.notify_all()

    # ---- the node

    def step(self) -> bool:  # type: ignore[override]  # it ends, as loops do
        batch = self._take()
        self._report.lap("waiting for clients")
        if self._finishing or not self._more:
            return self._end()
        self._refresh()
        self._see_who_left()
        if batch or self._held:
            self._answer_clients(batch)
            self._report.lap("inference")
            self._hold_the_round()
        if self._report.due():
            self._measure()
            self._report.values["clients"] = sum(one.left is None for one in list(self._sessions.values()))
            self._report.flush()
        return True

    def finish(self) -> None:
        super().finish()
        with self._requested:
            self._requested.notify_all()

    def regroup(self, members: Members) -> None:
        """Nobody acts beside it."""
        self._total = 1

    def close(self) -> None:
        self._closed = True
        with self._requested:
            self._requested.notify_all()
        self._thread.run(self._say_goodbye, 2 * GOODBYE)
        self._thread.stop(grace=GOODBYE)

    async def _say_goodbye(self) -> None:
        if self._finishing or not self._more:
            await asyncio.gather(*(peer.end("the run has ended") for peer in list(self._thread.door.peers)))

    def _take(self) -> list[Request]:
        """What to answer next: all that came, once everybody has asked or the first has waited for long enough."""
        with self._requested:
            if not self._requested.wait_for(
                lambda: bool(self._requests or self._leaving or self._wakes()) or self._closed or self._finishing,
                IDLE,
                "clients",
            ):
                return []
            if self._requests:
                left = self._max_wait - (monotonic() - self._requests[0].arrived)
                if left > 0:
                    self._requested.wait_for(
                        lambda: self._full() or self._closed or self._finishing, left, "a full batch"
                    )
            batch: list[Request] = []
            taken = 0
            while self._requests:
                count = self._requests[0].session.reader.count
                if batch and self._limit and taken + count > self._limit:
                    break
                batch.append(self._requests.popleft())
                taken += count
            return batch

    def _wakes(self) -> bool:
        """Whether evaluators wait that have something to do by now."""
        judge = self._judge
        return judge is not None and any(bool((one.session.judged < judge.quota).any()) for one in self._held)

    def _full(self) -> bool:
        """Whether nobody else could ask at the moment."""
        waiting = len(self._requests) + len(self._held)
        return waiting >= sum(one.peer is not None for one in list(self._sessions.values()))

    def _answer_clients(self, batch: list[Request]) -> None:
        begun = monotonic()
        learners = [request for request in batch if not request.session.evaluates]
        answered = self._answer_evaluators([request for request in batch if request.session.evaluates])
        answered += [request.session for request in learners]
        rows: list[tuple[Request, list[Slot], list[Any]]] = []
        finals: list[tuple[Slot, Any]] = []
        for request in learners:
            slots = self._streams_of(request.session)
            self._count(request)
            rows.append((request, slots, self._parts(request.session, request.row.observation)))
            finals += self._results(request, slots)
        if finals:  # a row of its own, in which nothing is done: what the policy makes of it may be a bootstrap
            self._act([slot for slot, _ in finals], [observation for _, observation in finals])
            one, none = np.ones(1, np.bool_), np.zeros(1, np.bool_)
            for slot, _ in finals:
                self._result(slot, Step(None, np.zeros(1, np.float32), none, none, one))
        if rows:
            slots = [slot for _, own, _ in rows for slot in own]
            actions = iter(self._act(slots, [part for *_, parts in rows for part in parts]))
            for request, own, _ in rows:
                action = np.concatenate([next(actions) for _ in own])
                self._reply_to(request, action, self._version)
        self._thread.call(self._deliver, answered)
        self._queueing.extend(begun - request.arrived for request in learners)
        if not answered:
            return
        self._inferring.append(monotonic() - begun)
        self._report.count("inference_batches")
        self._batches.append(sum(session.reader.count for session in answered))

    def _reply_to(self, request: Request, action: Array, version: int) -> None:
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
        session.done = request.row.terminated | request.row.truncated
        session.reply = pack(message, session.hello.text_keys)
        session.seq = request.seq  # last: who sees it finds the reply

    def _act(self, slots: list[Slot], observations: list[Any]) -> list[Array]:
        """The policy's actions for the rows of these streams, written down."""
        actions = act_together(self._policy, [slot.recorder.player for slot in slots], observations)
        for slot, observation, action in zip(slots, observations, actions):
            slot.recorder.version = self._version
            slot.recorder.record(observation, action)
        return actions

    def _results(self, request: Request, slots: list[Slot]) -> list[tuple[Slot, Any]]:
        """Write down what the last actions gave; the final observations that are rows of their own."""
        session, row, finals = request.session, request.row, []
        if not session.begun:
            return []
        shipped = False
        parts = self._parts(session, row.final) if row.final is not None else []
        for index, slot in enumerate(slots):
            at = slice(None) if len(slots) == 1 else slice(index, index + 1)
            step = Step(None, row.reward[at], row.terminated[at], row.truncated[at], row.reset[at])
            shipped |= self._result(slot, step)
            if parts and bool(step.terminated[0] | step.truncated[0]):
                finals.append((slot, parts[index]))
        if shipped:
            session.stored = request.seq - 1
        return finals

    def _result(self, slot: Slot, step: Step) -> bool:
        if not slot.recorder.result(step):
            return False
        self._left -= slot.recorder.count
        for name, lost in slot.send.take_lost().items():
            self._report.count(name, lost)
        if self._limited:
            self._more = self._report.spend_steps() and self._more
        return True

    @staticmethod
    def _parts(session: Session, observation: Any) -> list[Any]:
        """An observation for each of the session's streams."""
        if len(session.streams) == 1:
            return [observation]
        return [tree.map(lambda leaf, i=i: leaf[i : i + 1], observation) for i in range(len(session.streams))]

    def _count(self, request: Request) -> None:
        """Steps and episodes, as actors count them."""
        session, row = request.session, request.row
        valid = ~row.reset
        if not session.begun:
            return
        self._report.count("env_steps", int(np.count_nonzero(valid)))
        session.returns += row.reward
        session.lengths += valid
        cut = row.reset & ~session.done & (session.lengths > 0)
        if cut.any():  # given up by the client in the middle
            self._report.count("truncated_by_clients", int(cut.sum()))
        for index in np.flatnonzero(row.terminated | row.truncated):
            self._report.count("episodes")
            self._report.average("actor_return", float(session.returns[index]))
            self._report.average("episode_length", float(session.lengths[index]))
        ended = row.terminated | row.truncated | row.reset
        session.returns[ended], session.lengths[ended] = 0.0, 0

    # ---- streams

    def _streams_of(self, session: Session) -> list[Slot]:
        """The session's streams: those that others have left, and as many new ones as are missing."""
        if not session.streams:
            alone = session.hello.autoreset == "same_step" and session.reader.count > 1
            count, many = (1, session.reader.count) if alone else (session.reader.count, 1)
            for _ in range(many):
                session.streams.append(self._stream(count))
        return [self._slots[name] for name in session.streams]

    def _stream(self, count: int) -> str:
        for name in self._free:
            if self._slots[name].recorder.count == count:
                self._free.remove(name)
                return name
        first = sum(slot.recorder.count for slot in self._slots.values())
        name = f"{current().name}/{len(self._slots)}"
        self._slots[name] = self._open(name, current().restarts, first, count)
        for slot in self._slots.values():
            player = slot.recorder.player
            player.place(int(player.environments[0]), first + count)
        self._slots[name].recorder.player.place(first, first + count)
        return name

    def _see_who_left(self) -> None:
        """Free the streams of clients that said goodbye or did not come back: their episodes end as truncated ones."""
        now = monotonic()
        if now >= self._next_look:
            self._next_look = now + LOOK
            for session in list(self._sessions.values()):
                if session.left is not None and now - session.left > self._expiry:
                    self._report.count("expired_sessions")
                    self._depart(session)
        with self._requested:
            leaving, self._leaving = self._leaving, []
            gone = {id(session) for session in leaving}
            if gone:
                self._requests = collections.deque(one for one in self._requests if id(one.session) not in gone)
                self._held = [one for one in self._held if id(one.session) not in gone]
        for session in leaving:
            if session.begun and not session.evaluates:
                running = ~session.done
                self._report.count("lost_episodes", int(running.sum()))
                for slot in self._streams_of(session):
                    ones, none = np.ones(slot.recorder.count, np.bool_), np.zeros(slot.recorder.count, np.bool_)
                    self._result(slot, Step(None, np.zeros(slot.recorder.count, np.float32), none, none, ones))
            self._free += session.streams

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

    # ---- evaluators

    def judge(self, version: int, weights: Columns, episodes: int) -> int | None:
        """Have the clients that evaluate play these weights; the number under which to ask for what came of it, or
        None where there are none."""
        with self._requested:
            environments = self._evaluating()
            if not environments:
                return None
            self._judgements += 1
            self._judge = Judgement(self._judgements, version, weights, -(-episodes // environments))
            for session in self._sessions.values():
                session.judged[:], session.counts[:] = 0, False
            self._requested.notify_all()
            return self._judgements

    def judged(self, number: int, episodes: int, seconds: float) -> list[float] | None:
        """The returns, when all have played; an empty list where it takes longer; None when nobody plays any more."""
        with self._requested:
            judge = self._judge
            if judge is None or judge.number != number:
                return None
            self._requested.wait_for(lambda: self._complete(judge, episodes) or self._closed, seconds, "evaluators")
            if self._complete(judge, episodes):
                self._judge = None
                return list(judge.returns)
            if not self._evaluating():
                self._judge = None
                return None
            return []

    def evaluators(self) -> int:
        """Environments of clients that evaluate, at the moment."""
        return self._evaluating()

    def _evaluating(self) -> int:
        sessions = list(self._sessions.values())
        return sum(one.reader.count for one in sessions if one.evaluates and one.peer is not None)

    def _complete(self, judge: Judgement, episodes: int) -> bool:
        """Every environment has played as often as the others, so that short episodes count no more than long ones."""
        playing = [one for one in list(self._sessions.values()) if one.evaluates and one.peer is not None]
        if len(judge.returns) >= episodes and all((one.judged >= judge.quota).all() for one in playing):
            return True
        if playing and all((one.judged >= judge.quota).all() for one in playing):
            judge.quota += 1  # somebody has left: the others play on
        return False

    def _answer_evaluators(self, requests: list[Request]) -> list[Session]:
        """Act for evaluators with the greedy policy; who has nothing to do at the moment waits. Who was answered."""
        for request in requests:
            self._take_note(request)
        judge = self._judge
        waiting, self._held = self._held + requests, []
        playing: list[Request] = []
        for request in waiting:
            busy = judge is not None and bool((request.session.judged < judge.quota).any())
            (playing if busy else self._held).append(request)
        if judge is None or not playing:
            return []
        if self._greedy is None:
            self._greedy = self._make_policy(current().seed + 1, greedy=True)
        if not judge.loaded:
            self._greedy.load(judge.weights)
            judge.loaded = True
        players = []
        for request in playing:
            session = request.session
            if session.player is None:
                session.player = Player(self._greedy, session.reader.count, self._env.stacks)
            first = session.player.first
            session.counts = np.where(first, session.judged < judge.quota, session.counts)
            players.append(session.player)
        actions = act_together(self._greedy, players, [request.row.observation for request in playing])
        for request, action in zip(playing, actions):
            self._reply_to(request, action, judge.version)
        return [request.session for request in playing]

    def _take_note(self, request: Request) -> None:
        """What came of an evaluator's last actions."""
        session, row, judge = request.session, request.row, self._judge
        if session.player is None:
            return
        session.player.result(Step(None, row.reward, row.terminated, row.truncated, row.reset, row.final))
        session.returns += row.reward
        ended = row.terminated | row.truncated
        for index in np.flatnonzero(ended & session.counts):
            if judge is not None:
                judge.returns.append(float(session.returns[index]))
                session.judged[index] += 1
            session.counts[index] = False
        session.returns[ended | row.reset] = 0.0
        with self._requested:
            self._requested.notify_all()


class ClientsEvaluator(Evaluator):
    """The judge where environments are outside: clients that declare themselves evaluators play for it. While there are
    none nothing is evaluated, which is said."""

    spread = False
    most_of_time = 1.0  # what plays is not of this machine's

    def __init__(
        self,
        gateway: GatewayLoop,
        weights: WeightStore,
        metrics: Metrics,
        *,
        episodes: int = 10,
        every: float = 0.5,
        target: float | None = None,
    ) -> None:
        Loop.__init__(self)
        self._gateway = gateway
        self._weights, self._metrics = weights, metrics
        self._prepare_judging(metrics, episodes, every, target)
        self._newest: tuple[int, Columns] = (NONE, {})
        self._told = False
        self._filming = None

    def _load(self, version: int, weights: Columns) -> None:
        self._newest = (version, weights)

    def _ready(self) -> bool:
        if retry(lambda: self._gateway.evaluators()) > 0:
            return True
        if not self._told:
            self._told = True
            self._reporter.note(
                "no client evaluates: the policy is not judged until one says hello with the role 'evaluator'."
            )
        return False

    def close(self) -> None:
        pass

    def _play(self, episodes: int, give_up: Callable[[], bool]) -> list[float]:
        """By the clients; `Interrupted` where there are none left, or what plays was lost."""
        version, weights = self._newest
        while not give_up():
            asked: int | None = retry(partial(self._gateway.judge, version, weights, episodes))
            while asked is not None and not give_up():
                found = retry(partial(self._gateway.judged, asked, episodes, LOOK))
                sign_of_life()
                if found is None:
                    break
                if found:
                    self._reporter.lap("evaluating")
                    return list(found)
            with self._at_work:
                self._at_work.wait_for(lambda: self._finishing, LOOK, "clients that evaluate")
        raise Interrupted
