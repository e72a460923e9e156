"""Simulators outside: every row is stored once, whoever comes, goes, repeats or dies, and a run learns from them."""

from __future__ import annotations

import contextlib
import json
import random
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import websockets.sync.client
from gymnasium import spaces

import shoal
from gateway_clients import (
    ALGORITHMS,
    SIGNS,
    SIZES,
    Client,
    Clients,
    Ended,
    Lost,
    Refused,
    certificates,
    free_port,
)
from shoal.algorithms import a3c, apex_dqn, impala
from shoal.config import apply_preset
from shoal.envs import describe_data
from shoal.errors import UserError
from shoal.experiment.environments import fit
from shoal.gateway.server import Door, DoorThread, Listen, Peer, Security
from shoal.gateway.wire import pack
from shoal.loops.gateway import GatewayLoop
from shoal.nets.weights import export_weights
from shoal.replay import Replay, Table, rollout
from shoal.services.metrics import Metrics
from shoal.services.weights import WeightStore
from shoal.types import EXTERNAL
from shoal.versions import make_version

UNROLL = 4
OBSERVATION = {"kind": "box", "shape": [3], "dtype": "float32", "low": "-inf", "high": "inf"}
ACTION = {"kind": "discrete", "n": 2, "start": 5}
BOX, DISCRETE = spaces.Box(-np.inf, np.inf, (3,), np.float32), spaces.Discrete(2, start=5)
ENV = describe_data(EXTERNAL, BOX, spaces.Discrete(2), DISCRETE, env=EXTERNAL)
CFG = impala.Config(env=EXTERNAL, listen="127.0.0.1:0", hidden=(8,))


class Running:
    """A gateway without a program around it: its services are objects of this process."""

    def __init__(self, *, capacity: int = 100_000, **options: Any) -> None:
        self.replay = Replay([Table.queue("rollouts", capacity)])
        self.weights, self.metrics = WeightStore(), Metrics()
        policy = impala.make_policy(CFG, ENV, 0)
        self.weights.publish(export_weights(policy.network), make_version(0, 0))
        self.gateway = GatewayLoop(
            partial(impala.make_policy, CFG, ENV),
            {"rollouts": rollout(UNROLL)},
            UNROLL,
            [self.replay],
            self.weights,
            self.metrics,
            env=ENV,
            listen="127.0.0.1:0",
            security=Security,
            max_wait=0.001,
            **options,
        )
        self.url = f"ws://127.0.0.1:{self.gateway.address()[1]}"
        self._thread = threading.Thread(target=self._drive, daemon=True)
        self._thread.start()

    def _drive(self) -> None:
        while self.gateway.step():
            pass

    def counts(self) -> dict[str, float]:
        self.gateway.report()
        counts: dict[str, float] = self.metrics.snapshot()["counts"]
        return counts

    def stop(self) -> None:
        self.gateway.finish()
        self._thread.join(10)
        self.gateway.close()

    def rows(self) -> dict[int, list[tuple[int, int, float, bool, bool]]]:
        """(episode, step, reward, terminated, valid) of each client, as learners would read them: every transition of
        every item once."""
        found: dict[int, list[tuple[int, int, float, bool, bool]]] = {}
        size = self.replay.info()["rollouts"]["size"]
        self.data: Any = self.replay.sample("rollouts", size).data if size else None
        data = self.data
        for item in range(size):
            for row in range(UNROLL):
                who, episode, step = (int(number) for number in data["observation"][row, item])
                rest = tuple(data[name][row, item].item() for name in ("reward", "terminated", "valid"))
                found.setdefault(who, []).append((episode, step, *rest))
        return found


@pytest.fixture
def running() -> Iterator[Any]:
    made: list[Running] = []

    def start(**options: Any) -> Running:
        made.append(Running(**options))
        return made[-1]

    yield start
    for one in made:
        one.stop()


LENGTH = 6  # steps of an episode


