"""How a block becomes rows and items: which writer it is from, where its rows go, and what waits to be let in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from shoal.types import Array

from .checks import ColumnShapes, check_block, shapes_of
from .chunks import Piece, Schema, Store, Streams, chunk_length_for, schema_of
from .limiters import Round
from .memory import Memory
from .messages import Block, version_row
from .tables import RunningTable

_LIVES = 16  # of a writer that are known to have ended


@dataclass
class Arriving:
    """Items of a block on their way into a table."""

    start: Array  # addresses
    length: Array
    history: Array
    priorities: Array
    states: dict[str, Array]
    versions: Array | None  # only for a quota
    done: int = 0  # how many are in

    def __len__(self) -> int:
        return len(self.start) - self.done

    def left(self) -> dict[str, Array]:
        """The columns of those that are not in yet."""
        columns = {"start": self.start, "length": self.length, "history": self.history, "priorities": self.priorities}
        columns |= self.states | ({} if self.versions is None else {"versions": self.versions})
        return {name: values[self.done :] for name, values in columns.items()}

    @staticmethod
    def of(columns: Mapping[str, Array]) -> Arriving:
        """The items of columns that `left` has given."""
        states = {name: values for name, values in columns.items() if name.startswith("state/")}
        start, length, history = columns["start"], columns["length"], columns["history"]
        return Arriving(start, length, history, columns["priorities"], states, columns.get("versions"))

    def move(self, count: int, table: RunningTable) -> None:
        """Insert the next `count` into the table."""
        end = self.done + count
        if count == len(self.start) and count == table.room(count):
            table.insert(self.start, self.length, self.history, self.priorities, self.states)
            self.done = end
        while self.done < end:
            part = slice(self.done, self.done + table.room(end - self.done))
            states = {name: values[part] for name, values in self.states.items()}
            table.insert(self.start[part], self.length[part], self.history[part], self.priorities[part], states)
            self.done = part.stop


@dataclass
class KnownWriter:
    """What the service knows of a writer."""

    name: str
    life: str
    sequence: int = -1  # of its newest block
    streams: Streams | None = None
    arrays: ColumnShapes = field(default_factory=list)  # what the columns of its newest block look like
    arriving: dict[str, Arriving] = field(default_factory=dict)  # what limiters hold up of the newest block
    accepted: dict[str, int] = field(default_factory=dict)
    refused: dict[str, int] = field(default_factory=dict)
    cut: int = 0  # of those, items whose first rows are not here
    busy: bool = False  # a call is going on
    gone: bool = False  # forgotten while a call was going on

    def has_received(self, block: Block) -> bool:
        """Whether the block was taken in before, wholly."""
        if block.life != self.life:
            return True  # a late one: its writer's life has ended
        return block.sequence < self.sequence or (block.sequence == self.sequence and not self.arriving)


class Intake:
    """Writers, and the stores that their rows go to. The service holds its lock around every call."""

    def __init__(self, tables: Mapping[str, RunningTable], memory: Memory, chunk_length: int | None) -> None:
        self.writers: dict[str, KnownWriter] = {}
        self.ended: dict[str, list[str]] = {}  # lives of writers that a newer one has ended, of each the last few
        self.stores: dict[Schema, Store] = {}
        self._tables = tables
        self._memory = memory
        self._chunk_length = chunk_length

    def writer(self, block: Block) -> KnownWriter:
        """The block's writer; a new life of one ends the life before, of which nothing is taken in any more."""
        writer = self.writers.get(block.writer)
        if writer is None or (block.life != writer.life and block.life not in self.ended.get(block.writer, ())):
            if writer is not None:
                self.ended[block.writer] = [*self.ended.get(block.writer, ()), writer.life][-_LIVES:]
            self.forget(block.writer)
            writer = self.writers[block.writer] = KnownWriter(block.writer, block.life)
        return writer

    def forget(self, name: str) -> None:
        writer = self.writers.pop(name, None)
        if writer is not None:
            writer.gone = True
            self.let_go(writer)

    def drop(self, block: Block) -> None:
        """Count the items of a block that was received before, or is of a life that has ended."""
        for name, items in block.items.items():
            if name in self._tables:
                self._tables[name].repeated += len(items.spans)

    def restart(
        self, stores: Iterable[Store], writers: Mapping[str, KnownWriter], ended: Mapping[str, list[str]]
    ) -> None:
        """Go on from a checkpoint: with its stores, and writers of which it knows what is in it."""
        self.ended = {name: list(lives) for name, lives in ended.items()}
        for name in list(self.writers):
            self.forget(name)
        self.stores = {store.schema: store for store in stores}
        self.writers = dict(writers)

    def let_go(self, writer: KnownWriter) -> None:
        """Drop the chunks of a writer that is gone, once none of its calls uses them."""
        if writer.streams is not None and not writer.busy:
            writer.streams.close()

    def reserve(self, writer: KnownWriter, block: Block) -> tuple[Streams, list[Piece]]:
        """Check the block and find places for its rows."""
        streams, arrays = writer.streams, shapes_of(block.columns)
        familiar = streams is not None and arrays == writer.arrays
        rows, environments = check_block(block, streams, self._tables, familiar)
        writer.arrays = arrays
        if streams is None or streams.rows != block.first_row:  # new, or rows were lost with a restart of the service
            store = self.store(schema_of(block.columns))
            if streams is not None:
                streams.close()
            streams = writer.streams = Streams(store, environments, block.first_row)
        streams.store.fit(block.window)
        return streams, streams.reserve(rows)

    def store(self, schema: Schema) -> Store:
        store = self.stores.get(schema)
        if store is None:
            store = self.stores[schema] = Store(schema, self._chunk_length or chunk_length_for(schema), self._memory)
        return store

    def receive(self, writer: KnownWriter, streams: Streams, block: Block) -> None:
        """The block's rows are in their places: take down which items are to be let in."""
        for name, left in writer.arriving.items():  # the writer gave up on these after a timeout
            self._tables[name].refused += len(left)
        writer.arriving, writer.accepted, writer.refused, writer.cut = {}, {}, {}, 0
        writer.sequence = block.sequence
        streams.written = streams.rows
        for name, items in block.items.items():
            table, spans, priorities, states = self._tables[name], items.spans, items.priorities, items.states
            table.bind(items.view, streams.store, states)
            writer.accepted[name] = writer.refused[name] = 0
            if not len(spans):
                continue
            if np.minimum.reduce(spans.start) < streams.first_row:
                kept = spans.start >= streams.first_row
                cut = int((~kept).sum())
                self.refuse(writer, name, cut)
                writer.cut += cut
                spans, priorities = spans.select(kept), priorities[kept]
                states = {column: values[kept] for column, values in states.items()}
                if not len(spans):
                    continue
            start = streams.addresses(spans.environment, spans.start)
            versions = None
            if isinstance(table.limiter, Round):
                rows = streams.addresses(spans.environment, version_row(spans.start, spans.length))
                versions = streams.store.columns["version"][rows]
            writer.arriving[name] = Arriving(start, spans.length, spans.history, priorities, states, versions)

    def admit(self, writer: KnownWriter) -> None:
        """Let in what the limiters allow at this moment."""
        for name, arriving in list(writer.arriving.items()):
            table = self._tables[name]
            if isinstance(table.limiter, Round) and arriving.versions is not None:
                allowed, opens = table.limiter.admit(writer.name, arriving.versions)
                if opens:
                    table.shrink(0)
                self.refuse(writer, name, len(arriving) - allowed)
            else:
                allowed = table.limiter.insertable(table.counts, len(arriving))
            arriving.move(allowed, table)
            writer.accepted[name] += allowed
            if not len(arriving) or table.limiter.refuses:
                del writer.arriving[name]

    def give_up(self, writer: KnownWriter) -> None:
        """Refuse what is still held up, of a writer that is gone."""
        for name, left in writer.arriving.items():
            self.refuse(writer, name, len(left))
        writer.arriving = {}

    def can_admit(self, writer: KnownWriter, together: bool) -> bool:
        """Whether going on makes sense: something may be let in, or the writer is gone. Where a limiter says so, and
        `together`, all that is left has to fit in."""
        if writer.gone:
            return True
        for name, arriving in writer.arriving.items():
            table = self._tables[name]
            least = len(arriving) if together and table.limiter.together else 1
            if table.limiter.insertable(table.counts, least) >= least:
                return True
        return False

    def refuse(self, writer: KnownWriter, name: str, count: int) -> None:
        writer.refused[name] += count
        self._tables[name].refused += count

    def waits_for(self, writer: KnownWriter) -> str:
        """Who waits for what, for a timeout's message."""
        held = "; ".join(
            f"{len(arriving):,} items into table {name!r}, where {self._tables[name].state()}"
            for name, arriving in writer.arriving.items()
        )
        return f"writer {writer.name!r} waits to insert {held}"
