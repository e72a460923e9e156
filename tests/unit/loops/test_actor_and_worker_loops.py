"""Actors, workers and their publisher: where blocks go, which weights act, what is counted, what comes back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import numpy as np
import pytest
from gymnasium import spaces
from scripted import RememberingPolicy, ScriptedEnvs
from torch import nn

from shoal.envs import EnvFault
from shoal.learning import Update
from shoal.loops.actor import ActorLoop, RemoteActorLoop
from shoal.loops.keeper import LOOK
from shoal.loops.learner import NonFinite
from shoal.loops.loop import without_exact
from shoal.loops.worker import Publisher, WorkerLoop
from shoal.nets.weights import export_weights
from shoal.program import Context, Members
from shoal.replay import MinSize, Quota, Replay, Table, Uniform, rollout
from shoal.services.gradients import Answer as Pulled
from shoal.services.metrics import Metrics
from shoal.services.weights import WeightStore
from shoal.step import Step
from shoal.versions import NONE, make_version, number


class Saving(ScriptedEnvs):
    """Environments that can be saved in the middle of an episode."""

    def open_episodes(self) -> int:
        return self.count

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.steps = state["steps"]


def published(value: float = 1.0) -> WeightStore:
    store = WeightStore()
    store.publish({"w": np.array([value])}, make_version(0, 1))
    return store


def make_replay() -> Replay:
    return Replay([Table("rollouts", 100, sampler=Uniform(), limiter=MinSize(1))])


def make_actor(
    replays: list[Replay], store: WeightStore, rows: int = 2, metrics: Metrics | None = None, **options: Any
) -> ActorLoop:
    return ActorLoop(
        lambda seed: cast(Any, Saving([[[1.0] * 100]] * 2)),
        lambda seed: cast(Any, RememberingPolicy()),
        {"rollouts": rollout(rows)},
        rows,
        replays,
        store,
        metrics or Metrics(),
        **options,
    )


def sizes(replays: list[Replay]) -> list[int]:
    return [replay.info()["rollouts"]["inserts"] for replay in replays]


@pytest.mark.parametrize(("index", "expected"), [(0, [2, 0, 0]), (1, [0, 2, 0]), (2, [0, 0, 2]), (4, [0, 2, 0])])
def test_an_actor_writes_to_the_shard_of_its_own_place_among_the_actors(
    index: int, expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    replays = [make_replay() for _ in range(3)]
    monkeypatch.setattr("shoal.loops.actor.current", lambda: Context("actor", members=Members(index, 5)))
    actor = make_actor(replays, published())
    assert actor.step()
    assert sizes(replays) == expected
    for replay in replays:
        replay.close()


def test_what_follows_a_restored_state_is_a_stream_of_its_own_with_a_row_more() -> None:
    replay, store = make_replay(), published()
    first = make_actor([replay], store)
    first.step()  # 3 rows: the block's and one that bootstraps
    assert first._runner.envs.steps == 3  # type: ignore[attr-defined]
    first.step()  # 2 more: the one before is there already
    assert first._runner.envs.steps == 5  # type: ignore[attr-defined]
    second = make_actor([replay], store)
    second.load_state_dict(without_exact(first.state_dict("exact") or {}))
    assert second._runner.envs.steps == 5  # type: ignore[attr-defined]
    second.step()
    assert second._runner.envs.steps == 8  # type: ignore[attr-defined]
    assert replay.info()["rollouts"]["inserts"] == 2 * 3
    replay.close()


class Patient:
    """A weight service that remembers who waited, and who only asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.future = self

    def wait(self, than: int, timeout: float | None = None) -> Any:
        self.asked.append(f"wait {than if than == NONE else number(than)}")
        return make_version(0, len(self.asked)), {"w": np.array([float(len(self.asked))])}

    def newer(self, than: int) -> Any:
        raise AssertionError("a synchronous actor waits")


def test_a_synchronous_actor_waits_for_newer_weights_after_every_block() -> None:
    replay, weights = make_replay(), Patient()
    actor = make_actor([replay], cast(Any, weights), synchronous=True)
    actor.step()
    actor.step()
    assert weights.asked == ["wait -1", "wait 1", "wait 2"]
    assert actor._recorder.policy.loaded == [1.0, 2.0, 3.0]  # type: ignore[attr-defined]
    replay.close()


