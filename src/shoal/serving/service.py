"""A finished policy behind the gateway's door: observations of websocket clients in, actions out, many at once."""

from __future__ import annotations

import asyncio
import collections
from collections.abc import Callable, Mapping
from time import monotonic
from typing import Any

import numpy as np
from aiohttp import WSCloseCode

from shoal import tree
from shoal.gateway.messages import Refused, RowReader, error, kind_of, truth, whole, write_spaces
from shoal.gateway.server import Gone, Peer
from shoal.gateway.wire import Message, WireError
from shoal.playing.policy import TrainedPolicy
from shoal.serving.batching import Answer, Ask, Batcher
from shoal.serving.batching import Refused as NotAnswered
from shoal.serving.metrics import ServingMetrics
from shoal.serving.sessions import Session, Sessions
from shoal.types import Array

UNDER_WAY = 64  # requests of one connection that are not answered, before its next one is read
LAST_CHANCE = 0.2  # seconds in which what a client has sent already is read, when the server ends
READERS = 256  # numbers of rows for which readers are kept


class ServeService:
    """What talks with each client."""

    kind = "serve"

    def __init__(
        self,
        policy: TrainedPolicy,
        batcher: Batcher,
        sessions: Sessions,
        metrics: ServingMetrics,
        *,
        name: str,
        explore: bool,
        may_explore: bool,
        most_rows: int,
    ) -> None:
        self.policy, self.sessions, self.metrics, self.name = policy, sessions, metrics, name
        self.version = 1
        self._batcher, self._explore, self._may_explore, self._most_rows = batcher, explore, may_explore, most_rows
        self._readers: dict[int | None, RowReader] = {}
        self._stack = next(iter(policy.stacks.values()), 1)
        self._scalar = policy.action_space.shape == ()
        self._leaves = set(tree.leaf_spaces(policy.seen_space, "observation"))
        self.ending = False
        self._talks: set[Talk] = set()

    def metadata(self) -> Message:
        policy = self.policy
        return {
            "run": self.name,
            "algorithm": policy.algorithm,
            "spaces": write_spaces(policy.observation_space, policy.action_space),
            "version": self.version,
            "recurrent": policy.remembers,
            "wants_reward": policy.wants_reward,
        }

    async def talk(self, peer: Peer) -> None:
        hello = peer.hello
        if hello is not None:
            if hello.role != "player":
                raise Refused(
                    "protocol", f"this server serves a finished policy: say hello as a player, not as {hello.role}"
                )
            self._check_spaces(hello.observation_space, hello.action_space)
            if hello.count > self._most_rows:
                raise Refused("size", f"at most {self._most_rows} environments of one client are acted for at once")
        talk = Talk(self, peer)
        self._talks.add(talk)
        try:
            await talk.run()
        finally:
            self._talks.discard(talk)

    async def drain(self, grace: float) -> None:
        """Answer what has come, and part from everybody behind the last answer."""
        self.ending = True
        for talk in list(self._talks):
            talk.end_soon()
        if self._talks:
            await asyncio.wait([talk.task for talk in self._talks if talk.task is not None], timeout=grace)

    # ---- requests

    def reader(self, environments: int | None) -> RowReader:
        reader = self._readers.get(environments)
        if reader is None:
            if len(self._readers) >= READERS:
                self._readers.clear()
            reader = self._readers[environments] = RowReader(self.policy.seen_space, environments, self._stack)
        return reader

    def ask(
        self, session: Session, reader: RowReader, message: Message, done: Callable[[Answer | NotAnswered], None]
    ) -> None:
        """Have the observation of a message acted on."""
        observation = reader.observation(message.get("observation"))
        explore = self._explore if "greedy" not in message else not truth(message, "greedy")
        if explore and not self._may_explore:
            raise Refused("message", "this policy was exported and is greedy alone: leave out 'greedy'", fatal=False)
        begins = reward = None
        player = session.lane.player
        if player is not None:
            begins = reader.truths(message, "reset")
            if self.policy.wants_reward:
                if message.get("reward") is None and not (player.first | begins).all():
                    raise Refused(
                        "message", "this policy looks at what its last action gave: send 'reward'", fatal=False
                    )
                reward = reader.numbers(message, "reward")
        self.submit(session, reader.count, observation, done, begins, reward, explore)

    def submit(
        self,
        session: Session,
        rows: int,
        observation: Any,
        done: Callable[[Answer | NotAnswered], None],
        begins: Array | None = None,
        reward: Array | None = None,
        explore: bool = False,
    ) -> None:
        try:
            self._batcher.ask(
                Ask(session.lane, rows, observation, done, begins, reward, explore), alone=len(self._talks) == 1
            )
        except NotAnswered as refused:
            raise Refused("full", str(refused), fatal=False) from None

    @property
    def explores(self) -> bool:
        return self._explore

    def observation_of(self, message: Mapping[str, Any]) -> Any:
        """Of an openpi client, whose message is the observation: a map of its parts, nested or by their names."""
        if not isinstance(getattr(self.policy.seen_space, "spaces", None), Mapping):
            if "observation" in message:
                return message["observation"]
            raise WireError("the observation is missing: send a map with 'observation'")
        if self._leaves <= message.keys():
            return tree.nest(self.policy.seen_space, message, "observation")
        found = message.get("observation")
        wanted = getattr(self.policy.seen_space, "spaces", {})
        if isinstance(found, Mapping) and "observation" not in wanted:
            return found
        return {key: value for key, value in message.items() if key in wanted}

    def is_free(self, key: str) -> bool:
        """Whether it may stand beside the parts of an observation, being none of them."""
        return f"observation/{key}" not in self._leaves

    def rows(self, observation: Any) -> int | None:
        """How many observations an openpi client sends at once; None: one, without an axis for them."""
        name, space = next(iter(tree.leaf_spaces(self.policy.observation_space, "observation").items()))
        parts = tree.flatten(observation, "observation")
        if name not in parts:
            raise WireError(f"the part {name!r} of the observation is missing")
        value = parts[name]
        if not isinstance(value, np.ndarray) or value.ndim != len(space.shape) + 1:
            return None
        if not 1 <= len(value) <= self._most_rows:
            raise WireError(f"from 1 to {self._most_rows} observations are acted on at once, and not {len(value)}")
        return len(value)

    def action(self, action: Array, alone: bool) -> Any:
        """As it is sent: one environment's without an axis for environments, a choice as a plain number."""
        if not alone:
            return action
        return int(action[0]) if self._scalar else action[0]

    def _check_spaces(self, observation: Any, action: Any) -> None:
        mine = self.policy.observation_space, self.policy.action_space
        for what, given, own in (("observation", observation, mine[0]), ("action", action, mine[1])):
            if given is not None and given != own:
                raise Refused("spaces", f"the policy's {what} space is {str(own)[:200]}, and not {str(given)[:200]}")


