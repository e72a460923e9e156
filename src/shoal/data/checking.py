"""Whether a dataset is what it says: its files, its numbers, and, where the environment is at hand, its alignment."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import gymnasium
import numpy as np

from shoal import tree
from shoal.data.dataset import Dataset
from shoal.data.episodes import ACTION, LOG_PROB, OBSERVATION, REWARD, BadData, Episode, nested
from shoal.envs import EnvSpec
from shoal.envs.making import makes_vectors, vectorize
from shoal.envs.vector import action_converter
from shoal.types import Array

MOST_REPLAYED = 100  # episodes, spread over the dataset
CLOSE = 1e-5  # relative to the deviation of each number, and absolute: libraries round differently


@dataclass
class Verdict:
    """What was found; complaints are what should be mended, notes what should be known."""

    episodes: int
    steps: int
    complaints: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    replayed: int = 0  # episodes that were played again
    reproduced: int = 0  # those that came out the same
    first_difference: str = ""
    constant: list[str] = field(default_factory=list)

    @property
    def good(self) -> bool:
        return not self.complaints


def check(data: Dataset, env: EnvSpec | None = None, most: int = MOST_REPLAYED) -> Verdict:
    """Look at every row; with an environment, play up to `most` episodes again with their seeds and actions."""
    found = Verdict(len(data), data.steps)
    try:
        data.verify()
    except BadData as error:
        found.complaints.append(str(error))
        return found
    _look_at_rows(data, found)
    _look_at_episodes(data, found)
    if env is not None:
        _replay(data, env, most, found)
    return found


def _look_at_rows(data: Dataset, found: Verdict) -> None:
    """Numbers that are not finite, flags in the wrong place, actions out of bounds, observations that never change."""
    starts, lengths = data.index["first"], data.lengths
    space: Any = data.action_space
    last = starts + lengths
    if data.rows["valid"][last].any() or int(data.rows["valid"].sum()) != data.steps:
        found.complaints.append("episodes do not end where their rows say so")
    if not np.array_equal(data.rows["terminated"][last - 1], data.terminated):
        found.complaints.append("terminated of the rows and of the episodes differ")
    if int(data.rows["terminated"].sum()) != int(data.terminated.sum()):
        found.complaints.append("there are terminated rows within episodes")
    for rows in _pieces(data):
        valid = rows["valid"]
        for name in data.record.names or ():
            column = rows[name]
            if column.dtype.kind == "f" and name != LOG_PROB and not np.isfinite(column).all():
                found.complaints.append(f"{name} is not finite in places")
        if isinstance(space, gymnasium.spaces.Box):
            slack = 1e-5 * np.maximum(1.0, np.abs(np.where(np.isfinite(space.high), space.high, 1.0)))
            actions = rows[ACTION][valid]
            if ((actions < space.low - slack) | (actions > space.high + slack)).any():
                found.complaints.append(f"there are actions outside of {space}")
    found.complaints = list(dict.fromkeys(found.complaints))
    for name, moments in data.statistics().items():
        if tree.is_under(name, OBSERVATION) and moments.deviation.size:
            still = int((moments.deviation == 0.0).sum())
            if still:
                found.notes.append(f"{still} of {moments.deviation.size} numbers of {name} never change")
        if name == REWARD and float(moments.deviation) == 0.0:
            found.notes.append(f"every reward is {float(moments.mean):g}")


def _look_at_episodes(data: Dataset, found: Verdict) -> None:
    seen: dict[tuple[int, int], int] = {}
    twice = 0
    for entry in data.index:
        first, length = int(entry["first"]), int(entry["length"])
        key = length, zlib.crc32(data.raw[first : first + length + 1].data)
        twice += key in seen
        seen[key] = 1
    if twice:
        found.notes.append(f"{twice:,} episodes are there twice, to the last bit")
    neither = int((~data.terminated & ~data.index["truncated"]).sum())
    if neither:
        found.notes.append(f"{neither:,} episodes break off: they neither came to an end nor were cut")
    if not data.terminated.any():
        found.notes.append("no episode came to an end of its own: all values are bootstrapped")
    if len(data) == 1:
        found.notes.append("there is one episode")
    if data.manifest.log_probs:
        unknown = sum(bool(np.isnan(rows[LOG_PROB][rows["valid"]]).any()) for rows in _pieces(data))
        if unknown:
            found.notes.append("log-probabilities are not known of all actions")


def _pieces(data: Dataset) -> Iterator[Array]:
    rows = max(1, (1 << 24) // data.record.itemsize)
    for begin in range(0, len(data.rows), rows):
        yield data.rows[begin : begin + rows]


def _replay(data: Dataset, env: EnvSpec, most: int, found: Verdict) -> None:
    """Seeds and actions again: the same observations, rewards and ends prove that all columns are aligned."""
    known = np.flatnonzero(data.index["seed"] >= 0)
    if not len(known):
        found.notes.append("no episode tells its seed: none could be played again")
        return
    chosen = known[np.unique(np.linspace(0, len(known) - 1, min(most, len(known))).astype(int))]
    spread = {name: np.maximum(moments.deviation, 1.0) for name, moments in data.statistics().items()}
    if makes_vectors(env.env):
        found.notes.append(f"{env.name} steps its environments itself: episodes cannot be played again in it")
        return
    vector: Any = vectorize(env.env, 1, seed=0, options=env.options, vectorizer="sync", limit=env.limit)
    try:
        one = vector.envs[0]
        convert = action_converter(one.action_space)
        for number in chosen.tolist():
            difference = _played_again(one, convert, data.episode(number), spread, data)
            found.replayed += 1
            found.reproduced += difference is None
            if difference is not None and not found.first_difference:
                found.first_difference = f"episode {number}: {difference}"
    finally:
        vector.close()


def _played_again(env: Any, convert: Any, episode: Episode, spread: dict[str, Array], data: Dataset) -> str | None:
    observation, _ = env.reset(seed=episode.seed)
    leaves = tree.flatten(nested(episode.observations, data.observation_space), OBSERVATION)
    for step in range(len(episode) + 1):
        for name, value in tree.flatten(observation, OBSERVATION).items():
            expected = np.asarray(leaves[name][step], np.float64)
            if not (np.abs(np.asarray(value, np.float64) - expected) <= CLOSE * spread[name]).all():
                return f"{name} differs at step {step}"
        if step == len(episode):
            return None
        action = convert(episode.actions[step][np.newaxis])[0]
        observation, reward, terminated, truncated, _ = env.step(action)
        if abs(float(reward) - float(episode.rewards[step])) > CLOSE * max(1.0, abs(float(reward))):
            return f"the reward differs at step {step}"
        last = step == len(episode) - 1
        if bool(terminated) != (last and episode.terminated):
            return f"it {'ends' if terminated else 'does not end'} at step {step}"
        if last and not (episode.terminated or truncated) and episode.truncated:
            return "it was cut, and the environment goes on"
    return None
