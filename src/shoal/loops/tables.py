"""What a config says of the replay's tables: the pace of acting and learning, a shard's share, the user's pattern."""

from __future__ import annotations

from dataclasses import replace

from shoal.errors import UserError, name_of
from shoal.factories import Factory, load_factory
from shoal.options import Acting, Experience, Sequences
from shoal.replay import MinSize, Pattern, SamplesPerInsert, Table
from shoal.replay.patterns import Viewed
from shoal.replay.views import Transition


def limiter(samples_per_insert: float, min_size: int, batch: int, block: int) -> MinSize | SamplesPerInsert:
    """Acting and learning at a ratio, or with 0 each at its own pace once there are `min_size` items.

    Neither side waits for less than a batch (of those asked for ahead) and a block of items, so that both work in turn
    and not in lockstep.
    """
    if not samples_per_insert:
        return MinSize(min_size)
    return SamplesPerInsert(samples_per_insert, min_size, error_buffer=2 * batch + samples_per_insert * block)


def share_of(table: Table, shards: int) -> Table:
    waits = table.limiter
    if isinstance(waits, MinSize):
        waits = replace(waits, items=-(-waits.items // shards))
    elif isinstance(waits, SamplesPerInsert):
        waits = replace(waits, min_size=-(-waits.min_size // shards))
    return replace(table, capacity=-(-table.capacity // shards), limiter=waits)


def pattern_of(cfg: Acting, usual: Pattern) -> Pattern:
    """The pattern that --pattern names, where there is such an option, or the `usual` one, whose items the learner can
    read."""
    if not isinstance(cfg, Experience) or cfg.pattern is None:
        return usual
    pattern, name = _users_pattern(cfg.pattern, cfg), name_of(cfg.pattern)
    if pattern.view.timed != usual.view.timed:
        kinds = {True: "sequences", False: "transitions"}
        raise UserError(
            f"--pattern {name} makes {kinds[pattern.view.timed]}, and the learner reads "
            f"{kinds[usual.view.timed]}: give a pattern of those."
        )
    if isinstance(cfg, Sequences) and usual.view.timed and pattern.rows < cfg.burn_in + 2:
        raise UserError(
            f"--pattern {name} makes items of {pattern.rows} rows, of which --burn-in {cfg.burn_in} leaves "
            "nothing to train: make longer ones or burn in less."
        )
    if isinstance(pattern.view, Transition) and isinstance(usual.view, Transition):
        following = tuple(dict.fromkeys((*pattern.view.following, *usual.view.following)))
        return Viewed(pattern, replace(pattern.view, following=following))
    return pattern


def _users_pattern(given: Factory, cfg: Experience) -> Pattern:
    name, factory = name_of(given), load_factory(given, "pattern")
    try:
        made = factory(cfg)
    except Exception as error:
        raise UserError(f"The pattern {name} could not be made: {type(error).__name__}: {error}.") from error
    if not all(hasattr(made, part) for part in ("rows", "view", "spans")):
        raise UserError(f"The pattern {name} returned {type(made).__name__}: return a shoal.replay.Pattern.")
    return made  # type: ignore[no-any-return]