class Numbered:
    """A simulator whose observations say who it is, which episode it is in, and at which step."""

    def __init__(self, who: int, url: str, **options: Any) -> None:
        self.who, self.episode, self.time = who, 0, 0
        self.same = options.get("autoreset") == "same_step"
        self.client = Client(url, observation_space=OBSERVATION, action_space=ACTION, **options)
        self.action = self.client.reset(self.observed())

    def observed(self) -> Any:
        return np.array([self.who, self.episode, self.time], np.float32)

    def step(self) -> None:
        assert self.action in (5, 6), "in the client's own numbers"
        self.time += 1
        ended, final = self.time == LENGTH, self.observed()
        terminated, truncated = ended and self.episode % 2 == 0, ended and self.episode % 2 == 1
        if ended:
            self.episode, self.time = self.episode + 1, 0
        if ended and self.same:
            self.action = self.client.step(self.observed(), 1.0, terminated, truncated, final_observation=final)
            return
        self.action = self.client.step(final, 1.0, terminated, truncated)
        if ended:
            self.action = self.client.reset(self.observed())


def expected(count: int) -> list[tuple[int, int, float, bool, bool]]:
    """The first rows of a simulator as they are to be stored."""
    rows: list[tuple[int, int, float, bool, bool]] = []
    episode = 0
    while len(rows) < count:
        rows += [(episode, t, 1.0, t == LENGTH - 1 and episode % 2 == 0, True) for t in range(LENGTH)]
        rows.append((episode, LENGTH, 0.0, False, False))
        episode += 1
    return rows[:count]