class Slow(Patient):
    """A weight service whose learner makes a version of every block, which is there one block later."""

    def wait(self, than: int, timeout: float | None = None) -> Any:
        newest = max(1, len(self.asked))
        self.asked.append(f"wait {than if than == NONE else number(than)}")
        return make_version(0, newest), {"w": np.array([float(newest)])}


def test_an_actor_that_acts_ahead_waits_for_weights_newer_than_those_of_the_block_before() -> None:
    replay, weights = make_replay(), Slow()
    actor = make_actor([replay], cast(Any, weights), synchronous=True, ahead=1)
    for _ in range(4):
        actor.step()
    assert weights.asked == ["wait -1", "wait -1", "wait 1", "wait 1", "wait 2"]
    assert actor._recorder.policy.loaded == [1.0, 2.0, 3.0, 4.0]  # type: ignore[attr-defined]
    replay.close()


def test_an_actor_that_acts_ahead_goes_on_where_it_was_with_what_acted_before() -> None:
    replay, weights = make_replay(), Slow()
    first = make_actor([replay], cast(Any, weights), synchronous=True, ahead=1)
    first.step()
    first.step()
    second = make_actor([replay], cast(Any, weights), synchronous=True, ahead=1)
    second.load_state_dict(first.state_dict("exact") or {})
    second.step()
    assert weights.asked[-1] == "wait 1"
    replay.close()


def test_while_there_are_fewer_actors_than_learners_take_blocks_of_each_acts_on_more_of_one_version() -> None:
    replay, weights = make_replay(), Slow()
    actor = make_actor([replay], cast(Any, weights), synchronous=True, ahead=3)  # and it is alone
    for _ in range(6):
        actor.step()
    assert weights.asked == ["wait -1", *["wait -1"] * 3, "wait 1", "wait 1", "wait 2"]
    replay.close()


class CallsTheEnd(Patient):
    """While somebody waits for newer weights in vain, the run is ended."""

    actor: ActorLoop

    def wait(self, than: int, timeout: float | None = None) -> Any:
        if than == NONE:
            return super().wait(than)
        assert len(self.asked) < 3, "it would wait for ever"
        self.asked.append("wait in vain")
        self.actor.finish()
        return None


def test_a_synchronous_actor_that_waits_when_the_run_ends_waits_no_longer() -> None:
    replay, weights = make_replay(), CallsTheEnd()
    weights.actor = make_actor([replay], cast(Any, weights), synchronous=True)
    assert weights.actor.step() is True
    assert weights.asked == ["wait -1", "wait in vain"]
    assert weights.actor.step() is False
    replay.close()


def test_an_actor_tells_by_how_many_updates_its_weights_lay_behind_those_that_it_takes() -> None:
    replay, metrics, store = make_replay(), Metrics(), published()
    actor = make_actor([replay], store, metrics=metrics)
    store.publish({"w": np.array([2.0])}, make_version(0, 7))
    actor.step()
    actor.report()
    assert metrics.snapshot()["values"]["acting_staleness"] == 6.0
    assert actor._recorder.policy.loaded == [1.0, 2.0]  # type: ignore[attr-defined]
    replay.close()


class ComesBackEmpty:
    """A replay of a synchronous algorithm as its clients see it, which is lost now and then."""

    def __init__(self) -> None:
        self.lose()

    def lose(self) -> None:
        self.replay = Replay([Table("rollouts", 100, sampler=Uniform(), limiter=Quota(2), max_times_sampled=1)])

    def __getattr__(self, name: str) -> Any:
        return getattr(self.replay, name)


class NothingNewer(Patient):
    """While somebody waits for its first version in vain, a replay is lost."""

    def __init__(self, replay: ComesBackEmpty) -> None:
        super().__init__()
        self._replay = replay

    def wait(self, than: int, timeout: float | None = None) -> Any:
        if than == NONE:
            return super().wait(than)
        self.asked.append("wait in vain")
        if len(self.asked) == 2:
            self._replay.lose()
        return super().wait(than) if len(self.asked) == 6 else None


