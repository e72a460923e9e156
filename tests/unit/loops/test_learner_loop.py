"""The learner's side of prioritised replay: what it is given, what it sends back, and what it reports."""

from __future__ import annotations

import contextlib
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from shoal.learning import Learning, Taken, Update
from shoal.loops.keeper import LOOK, SNAPSHOT_EVERY, SNAPSHOT_SHARE, Keeper
from shoal.loops.learner import LEARNER, MAX_REFUSED, LearnerLoop, NonFinite
from shoal.loops.prefetch import Prefetch
from shoal.loops.sources import PATIENCE, TableSource, transitions
from shoal.nets.targets import Target
from shoal.nets.weights import export_weights
from shoal.program import Capabilities, Context, Done, NodeDied
from shoal.replay import MinSize, Prioritized, Replay, ReplayTimeout, Table, Writer, n_step
from shoal.services.metrics import Metrics
from shoal.services.weights import WeightStore
from shoal.state import Stateful, as_tensors
from shoal.versions import NONE, make_version, number, updates_between

BATCH, CAPACITY, ITEMS = 8, 2000, 2150


class Recording(Stateful):
    """Learns nothing; gives every item a priority of its own, which its reward tells."""

    not_state = ("batches",)

    def __init__(self) -> None:
        self.batches: list[dict[str, Any]] = []
        self.network = nn.Linear(1, 1)

    def update(self, batch: dict[str, Any]) -> Update:
        self.batches.append(batch)
        return Update({"loss": 0.5}, priorities=new_priority(batch["reward"]))


def new_priority(reward: Any) -> Any:
    return 1_000_000.0 + 3.0 * reward  # so large that each of them is drawn again


def filled() -> Replay:
    """Items whose rewards are 0, 1, 2, … and whose priorities are one more; all of version 2."""
    table = Table("items", CAPACITY, sampler=Prioritized(0.6), limiter=MinSize(1), soft_capacity=True)
    replay = Replay([table], seed=1)
    writer = Writer(replay, {"items": n_step(1, 0.9)})
    for row in range(ITEMS + 1):
        columns = {
            "observation": np.zeros((1, 1, 2), np.float32),
            "reward": np.full((1, 1), row, np.float32),
            "terminated": np.zeros((1, 1), bool),
            "valid": np.ones((1, 1), bool),
            "version": np.full((1, 1), make_version(0, 2)),
        }
        writer.append(columns, float(row))  # the item that it completes began one row before
    return replay


def loop_over(
    replay: Replay,
    metrics: Metrics,
    made: Recording | None = None,
    weights: WeightStore | None = None,
    **options: Any,
) -> tuple[LearnerLoop, Recording]:
    made, weights = made or Recording(), weights or WeightStore()
    reading = {name: options.pop(name) for name in ("trim_every", "synchronous") if name in options}
    return LearnerLoop(lambda seed: made, reads(replay, beta=0.4, **reading), weights, metrics, **options), made


def reads(replay: Any, **options: Any) -> Any:
    space = spaces.Box(-1.0, 1.0, (2,))
    return partial(TableSource, replay=replay, table="items", batch=BATCH, observation_space=space, **options)


def source_over(replay: Any, rank: int = 0, **where: Any) -> TableSource:
    """A source by itself, for a learner that stands at these counts."""
    learning = Learning(Recording(), torch.device("cpu"), rank=rank, learners=rank + 1, **where)
    return cast(TableSource, reads(replay)(learning))


def test_importance_weights_come_with_the_batch_and_priorities_go_back() -> None:
    replay = filled()
    loop, made = loop_over(replay, Metrics())
    loop.step()
    (batch,) = made.batches
    assert all(isinstance(column, torch.Tensor) for name, column in batch.items() if name != "state")
    rewards = batch["reward"].numpy()
    assert len(set(rewards)) > BATCH // 2  # priorities that went to another item would be seen
    drawn = rewards.astype(np.float64) + 1.0
    probability = drawn**0.6 / (np.arange(1, ITEMS + 1) ** 0.6).sum()
    weights = (ITEMS * probability) ** -0.4
    np.testing.assert_allclose(batch["importance"], weights / weights.max(), rtol=1e-5)
    again = replay.sample("items", CAPACITY)
    seen = np.isin(again.data["reward"], rewards)
    assert set(again.data["reward"][seen]) == set(rewards)
    np.testing.assert_array_equal(again.priorities[seen], new_priority(again.data["reward"][seen]))
    assert (again.priorities[~seen] == again.data["reward"][~seen] + 1.0).all()