@pytest.mark.parametrize("autoreset", ["next_step", "same_step"])
def test_rows_are_stored_once_and_in_order(running: Any, autoreset: str) -> None:
    one = running()
    simulators = [Numbered(who, one.url, autoreset=autoreset) for who in range(3)]
    for _ in range(40):
        for simulator in simulators:
            simulator.step()
    for who, rows in one.rows().items():
        assert len(rows) >= 40
        assert rows == expected(len(rows)), f"client {who}"
    counts = one.counts()
    assert counts["env_steps"] == 120
    assert counts["episodes"] == 3 * (40 // LENGTH)
    assert all(UNROLL <= one.client.seq - one.client.stored <= 2 * UNROLL + 2 for one in simulators)


@pytest.mark.parametrize("autoreset", ["next_step", "same_step"])
def test_a_vector_is_one_client(running: Any, autoreset: str) -> None:
    one, count = running(), 3
    client = Client(
        one.url, observation_space=OBSERVATION, action_space=ACTION, environments=count, autoreset=autoreset
    )
    times, episodes, done = np.array([0, 2, 4]), np.zeros(count, int), np.zeros(count, bool)
    first = times.copy()

    def observed() -> Any:
        return np.stack([np.arange(count), episodes, times], 1).astype(np.float32)

    action = client.reset(observed())
    for _ in range(40):
        assert action.shape == (count,)
        reset = done if autoreset == "next_step" else np.zeros(count, bool)
        times = np.where(reset, 0, times + 1)
        episodes = episodes + reset
        done = times == LENGTH
        rewards, final = np.where(reset, 0.0, 1.0), observed()
        if autoreset == "same_step":
            times, episodes = np.where(done, 0, times), episodes + done
            action = client.step(observed(), rewards, done, np.zeros(count, bool), final_observation=final)
        else:
            action = client.step(observed(), rewards, done, np.zeros(count, bool), reset=reset)
    client.close()
    found = one.rows()
    assert set(found) == set(range(count))
    for who, rows in found.items():
        whole = [(e, t, 0.0 if t == LENGTH else 1.0, t == LENGTH - 1, t != LENGTH) for e in range(9) for t in range(7)]
        begin = int(first[who])
        assert rows == whole[begin : begin + len(rows)], f"environment {who}"


def drop(client: Client) -> None:
    """The connection is lost without a word."""
    assert client._connection is not None
    with contextlib.suppress(OSError):  # it was lost before
        client._connection._socket.shutdown(socket.SHUT_RDWR)


def test_a_client_that_comes_back_goes_on_without_a_step_lost_or_doubled(running: Any) -> None:
    one, simulator = running(), None
    simulator = Numbered(0, one.url)
    chance = np.random.default_rng(0)
    for _ in range(60):
        if chance.random() < 0.3:
            drop(simulator.client)
        simulator.step()
    rows = one.rows()[0]
    assert rows == expected(len(rows))
    assert len(rows) >= 60
    assert simulator.client.reconnections > 5
    assert one.counts()["reconnections"] == simulator.client.reconnections


def test_an_answer_that_was_lost_is_given_again(running: Any) -> None:
    one = running()
    simulator = Numbered(0, one.url)
    for _ in range(20):
        client = simulator.client
        ask, state = client._ask, (client.seq, client.stored)

        def twice(message: dict[str, Any], ask: Any = ask, client: Client = client, state: Any = state) -> Any:
            first = ask(dict(message))
            client.seq, client.stored = client.seq - 1, state[1]
            assert ask(dict(message)) == first
            return first

        client._ask = twice  # type: ignore[method-assign]
        simulator.step()
        client._ask = ask  # type: ignore[method-assign]
    rows = one.rows()[0]
    assert rows == expected(len(rows))
    assert one.counts()["repeated_messages"] >= 20


def test_a_client_that_acts_by_itself_sends_blocks_and_is_sent_weights(running: Any) -> None:
    """What it draws, and what it says of it, is what the policy would have drawn; lost connections double nothing."""
    one, chance = running(), np.random.default_rng(0)
    simulator = Numbered(0, one.url, mode="local")
    policy = impala.make_policy(CFG, ENV, 1)
    newer = {name: 2.0 * weights for name, weights in export_weights(policy.network).items()}
    for step in range(240):
        if chance.random() < 0.1:
            drop(simulator.client)
        if step == 120:
            one.weights.publish(newer, make_version(0, 7))
            wait_for(lambda: one.gateway._answers.version == make_version(0, 7))
        simulator.step()
    rows = one.rows()[0]
    assert rows == expected(len(rows))
    assert len(rows) > 240
    assert simulator.client.reconnections > 5
    assert simulator.client.version == 7
    data = {name: column[:-1] for name, column in one.data.items()}
    newest = data["version"] == make_version(0, 7)
    assert 0.3 < newest.mean() < 0.6
    policy.load(newer)
    observed, actions = data["observation"][newest], data["action"][newest]
    logits = policy.mirror(observed)
    wanted = (logits - np.log(np.exp(logits).sum(1, keepdims=True)))[np.arange(len(actions)), actions]
    assert np.allclose(data["log_prob"][newest], wanted, atol=1e-5)
    assert one.counts()["env_steps"] == pytest.approx(240, abs=3 * UNROLL)


def test_who_may_act_by_itself(running: Any) -> None:
    one = running()
    with pytest.raises(Refused, match="who evaluates"):
        Client(one.url, mode="local", role="evaluator")
    with pytest.raises(Refused, match="who evaluates"):
        Client(one.url, mode="local", autoreset="same_step")
    one.gateway._answers._policy = impala.make_policy(replace(CFG, lstm=4), ENV, 0)
    with pytest.raises(Refused, match="it remembers"):
        Client(one.url, mode="local")


BAD_BLOCKS: list[tuple[dict[str, Any], str]] = [
    ({"action": np.full(UNROLL, 2)}, "from 0 to 1"),
    ({"action": np.full(UNROLL, 0.5)}, "whole numbers"),
    ({"log_prob": np.full(UNROLL, np.nan)}, "NaN"),
    ({"observation": np.zeros((UNROLL + 1, 3), np.float32)}, "shape"),
    ({"terminated": np.ones(UNROLL, bool)}, "the next row is a reset"),
    ({"stamp": 1 << 60}, "stamp"),
    ({"reward": np.full(UNROLL, np.inf)}, "infinity"),
]


@pytest.mark.parametrize(("changes", "said"), BAD_BLOCKS)
def test_a_bad_block_is_one_sentence(running: Any, changes: dict[str, Any], said: str) -> None:
    client = Client(running().url, mode="local")
    good = {"observation": np.zeros((UNROLL, 3), np.float32), "action": np.zeros(UNROLL, np.int64), "stamp": 0}
    good |= {"log_prob": np.zeros(UNROLL, np.float32)}
    client._ask(dict(good), "block")
    with pytest.raises(Refused, match=said):
        client._ask(good | changes, "block")


def spoiled(chance: random.Random, message: dict[str, Any]) -> bytes:
    """A message in which something is wrong: a field, a number, or some bytes."""
    things = [
        None,
        -1,
        1 << 63,
        1e300,
        float("nan"),
        "x" * 300,
        b"\0" * 7,
        [],
        [[1], [2, 3]],
        {},
        True,
        np.ones((2, 2)),
    ]
    message = dict(message)
    if chance.random() < 0.6:
        message[chance.choice([*message, "environments", "session", "action_mask", "x"])] = chance.choice(things)
    if chance.random() < 0.2:
        message.pop(chance.choice(list(message)))
    data = bytearray(pack(message))
    for _ in range(chance.choice([0, 0, 1, 3])):
        data[chance.randrange(len(data))] = chance.randrange(256)
    return bytes(data[: chance.randrange(len(data))] if chance.random() < 0.1 else data)


@pytest.mark.slow
def test_garbage_behind_the_door_changes_nothing_for_others(running: Any) -> None:
    """Strangers that may come in and send what is nearly right, while three simulators learn."""
    one, chance, stop = running(expiry=0.5), random.Random(0), threading.Event()
    modes = ("central", "central", "local")
    honest = [Numbered(1000 + who, one.url, mode=mode) for who, mode in enumerate(modes)]  # as no stranger is
    failed: list[BaseException] = []

    def play(simulator: Numbered) -> None:
        try:
            while not stop.is_set():
                simulator.step()
                time.sleep(0.0005)
        except BaseException as problem:
            failed.append(problem)

    threads = [threading.Thread(target=play, args=(simulator,)) for simulator in honest]
    for thread in threads:
        thread.start()
    seen = np.full((UNROLL, 3), 9.0, np.float32)
    row = {"type": "step", "seq": 1, "observation": seen[0], "reward": 1.0, "terminated": False, "truncated": True}
    block = {"type": "block", "seq": 1, "stamp": 0, "observation": seen, "action": np.zeros(UNROLL, int)}
    block |= {"log_prob": np.zeros(UNROLL), "terminated": np.zeros(UNROLL, bool)}
    try:
        for _ in range(3000):
            hello: dict[str, Any] = {"type": "hello", "protocol": 1, "role": "environment", "session": "", "seq": 0}
            hello["mode"] = chance.choice(["central", "local"])
            with (
                contextlib.suppress(Exception),
                websockets.sync.client.connect(one.url, compression=None, proxy=None, close_timeout=0.1) as stranger,
            ):
                stranger.send(spoiled(chance, hello) if chance.random() < 0.3 else pack(hello))
                for number in range(1, chance.randrange(1, 4)):
                    said = (block if hello["mode"] == "local" else row) | {"seq": number}
                    stranger.send(spoiled(chance, said) if chance.random() < 0.7 else pack(said))
                    stranger.recv(0.2)
    finally:
        stop.set()
        for thread in threads:
            thread.join(20)
    assert not failed
    assert one.gateway._problem is None
    rows = one.rows()
    for simulator in honest:
        own = rows[simulator.who]
        assert own == expected(len(own))
        assert len(own) > 1000
        assert simulator.client.reconnections == 0
    assert one.counts()["clients"] > 500, "many came in"
    assert one.gateway._thread.door.counts["errors"] == 0, one.gateway._thread.door.counts
    assert one.gateway._thread.door.counts["refused_message"] > 500
    wait_for(lambda: len(one.gateway._reception.sessions) == 3)
    assert len(one.gateway._slots) < 200, "streams are used again"


def wait_for(true: Callable[[], bool], seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_client_that_dies_costs_its_episode_and_no_row(running: Any) -> None:
    one = running(expiry=0.2)
    first = Numbered(0, one.url)
    for _ in range(9):  # 3 steps into the second episode
        first.step()
    drop(first.client)
    deadline = time.monotonic() + 10
    while not one.gateway._streams.free and time.monotonic() < deadline:
        time.sleep(0.02)
    second = Numbered(1, one.url)
    for _ in range(30):
        second.step()
    rows = one.rows()
    assert rows[0][: len(rows[0])] == [
        *expected(7),
        *((1, t, 1.0, False, True) for t in range(3)),
        (1, 3, 0.0, False, False),
    ]
    assert rows[1] == expected(len(rows[1]))
    counts = one.counts()
    assert (counts["lost_episodes"], counts["expired_sessions"]) == (1, 1)


def test_clients_wait_where_the_learner_is_slower(running: Any) -> None:
    """Nothing is heaped up, and others are still greeted; when the learner goes on, so do they."""
    one, steps = running(capacity=4), [0, 0, 0]

    def play(who: int) -> None:
        with contextlib.suppress(Ended):
            simulator = Numbered(who, one.url)
            while True:
                simulator.step()
                steps[who] += 1

    for who in range(3):
        threading.Thread(target=play, args=(who,), daemon=True).start()
    wait_for(lambda: min(steps) > UNROLL)
    time.sleep(0.5)
    held = list(steps)
    time.sleep(0.5)
    assert steps == held, "they wait"
    assert sum(steps) < 3 * UNROLL * 8
    assert one.gateway._streams.waiting <= 4 + 3
    Client(one.url).close()
    for _ in range(20):
        one.replay.sample("rollouts", 4)
    assert min(steps) > max(held)
    one.replay.close()


def test_who_says_goodbye_leaves_a_stream_to_the_next(running: Any) -> None:
    one = running()
    for who in range(5):
        simulator = Numbered(who, one.url)
        for _ in range(7):
            simulator.step()
        simulator.client.close()
        time.sleep(0.1)
    assert len(one.gateway._slots) == 1
    stored = [row for rows in one.rows().values() for row in rows]
    assert len(stored) >= 5 * 8 - UNROLL
    assert one.counts()["lost_episodes"] == 5


def test_what_does_not_fit_is_refused_in_one_sentence(running: Any) -> None:
    one = running()
    with pytest.raises(Refused, match="the run's observation space"):
        Client(one.url, observation_space=OBSERVATION | {"shape": [4]}, action_space=ACTION)
    with pytest.raises(Refused, match="the run's action space"):
        Client(one.url, observation_space=OBSERVATION, action_space=ACTION | {"n": 3})
    with pytest.raises(Refused, match="shoal serve"):
        Client(one.url, role="player")
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"observation": np.zeros(4)}, "has shape"),
        ({"observation": np.array([np.nan, 0, 0])}, "NaN"),
        ({"observation": np.zeros(3), "action_mask": np.ones(2)}, "masks"),
        ({"observation": np.zeros(3), "reward": np.inf}, "NaN or infinity"),
        ({"observation": np.zeros(3), "reset": True, "terminated": True}, "a reset and the end"),
    ]
    for message, said in wrong:
        client = Client(one.url)
        with pytest.raises(Refused, match=said):
            client._ask(message)
        client.close()
    client = Client(one.url)
    client.seq = 7
    with pytest.raises(Refused, match="number 1, and not 8"):
        client._ask({"observation": np.zeros(3)})


