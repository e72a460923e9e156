"""One replay out of several services: samples, probabilities and importance weights are those of all items together.

A client-side object over the services themselves or clients to them. Each writer's stream lives on one shard. A batch
is spread over the shards in proportion to what their samplers draw by, so an item is drawn with the probability that
it would have in one table. A shard that dies costs its own items; its writers move on to the next one, and it is
asked again after a while. Nothing is retried here: when no shard is left, calls fail with `ShardsLost`, and whether
and how long they are made again is their caller's policy (`shoal.retry` in a program's nodes).
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from shoal.types import Array

from .. import sync
from .errors import ReplayClosed, ReplayTimeout, ShardsLost
from .messages import Block, Inserted, Layout, Mass, Sample
from .numbers import check_keys, check_priorities, check_timeout, check_whole

_PATIENCE = 0.2  # seconds of waiting on one shard while another may have what is asked for


class ShardedReplay:
    """`shards` are replay services, or clients to them, with the same tables; all clients list them in the same order.

    `home` is the shard that this client's writers prefer (by default it follows from the writer's name). `lost` are the
    errors that mean that a shard is gone; it is asked again after `retry_seconds`.
    """

    def __init__(
        self,
        shards: Sequence[Any],
        *,
        home: int | None = None,
        seed: int = 0,
        retry_seconds: float = 5.0,
        lost: tuple[type[Exception], ...] = (ConnectionError, EOFError, ReplayClosed),
    ) -> None:
        if not shards:
            raise ValueError("ShardedReplay needs at least one shard")
        self._shards = list(shards)
        self._home = home
        self._generator = np.random.default_rng(seed)
        self._retry_seconds = retry_seconds
        self._lost = lost
        self._dead: dict[int, float] = {}  # shard: when to ask it again
        self._turn = 0
        self._sizes: dict[int, dict[str, int]] = {}  # of tables on each shard, when it was asked last
        self._lost_items: dict[str, int] = {}  # that were on shards which died
        self._closed = False

    # Inserting

    def insert(self, block: Block, timeout: float | None = None) -> Inserted:
        """As `Replay.insert`, on the writer's shard, or the next one that lives."""
        home = zlib.crc32(block.writer.encode()) if self._home is None else self._home
        for offset in range(len(self._shards)):
            index = (home + offset) % len(self._shards)
            if self._lives(index):
                try:
                    result: Inserted = self._shards[index].insert(block, timeout)
                    return result
                except self._lost:
                    self._mark_dead(index)
        raise self._all_lost()

    def forget_writer(self, name: str) -> None:
        self._ask("forget_writer", dict.fromkeys(self._living(), (name,)))

    # Sampling

    def sample(
        self,
        table: str,
        batch: int,
        *,
        timeout: float | None = None,
        layout: Layout = "time",
        minimum: int | None = None,
    ) -> Sample:
        """As `Replay.sample`, over all shards; where items are read once or in order, each batch is of one shard."""
        timeout = check_timeout(timeout)
        deadline = None if timeout is None else sync.monotonic() + timeout
        check_whole(f"batch of a sample of table {table!r}", batch, 1)
        least = check_whole(f"minimum of a sample of table {table!r}", batch if minimum is None else minimum, 1, batch)
        while True:
            masses: dict[int, Mass] = self._ask("mass", dict.fromkeys(self._living(), (table,)))
            for index, mass in masses.items():
                self._sizes.setdefault(index, {})[table] = mass.size
            if not masses:
                raise self._all_lost()
            if not all(mass.independent for mass in masses.values()):
                return self._from_one(table, batch, least, layout, list(masses), deadline)
            weights = {index: mass.mass for index, mass in masses.items()}
            if not any(weights.values()):
                weights = {index: float(mass.size) for index, mass in masses.items()}
            total = sum(weights.values())
            if total > 0.0:
                break
            self._await_any(table, list(masses), deadline)
        counts = self._generator.multinomial(batch, [weight / total for weight in weights.values()])
        wanted = {index: int(count) for index, count in zip(weights, counts) if count}
        minimum_of = {
            index: min(max(1, int(count * least / batch)), masses[index].largest) for index, count in wanted.items()
        }
        parts = self._draw(table, wanted, minimum_of, layout, deadline)
        if sum(map(len, parts.values())) < least:  # a shard died: what it was to give comes from the others
            return self.sample(table, batch, timeout=_left(deadline), layout=layout, minimum=minimum)
        living = {index: weight for index, weight in weights.items() if index in parts or index not in self._dead}
        total = sum(living.values())
        whole = [
            replace(
                part,
                keys=self._encode(part.keys, index),
                probabilities=part.probabilities * (living[index] / total),
            )
            for index, part in parts.items()
        ]
        return _join(whole, table_size=sum(masses[index].size for index in living), mass=total)

    def _draw(
        self, table: str, wanted: dict[int, int], minimum: dict[int, float], layout: Layout, deadline: float | None
    ) -> dict[int, Sample]:
        calls = {index: (table, count) for index, count in wanted.items()}
        left = _left(deadline)
        named = {index: {"timeout": left, "layout": layout, "minimum": int(minimum[index])} for index in wanted}
        return self._ask("sample", calls, named)

    def _from_one(
        self, table: str, batch: int, least: int, layout: Layout, shards: list[int], deadline: float | None
    ) -> Sample:
        """The first shard in turn that has a batch: at once if there is one, else whoever has it first."""
        patience = 0.0
        while True:
            for _ in range(len(self._shards)):
                index, self._turn = self._turn % len(self._shards), self._turn + 1
                if index not in shards or not self._lives(index):
                    continue
                left = _left(deadline)
                wait = patience if left is None else min(patience, left)
                try:
                    sample: Sample = self._shards[index].sample(
                        table, batch, timeout=wait, layout=layout, minimum=least
                    )
                    return replace(sample, keys=self._encode(sample.keys, index))
                except ReplayTimeout:
                    if left is not None and left <= 0.0 and patience > 0.0:
                        raise
                except self._lost:
                    self._mark_dead(index)
            if not self._living():
                raise self._all_lost()
            patience = _PATIENCE

    def _await_any(self, table: str, shards: list[int], deadline: float | None) -> None:
        """Every shard is empty: wait at one of them for a while."""
        index, self._turn = shards[self._turn % len(shards)], self._turn + 1
        left = _left(deadline)
        if left is not None and left <= 0.0:
            raise ReplayTimeout(
                f"a reader waits for items of table {table!r}, which is empty on all {len(shards)} shards"
            )
        try:
            self._shards[index].mass(table, _PATIENCE if left is None else min(left, _PATIENCE))
        except self._lost:
            self._mark_dead(index)

    # Everything else

    def update_priorities(self, table: str, keys: Array, priorities: Array) -> int:
        """As `Replay.update_priorities`; items of a dead shard count as gone."""
        keys, priorities = check_keys(table, keys), np.asarray(priorities, np.float64)
        if keys.shape != priorities.shape:
            raise ValueError(
                f"table {table!r} was given keys of shape {keys.shape} and priorities of {priorities.shape}"
            )
        check_priorities(table, priorities)
        shard = keys % len(self._shards)
        calls = {}
        for index in self._living():
            own = shard == index
            if own.any():
                calls[index] = (table, keys[own] // len(self._shards), priorities[own])
        return sum(self._ask("update_priorities", calls).values())

    def delete(self, table: str, keys: Array) -> int:
        keys = check_keys(table, keys)
        shard = keys % len(self._shards)
        calls = {index: (table, keys[shard == index] // len(self._shards)) for index in self._living()}
        return sum(self._ask("delete", calls).values())

    def trim(self, table: str) -> int:
        return sum(self._ask("trim", dict.fromkeys(self._living(), (table,))).values())

    def info(self) -> dict[str, dict[str, Any]]:
        """Numbers per table over all living shards, with "shards", "dead_shards" and "lost_items", which were on
        shards when these died."""
        parts = self._ask("info", dict.fromkeys(self._living(), ()))
        if not parts:
            raise self._all_lost()
        merged = {}
        for table in next(iter(parts.values())):
            numbers = _merge([part[table] for part in parts.values()])
            merged[table] = numbers | {
                "shards": len(parts),
                "dead_shards": len(self._shards) - len(parts),
                "lost_items": self._lost_items.get(table, 0),
            }
        return merged

    def save(
        self, path: str | os.PathLike[str], *, tag: str | None = None, keep: Collection[str] = ()
    ) -> dict[str, float]:
        """Every living shard into a directory of its own; each is complete by itself."""
        places = self._places(path)
        named = {index: {"tag": tag, "keep": list(keep)} for index in places}
        results = list(self._ask("save", places, named).values())
        return {
            "seconds": max(result["seconds"] for result in results),
            "pause_seconds": max(result["pause_seconds"] for result in results),
            "bytes": sum(result["bytes"] for result in results),
        }

    def load(self, path: str | os.PathLike[str], *, tag: str | None = None) -> None:
        places = self._places(path)
        self._ask("load", places, {index: {"tag": tag} for index in places})

    def _places(self, path: str | os.PathLike[str]) -> dict[int, tuple[Any, ...]]:
        return {index: (str(Path(path) / f"shard-{index:03d}"),) for index in self._living()}

    def close(self) -> None:
        self._ask("close", dict.fromkeys(self._living(), ()))
        self._closed = True

    # Asking shards

    def _ask(
        self, method: str, calls: dict[int, tuple[Any, ...]], named: dict[int, dict[str, Any]] | None = None
    ) -> dict[int, Any]:
        """The answers of shards, asked at the same time where they are remote; a dead one has none."""
        waiting, answers = {}, {}
        for index, arguments in calls.items():
            shard, options = self._shards[index], (named or {}).get(index, {})
            try:
                if hasattr(shard, "future"):
                    waiting[index] = getattr(shard.future, method)(*arguments, **options)
                else:
                    answers[index] = getattr(shard, method)(*arguments, **options)
            except self._lost:
                self._mark_dead(index)
        failed: Exception | None = None
        for index, future in waiting.items():
            try:
                answers[index] = future.result()
            except self._lost:
                self._mark_dead(index)
            except Exception as error:  # the others are still to be collected
                failed = error
        if failed is not None:
            raise failed
        return answers

    def _living(self) -> list[int]:
        return [index for index in range(len(self._shards)) if self._lives(index)]

    def _lives(self, index: int) -> bool:
        """Whether to ask a shard: it answered the last time, or that is long enough ago."""
        until = self._dead.get(index)
        if until is None:
            return True
        if sync.monotonic() < until:
            return False
        self._dead.pop(index, None)  # another thread may have been here
        return True

    def _mark_dead(self, index: int) -> None:
        for table, size in self._sizes.pop(index, {}).items():
            self._lost_items[table] = self._lost_items.get(table, 0) + size
        self._dead[index] = sync.monotonic() + self._retry_seconds

    def _all_lost(self) -> Exception:
        if self._closed:
            return ReplayClosed("the replay services are closed")
        return ShardsLost(f"none of the {len(self._shards)} replay shards answers; they are asked again in a while")

    def _encode(self, keys: Array, index: int) -> Array:
        """Keys that say which shard they are from."""
        encoded: Array = keys * len(self._shards) + index
        return encoded


def _left(deadline: float | None) -> float | None:
    return None if deadline is None else max(0.0, deadline - sync.monotonic())


def _join(parts: list[Sample], *, table_size: int, mass: float) -> Sample:
    """Samples of several shards as one."""
    first = parts[0]
    if len(parts) == 1:
        return replace(first, table_size=table_size, mass=mass)
    arrays = {}
    for name in first.arrays:
        axis = 1 if first.layout == "time" and name in first.timed else 0
        arrays[name] = np.concatenate([part.arrays[name] for part in parts], axis)
    return replace(
        first,
        arrays=arrays,
        keys=np.concatenate([part.keys for part in parts]),
        probabilities=np.concatenate([part.probabilities for part in parts]),
        priorities=np.concatenate([part.priorities for part in parts]),
        times_sampled=np.concatenate([part.times_sampled for part in parts]),
        table_size=table_size,
        mass=mass,
    )


def _merge(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """One table's numbers over shards: largest ages, means weighted by size, sums of the rest."""
    merged: dict[str, Any] = {}
    for name in dict.fromkeys(name for part in parts for name in part):
        values = [part[name] for part in parts if name in part]
        if name.endswith("_histogram"):
            counts = np.zeros(max(map(len, values)), int)
            for value in values:
                counts[: len(value)] += value
            merged[name] = counts.tolist()
        elif name.endswith("_max"):
            merged[name] = max(values)
        elif name.endswith("_mean"):
            sizes = [part["size"] for part in parts if name in part]
            merged[name] = float(np.average(values, weights=sizes))
        else:
            merged[name] = sum(values)
    return merged