def test_what_is_over_the_soft_capacity_goes_when_it_is_time() -> None:
    replay = filled()
    loop, _ = loop_over(replay, Metrics(), trim_every=3)
    sizes = []
    for _ in range(4):
        loop.step()
        sizes.append(replay.info()["items"]["size"])
    assert sizes == [ITEMS, ITEMS, CAPACITY, CAPACITY]


def test_of_several_learners_the_first_alone_cuts_the_table_down() -> None:
    replay = filled()
    loop, _ = loop_over(replay, Metrics(), trim_every=1)
    sizes = []
    for loop._learning.rank in (1, 0):
        loop.step()
        sizes.append(replay.info()["items"]["size"])
    assert sizes == [ITEMS, CAPACITY]


def test_reports_say_what_users_of_replay_look_for(monkeypatch: pytest.MonkeyPatch) -> None:
    always = Context(runtime=Capabilities(report_seconds=0.0))
    monkeypatch.setattr("shoal.services.metrics.current", lambda: always)
    metrics = Metrics()
    loop, made = loop_over(filled(), metrics)
    for _ in range(5):
        loop.step()
    values = metrics.snapshot()["values"]
    last = made.batches[-1]
    assert values["staleness"] == 4 - 2  # four updates were made before the last, and its items are of version 2
    assert values["importance_max"] == last["importance"].max() == 1.0
    assert values["importance_min"] == pytest.approx(float(last["importance"].min()))
    assert values["priority_min"] <= values["priority_mean"] <= values["priority_max"]
    assert values["replay_size"] == ITEMS
    assert values["replay_age_seconds"] >= 0.0
    assert values["loss"] == 0.5


def test_the_share_of_a_batch_is_weighted_by_the_whole_batchs_largest() -> None:
    sample = filled().sample("items", BATCH)
    alone = sample.importance_weights(0.4)
    np.testing.assert_allclose(sample.importance_weights(0.4, lambda own: 2.0 * own), alone / 2.0, rtol=1e-6)


def test_an_actors_staleness_counts_updates() -> None:
    assert updates_between(make_version(0, 7), make_version(0, 12)) == 5
    assert updates_between(NONE, make_version(0, 12)) == 0
    assert updates_between(make_version(0, 7), make_version(1, 3)) == 0  # of learners that started again


def test_weights_are_published_every_so_many_updates_and_once_more_with_the_report() -> None:
    weights = WeightStore()
    loop, _ = loop_over(filled(), Metrics(), publish_every=2, weights=weights)
    published = []
    for _ in range(5):
        loop.step()
        published.append(number(weights.version()))
    assert published == [0, 2, 2, 4, 4]
    loop.report()
    assert number(weights.version()) == 5
    weights.publish({}, make_version(9, 9))
    loop.report()  # there is nothing newer to publish
    assert weights.version() == make_version(9, 9)


def test_a_learner_makes_exactly_the_updates_it_is_given() -> None:
    loop, made = loop_over(filled(), Metrics(), max_updates=3)
    assert [loop.step() for _ in range(4)] == [True, True, True, False]
    assert len(made.batches) == 3


def test_as_many_batches_are_asked_for_as_are_to_be_under_way() -> None:
    asked = 0

    def request() -> Any:
        nonlocal asked
        asked += 1

    for ahead in (0, 2):
        asked = 0
        Prefetch(request, None, torch.device("cpu"), ahead=ahead).ask()
        assert asked == ahead + 1