def test_there_is_room_for_so_many(running: Any) -> None:
    one = running(environments=2)
    held = Client(one.url, environments=2)
    with pytest.raises(Lost):
        Client(one.url, patience=0.2)
    held.close()
    Client(one.url).close()


def test_evaluators_judge_and_wait_meanwhile(running: Any) -> None:
    one = running()
    returns: list[float] = []

    def play() -> None:
        simulator = Numbered(9, one.url, role="evaluator")
        with contextlib.suppress(Ended):
            while not stop.is_set():
                simulator.step()

    stop = threading.Event()
    thread = threading.Thread(target=play, daemon=True)
    thread.start()
    deadline = time.monotonic() + 10
    while not one.gateway.evaluators() and time.monotonic() < deadline:
        time.sleep(0.01)
    found = one.weights.newer(-1)
    for _ in range(3):
        asked = one.gateway.judge(*found, 4)
        assert asked is not None
        played: list[float] | None = []
        while played == [] and time.monotonic() < deadline:
            played = one.gateway.judged(asked, 4, 1.0)
        assert played is not None
        returns += played
    stop.set()
    assert returns == [float(LENGTH)] * 12
    assert one.rows() == {}, "what evaluators see is not learned from"
    assert "env_steps" not in one.counts()


@pytest.mark.parametrize("algorithm", ["impala", "ppo", "apex_dqn"])
def test_a_run_learns_from_clients_that_it_knows_nothing_of(algorithm: str, tmp_path: Path) -> None:
    """Spaces are said by the first client, who is asked to come back when the run has been started."""
    port = free_port()
    clients = Clients(f"ws://127.0.0.1:{port}", ["environment"] * 3 + ["evaluator"])
    cfg = ALGORITHMS[algorithm].Config(env="external", listen=f"127.0.0.1:{port}", **SIZES[algorithm])
    result = shoal.train(cfg, quiet=True, stop_return=0.7, stop_seconds=120, run_dir=str(tmp_path / "run"))
    clients.join()
    assert not clients.failed
    assert result.stopped_by == "return"
    assert result.env_steps > 100, "no policy of the beginning reaches it"
    assert len(clients.acted) >= 2, "one who learns and one who judges"
    assert clients.ended == dict.fromkeys(clients.acted, "the run has ended"), "who takes part hears of the end"


