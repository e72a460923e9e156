"""Clients of a gateway by what is remembered of them: what they said last, what they were answered, how their episodes
go."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from gymnasium import Space

from shoal import tree
from shoal.acting import Player
from shoal.gateway.messages import Hello, Refused, RowReader, whole
from shoal.gateway.server import Peer
from shoal.gateway.wire import Message, WireError
from shoal.services.metrics import Reporter
from shoal.step import Step
from shoal.types import Array
from shoal.versions import NONE


class Row(NamedTuple):
    """What one message of a client says of its environments."""

    observation: tree.Tree  # [B, ...]
    reward: Array
    terminated: Array
    truncated: Array
    reset: Array
    final: tree.Tree  # [B, ...] where an episode ended within the step, of who resets by itself; None of others


class Block(NamedTuple):
    """What one message of a client says that acts by itself: rows in their order, each with its action and what that
    gave."""

    observation: tree.Tree  # [T, B, ...]
    action: Array  # [T, B], numbered from 0
    records: dict[str, Array]  # [T, B] each: what the policy says of its actions
    rows: list[Row]  # what each of them gave; their observations are those of the block
    version: int  # of the weights that acted


class Session:
    """A client, whether it is connected at the moment or not. All of it belongs to the thread that listens, but for
    what was `sent`, which the node tells."""

    def __init__(self, id: str, hello: Hello, reader: RowReader, prepare: Callable[[Array], Array]) -> None:
        self.id, self.hello, self.reader, self.prepare = id, hello, reader, prepare
        self.evaluates = hello.role == "evaluator"
        self.local = hello.mode == "local"  # it acts by itself
        self.given = NONE  # the version of the weights that it was sent
        self.blocks: BlockReader | None = None  # of what it sends
        self.pending: Step | None = None  # what its last row gave: told to its stream with the next block
        # its connection, and what it asks
        self.peer: Peer | None = None
        self.left: float | None = None  # when its connection was lost
        self.asked = hello.seq  # the newest message that came
        self.waits = False  # who is connected has asked, and was not answered
        self.slow = False  # it has not taken its last answers: the next is waited for
        self.answered: asyncio.Future[None] | None = None  # of such a one
        self._first = True  # no message has come
        self._closed = np.zeros(reader.count, np.bool_)  # episodes that have ended by the newest message
        # what was made of it
        self.streams: list[str] = []  # of slots
        self.player: Player | None = None  # an evaluator's
        self.begun = False  # its first message was answered: rows of its streams wait for what they gave
        self.stored = hello.seq  # the newest message whose rows are in the replay for certain
        self._sent: dict[int, tuple[int, int]] = {}  # by stream: the newest that has gone there, and the one before
        self.tally = Tally(reader.count)
        self.returns = np.zeros(reader.count)  # of an evaluator's episodes that are under way
        self.judged = np.zeros(reader.count, np.int64)  # an evaluator's episodes that counted
        self.counts = np.zeros(reader.count, np.bool_)  # its episodes that will
        self.reply = b""  # to the message `seq`
        self.first_reply: bytes | None = None  # the same with newer weights, which who comes back is sent anyway
        self.seq = hello.seq

    def take_reply(self) -> bytes:
        """As it is written when it is given for the first time."""
        reply, self.first_reply = self.first_reply or self.reply, None
        return reply

    def sent(self, stream: int, seq: int) -> None:
        """A block of one of its streams has gone to the replay, with the message `seq` as its last row. Only what was
        sent before has been answered for."""
        start = self.hello.seq if not self._sent else self.stored
        self._sent[stream] = seq, self._sent.get(stream, (start, start))[0]
        if len(self._sent) == len(self.streams):
            self.stored = min(before for _, before in self._sent.values())

    def read(self, message: Message) -> Row:
        """What a step says, checked against what was said before; for the thread that listens."""
        reader, final = self.reader, None
        if message.get("action_mask") is not None:
            raise Refused("message", "masks of actions are not obeyed yet: leave out 'action_mask'")
        observation = reader.observation(message.get("observation"))
        reward = reader.numbers(message, "reward")
        terminated = reader.truths(message, "terminated")
        truncated = reader.truths(message, "truncated")
        reset = reader.truths(message, "reset")
        ended = terminated | truncated
        if _any(reset & ended):
            raise WireError("a row cannot be a reset and the end of an episode")
        if self.hello.autoreset == "same_step":
            if not self._first and _any(reset):
                raise WireError("with autoreset 'same_step' there are no rows that are resets")
            if _any(ended):
                final = reader.observation(message.get("final_observation"))
        else:
            if _any(self._closed & ~reset):
                raise WireError(
                    "after the end of an episode the next row is a reset, with the next one's first observation"
                )
            self._closed = ended
        if self._first:
            self._first = False
            nothing = np.zeros_like(reset)
            return Row(observation, np.zeros_like(reward), nothing, nothing, ~nothing, None)
        if _any(reset):
            reward = np.where(reset, np.float32(0), reward)
        return Row(observation, reward, terminated, truncated, reset, final)


class BlockReader:
    """Reads blocks of T rows of a client that acts by itself."""

    def __init__(self, space: Space[Any], environments: int, rows: int, actions: int, records: tuple[str, ...]) -> None:
        self._reader = RowReader(space, rows * environments)
        self._shape, self._actions, self._records = (rows, environments), actions, records
        self._closed = np.zeros(environments, np.bool_)

    def read(self, message: Message, newest: int) -> Block:
        """Arrays come with rows and environments as one axis, the rows of one moment beside each other."""
        reader, shape = self._reader, self._shape
        seen = reader.observation(message.get("observation"))
        observation = tree.map(lambda leaf: leaf.reshape(*shape, *leaf.shape[1:]), seen)
        reward = reader.numbers(message, "reward").reshape(shape)
        terminated, truncated, reset = (
            reader.truths(message, name).reshape(shape) for name in ("terminated", "truncated", "reset")
        )
        ended = terminated | truncated
        if (reset & ended).any():
            raise WireError("a row cannot be a reset and the end of an episode")
        if (np.concatenate([self._closed[None], ended[:-1]]) & ~reset).any():
            raise WireError("after the end of an episode the next row is a reset")
        chosen = reader.numbers(message, "action")
        action = chosen.astype(np.int64)
        if (action != chosen).any() or action.min() < 0 or action.max() >= self._actions:
            raise WireError(f"'action' must be whole numbers from 0 to {self._actions - 1}")
        records = {name: reader.numbers(message, name).reshape(shape) for name in self._records}
        self._closed = ended[-1]
        rows = [
            Row(None, np.where(reset[t], np.float32(0), reward[t]), terminated[t], truncated[t], reset[t], None)
            for t in range(shape[0])
        ]
        return Block(observation, action.reshape(shape), records, rows, whole(message, "stamp", 0, newest))


def _any(flags: Array) -> bool:
    return bool(flags[0] if len(flags) == 1 else flags.any())


@dataclass(slots=True)
class Request:
    """A message that waits for its answer."""

    session: Session
    seq: int
    row: Row | Block
    arrived: float


class Tally:
    """The episodes of a client's environments, counted as actors count theirs."""

    def __init__(self, environments: int) -> None:
        self._returns, self._lengths = np.zeros(environments), np.zeros(environments, np.int64)
        self.open = np.ones(environments, np.bool_)  # episodes that are under way

    def count(self, row: Row, report: Reporter) -> int:
        """Episodes are reported; the steps that these are."""
        if len(self.open) == 1:
            return self._count_one(row, report)
        valid, ended = ~row.reset, row.terminated | row.truncated
        self._returns += row.reward
        self._lengths += valid
        cut = row.reset & (self._lengths > 0)
        if cut.any():  # given up by the client in the middle
            report.count("truncated_by_clients", int(cut.sum()))
        for index in np.flatnonzero(ended):
            _tell(report, float(self._returns[index]), int(self._lengths[index]))
        over = ended | row.reset
        self._returns[over], self._lengths[over] = 0.0, 0
        self.open = ~ended
        return int(np.count_nonzero(valid))

    def _count_one(self, row: Row, report: Reporter) -> int:
        """The same without arrays, which would take most of the time."""
        returns, lengths = self._returns, self._lengths
        if row.reset[0]:
            if lengths[0] > 0:
                report.count("truncated_by_clients")
            returns[0], lengths[0] = 0.0, 0
            self.open[0] = True
            return 0
        returns[0] += row.reward[0]
        lengths[0] += 1
        if row.terminated[0] or row.truncated[0]:
            _tell(report, float(returns[0]), int(lengths[0]))
            returns[0], lengths[0] = 0.0, 0
            self.open[0] = False
        return 1


def _tell(report: Reporter, returned: float, length: int) -> None:
    report.count("episodes")
    report.average("actor_return", returned)
    report.average("episode_length", float(length))