class Talk:
    """One websocket. Answers are written as they come; where a client does not take them, a task of their own waits."""

    def __init__(self, service: ServeService, peer: Peer) -> None:
        self._service, self._peer = service, peer
        self._session: Session | None = None
        self._out: collections.deque[Message | Refused] = collections.deque()
        self._wake: asyncio.Future[None] | None = None  # of the writer
        self._room: asyncio.Future[None] | None = None  # for more requests
        self._under_way = 0
        self._waits = False  # the client has not taken what it was sent
        self._ends = False
        self.task: asyncio.Task[Any] | None = None

    async def run(self) -> None:
        service, peer, hello = self._service, self._peer, self._peer.hello
        self.task = asyncio.current_task()
        if hello is not None:
            session, resumed = service.sessions.open(hello.session, hello.environments)
            if isinstance(session.held, Talk):
                session.held.part()
            self._session, session.held, session.deliver = session, self, self._deliver
            welcome = {"type": "welcome", "session": session.name, "seq": session.seq, "resumed": resumed}
            await peer.send(welcome | {"mode": "central"} | service.metadata())
        tasks = [asyncio.ensure_future(each) for each in (self._read(), self._write())]
        if service.ending:
            self.end_soon()
        try:
            ended, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in ended:
                task.result()  # raises what it ended with
            if self._ends:
                await peer.close(WSCloseCode.GOING_AWAY, "the server stops")
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            if self._session is not None:
                service.sessions.leave(self._session, self)

    def end_soon(self) -> None:
        """The server ends: what was sent is answered, and the connection is closed right behind the answer."""
        self._ends = True
        if not self._under_way:
            asyncio.get_running_loop().call_later(LAST_CHANCE, self._wake_writer)

    def part(self) -> None:
        """Another connection goes on in its place: this one was lost, and has not heard of it yet."""
        if self.task is not None:
            self.task.cancel()

    # ---- reading

    async def _read(self) -> None:
        peer = self._peer
        take = self._act if peer.hello is not None else self._act_plainly
        while True:
            if self._under_way + len(self._out) >= UNDER_WAY:
                self._room = asyncio.get_running_loop().create_future()
                await self._room
            message = await peer.receive()
            try:
                if kind_of(message) == "bye" and self._session is not None:
                    self._service.sessions.end(self._session.name)
                    return
                take(message)
            except WireError as problem:
                self._service.metrics.requests[self._way, "refused"] += 1
                await peer.refuse(Refused("message", str(problem)), _seq(message))
            except Refused as refused:
                self._service.metrics.requests[self._way, "refused"] += 1
                if refused.fatal:
                    raise
                await peer.refuse(refused, _seq(message))

    @property
    def _way(self) -> str:
        return "openpi" if self._peer.hello is None else "websocket"

    def _act(self, message: Message) -> None:
        """One request of a client that said hello."""
        service, session = self._service, self._session
        assert session is not None
        if kind_of(message) != "act":
            raise WireError("this server takes messages of the types 'act' and 'bye'")
        seq = whole(message, "seq", 1, 1 << 62, session.seq + 1)
        if seq <= session.seq:
            self._repeat(session, seq)
            return
        arrived = monotonic()

        def done(answer: Answer | NotAnswered) -> None:
            if isinstance(answer, Answer):
                service.metrics.answered("websocket", monotonic() - arrived)
                action = service.action(answer.action, session.environments is None)
                session.answered({"type": "action", "seq": seq, "action": action, "version": answer.version})
            else:
                service.metrics.requests["websocket", "failed"] += 1
                session.answered(error("full" if answer.busy else "internal", str(answer), seq))

        before, session.seq = session.seq, seq
        session.under_way += 1
        self._under_way += 1
        try:
            service.ask(session, service.reader(session.environments), message, done)
        except BaseException:
            session.seq = before
            session.under_way -= 1
            self._under_way -= 1
            raise

    def _repeat(self, session: Session, seq: int) -> None:
        """A request that has come before, on a connection that was lost, is not acted on twice."""
        if session.last is not None and session.last.get("seq") == seq:
            self._out.append(session.last)
            self._wake_writer()
        elif seq <= session.seq - session.under_way:
            raise Refused("seq", f"request {seq} was answered before: the newest is {session.seq}", fatal=False)
        # else it is being computed, and the answer comes here

    def _act_plainly(self, message: Message) -> None:
        """An observation alone, as openpi's client sends it; its connection is its session."""
        service, session = self._service, self._session
        observation = service.observation_of(message)
        rows = service.rows(observation)
        player = session.lane.player if session is not None else None
        if session is None or (player is not None and player.count != (rows or 1)):
            session = self._session = Session("", service.sessions.lane(rows or 1), rows)
        arrived = monotonic()

        def done(answer: Answer | NotAnswered) -> None:
            if isinstance(answer, Answer):
                service.metrics.answered("openpi", monotonic() - arrived)
                action = answer.action if rows is not None else np.asarray(answer.action[0])
                timing = {"infer_ms": answer.computed * 1e3, "wait_ms": answer.waited * 1e3}
                self._deliver({"actions": action, "version": answer.version, "server_timing": timing})
            else:
                service.metrics.requests["openpi", "failed"] += 1
                self._deliver(Refused("full" if answer.busy else "internal", str(answer), fatal=False))

        beside: Message = {key: message[key] for key in ("reset", "reward") if key in message and service.is_free(key)}
        self._under_way += 1
        try:
            service.ask(session, service.reader(rows), {"observation": observation, **beside}, done)
        except BaseException:
            self._under_way -= 1
            raise

    # ---- writing

    def _deliver(self, message: Message | Refused) -> None:
        self._under_way -= 1
        if self._out or self._waits or isinstance(message, Refused):
            self._out.append(message)
            self._wake_writer()
        else:
            try:
                self._waits = not self._peer.send_now(message)
            except Gone:
                return  # who reads hears of it too
            if self._ends:
                self._wake_writer()
        if not self._out:
            self._make_room()

    def _make_room(self) -> None:
        room, self._room = self._room, None
        if room is not None and not room.done():
            room.set_result(None)

    def _wake_writer(self) -> None:
        wake = self._wake
        if wake is not None and not wake.done():
            wake.set_result(None)

    async def _write(self) -> None:
        peer, out, loop = self._peer, self._out, asyncio.get_running_loop()
        while True:
            self._wake = loop.create_future()
            if not out:
                await self._wake
            while out:
                message = out.popleft()
                if isinstance(message, Refused):
                    await peer.refuse(message)
                else:
                    await peer.send(message)
            self._waits = False
            self._make_room()
            if self._ends and self._under_way <= 0:
                return


def _seq(message: Message) -> int | None:
    seq = message.get("seq")
    return seq if type(seq) is int else None