@pytest.mark.parametrize(
    "algorithm", ["impala", *(pytest.param(x, marks=pytest.mark.slow) for x in ("ppo", "apex_dqn"))]
)
def test_a_run_learns_from_clients_that_act_by_themselves(algorithm: str, tmp_path: Path) -> None:
    port = free_port()
    clients = Clients(f"ws://127.0.0.1:{port}", ["environment"] * 3 + ["evaluator"], mode="local")
    cfg = ALGORITHMS[algorithm].Config(env="external", listen=f"127.0.0.1:{port}", **SIZES[algorithm])
    result = shoal.train(cfg, quiet=True, stop_return=0.7, stop_seconds=120, run_dir=str(tmp_path / "run"))
    clients.join()
    assert not clients.failed
    assert result.stopped_by == "return"
    assert clients.ended == dict.fromkeys(clients.acted, "the run has ended")


@pytest.mark.parametrize("kept", ["said again", pytest.param("in a file", marks=pytest.mark.slow)])
def test_a_run_goes_on_with_the_clients_of_its_second_life(kept: str, tmp_path: Path) -> None:
    """It listens where it did, and waits for a client where nothing else says what its spaces are."""
    port, run = free_port(), tmp_path / "run"
    record = tmp_path / "spaces.json"
    record.write_text(json.dumps(SIGNS))
    place: dict[str, Any] = {"listen": f"127.0.0.1:{port}", "spaces": None if kept == "said again" else str(record)}
    cfg = impala.Config(env="external", **place, **SIZES["impala"])
    first = Clients(f"ws://127.0.0.1:{port}", ["environment"] * 2)
    begun = shoal.train(cfg, quiet=True, stop_updates=5, run_dir=str(run))
    first.join()
    second = Clients(f"ws://127.0.0.1:{port}", ["environment"] * 3 + ["evaluator"])
    resumed = shoal.resume(run, quiet=True, stop_updates=100_000, stop_return=0.7, stop_seconds=120)
    second.join()
    assert not first.failed + second.failed
    assert begun.learner_steps >= 5
    assert resumed.learner_steps > begun.learner_steps, "it counts on"
    assert resumed.env_steps > begun.env_steps
    assert resumed.stopped_by == "return"
    assert second.ended == dict.fromkeys(second.acted, "the run has ended")


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("algorithm", ["impala", "ppo"])
def test_clients_of_a_run_on_ray(algorithm: str, ray_cluster: str, tmp_path: Path) -> None:
    port = free_port()
    clients = Clients(f"ws://127.0.0.1:{port}", ["environment"] * 3 + ["evaluator"], patience=180)
    cfg = ALGORITHMS[algorithm].Config(env="external", listen=f"127.0.0.1:{port}", **SIZES[algorithm])
    where: dict[str, Any] = {"runtime": "ray", "ray_address": ray_cluster, "run_dir": str(tmp_path / "run")}
    result = shoal.train(cfg, quiet=True, stop_return=0.7, stop_seconds=200, **where)
    clients.join()
    assert not clients.failed
    assert (result.runtime, result.stopped_by) == ("ray", "return")
    assert clients.ended == dict.fromkeys(clients.acted, "the run has ended")


