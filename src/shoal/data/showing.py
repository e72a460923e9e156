"""What is in a dataset, for a person."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from gymnasium import spaces

from shoal import tree
from shoal.data.dataset import Dataset
from shoal.data.episodes import ACTION, OBSERVATION, REWARD
from shoal.types import Array

BARS = " ▁▂▃▄▅▆▇█"
WIDE = 24  # characters of a bar
BINS = 10
MOST_ACTIONS = 18  # that are listed one by one
MOST_PARTS = 8  # of an action or an observation that are listed one by one
SAMPLED = 100_000  # actions that coverage is worked out from


def lines(data: Dataset) -> list[str]:
    """The whole page."""
    manifest, lengths, returns = data.manifest, data.lengths, data.returns
    ended, cut = int(data.terminated.sum()), int(data.index["truncated"].sum())
    rest = len(data) - ended - cut
    told = [f"{ended:,} came to an end", f"{cut:,} were cut", f"{rest:,} break off"]
    found = [f"{data.path}" + (f" · {data.env}" if data.env else "")]
    found += [f"  {manifest.origin.text}"] if manifest.origin.text else []
    found += ["  the import was interrupted: shoal data import goes on with it"] if not manifest.origin.complete else []
    found += [
        "",
        _row("episodes", f"{len(data):,} ({', '.join(text for text in told if not text.startswith('0 '))})"),
        _row("steps", f"{data.steps:,} · {_size(data.nbytes)} on disk, {data.record.itemsize:,} bytes each"),
        _row("length", f"{_spread(lengths)}"),
        _row("return", f"{_spread(returns)}"),
        _row("reward", _reward(data)),
        _row("observation", _space(data.observation_space)),
        _row("action", _space(manifest.native_action_space)),
        _row("known beside", _known(data)),
        "",
        "returns of episodes",
        *_histogram(returns),
        "",
        *_coverage(data),
    ]
    return found


def _row(name: str, text: str) -> str:
    return f"{name:<13} {text}"


def _size(count: float) -> str:
    for unit in ("bytes", "kB", "MB", "GB", "TB"):
        if count < 1000 or unit == "TB":
            return f"{count:,.0f} {unit}" if unit == "bytes" else f"{count:,.1f} {unit}"
        count /= 1000
    raise AssertionError


def _number(value: float) -> str:
    if value == 0 or 0.01 <= abs(value) < 1e6:
        return f"{value:,.0f}" if abs(value) >= 1000 or value == int(value) else f"{value:.3g}"
    return f"{value:.2e}"


def _spread(values: Array) -> str:
    low, middle, high = (_number(float(x)) for x in (values.min(), np.median(values), values.max()))
    return f"{_number(float(values.mean()))} on average, from {low} to {high}, median {middle}"


def _reward(data: Dataset) -> str:
    found = data.statistics()[REWARD]
    return (
        f"{_number(float(found.mean))} on average, deviation {_number(float(found.deviation))}, from "
        f"{_number(float(found.least))} to {_number(float(found.most))}"
    )


def _known(data: Dataset) -> str:
    seeds = int((data.index["seed"] >= 0).sum())
    parts = [f"seeds of {seeds:,} episodes" if seeds else "no seeds"]
    parts.append("log-probabilities" if data.manifest.log_probs else "no log-probabilities")
    return ", ".join(parts)


def _space(space: spaces.Space[Any]) -> str:
    match space:
        case spaces.Dict():
            return "Dict of " + ", ".join(f"{key}: {_space(part)}" for key, part in space.items())
        case spaces.Tuple():
            return "Tuple of " + ", ".join(_space(part) for part in space.spaces)
        case spaces.Box():
            shape = " × ".join(map(str, space.shape)) or "1"
            many = "number" if shape == "1" else "numbers"
            if np.isfinite(space.low).all() and np.isfinite(space.high).all():
                low, high = _number(float(space.low.min())), _number(float(space.high.max()))
                return f"{shape} {many} of {space.dtype} from {low} to {high}"
            return f"{shape} {many} of {space.dtype}"
        case spaces.Discrete():
            begin = int(space.start)
            return f"{int(space.n)} choices" + (f", counted from {begin}" if begin else "")
        case spaces.MultiDiscrete():
            return "choices of " + " × ".join(map(str, space.nvec.ravel().tolist()))
    return str(space)


def _histogram(values: Array) -> list[str]:
    low, high = float(values.min()), float(values.max())
    if low == high:
        return [f"  all {_number(low)}"]
    counts, edges = np.histogram(values, bins=min(BINS, max(2, len(values))))
    marks = [f"{_number(edges[k])} … {_number(edges[k + 1])}" for k in range(len(counts))]
    width = max(map(len, marks))
    return [f"  {mark:>{width}}  {_bar(count / counts.max())} {count:,}" for mark, count in zip(marks, counts.tolist())]


def _bar(share: float) -> str:
    eighths = round(share * WIDE * 8)
    partial = " ▏▎▍▌▋▊▉"[eighths % 8] if eighths % 8 else ""
    return "█" * (eighths // 8) + partial


def _coverage(data: Dataset) -> list[str]:
    """How the space of actions was used."""
    steps = np.flatnonzero(data.rows["valid"][:: max(1, len(data.rows) // (2 * SAMPLED))])
    rows = data.rows[:: max(1, len(data.rows) // (2 * SAMPLED))]
    actions, space = np.asarray(rows[ACTION][steps]), data.action_space
    match space:
        case spaces.Discrete():
            return [
                "actions",
                *_choices(actions, int(space.n), int(getattr(data.manifest.native_action_space, "start", 0))),
            ]
        case spaces.MultiDiscrete():
            used = [len(np.unique(actions[:, k])) for k in range(actions.shape[1])]
            return [
                "actions",
                *(f"  part {k}: {u} of {n} choices are used" for k, (u, n) in enumerate(zip(used, space.nvec))),
            ]
        case spaces.Box():
            return _continuous(actions.reshape(len(actions), -1), space)
    return []


def _choices(actions: Array, n: int, start: int) -> list[str]:
    counts = np.bincount(actions, minlength=n)
    shares = counts / max(1, counts.sum())
    shown = np.argsort(-counts, kind="stable")[:MOST_ACTIONS] if n > MOST_ACTIONS else np.arange(n)
    found = [f"  {int(k) + start:>5}  {_bar(shares[k] / shares.max())} {shares[k]:.1%}" for k in shown]
    unused = int((counts == 0).sum())
    found += [f"  and {n - len(shown)} more"] if n > len(shown) else []
    found += [f"  {unused} of {n} are never chosen"] if unused else []
    return found


def _continuous(actions: Array, space: spaces.Box) -> list[str]:
    low = np.where(np.isfinite(space.low), space.low, actions.min(0).reshape(space.shape)).reshape(-1)
    high = np.where(np.isfinite(space.high), space.high, actions.max(0).reshape(space.shape)).reshape(-1)
    found = [f"actions, each from its least to its most ({BARS.strip()})"]
    for part in range(min(actions.shape[1], MOST_PARTS)):
        values, span = actions[:, part], max(float(high[part] - low[part]), 1e-12)
        counts = np.bincount(np.clip(((values - low[part]) / span * WIDE).astype(int), 0, WIDE - 1), minlength=WIDE)
        marks = "".join(BARS[math.ceil(8 * count / counts.max())] for count in counts.tolist())
        edge = float(((values <= low[part] + 1e-3 * span) | (values >= high[part] - 1e-3 * span)).mean())
        used = float((counts > 0).mean())
        said = f"mean {_number(float(values.mean()))}, {used:.0%} of the range is used"
        found.append(
            f"  {part:>3} {_number(float(low[part])):>6} {marks} {_number(float(high[part])):<6} {said}"
            + (f", {edge:.0%} at its bounds" if edge >= 0.005 else "")
        )
    if actions.shape[1] > MOST_PARTS:
        found.append(f"  and {actions.shape[1] - MOST_PARTS} more parts")
    return found


def summary(data: Dataset) -> dict[str, Any]:
    """The same for programs."""
    returns = data.returns
    return {
        "path": str(data.path),
        "env": data.env,
        "origin": data.manifest.origin.text,
        "complete": data.manifest.origin.complete,
        "episodes": len(data),
        "steps": data.steps,
        "bytes": data.nbytes,
        "terminated": int(data.terminated.sum()),
        "truncated": int(data.index["truncated"].sum()),
        "returns": {"mean": float(returns.mean()), "least": float(returns.min()), "most": float(returns.max())},
        "columns": {name: list(data.record[name].shape) for name in data.record.names or ()},
        "observation": {
            name: {"mean": found.mean.tolist(), "deviation": found.deviation.tolist()}
            for name, found in data.statistics().items()
            if tree.is_under(name, OBSERVATION)
        },
        "log_probs": data.manifest.log_probs,
    }