def test_a_synchronous_actor_acts_again_when_what_it_has_sent_was_lost_with_its_replay() -> None:
    replay = ComesBackEmpty()
    weights = NothingNewer(replay)
    metrics = Metrics()
    actor = make_actor([cast(Any, replay)], cast(Any, weights), synchronous=True, metrics=metrics)
    actor.step()  # what it has sent is lost while it waits
    assert replay.info()["rollouts"]["inserts"] == 0
    actor.step()  # the replay does not have the row with which these items begin
    assert replay.info()["rollouts"]["inserts"] == 0
    actor.step()
    assert replay.info()["rollouts"]["inserts"] == 2, "a round is complete, and the learner goes on"
    assert weights.asked == ["wait -1", *["wait in vain"] * 5, "wait 1"], "now it waits until there are newer weights"
    assert len(replay.sample("rollouts", 2, timeout=0.0)) == 2
    actor._runner.report.flush_and_wait()
    assert metrics.snapshot()["counts"]["lost_items"] == 2, "those whose first rows were gone"
    replay.close()


def test_a_loop_that_ends_has_reported_before_it_says_so() -> None:
    replay, metrics = make_replay(), Metrics()
    actor = make_actor([replay], published(), metrics=metrics)
    actor.step()
    actor._runner.step(np.zeros(2))  # a row that no report has told of
    before = metrics.snapshot()["counts"]["env_steps"]
    actor.finish()
    assert actor.step() is False
    assert (before, metrics.snapshot()["counts"]["env_steps"]) == (6, 8)
    replay.close()


def test_at_the_end_of_a_run_an_actor_that_others_hold_up_is_not_waited_for_as_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    replay, waited = make_replay(), []
    actor = make_actor([replay], published())

    def wait_for(predicate: Any, timeout: float | None, why: str) -> bool:
        waited.append(timeout)
        return False

    monkeypatch.setattr(actor._at_work, "wait_for", wait_for)
    assert actor.state_dict() is None
    actor.finish()
    assert actor.state_dict() is None
    assert waited == [2.0, 0.1]
    actor.step()  # it has ended: nothing keeps it from saying where it stands
    assert (actor.state_dict() or {}).keys() == {"recorder", "environments"}
    assert len(waited) == 2
    replay.close()


class Answering:
    """An inference server that remembers what actors told it."""

    def __init__(self) -> None:
        self.told: list[Any] = []
        self.asked: list[tuple[str, int]] = []

    def act(self, actor: str, run: int, observation: Any, outcome: Step | None, first_environment: int) -> Any:
        self.asked.append((actor, run))
        assert outcome is None or outcome.observation is None, "it goes there once, with the next question"
        given = outcome and (outcome.reward, outcome.terminated, outcome.valid)
        self.told.append(given and [part.tolist() for part in given])
        return np.zeros(2, np.int64)


def test_an_actor_without_a_policy_tells_what_its_actions_gave() -> None:
    server = Answering()
    envs = ScriptedEnvs([[[1.0, 2.0]], [[5.0]]])  # the second one's episodes are truncated
    actor = RemoteActorLoop(lambda seed: cast(Any, envs), 3, [cast(Any, server)], Metrics())
    assert actor.step() is True
    assert actor.step() is True
    assert server.told == [
        None,
        [[1.0, 5.0], [False, False], [True, True]],
        [[2.0, 0.0], [True, False], [True, False]],
        [[0.0, 5.0], [False, False], [False, True]],
        [[1.0, 0.0], [False, False], [True, False]],
        [[2.0, 5.0], [True, False], [True, True]],
    ]


def test_an_actor_without_a_policy_says_which_of_its_lives_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.loops.actor.current", lambda: Context("actor/2", 1, restarts=3))
    server = Answering()
    actor = RemoteActorLoop(lambda seed: cast(Any, ScriptedEnvs([[[1.0] * 9]] * 2)), 2, [cast(Any, server)], Metrics())
    actor.step()
    assert server.asked == [("actor/2", 3)] * 2


def test_rows_that_were_lost_on_their_way_are_counted() -> None:
    replay, metrics = make_replay(), Metrics()
    actor = make_actor([replay], published(), metrics=metrics)
    lost = [{"lost_rows": 7}, {}, {"lost_rows": 2, "lost_items": 3}]
    actor._send.take_lost = lambda: lost.pop(0)  # type: ignore[method-assign]
    for _ in range(3):
        actor.step()
    actor.report()
    counts = metrics.snapshot()["counts"]
    assert (counts["lost_rows"], counts["lost_items"]) == (9, 3)
    replay.close()