@pytest.mark.slow  # eight seconds; of shoal serve, which has the same door, it is tried every time
def test_tokens_and_certificates_of_a_run(tmp_path: Path) -> None:
    port, token = free_port(), "a token of the test's own"
    certificate, key = certificates(tmp_path)
    (tmp_path / "token").write_text(token + "\n")
    files = {"token_file": tmp_path / "token", "tls_certificate": certificate, "tls_key": key}
    cfg = impala.Config(
        env="external", listen=f"127.0.0.1:{port}", **{name: str(path) for name, path in files.items()},
        **SIZES["impala"],
    )  # fmt: skip
    trusting = ssl.create_default_context(cafile=str(certificate))
    clients = Clients(f"wss://localhost:{port}", ["environment"] * 2, token=token, tls=trusting)
    stranger = Clients(f"wss://localhost:{port}", ["environment"], token="another token altogether", tls=trusting)
    result = shoal.train(cfg, quiet=True, stop_updates=20, stop_seconds=120, run_dir=str(tmp_path / "run"))
    clients.join()
    assert result.learner_steps >= 20
    assert not clients.failed
    assert clients.ended == dict.fromkeys(clients.acted, "the run has ended")
    assert not stranger.acted
    assert token not in "".join(path.read_text("utf-8", "replace") for path in (tmp_path / "run").rglob("*.json*"))