def test_a_replay_that_is_lost_is_waited_for_and_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr("shoal.retry.monotonic", lambda: clock[0])
    monkeypatch.setattr("shoal.retry.sleep", lambda seconds: clock.__setitem__(0, clock[0] + seconds))

    class Gone:
        def result(self) -> Any:
            raise NodeDied("replay")

    prefetch = Prefetch(lambda: cast(Any, Gone()), None, torch.device("cpu"))
    with pytest.raises(NodeDied):
        prefetch.take()
    patience = Capabilities().restart_seconds
    assert patience < clock[0] < patience + 1.0


class Script:
    """Answers of a replay, one after the other; errors are raised."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)

    def result(self) -> Any:
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def test_whoever_waits_for_data_looks_around_and_counts_what_was_lost_with_a_replay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("shoal.retry.sleep", lambda seconds: None)
    sample, looked = filled().sample("items", BATCH), []
    script = Script(sample, ReplayTimeout("none"), ReplayTimeout("none"), NodeDied("gone"), NodeDied("gone"), sample)
    prefetch = Prefetch(
        lambda: cast(Any, script), spaces.Box(-1.0, 1.0, (2,)), torch.device("cpu"), idle=lambda: looked.append(1)
    )
    prefetch.take()
    assert (prefetch.there, looked) == (ITEMS - BATCH, [])
    prefetch.take()
    assert len(looked) == 4
    assert prefetch.lost_items == ITEMS - BATCH, "once, though it did not answer twice"
    assert prefetch.there == ITEMS - BATCH


def test_items_lost_with_shards_are_counted_as_the_front_says_and_never_taken_back() -> None:
    replay = Told(*({"lost_items": lost} for lost in (3, 5, 2)))  # a front that was started again begins anew
    source = source_over(replay)
    found = []
    for _ in range(4):
        source.measure(taken_of(np.array([0])))
        found.append(source.counts().get("lost_items"))
    assert found == [None, 3, 5, 7]


def test_items_lost_with_a_replay_are_counted_by_the_first_of_several_learners(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("shoal.retry.sleep", lambda seconds: None)
    for rank, counted in ((0, ITEMS - BATCH), (1, None)):
        sample = filled().sample("items", BATCH)
        source = source_over(SimpleNamespace(sample=Answers(sample, NodeDied("gone"), sample)), rank)
        source.take()
        source.take()
        assert source.counts().get("lost_items") == counted


class Answers:
    """What a replay says to one call after the other."""

    def __init__(self, *answers: Any) -> None:
        self._script = Script(*answers)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self._script.result()


class Told:
    """A replay that tells these things of its table, one after the other."""

    def __init__(self, *told: dict[str, Any]) -> None:
        self._told = list(told)

    def info(self) -> Any:
        table = {"size": 0, "inserts_per_second": 0.0}
        return {"items": table | (self._told.pop(0) if self._told else {})}


def taken_of(version: Any, **data: Any) -> Taken:
    """A batch that was acted with these versions."""
    sample = SimpleNamespace(data={"version": version, **data}, priorities=np.ones(1))
    return Taken({}, 0, sample)


def test_what_the_last_look_at_the_table_said_is_what_would_be_lost_with_it() -> None:
    source = source_over(Told({"size": 77}))
    source.measure(taken_of(np.array([make_version(0, 1)])))
    source.measure(taken_of(np.array([make_version(0, 1)])))
    assert source._prefetch.there == 77


def test_a_restarted_learner_counts_the_updates_that_its_snapshot_has_not(monkeypatch: pytest.MonkeyPatch) -> None:
    weights, metrics = WeightStore(), Metrics()
    first, _ = loop_over(filled(), Metrics(), weights=weights)
    for _ in range(3):
        first.step()
    weights.keep_snapshot(LEARNER, first.state_dict())
    weights.publish(export_weights(nn.Linear(1, 1)), make_version(0, 5))
    monkeypatch.setattr("shoal.loops.learner.current", lambda: Context("learner", 1, 1))
    again, _ = loop_over(filled(), metrics, weights=weights, max_updates=3)
    assert again.step() is False
    assert again.updates == 3
    counts = metrics.snapshot()["counts"]
    assert (counts["learner_steps"], counts["lost_updates"]) == (3, 2), "what the weights have had, and what is lost"
    assert weights.version() == make_version(1, 3)


def test_snapshots_are_kept_when_they_are_due_and_not_with_every_update(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, kept = [50.0], []
    monkeypatch.setattr("shoal.loops.keeper.monotonic", lambda: clock[0])

    class Keeping(WeightStore):
        def keep_snapshot(self, node: str, state: Any) -> None:
            kept.append(state["updates"])

    loop, _ = loop_over(filled(), Metrics(), weights=Keeping())
    for clock[0] in (50.0, 51.0, 50.0 + SNAPSHOT_EVERY, 52.5):
        loop.step()
    assert kept == [0, 3]


def test_a_keeper_looks_now_and_then_and_lacks_only_what_is_older(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, asked = [50.0], []
    monkeypatch.setattr("shoal.loops.keeper.monotonic", lambda: clock[0])

    class Asked(WeightStore):
        def version(self) -> int:
            asked.append(clock[0])
            return 5

    keeper = Keeper(Asked())
    keeper.keep(lambda: {"learner": {}})
    found = []
    for clock[0], version in ((50.0, 5), (50.1, 6), (50.0 + LOOK, 6)):
        found.append(keeper.lacks(version))
        found.append(keeper.due())
    assert found == [False, False, False, False, True, True], "who has lost the weights has lost the snapshot"
    assert asked == [50.0, 50.0 + LOOK]


def test_targets_begin_with_weights_that_come_without_a_state() -> None:
    made = Recording()
    made.target = Target(made.network, 10)  # type: ignore[attr-defined]
    loop, _ = loop_over(filled(), Metrics(), made=made)
    other = nn.Linear(1, 1)
    loop.load_state_dict({"updates": 0, "refused": 0, "weights": export_weights(other)})
    assert made.target.drift() == 0.0  # type: ignore[attr-defined]
    assert torch.equal(made.network.weight, other.weight)


def test_learners_that_meet_again_let_what_lost_ones_asked_for_pass_by(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    member = SimpleNamespace(generation=3, largest=float, rank=0, size=2)
    monkeypatch.setattr("shoal.loops.learner.sleep", slept.append)
    weights, made = WeightStore(), Recording()

    def step() -> None:
        join = cast(Any, lambda: member)
        LearnerLoop(lambda seed, peers: made, reads(filled()), weights, Metrics(), join=join, max_updates=0).step()

    step()
    assert slept == [], "there is nobody before the first"
    step()
    assert slept == [2 * PATIENCE]
    assert weights.version() == make_version(3, 0)


def test_of_several_learners_the_first_alone_ends_by_itself() -> None:
    loop, _ = loop_over(filled(), Metrics())
    loop.step()
    loop._leads = False
    loop.finish()
    assert loop.step() is True
    loop._leads = True
    loop.finish()
    assert loop.step() is False


def test_a_slice_trains_its_valid_rows_but_the_last_and_a_transition_is_one() -> None:
    valid = np.array([[True, True], [False, True], [True, True]])
    assert transitions({"valid": valid, "version": np.zeros((3, 2))}) == 3
    assert transitions({"valid": np.ones(5, bool), "version": np.zeros(5)}) == 5


def test_updates_that_are_refused_in_a_row_end_the_learner_and_one_in_between_forgives() -> None:
    class Refusing(Recording):
        def update(self, batch: dict[str, Any]) -> Update:
            self.batches.append(batch)
            return Update({}, applied=len(self.batches) == MAX_REFUSED)

    metrics, made = Metrics(), Refusing()
    loop, _ = loop_over(filled(), metrics, made=made)
    for _ in range(2 * MAX_REFUSED - 1):
        loop.step()
    assert loop.progress == 1
    with pytest.raises(NonFinite, match=f"in {MAX_REFUSED} updates in a row"):
        loop.step()
    loop.report()
    assert metrics.snapshot()["counts"]["refused_updates"] == 2 * MAX_REFUSED - 1


def test_a_learner_goes_on_with_its_count_of_updates() -> None:
    loop, _ = loop_over(filled(), Metrics())
    for _ in range(3):
        loop.step()
    state = loop.state_dict()
    assert (state["updates"], state["refused"]) == (3, 0)
    again, _ = loop_over(filled(), Metrics())
    again.load_state_dict(as_tensors(state))
    assert again.state_dict()["updates"] == 3


def test_the_weights_that_are_left_tell_how_many_updates_were_made(monkeypatch: pytest.MonkeyPatch) -> None:
    weights = WeightStore()
    weights.publish(export_weights(nn.Linear(1, 1)), make_version(0, 41))
    monkeypatch.setattr("shoal.loops.learner.current", lambda: Context("learner", 1, 1))
    loop_over(filled(), Metrics(), weights=weights, max_updates=41)[0].step()
    assert weights.version() == make_version(1, 41)


def test_staleness_is_that_of_rows_that_exist_and_the_ratio_is_samples_per_insert() -> None:
    source = source_over(Told({"size": 7, "inserts_per_second": 4.0, "samples_per_second": 10.0}), updates=11)
    version = np.array([[make_version(0, 4), make_version(0, 8)], [make_version(0, 6), 0]])
    taken = taken_of(version, mask=np.array([[True, True], [True, False]]))
    source.measure(taken)
    values = source.measure(taken)
    assert values["staleness"] == 10 - 6.0
    assert (values["samples_per_insert"], values["replay_size"]) == (2.5, 7)


def test_staleness_is_never_negative_also_after_a_restart_that_lost_updates() -> None:
    """A learner that had made 21 updates goes on from 12: what its former life acted with counts as where it began."""
    source = source_over(Told(), updates=12, begun=12, generation=1)
    assert source.measure(taken_of(np.full(4, make_version(0, 21))))["staleness"] == 0.0
    source = source_over(Told(), updates=15, begun=12, generation=1)
    former = np.array([make_version(0, 21), make_version(0, 10), make_version(1, 14)])
    assert source.measure(taken_of(former))["staleness"] == pytest.approx(np.mean([14 - 12, 14 - 10, 0]))


def test_snapshots_take_a_small_part_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [50.0]
    monkeypatch.setattr("shoal.loops.keeper.monotonic", lambda: clock[0])

    class Slow(WeightStore):
        def keep_snapshot(self, node: str, state: Any) -> None:
            clock[0] += 0.5

    loop, _ = loop_over(filled(), Metrics(), weights=Slow(), max_updates=0)
    loop.step()
    assert loop._keeper._next_snapshot == pytest.approx(50.0 + 0.5 / SNAPSHOT_SHARE)


def test_a_weight_service_that_was_lost_gets_weights_and_snapshot_again(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [50.0]
    monkeypatch.setattr("shoal.loops.keeper.monotonic", lambda: clock[0])
    weights = WeightStore()
    loop, _ = loop_over(filled(), Metrics(), weights=weights)
    loop.step()
    published = weights.version()
    weights.load_state_dict(WeightStore().state_dict())  # as it comes back
    clock[0] += 2 * LOOK
    loop._look_around()
    assert weights.version() == published
    assert weights.newer() is not None
    assert weights.kept_snapshot(LEARNER)["updates"] == 1


def test_memory_of_a_batch_on_a_device_is_not_given_to_the_next_one_while_it_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Batches are copied on a stream of their own, whose allocator must be told of the one that reads them."""
    told: list[tuple[str, Any]] = []

    class Stream:
        def wait_stream(self, other: Any) -> None:
            told.append(("waits for", other))

    class OnDevice:
        def __init__(self, name: str) -> None:
            self.name = name

        def record_stream(self, stream: Any) -> None:
            told.append((self.name, stream))

    copies, reader = Stream(), Stream()
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: copies)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: reader)
    batch = {"reward": OnDevice("reward"), "observation": {"a": OnDevice("a")}, "state": {}}
    monkeypatch.setattr("shoal.loops.prefetch.to_batch", lambda *arguments: batch)
    sample = filled().sample("items", BATCH)
    Prefetch(lambda: Done(sample), None, torch.device("cuda"), ahead=0).take()
    assert told == [("waits for", copies), ("reward", reader), ("a", reader)]
