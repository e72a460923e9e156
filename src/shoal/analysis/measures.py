"""What users of each method look for in a learner's measurements: losses, entropy, KL, values; and how it is shown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

# Name in the metrics, and what it is called; in the order in which they are shown. An algorithm has some of them.
LOSSES = {
    "loss": "loss",
    "policy_loss": "policy",
    "value_loss": "value",
    "critic_loss": "critic loss",
    "actor_loss": "actor loss",
}
POLICY = {
    "entropy": "entropy",
    "temperature": "temperature",
    "kl": "KL",
    "clipped": "clipped",
    "rho": "ratio",
    "explained_variance": "explained",
    "slope": "dQ/da",
    "td_error": "TD error",
    "outside_support": "outside support",
    "grad_norm": "gradient",
    "critic_grad_norm": "critic gradient",
}
SHARES = ("clipped", "explained_variance", "outside_support")  # told in percent


def measures(values: Mapping[str, float]) -> dict[str, list[str]]:
    """Rows of a view: losses, what the policy or its values do, and the range of Q."""
    rows = {
        "losses": _named(LOSSES, values),
        "learning": _named(POLICY, values),
        "Q": q_range(values),
    }
    return {name: told for name, told in rows.items() if told}


def key_measures(values: Mapping[str, float]) -> list[str]:
    """The few that fit on a line with others."""
    losses = _named(LOSSES, values)
    first = [value for name in ("entropy", "kl") for value in _named({name: POLICY[name]}, values)]
    return losses[:1] + (first or [f"Q {told}" for told in q_range(values)[:1]])


def q_range(values: Mapping[str, float]) -> list[str]:
    if not all(name in values for name in ("q_min", "q_mean", "q_max")):
        return []
    low, mean, high = (number(values[name]) for name in ("q_min", "q_mean", "q_max"))
    return [f"{low} to {high}", f"mean {mean}"]


def number(value: float) -> str:
    """With three digits that count: 0.00123, 12.3, 1.23e+06."""
    return f"{value:.3g}" if abs(value) < 100 or abs(value) >= 1e5 else f"{value:,.0f}"


def packed(items: Iterable[str], width: float, separator: str = " · ") -> list[str]:
    """Items in lines of at most `width` characters; none is split, but a longer one where it has a comma."""
    lines: list[str] = []
    for item in (part for whole in items for part in ([whole] if len(whole) <= width else _at_commas(whole))):
        if lines and len(lines[-1]) + len(separator) + len(item) <= width:
            lines[-1] += separator + item
        else:
            lines.append(item)
    return lines


def _at_commas(item: str) -> list[str]:
    *parts, last = item.split(", ")
    return [*(f"{part}," for part in parts), last]


def _named(names: Mapping[str, str], values: Mapping[str, float]) -> list[str]:
    return [
        f"{shown} {values[name]:.0%}" if name in SHARES else f"{shown} {number(values[name])}"
        for name, shown in names.items()
        if name in values
    ]
