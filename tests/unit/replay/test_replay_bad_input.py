"""Bad input gets one sentence that names the field, and changes nothing."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
from replay_model import Single, audit

from shoal.replay import (
    Appended,
    Block,
    Inserted,
    MinSize,
    Prioritized,
    Queue,
    Quota,
    Replay,
    ReplayTimeout,
    SamplesPerInsert,
    ShardedReplay,
    Spans,
    Table,
    Writer,
    n_step,
    rollout,
    sequence,
)
from shoal.replay.views import Whole


def rows(count: int = 4, environments: int = 2) -> dict[str, np.ndarray]:
    return {
        "observation": np.zeros((count, environments, 3), np.float32),
        "reward": np.ones((count, environments), np.float32),
        "terminated": np.zeros((count, environments), bool),
        "valid": np.ones((count, environments), bool),
    }


@pytest.fixture
def replay() -> Replay:
    service = Replay([Table("table", 100), Table("other", 100)])
    Writer(service, {"table": n_step(2, 0.9)}, name="first").append(rows())
    return service


def state(service: Replay) -> tuple[object, ...]:
    info = service.info()["table"]
    stores = [(store.used, store.references.sum()) for store in service._intake.stores.values()]
    return info["size"], info["inserts"], info["samples"], info["stale_updates"], stores


def refused(service: Replay, words: str, call) -> None:
    before = state(service)
    with pytest.raises(ValueError, match=words) as raised:
        call()
    assert "\n" not in str(raised.value)
    assert state(service) == before
    audit(service)


def change(**columns: np.ndarray | None) -> dict[str, np.ndarray]:
    return {name: values for name, values in {**rows(), **columns}.items() if values is not None}


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        (change(extra=np.zeros((4, 2))), "column 'extra' is not among those"),
        (change(observation=None), "column 'observation' is missing"),
        (change(observation=np.zeros((4, 2, 5), np.float32)), r"'observation' has rows of shape \(5,\).*\(3,\)"),
        (change(reward=np.ones((4, 2))), "'reward' is float64; table 'table' has float32"),
        (change(reward=np.ones((3, 2), np.float32)), r"'reward' has \(3, 2\) rows and environments"),
        (change(reward=np.ones(4, np.float32)), r"'reward' has shape \(4,\); columns are \[time, environment"),
        (change(reward=np.full((4, 2), None)), "'reward' holds Python objects"),
        ({}, "needs a column, a row and an environment"),
        ({name: values[:0] for name, values in rows().items()}, "needs a column, a row and an environment"),
    ],
)
def test_wrong_columns(replay: Replay, columns: dict[str, np.ndarray], words: str) -> None:
    refused(replay, words, lambda: Writer(replay, {"table": n_step(2, 0.9)}).append(columns))


def test_a_writers_columns_stay_the_same(replay: Replay) -> None:
    writer = Writer(replay, {"table": n_step(2, 0.9)})
    writer.append(rows())
    refused(replay, "column 'reward' is float64 of shape", lambda: writer.append(change(reward=np.ones((4, 2)))))
    refused(replay, "'reward' is missing in these rows", lambda: writer.append(change(reward=None)))
    refused(replay, "'more' is bool of .* missing before", lambda: writer.append(change(more=np.ones((4, 2), bool))))
    refused(replay, "of 3 environments and the ones before of 2", lambda: writer.append(rows(environments=3)))
    assert writer.append(rows()).accepted == {"table": 8}, "and it goes on as if nothing had happened"
    audit(replay)


def test_unknown_tables(replay: Replay) -> None:
    words = "there is no table 'nowhere'; there are 'table', 'other'"
    keys, priorities = np.array([1]), np.array([1.0])
    refused(replay, words, lambda: Writer(replay, {"nowhere": n_step(1, 0.9)}).append(rows()))
    refused(replay, words, lambda: replay.sample("nowhere", 1))
    refused(replay, words, lambda: replay.update_priorities("nowhere", keys, priorities))
    refused(replay, words, lambda: replay.delete("nowhere", keys))
    refused(replay, words, lambda: replay.trim("nowhere"))
    refused(replay, words, lambda: replay.mass("nowhere"))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -1.0])
def test_priorities_that_are_not_finite_and_positive(replay: Replay, bad: float) -> None:
    words = "table 'table' was given the priority (nan|inf|-1.0); priorities are finite and not negative"
    keys = replay.sample("table", 2).keys
    refused(replay, words, lambda: replay.update_priorities("table", keys, np.array([1.0, bad])))
    writer = Writer(replay, {"table": n_step(2, 0.9)}, priority_columns=["reward"])
    refused(replay, words, lambda: writer.append(rows(), bad))
    refused(replay, words, lambda: writer.append(rows(), lambda data: np.full(len(data["reward"]), bad)))
    words = r"the priority function for table 'table' gave shape \(1,\) for 4 items"
    refused(replay, words, lambda: writer.append(rows(), lambda data: np.ones(1)))
    assert writer.append(rows()).accepted == {"table": 4}


def test_a_priority_function_without_columns(replay: Replay) -> None:
    writer = Writer(replay, {"table": n_step(2, 0.9)})
    refused(replay, "priority_columns=", lambda: writer.append(rows(), lambda data: np.ones(4)))


def test_columns_that_a_writer_was_told_of_and_never_gets(replay: Replay) -> None:
    writer = Writer(replay, {"table": n_step(2, 0.9)}, transient=["value"])
    refused(replay, "column 'value' is named by the writer", lambda: writer.append(rows()))


def test_keys_and_priorities_of_different_lengths(replay: Replay) -> None:
    keys = replay.sample("table", 2).keys
    refused(
        replay,
        r"keys of shape \(2,\) and priorities of \(3,\)",
        lambda: replay.update_priorities("table", keys, np.ones(3)),
    )


def test_items_longer_than_the_chunk_window(replay: Replay) -> None:
    words = "length=40000 must be a whole number from 1 to 32,766"
    refused(replay, words, lambda: Writer(replay, {"other": sequence(40_000)}, name="long").append(rows()))
    both = sequence(32_000, stack={"observation": 1024})
    words = "items of writer 'long' reach over 33,024 rows; the chunk window is 32,767"
    refused(replay, words, lambda: Writer(replay, {"other": both}, name="long").append(rows()))


def test_a_pattern_other_than_the_tables(replay: Replay) -> None:
    refused(replay, "it cannot also hold", lambda: Writer(replay, {"table": n_step(3, 0.9)}).append(rows()))


def test_a_pattern_without_the_columns_that_it_needs(replay: Replay) -> None:
    fresh = Replay([Table("table", 10)])
    columns = change(terminated=None)
    refused(fresh, "'terminated' is missing; the pattern of table 'table' needs it",
            lambda: Writer(fresh, {"table": n_step(1, 0.9)}).append(columns))  # fmt: skip
    refused(
        fresh, "'frame' is missing", lambda: Writer(fresh, {"table": n_step(1, 0.9, stack={"frame": 4})}).append(rows())
    )


def test_a_signature_is_checked(replay: Replay) -> None:
    signature = {"observation": ((3,), np.float32), "reward": ((), "f4"), "state/core": ((2,), "f8")}
    fresh = Replay([Table("table", 10, signature=signature)])
    state_column = {"state/core": np.zeros((4, 2, 2))}
    missing = "column 'state/core' is missing; the signature of table 'table' names it"
    refused(fresh, missing, lambda: Writer(fresh, {"table": Single()}).append(rows()))
    wrong = (
        r"column 'observation' is float64 of shape \(3,\); the signature of table 'table' says float32 of shape \(3,\)"
    )
    columns = change(observation=np.zeros((4, 2, 3)), **state_column)
    refused(fresh, wrong, lambda: Writer(fresh, {"table": Single()}).append(columns))
    Writer(fresh, {"table": Single()}).append({**rows(), **state_column})
    assert set(fresh.sample("table", 1).data) == {"observation", "reward", "state/core"}


@dataclass(frozen=True)
class Wrong:
    """A pattern that describes rows that are not there."""

    spans_of: Spans
    rows: int = 3
    view: Whole = Whole(3)  # noqa: RUF009 -- frozen

    def spans(self, block: Appended) -> Spans:
        return self.spans_of


@pytest.mark.parametrize(
    ("environment", "start", "length", "history"),
    [(2, 0, 3, 0), (-1, 0, 3, 0), (0, 2, 3, 0), (0, 0, 0, 0), (0, 0, 3, -1), (0, 0, 3, 3)],
)
def test_items_outside_of_what_was_sent(replay: Replay, environment, start, length, history) -> None:
    spans = Spans(*(np.array([value]) for value in (environment, start, length, history)))
    words = "an item for table 'other' lies outside of the rows"
    refused(replay, words, lambda: Writer(replay, {"other": Wrong(spans)}, name="wrong").append(rows()))


def test_an_item_longer_than_its_writer_said(replay: Replay) -> None:
    spans = Spans(*(np.array([value]) for value in (0, 0, 4, 0)))
    words = "an item of 4 rows for 'other' is longer than its writer's window, 3"
    refused(replay, words, lambda: Writer(replay, {"other": Wrong(spans)}, name="wrong").append(rows()))


def test_priorities_and_items_of_different_number(replay: Replay) -> None:
    sent: list[Block] = []

    class Catch:
        def insert(self, block: Block, timeout: float | None = None) -> Inserted:
            sent.append(block)
            return Inserted({}, {})

        def forget_writer(self, name: str) -> None: ...

    Writer(Catch(), {"table": n_step(2, 0.9)}).append(rows())
    items = replace(sent[0].items["table"], priorities=np.ones(3))
    block = replace(sent[0], items={"table": items})
    refused(replay, "was sent 4 items with 3 priorities", lambda: replay.insert(block))


def test_impossible_samples(replay: Replay) -> None:
    refused(replay, "can never come from table 'table'", lambda: replay.sample("table", 101))
    refused(replay, "batch of a sample of table 'table'=0 must be", lambda: replay.sample("table", 0))
    refused(replay, "1 <= minimum <= batch", lambda: replay.sample("table", 3, minimum=4))
    refused(replay, "neither 'time' nor 'batch'", lambda: replay.sample("table", 3, layout="row"))  # type: ignore[arg-type]


def test_a_quota_needs_versions() -> None:
    fresh = Replay([Table.quota("table", 4)])
    refused(fresh, "send a column 'version'", lambda: Writer(fresh, {"table": Single()}).append(rows()))


NAN, INF, HUGE = float("nan"), float("inf"), 1e308


@pytest.mark.parametrize("timeout", [NAN, -1.0, -INF, "1", True])
def test_a_timeout_that_is_none_is_refused_and_not_waited_for(replay: Replay, timeout: object) -> None:
    fresh = Replay([Table("table", 10)])
    block = Block("w", "life", 0, 0, 1, rows(), {})
    for call in (
        lambda: fresh.sample("table", 1, timeout=timeout),  # type: ignore[arg-type]
        lambda: fresh.mass("table", timeout),  # type: ignore[arg-type]
        lambda: fresh.insert(block, timeout),  # type: ignore[arg-type]
        lambda: ShardedReplay([fresh]).sample("table", 1, timeout=timeout),  # type: ignore[arg-type]
    ):
        refused(fresh, r"timeout=.* must be seconds, 0 or more, or None", call)


@pytest.mark.parametrize("timeout", [INF, HUGE, 1e10])
def test_an_endless_timeout_is_to_wait_without_limit(replay: Replay, timeout: float) -> None:
    assert len(replay.sample("table", 2, timeout=timeout)) == 2


@pytest.mark.parametrize("priority", [HUGE, 1e31, INF, NAN, -1.0, -1e-300])
def test_priorities_beyond_all_measure(replay: Replay, priority: float) -> None:
    key = replay.sample("table", 1).keys
    words = "was given the priority .*; priorities are finite and not negative, at most 1e.30"
    refused(replay, words, lambda: replay.update_priorities("table", key, np.array([priority])))
    sharded = ShardedReplay([replay])
    refused(replay, words, lambda: sharded.update_priorities("table", key, np.array([priority])))
    refused(replay, words, lambda: Writer(replay, {"other": n_step(2, 0.9)}).append(rows(), priority))


@pytest.mark.parametrize("exponent", [0.0, 0.6, 1.0, 8.0])
@pytest.mark.parametrize("priority", [1e30, 1e-30, 5e-324])
def test_the_largest_and_smallest_priorities_can_be_drawn(priority: float, exponent: float) -> None:
    replay = Replay([Table("table", 10_000, sampler=Prioritized(exponent))])
    Writer(replay, {"table": Single()}).append(rows(5_000, 2), priority)
    sample = replay.sample("table", 64)
    assert np.isfinite(sample.probabilities).all()
    assert (sample.probabilities > 0).all()


@pytest.mark.parametrize("shift", [0.0, 0.5], ids=["float", "fraction"])
def test_keys_that_are_not_whole_numbers_are_refused(replay: Replay, shift: float) -> None:
    keys = replay.sample("table", 2).keys
    for service in (replay, ShardedReplay([replay])):
        words = "keys are whole numbers in one row"
        refused(replay, words, lambda service=service: service.update_priorities("table", keys + shift, np.ones(2)))
        refused(replay, words, lambda service=service: service.delete("table", keys + shift))
    refused(replay, words, lambda: replay.update_priorities("table", np.array([True, False]), np.ones(2)))
    refused(replay, "below 2..63", lambda: replay.delete("table", np.array([2**64 - 1], np.uint64)))
    assert replay.delete("table", np.array([-1, 0, 2**62])) == 0
    assert replay.update_priorities("table", [], []) == 0


def test_an_item_whose_key_is_named_twice_is_deleted_once(replay: Replay) -> None:
    whole = replay.info()["table"]["size"]
    for deleted, service in enumerate((replay, ShardedReplay([replay])), 1):
        key = int(replay.sample("table", 1).keys[0])
        assert service.delete("table", np.array([key, key, key])) == 1
        info = replay.info()["table"]
        assert (info["size"], info["deletes"]) == (whole - deleted, deleted)
        audit(replay)


@pytest.mark.parametrize("value", [NAN, INF, -INF, HUGE, -1, 1.5, True, "3", None, 2**40])
def test_numbers_that_are_none_are_refused_wherever_they_are_given(value: object) -> None:
    number: object = value
    makers = [
        lambda: Table("t", number),
        lambda: Table("t", 10, max_times_sampled=number),
        lambda: MinSize(number),
        lambda: Queue(number),
        lambda: Quota(number),
        lambda: SamplesPerInsert(1.0, number, 5.0),
        lambda: n_step(number, 0.9),
        lambda: sequence(number),
        lambda: rollout(number),
        lambda: Replay([Table("t", 10)], chunk_length=number if number is not None else 0),
        lambda: Replay([Table("t", 10)]).sample("t", number, timeout=0),
        lambda: Replay([Table("t", 10)]).sample("t", 2**30 if number is None else 5, minimum=number, timeout=0),
        lambda: Writer(Replay([Table("t", 10)]), {"t": Single()}, rows=number),
    ]
    for make in makers:
        with pytest.raises((ValueError, ReplayTimeout) if number is None else ValueError, match=r"^[^\n]+$"):
            make()
    if not isinstance(number, int) or isinstance(number, bool) or number < 0:
        with pytest.raises(ValueError, match=r"seed=.* must be a whole number"):
            Replay([Table("t", 10)], seed=number)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [NAN, INF, -INF, HUGE, -1.0, "3", None])
def test_fractions_that_are_none_are_refused(value: object) -> None:
    for make in (
        lambda: Prioritized(value),
        lambda: SamplesPerInsert(value, 1, 5.0),
        lambda: SamplesPerInsert(1.0, 1, value),
        lambda: n_step(1, value),
    ):
        with pytest.raises(ValueError, match=r"=.* must be a (finite )?number"):
            make()


def test_a_batch_beyond_what_there_can_be_is_what_there_can_be(replay: Replay) -> None:
    assert len(replay.sample("table", 10**9, minimum=1)) == 100


def test_an_item_of_priority_zero_waits_for_a_new_one() -> None:
    """It is not drawn while others are above zero, however rarely; with a new priority it is, and so are all zeros."""
    replay = Replay([Table("table", 10, sampler=Prioritized(1.0))])
    Writer(replay, {"table": Single()}).append(rows(2, 1))
    first, second = sorted(
        set(replay.sample("table", 10).keys.tolist()) | set(replay.sample("table", 10).keys.tolist())
    )
    replay.update_priorities("table", [first, second], [0.0, 1e-30])
    assert set(replay.sample("table", 10).keys.tolist()) == {second}
    replay.update_priorities("table", [first], [1.0])
    assert first in replay.sample("table", 10).keys
    replay.update_priorities("table", [first, second], [0.0, 0.0])
    assert set(np.concatenate([replay.sample("table", 10).keys for _ in range(4)]).tolist()) == {first, second}