class Forgetting(Saving):
    """Cannot go on where it was."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        raise EnvFault("another version of the game.")


def test_an_actor_whose_environments_cannot_go_on_begins_anew_altogether() -> None:
    replay, metrics = make_replay(), Metrics()
    first = make_actor([replay], published())
    first.step()
    state = first.state_dict("exact")
    state["exact"]["stage"] = "refreshing"
    second = make_actor([replay], published(), metrics=metrics)
    second._runner.envs = cast(Any, Forgetting([[[1.0] * 100]] * 2))
    second.load_state_dict(state)
    assert second._stage == "acting"
    assert second._recorder._until == 3, "a stream of its own"
    second.report()
    assert metrics.snapshot()["counts"] == {"lost_episodes": 2}
    replay.close()


# ---- a worker


class Learning:
    """Acts and learns nothing; what its network measures changes when the test says so."""

    def __init__(self, applied: list[bool]) -> None:
        self.policy, self.network = RememberingPolicy(), nn.BatchNorm1d(2)
        self.applied, self.batches, self.done = applied, list[Any](), False

    def update(self, batch: Any) -> Update:
        self.batches.append({"valid": batch["valid"].clone()})  # its memory is used again
        if len(self.batches) == 2:
            cast(Any, self.network.running_mean).fill_(3.0)
        return Update({"loss": 0.5}, applied=self.applied.pop(0))

    def finished(self) -> bool:
        return self.done


class Buffers:
    def __init__(self) -> None:
        self.future = self
        self.pushed: list[tuple[str, float]] = []

    def push_buffers(self, worker: str, named: Mapping[str, Any]) -> Any:
        self.pushed.append((worker, float(named["running_mean"][0])))
        return Answer(None)


def test_a_worker_counts_what_was_taken_and_tells_the_service_under_its_own_name_what_it_has_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("shoal.loops.worker.current", lambda: Context("worker/3", 5))
    metrics, service, worker = Metrics(), Buffers(), Learning([True, False, True])
    loop = WorkerLoop(
        lambda seed: cast(Any, ScriptedEnvs([[[1.0] * 3], [[1.0] * 100]])),
        lambda seed, servers: cast(Any, worker),
        2,
        [cast(Any, service)],
        metrics,
        observation_space=spaces.Box(-1.0, 1.0, (1,)),
        frozen="weight",
    )
    assert [loop.step() for _ in range(3)] == [True] * 3
    assert service.pushed == [("worker/3", 3.0)], "only what has changed"
    loop.report()
    # the fourth row of the first environment, in the second block, resets it; that gradient was refused
    assert metrics.snapshot()["counts"] == {"env_steps": 11, "trained_steps": 8}
    assert metrics.snapshot()["values"]["loss"] == 0.5
    assert [batch["valid"][:-1].sum().item() for batch in worker.batches] == [4, 3, 4]
    assert [parameter.requires_grad for parameter in worker.network.parameters()] == [False, True]
    worker.done, worker.applied = True, [True]
    assert loop.step() is False


# ---- the publisher of a gradient service


class Service:
    """A gradient server whose counts and version are what the test says."""

    def __init__(self) -> None:
        self.version = self.life = 0
        self.parameters = np.zeros(3, np.float32)
        self.counts: dict[str, int] = {}
        self.future = self

    def last_sequence(self, worker: str) -> Any:
        return Answer(NONE)

    def initialise(self, parameters: Any, version: int = 0) -> Any:
        return Answer(True)

    def pull(self, than: int = NONE, timeout: float | None = None, life: int | None = None) -> Any:
        found = Pulled(True, False, self.version, self.parameters, self.life)
        return Answer(found if self.version > than or life not in (None, self.life) else None)

    def named_state(self) -> Any:
        return Answer(("gradients", {}))

    def statistics(self) -> dict[str, int]:
        return {**self.counts, "version": self.version}


class Answer:
    def __init__(self, value: Any) -> None:
        self.value = value

    def done(self) -> bool:
        return True

    def result(self) -> Any:
        return self.value


def make_publisher(services: list[Service], **options: Any) -> tuple[Publisher, Metrics, WeightStore]:
    metrics, store = Metrics(), WeightStore()
    publisher = Publisher(lambda seed: nn.Linear(2, len(services)), cast(Any, services), store, metrics, **options)
    publisher._begin()
    return publisher, metrics, store


def test_a_publisher_counts_what_is_new_and_the_highest_of_several_parts() -> None:
    services = [Service(), Service()]
    services[0].parameters = np.zeros(4, np.float32)
    services[1].parameters = np.zeros(2, np.float32)
    publisher, metrics, store = make_publisher(services)
    services[0].version, services[1].version = 6, 5
    services[0].counts = {"gradients": 8, "staleness": 12, "stale": 1, "repeated": 4, "not_finite": 2}
    services[1].counts = {"gradients": 8, "staleness": 16, "stale": 3, "repeated": 4, "short_rounds": 7}
    publisher.report()
    counts = {"learner_steps": 6, "gradients": 8, "stale_gradients": 3, "repeated_gradients": 4}
    counts |= {"refused_updates": 2, "short_rounds": 7, "lost_updates": 0}
    assert metrics.snapshot()["counts"] == counts
    assert metrics.snapshot()["values"] == {"staleness": 2.0, "version": 6.0}
    assert number(store.version()) == 6
    services[0].version = 9
    services[0].counts |= {"gradients": 10, "staleness": 19}
    publisher.report()
    assert metrics.snapshot()["counts"] == counts | {"learner_steps": 9, "gradients": 10}
    assert metrics.snapshot()["values"]["staleness"] == 1.5, "of the two that are new"


def test_a_publisher_counts_the_updates_that_it_has_published_and_not_what_the_service_made_since() -> None:
    class GoesOn(Service):
        def statistics(self) -> dict[str, int]:
            return {"gradients": self.version + 2, "version": self.version + 2}

    service = GoesOn()
    publisher, metrics, store = make_publisher([service])
    service.version = 6
    publisher.report()
    assert metrics.snapshot()["counts"]["learner_steps"] == number(store.version()) == publisher.updates == 6
    assert metrics.snapshot()["values"]["version"] == 6.0


def test_what_a_service_that_was_lost_goes_on_with_is_newer_than_what_it_had() -> None:
    service = Service()
    publisher, metrics, store = make_publisher([service])
    service.version = 9
    assert publisher.step() is True
    service.version, service.life = 4, 2
    assert publisher.step() is True
    assert store.version() == make_version(2, 4)
    publisher.report()
    assert metrics.snapshot()["counts"]["lost_updates"] == 5


def test_a_publisher_brings_a_weight_service_that_was_lost_the_weights_again(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [50.0]
    monkeypatch.setattr("shoal.loops.keeper.monotonic", lambda: clock[0])
    service = Service()
    publisher, _, store = make_publisher([service])
    service.version = 3
    publisher.step()
    store.load_state_dict(WeightStore().state_dict())  # as it comes back
    clock[0] += 2 * LOOK
    assert publisher.step() is True
    assert store.version() == make_version(0, 3)


def test_a_publisher_begins_with_the_weights_of_another_run_where_it_is_given_some() -> None:
    store, old = WeightStore(), nn.Linear(2, 1)
    publisher = Publisher(lambda seed: nn.Linear(2, 1), cast(Any, [Unborn()]), store, Metrics(), max_updates=0)
    publisher.load_state_dict({"updates": 0, "refused": 0, "weights": export_weights(old), "partial": False})
    publisher.step()
    found = store.newer(NONE)
    assert found is not None
    assert all(np.array_equal(found[1][name], value) for name, value in export_weights(old).items())


class Unborn(Service):
    """A gradient server that takes the parameters it is given."""

    def initialise(self, parameters: Any, version: int = 0) -> Any:
        self.parameters = np.array(parameters)
        return Answer(True)


def test_a_publisher_ends_at_its_updates_and_gives_up_after_gradients_that_are_not_finite() -> None:
    service = Service()
    publisher, _, _ = make_publisher([service], max_updates=3)
    service.version = 2
    assert publisher.step() is True
    service.version = 3
    assert publisher.step() is True
    assert publisher.step() is False
    publisher, _, _ = make_publisher([service])
    service.counts = {"not_finite_in_a_row": 9}
    publisher.report()
    service.counts = {"not_finite_in_a_row": 10}
    with pytest.raises(NonFinite, match="not finite 10 times in a row"):
        publisher.report()