def test_who_hears_the_end_with_its_last_answer_hears_it() -> None:
    """The answer, the end and the close may come at once: before the client asks again."""

    class Ends:
        kind = "train"

        def metadata(self) -> dict[str, Any]:
            return {}

        async def talk(self, peer: Peer) -> None:
            await peer.send({"type": "welcome", "session": "a", "resumed": False})
            await peer.receive()
            peer.write(pack({"type": "action", "seq": 1, "action": 0, "version": 0, "stored": 0}))
            await peer.end("the run has ended")

    thread = DoorThread(Door(Ends(), Listen("127.0.0.1", 0)))
    thread.start()
    try:
        for pause in (0.0, 0.2):
            client = Client(f"ws://127.0.0.1:{thread.port}", patience=5)
            assert client.reset(np.zeros(3)) == 0
            time.sleep(pause)
            with pytest.raises(Ended, match="the run has ended"):
                client.step(np.zeros(3), 0.0, False, False)
    finally:
        thread.stop(grace=0.5)


def test_presets_are_made_to_fit_clients() -> None:
    """Whose number nobody knows, and who are slower than environments at hand."""
    place = {"env": EXTERNAL, "listen": "127.0.0.1:1"}
    preset = partial(apply_preset, presets=apex_dqn.PRESETS, kind="classic")
    fitted, env = fit(preset(apex_dqn.Config(**place)), ENV, "local")
    assert (fitted.envs_per_actor, fitted.samples_per_insert) == (16, 5.0)
    assert "--samples-per-insert 5" in str(env.vectorizer_note)
    given, _ = fit(preset(apex_dqn.Config(**place, samples_per_insert=2.0)), ENV, "local")
    assert given.samples_per_insert == 2.0
    rollouts, _ = fit(apply_preset(impala.Config(**place), impala.PRESETS, "classic"), ENV, "local")
    assert (rollouts.envs_per_actor, rollouts.batch, rollouts.queue) == (16, 16, 16)


def test_what_cannot_work_is_said_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--listen HOST:PORT"):
        shoal.train(impala.Config(env="external"), quiet=True)
    with pytest.raises(UserError, match="--env external"):
        shoal.train(impala.Config(env="CartPole-v1", listen="127.0.0.1:1"), quiet=True)
    with pytest.raises(UserError, match="such as impala"):
        shoal.train(a3c.Config(env="external"), quiet=True)
    record = tmp_path / "spaces.json"
    record.write_text(json.dumps({"observation": OBSERVATION, "action": ACTION}))
    cfg = impala.Config(env="external", listen="127.0.0.1:0", spaces=str(record))
    with pytest.raises(UserError, match="--runtime inline"):
        shoal.train(cfg, quiet=True, runtime="inline", stop_updates=1)
    record.write_text("{}")
    with pytest.raises(UserError, match="--spaces"):
        shoal.train(cfg, quiet=True, stop_updates=1)
    with pytest.raises(UserError, match="--token-file"):
        shoal.train(impala.Config(env="external", listen="0.0.0.0:8700"), quiet=True)
