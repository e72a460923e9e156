"""Streams with random episode ends, and what items they must give, computed one row at a time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass
class Stream:
    """Rows of a few environments in the stream format; each observation is (environment, row, place in episode)."""

    columns: dict[str, np.ndarray]

    @property
    def environments(self) -> int:
        return self.columns["valid"].shape[1]

    @property
    def rows(self) -> int:
        return len(self.columns["valid"])

    def blocks(self, generator: np.random.Generator, largest: int) -> list[dict[str, np.ndarray]]:
        """The stream cut at random places."""
        blocks, at = [], 0
        while at < self.rows:
            size = int(generator.integers(1, largest + 1))
            blocks.append({name: values[at : at + size] for name, values in self.columns.items()})
            at += size
        return blocks

    def episodes(self, environment: int) -> list[tuple[int, int, bool]]:
        """(first row, last row, ended): an episode's last row is the one with valid=False, if it has come."""
        valid = self.columns["valid"][:, environment]
        episodes, first = [], 0
        for row in range(self.rows):
            if not valid[row]:
                episodes.append((first, row, True))
                first = row + 1
        if first < self.rows:
            episodes.append((first, self.rows - 1, False))
        return episodes


def make_stream(seed: int, rows: int, environments: int, episode: int) -> Stream:
    """Episodes of 1 to `episode` transitions, terminated or truncated at random."""
    generator = np.random.default_rng(seed)
    valid = np.ones((rows, environments), bool)
    terminated = np.zeros((rows, environments), bool)
    place = np.zeros((rows, environments), int)
    for environment in range(environments):
        row = 0
        while row < rows:
            length = int(generator.integers(1, episode + 1))
            end = row + length
            count = min(end, rows - 1) - row + 1
            place[row : row + count, environment] = np.arange(count)
            if end < rows:
                valid[end, environment] = False
            if end - 1 < rows:
                terminated[end - 1, environment] = generator.random() < 0.5
            row = end + 1
    step = np.arange(rows)[:, None] + np.zeros((1, environments), int)
    whose = np.zeros((rows, 1), int) + np.arange(environments)
    reward = generator.normal(size=(rows, environments)).astype(np.float32)
    return Stream(
        {
            "observation": np.stack([whose, step, place], -1).astype(np.int32),
            "frame": (1 + whose * 1000 + step).astype(np.int64)[..., None],
            "action": generator.integers(0, 5, (rows, environments)).astype(np.int8),
            "reward": np.where(valid, reward, 0).astype(np.float32),
            "terminated": terminated,
            "valid": valid,
            "state/core": (whose * 1000.0 + step)[..., None],
        }
    )


def naive_stack(stream: Stream, environment: int, row: int, count: int, padding: str) -> list[int]:
    first = next(a for a, b, _ in stream.episodes(environment) if a <= row <= b)
    rows = range(row - count + 1, row + 1)
    frames = [int(stream.columns["frame"][max(r, first), environment, 0]) for r in rows]
    if padding == "zero":
        frames = [0 if r < first else frame for r, frame in zip(rows, frames)]
    return frames


def naive_n_step(stream: Stream, n: int, discount: float) -> dict[tuple[int, int], dict[str, object]]:
    """Per (environment, row) of each transition whose item is complete."""
    items: dict[tuple[int, int], dict[str, object]] = {}
    columns = stream.columns
    for environment in range(stream.environments):
        for first, last, ended in stream.episodes(environment):
            for row in range(first, last if ended else last + 1):
                end = row + n
                if end > last:
                    if not ended:
                        continue
                    end = last
                total, product = 0.0, 1.0
                for step in range(row, end):
                    total += product * columns["reward"][step, environment]
                    product *= discount
                alive = not columns["terminated"][row:end, environment].any()
                items[environment, row] = {"reward": total, "discount": product * alive, "next": end}
    return items


def naive_sequences(stream: Stream, length: int, period: int, burn_in: int, end: str) -> set[tuple[int, int, int]]:
    """(environment, first row, rows) of every item."""
    items, size = set(), burn_in + length + 1
    for environment in range(stream.environments):
        for first, last, ended in stream.episodes(environment):
            begin, covered = first, -1
            while begin + size - 1 <= last:
                items.add((environment, begin, size))
                covered = begin + size - 1
                begin += period
            if ended and covered < last and (begin + burn_in < last or begin == first) and end != "drop":
                if end == "shift":
                    begin = max(first, last - size + 1)
                items.add((environment, begin, last - begin + 1))
    return items
