"""The gradient service: what is applied, once and in order; what is refused; rounds; shards."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import nn

from shoal import optim
from shoal.errors import UserError
from shoal.flat import flatten
from shoal.program import Context, Handle, Program, set_current
from shoal.runtime import launch
from shoal.schedules import annealed
from shoal.services.gradients import Answer, FlatArray, GradientClient, GradientServer, cut
from shoal.versions import NONE

SIZE = 6


def vector(*values: float) -> FlatArray:
    return np.array(values, np.float32)


def started(size: int = SIZE, **options: Any) -> GradientServer:
    server = GradientServer(**{"rate": 0.1, **options})
    server.initialise(np.zeros(size, np.float32))
    return server


def descending(size: int = SIZE, **options: Any) -> GradientServer:
    """A server whose parameters become minus the sum of what it applies: no averaging of squares, a root of 1."""
    return started(size, rate=1.0, decay=1.0, epsilon=1.0, **options)


def parameters(server: GradientServer) -> npt.NDArray[Any]:
    found = server.pull()
    assert found is not None
    return found.parameters


def in_threads(bodies: list[Callable[[], object]]) -> None:
    threads = [threading.Thread(target=body, daemon=True) for body in bodies]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60.0)
    assert not any(thread.is_alive() for thread in threads)


def wait_until_received(server: GradientServer, gradients: int) -> None:
    deadline = time.monotonic() + 10.0
    while server.statistics().get("gradients") != gradients:
        assert time.monotonic() < deadline
        time.sleep(0.001)


# ---- applying -------------------------------------------------------------------------------------------------------


def test_a_step_is_non_centred_rmsprop_with_the_small_number_inside_the_root() -> None:
    server = started(rate=0.01, decay=0.9, epsilon=0.1)
    random = np.random.default_rng(0)
    expected, square = np.zeros(SIZE), np.zeros(SIZE)
    for sequence in range(5):
        gradient = random.standard_normal(SIZE).astype(np.float32)
        answer = server.push("a", sequence, gradient, sequence)
        square = 0.9 * square + 0.1 * gradient.astype(np.float64) ** 2
        expected -= 0.01 * gradient / np.sqrt(square + 0.1)
        assert answer.accepted
        assert answer.version == sequence + 1
        np.testing.assert_allclose(answer.parameters, expected, rtol=1e-5)


def test_the_service_steps_as_the_local_optimizer_does() -> None:
    """The same losses, by a local RMSProp and by way of the service, clipped alike, with a falling rate."""
    torch.manual_seed(0)
    local, remote = nn.Linear(4, 3), nn.Linear(4, 3)
    remote.load_state_dict(local.state_dict())
    schedule = annealed(0.05, 8)
    one = optim.Local(local.parameters(), rate=schedule, kind="rmsprop", epsilon=0.01, epsilon_inside=True, clip_norm=1)
    server = GradientServer(rate=schedule, epsilon=0.01)
    server.initialise(one.flat.numpy())
    other = optim.Remote(remote.parameters(), [server], clip_norm=1)
    for _ in range(6):
        rows = torch.randn(5, 4)
        reports = [
            optimizer.step(10.0 * net(rows).square().sum()) for net, optimizer in ((local, one), (remote, other))
        ]
        assert reports[0].grad_norm == pytest.approx(reports[1].grad_norm, rel=1e-5)
        assert reports[0].grad_norm > 1
    torch.testing.assert_close(other.flat, one.flat)


def test_no_concurrent_push_is_lost_or_applied_twice() -> None:
    """Eight threads push ones, each to a place of its own and each push twice: the sums tell what was applied."""
    workers, pushes = 8, 50
    server = descending(workers)

    def work(index: int) -> None:
        gradient = np.zeros(workers, np.float32)
        gradient[index] = 1.0
        for sequence in range(pushes):
            version = server.push(f"worker/{index}", sequence, gradient, 0).version
            repeat = server.push(f"worker/{index}", sequence, gradient, 0)
            assert repeat.accepted, "a repeat is told what became of the first"
            assert repeat.version >= version

    in_threads([lambda index=index: work(index) for index in range(workers)])
    np.testing.assert_array_equal(parameters(server), np.full(workers, -pushes))
    counts = server.statistics()
    assert counts["version"] == counts["gradients"] == workers * pushes
    assert counts["repeated"] == workers * pushes


def test_the_pushes_of_a_worker_are_applied_in_its_order() -> None:
    """Sums forget their order, so what is taken is recorded: each gradient is its worker's number and its own."""
    taken: list[float] = []
    server = descending(1)
    original = server._take

    def record(worker: str, sequence: int, gradient: FlatArray, version: int, weight: float) -> bool:
        taken.append(float(gradient[0]))
        return original(worker, sequence, gradient, version, weight)

    server._take = record  # type: ignore[method-assign]

    def work(index: int) -> None:
        for sequence in range(40):
            server.push(f"worker/{index}", sequence, vector(index * 1000 + sequence), 0)

    in_threads([lambda index=index: work(index) for index in range(4)])
    assert len(taken) == 160
    for index in range(4):
        assert [value for value in taken if value // 1000 == index] == [index * 1000 + n for n in range(40)]


def test_a_push_that_a_later_one_has_overtaken_is_not_applied() -> None:
    server = descending(1)
    server.push("a", 5, vector(1.0), 0)
    assert not server.push("a", 4, vector(1.0), 0).accepted
    assert parameters(server).tolist() == [-1.0]


def test_the_first_to_initialise_decides_and_everybody_waits_for_it() -> None:
    server = GradientServer(rate=0.1)
    found: list[Answer | None] = []
    waiting = threading.Thread(target=lambda: found.append(server.pull()), daemon=True)
    waiting.start()
    assert server.initialise(vector(1.0, 2.0))
    assert not server.initialise(vector(3.0, 4.0))
    waiting.join(10.0)
    assert found[0] is not None
    assert found[0].version == 0
    assert found[0].parameters.tolist() == [1.0, 2.0]


def test_answers_do_not_change_with_later_steps() -> None:
    server = descending(1)
    answer = server.push("a", 0, vector(1.0), 0)
    server.push("a", 1, vector(1.0), 1)
    assert answer.parameters.tolist() == [-1.0]


def test_pull_returns_nothing_when_there_is_nothing_newer_in_time() -> None:
    server = descending(1)
    assert server.pull(0, timeout=0.01) is None
    server.push("a", 0, vector(1.0), 0)
    newer = server.pull(0, timeout=0.01)
    assert newer is not None
    assert newer.version == 1


# ---- reducing -------------------------------------------------------------------------------------------------------


def test_reducing_k_gradients_makes_one_step_along_their_mean() -> None:
    server = descending(2, reduce=3)
    assert server.push("a", 0, vector(3.0, 0.0), 0).version == 0
    assert server.push("a", 1, vector(0.0, 6.0), 0).version == 0
    answer = server.push("b", 0, vector(3.0, 3.0), 0)
    assert answer.version == 1
    np.testing.assert_allclose(answer.parameters, [-2.0, -3.0])


def test_gradients_are_weighted_by_their_rows() -> None:
    server = descending(1, reduce=2)
    server.push("a", 0, vector(4.0), 0, 30.0)
    answer = server.push("b", 0, vector(8.0), 0, 10.0)
    np.testing.assert_allclose(answer.parameters, [-5.0])


# ---- refusing -------------------------------------------------------------------------------------------------------


def test_gradients_staler_than_the_bound_are_refused_and_counted() -> None:
    server = descending(1, max_staleness=2)
    for sequence in range(4):
        server.push("fast", sequence, vector(1.0), sequence)
    refused = server.push("slow", 0, vector(100.0), 1)
    assert not refused.accepted
    assert refused.version == 4
    assert refused.parameters.tolist() == [-4.0], "the refused worker gets the newest parameters all the same"
    assert server.push("slow", 1, vector(1.0), 2).accepted
    counts = server.statistics()
    assert counts["stale"] == 1
    assert counts["gradients"] == 6
    assert counts["staleness"] == 3 + 2


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_gradient_that_is_not_finite_changes_nothing_and_is_counted(bad: float) -> None:
    server = descending(2)
    for sequence in range(3):
        assert not server.push("a", sequence, vector(1.0, bad), 0).accepted
    assert server.statistics()["not_finite_in_a_row"] == 3
    assert server.push("b", 0, vector(1.0, 1.0), 0).accepted
    counts = server.statistics()
    assert counts["not_finite"] == 3
    assert counts["not_finite_in_a_row"] == 0
    assert parameters(server).tolist() == [-1.0, -1.0]


def test_after_the_last_step_nothing_is_accepted_and_workers_are_told() -> None:
    server = descending(1, max_steps=2)
    assert not server.push("a", 0, vector(1.0), 0).finished
    assert server.push("a", 1, vector(1.0), 1).finished
    late = server.push("b", 0, vector(1.0), 0)
    assert late.finished
    assert not late.accepted
    assert parameters(server).tolist() == [-2.0]
    last = server.pull(2, timeout=10.0)
    assert last is not None, "who waits for more is given the final parameters"
    assert last.finished


def test_what_does_not_fit_is_refused_in_words() -> None:
    with pytest.raises(RuntimeError, match=r"initialise\(\) first"):
        GradientServer(rate=0.1).push("a", 0, vector(1.0), 0)
    with pytest.raises(ValueError, match="has 1 numbers, the parameters 6"):
        started().push("a", 0, vector(1.0), 0)


# ---- rounds ---------------------------------------------------------------------------------------------------------


def test_a_synchronous_round_equals_one_step_on_the_batch_of_all_workers() -> None:
    """Three workers with 5, 2 and 9 rows against one optimizer with all 16, for four rounds."""
    torch.manual_seed(0)
    sizes, rounds = (5, 2, 9), 4
    data = [torch.randn(rounds, size, 4) for size in sizes]
    nets = [nn.Linear(4, 1) for _ in range(4)]
    single = optim.Local(nets[3].parameters(), rate=0.05, kind="rmsprop", epsilon=0.01, epsilon_inside=True)
    server = GradientServer(rate=0.05, epsilon=0.01, synchronous=3)
    server.initialise(single.flat.numpy())

    def work(index: int) -> None:
        set_current(Context(f"worker/{index}"))
        optimizer = optim.Remote(nets[index].parameters(), [server])
        for rows in data[index]:
            assert optimizer.step(nets[index](rows).square().mean(), torch.tensor(len(rows))).applied

    in_threads([lambda index=index: work(index) for index in range(3)])
    for number in range(rounds):
        single.step(nets[3](torch.cat([rows[number] for rows in data])).square().mean())
    assert server.statistics()["version"] == rounds
    for net in nets[:3]:
        torch.testing.assert_close(net.weight, nets[3].weight)


def test_a_missing_worker_is_waited_for_once_and_rejoins() -> None:
    server = descending(1, synchronous=2, round_timeout=0.05)
    alone = server.push("a", 0, vector(2.0), 0)
    assert alone.version == 1
    assert alone.parameters.tolist() == [-2.0]
    assert server.push("a", 1, vector(2.0), 1).version == 2
    assert server.statistics()["short_rounds"] == 1, "the second round did not wait for the missing one"

    late = server.push("b", 0, vector(50.0), 0)
    assert not late.accepted
    assert late.version == 2
    answers: list[Answer] = []
    in_threads(
        [
            lambda: answers.append(server.push("a", 2, vector(1.0), 2)),
            lambda: answers.append(server.push("b", 1, vector(3.0), 2)),
        ]
    )
    assert [answer.version for answer in answers] == [3, 3]
    assert answers[0].parameters.tolist() == [-6.0]
    assert server.statistics()["short_rounds"] == 1


def test_a_restarted_worker_replaces_what_it_left_in_the_round() -> None:
    server = descending(1, synchronous=2)
    first = threading.Thread(target=lambda: server.push("a", 0, vector(100.0), 0), daemon=True)
    first.start()
    wait_until_received(server, 1)
    successor = threading.Thread(target=lambda: server.push("a", 1 << 32, vector(1.0), 0), daemon=True)
    successor.start()
    wait_until_received(server, 2)
    assert server.push("b", 0, vector(3.0), 0).parameters.tolist() == [-2.0]
    for thread in (first, successor):
        thread.join(10.0)
        assert not thread.is_alive()


def test_a_worker_without_a_finite_gradient_does_not_hold_up_its_round() -> None:
    server = descending(1, synchronous=2)
    answers: dict[str, Answer] = {}
    in_threads(
        [
            lambda: answers.update(a=server.push("a", 0, vector(np.nan), 0, 7.0)),
            lambda: answers.update(b=server.push("b", 0, vector(3.0), 0, 7.0)),
        ]
    )
    assert not answers["a"].accepted
    assert answers["b"].accepted
    assert [answer.parameters.tolist() for answer in answers.values()] == [[-3.0], [-3.0]]


def test_closing_releases_a_worker_that_waits_for_its_round() -> None:
    server = descending(1, synchronous=2)
    answers: list[Answer] = []
    waiting = threading.Thread(target=lambda: answers.append(server.push("a", 0, vector(1.0), 0)), daemon=True)
    waiting.start()
    wait_until_received(server, 1)
    server.close()
    waiting.join(10.0)
    assert answers[0].finished


# ---- shards ---------------------------------------------------------------------------------------------------------


def test_shards_are_even_runs_of_whole_groups() -> None:
    assert cut([10], 1) == [slice(0, 10)]
    assert cut([5, 1, 4, 10], 2) == [slice(0, 10), slice(10, 20)]
    assert cut([100, 1, 1], 3) == [slice(0, 100), slice(100, 101), slice(101, 102)]
    assert cut([1, 1, 100], 3) == [slice(0, 1), slice(1, 2), slice(2, 102)]
    with pytest.raises(UserError, match="2 groups of parameters cannot be divided among 3 servers"):
        cut([1, 2], 3)


@pytest.mark.parametrize("shards", [2, 3])
def test_sharded_equals_unsharded(shards: int) -> None:
    random = np.random.default_rng(0)
    groups = [4, 3, 7, 1]
    initial = random.standard_normal(15).astype(np.float32)
    clients = []
    for count in (1, shards):
        servers = [GradientServer(rate=0.1, reduce=2) for _ in range(count)]
        client = GradientClient(servers, initial.copy(), groups)
        client.initialise()
        clients.append(client)
    for _ in range(6):
        gradient = random.standard_normal(15).astype(np.float32)
        for client in clients:
            assert client.push(gradient, 2.0).accepted
    assert clients[0].versions == [3]
    assert clients[1].versions == [3] * shards
    np.testing.assert_array_equal(clients[0].parameters, clients[1].parameters)
    assert not np.array_equal(clients[0].parameters, initial)


def test_all_shards_refuse_a_gradient_of_which_one_part_is_not_finite() -> None:
    net = nn.Linear(2, 1)
    servers = [GradientServer(rate=0.1) for _ in range(2)]
    GradientClient(servers, np.zeros(3, np.float32), [2, 1]).initialise()
    optimizer = optim.Remote(net.parameters(), servers)
    loss = (net.bias * torch.nan).sum() + net.weight.sum()
    assert not optimizer.step(loss).applied
    assert [server.statistics()["not_finite"] for server in servers] == [1, 1]
    assert optimizer.flat.tolist() == [0.0, 0.0, 0.0]


def test_a_convolution_comes_through_shards_in_its_own_layout() -> None:
    """The flat vector holds convolution weights channels last, on every side alike."""
    torch.manual_seed(0)
    made = [nn.Sequential(nn.Conv2d(3, 4, 2), nn.Flatten(), nn.Linear(16, 2)) for _ in range(2)]
    servers = [GradientServer(rate=0.1) for _ in range(2)]
    kept = {name: tensor.clone() for name, tensor in made[0].state_dict().items()}
    first = list(made[0].parameters())
    GradientClient(servers, flatten(first).numpy(), [p.numel() for p in first]).initialise()
    optim.Remote(made[1].parameters(), servers)
    for name, tensor in made[1].state_dict().items():
        torch.testing.assert_close(tensor, kept[name])


# ---- on the runtimes ------------------------------------------------------------------------------------------------


class Pusher:
    """Pushes ones, a given number of times."""

    def __init__(self, servers: list[GradientServer], times: int) -> None:
        self._client = GradientClient(servers, np.zeros(4, np.float32), [2, 2])
        self._client.initialise()
        self._times = times

    def step(self) -> bool:
        self._times -= 1
        assert self._client.push(np.ones(4, np.float32)).accepted
        return self._times > 0


@pytest.mark.parametrize("runtime", ["inline", "local"])
@pytest.mark.parametrize("synchronous", [0, 3], ids=["asynchronous", "synchronous"])
def test_every_push_of_every_node_is_applied_once(runtime: str, synchronous: int) -> None:
    program = Program()
    options: dict[str, Any] = {"rate": 1.0, "decay": 1.0, "epsilon": 1.0, "synchronous": synchronous}
    servers = [program.add(f"gradients/{index}", GradientServer, **options) for index in range(2)]
    for index in range(3):
        program.add(f"pusher/{index}", Pusher, servers, 20)
    with launch(program, runtime) as run:
        for _ in range(200):
            run.wait(0.05)
            if all(run.finished(Handle(f"pusher/{index}")) for index in range(3)):
                break
        found = run.client(servers[0]).pull(NONE)
        counts = run.client(servers[1]).statistics()
    steps = 20 if synchronous else 60
    assert found.version == counts["version"] == steps
    assert found.parameters.tolist() == [-float(steps)] * 2
    assert counts["gradients"] == 60


# ---- the optimizer is chosen, and everything has a state


@pytest.mark.parametrize("optimizer", ["rmsprop", "adam", "sgd"])
def test_the_service_steps_as_the_same_optimizer_here_would(optimizer: str) -> None:
    nets = [nn.Linear(3, 2) for _ in range(2)]
    nets[1].load_state_dict(nets[0].state_dict())
    inside = {"epsilon_inside": True} if optimizer == "rmsprop" else {}
    here = optim.Local(nets[0].parameters(), rate=0.05, kind=optimizer, epsilon=0.01, **inside)
    server = GradientServer(rate=0.05, optimizer=optimizer, epsilon=0.01)
    there = optim.Remote(nets[1].parameters(), [server], initialise=True)
    x = torch.randn(8, 3)
    for _ in range(4):
        here.step(nets[0](x).square().mean())
        assert there.step(nets[1](x).square().mean()).applied
    torch.testing.assert_close(here.flat, there.flat)


def test_an_optimizer_that_is_not_there_is_one_sentence_when_the_service_is_made() -> None:
    with pytest.raises(UserError, match="no optimizer 'adagrad'"):
        GradientServer(rate=0.1, optimizer="adagrad")


@pytest.mark.parametrize("optimizer", ["rmsprop", "adam", "sgd"])
def test_a_service_goes_on_from_its_state_to_the_last_bit(optimizer: str) -> None:
    options: dict[str, Any] = {"rate": annealed(0.1, 30), "optimizer": optimizer, "reduce": 2, "max_staleness": 3}
    one, other = GradientServer(**options), GradientServer(**options)
    generator = np.random.default_rng(0)
    gradients = generator.normal(size=(11, 5)).astype(np.float32)
    one.initialise(np.ones(5, np.float32))
    for number in range(5):  # the last one is pending
        one.push("worker", number, gradients[number], one.pull().version)  # type: ignore[union-attr]
    state = one.state_dict()
    one.push("worker", 5, gradients[5], 2)
    other.load_state_dict(state)
    other.push("worker", 5, gradients[5], 2)
    assert not np.array_equal(state["parameters"], one.pull().parameters), "a state does not change"  # type: ignore[union-attr]
    for number in range(6, 11):
        answers = [server.push("worker", number, gradients[number], 3) for server in (one, other)]
        np.testing.assert_array_equal(answers[0].parameters, answers[1].parameters)
    assert one.statistics() == other.statistics()
    assert other.push("worker", 4, gradients[4], 5).version == other.statistics()["version"]
    assert other.statistics()["repeated"] == 1


def test_a_state_of_other_parameters_is_refused() -> None:
    one, other = GradientServer(rate=0.1), GradientServer(rate=0.1)
    one.initialise(np.ones(5, np.float32))
    other.initialise(np.ones(4, np.float32))
    with pytest.raises(ValueError, match="has 5 parameters, this service 4"):
        other.load_state_dict(one.state_dict())


def test_a_worker_of_a_resumed_run_is_not_taken_for_a_repeat() -> None:
    """The service remembers numbers up to a high one; the worker's node has never been restarted in this run."""
    saved = GradientServer(rate=0.1)
    saved.initialise(np.ones(2, np.float32))
    saved.push("worker", (3 << 32) + 7, np.ones(2, np.float32), 0)
    server = GradientServer(rate=0.1)
    server.load_state_dict(saved.state_dict())
    client = GradientClient([server], np.zeros(2, np.float32), worker="worker")
    client.pull()
    assert client.push(np.ones(2, np.float32)).accepted
    assert server.statistics()["version"] == 2
    assert "repeated" not in server.statistics()


def test_a_remote_optimizer_goes_on_from_its_state() -> None:
    server = GradientServer(rate=0.1)
    nets = [nn.Linear(2, 1) for _ in range(2)]
    one = optim.Remote(nets[0].parameters(), [server], initialise=True)
    one.step(nets[0](torch.ones(1, 2)).sum())
    state, weights = one.state_dict(), {name: tensor.clone() for name, tensor in nets[0].state_dict().items()}
    one.step(nets[0](torch.ones(1, 2)).sum())
    two = optim.Remote(nets[1].parameters(), [server])
    nets[1].load_state_dict(weights)
    two.load_state_dict(state)
    assert two.version == 1, "the parameters are those of the state, not the newest"
    two.step(nets[1](torch.ones(1, 2)).sum())
    assert two.version == 3
    assert torch.equal(two.flat, torch.from_numpy(server.pull().parameters))  # type: ignore[union-attr]


def test_buffers_of_several_workers_are_averaged_and_counts_are_the_highest() -> None:
    server = GradientServer(rate=0.1)
    assert server.mean_buffers() == {}
    server.push_buffers("a", {"mean": np.array([9.0, 9.0], np.float32), "count": np.array(9)})
    server.push_buffers("a", {"mean": np.array([1.0, 2.0], np.float32), "count": np.array(5)})
    server.push_buffers("b", {"mean": np.array([3.0, 6.0], np.float32), "count": np.array(3)})
    again = GradientServer(rate=0.1)
    again.load_state_dict(server.state_dict())
    for service in (server, again):
        found = service.mean_buffers()
        assert found["mean"].dtype == np.float32
        assert (found["mean"].tolist(), int(found["count"])) == ([2.0, 4.0], 5)


def test_a_client_that_goes_on_never_uses_a_number_again() -> None:
    server = GradientServer(rate=0.1)
    server.initialise(np.zeros(2, np.float32))
    client = GradientClient([server], np.zeros(2, np.float32), worker="a")
    for _ in range(3):
        client.push(np.ones(2, np.float32))
    for sequence, expected in ((2, 3), (9, 9)):
        client.load_state_dict({"versions": [3], "sequence": sequence})
        assert client.state_dict() == {"versions": [3], "sequence": expected}


def test_a_pull_asks_for_as_many_steps_more_as_it_is_told() -> None:
    server = GradientServer(rate=1.0, optimizer="sgd")
    server.initialise(np.zeros(1, np.float32))
    reader, writer = (GradientClient([server], np.zeros(1, np.float32), worker=name) for name in "ab")
    reader.pull()
    writer.pull()
    assert reader.pull(3, timeout=0.0) is False
    for _ in range(2):
        writer.push(np.ones(1, np.float32))
    assert reader.pull(3, timeout=0.0) is False
    assert reader.version == 0
    writer.push(np.ones(1, np.float32))
    assert reader.pull(3, timeout=0.0) is True
    assert (reader.version, reader.parameters.tolist()) == (3, [-3.0])


def test_the_rows_behind_a_pending_gradient_are_part_of_the_state() -> None:
    server, again = descending(1, reduce=2), descending(1, reduce=2)
    server.push("a", 0, vector(4.0), 0, 30.0)
    again.load_state_dict(server.state_dict())
    for service in (server, again):
        np.testing.assert_allclose(service.push("b", 0, vector(8.0), 0, 10.0).parameters, [-5.0])


def test_a_stale_gradient_does_not_make_a_round_wait_for_more_workers_than_there_are() -> None:
    server = descending(1, synchronous=1, round_timeout=30.0)
    assert server.push("a", 0, vector(1.0), 0).version == 1
    assert not server.push("a", 1, vector(1.0), 0).accepted, "of the round before"
    assert server.push("a", 2, vector(1.0), 1).version == 2, "and nobody else is waited for"
    assert server.statistics().get("short_rounds", 0) == 0


def test_parameters_of_the_services_next_life_are_news_however_few_steps_it_has_made() -> None:
    server = started()
    server._life = 1
    assert server.pull(5, 0.0, 1) is None
    found = server.pull(5, 0.0, 0)
    assert found is not None
    assert (found.version, found.life) == (0, 1)


def test_a_service_that_is_lost_again_before_the_push_is_offered_the_parameters_again() -> None:
    class Restarting:
        """Comes back without parameters each time that it has been offered some, thrice."""

        def __init__(self) -> None:
            self.lives, self.server = 0, descending(1)

        def __getattr__(self, method: str) -> Any:
            if method == "future":
                raise AttributeError(method)
            return lambda *arguments: getattr(self.server, method)(*arguments)  # as a client, of whoever lives now

        def initialise(self, *arguments: Any) -> Any:
            answer = self.server.initialise(*arguments)
            if 0 < self.lives < 3:
                self.lose()
            return answer

        def lose(self) -> None:
            self.lives, self.server = self.lives + 1, GradientServer(rate=1.0)

    service = Restarting()
    client = GradientClient([service], vector(0.0))
    client.initialise()
    service.lose()
    assert client.push(vector(1.0)).accepted
    assert service.lives == 3
