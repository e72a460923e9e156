"""The gateway among those who mean no good: clients that die, a server that is killed, ten thousand strangers."""

from __future__ import annotations

import math
import os
import random
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgpack
import numbered
import numpy as np
import psutil
import pytest

import shoal
from gateway_clients import ALGORITHMS, SIZES, Client, Clients, free_port
from shoal.gateway.server import Door, DoorThread, Limits, Listen, Peer, Security
from shoal.gateway.wire import Message, pack

ROOT = Path(__file__).parents[2]
TOKEN = "a token of the test's own"
UPGRADE = (
    b"GET / HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)


class Echo:
    kind = "serve"

    def metadata(self) -> Message:
        return {}

    async def talk(self, peer: Peer) -> None:
        await peer.send({"type": "welcome", "session": "a"})
        while True:
            message = await peer.receive()
            await peer.send({"type": "action", "seq": message.get("seq", 0), "action": 0, "version": 0, "stored": 0})


def frame(data: bytes, opcode: int = 2) -> bytes:
    size = bytes([0x80 | len(data)]) if len(data) < 126 else b"\xfe" + len(data).to_bytes(2, "big")
    return bytes([0x80 | opcode]) + size + b"\0\0\0\0" + data


def object_array() -> bytes:
    array = {b"__ndarray__": True, b"data": b"\x80\x04N.", b"dtype": "|O", b"shape": [1]}
    return bytes(msgpack.packb({"observation": array}))


HELLO = pack({"type": "hello", "protocol": 1, "token": TOKEN})
OPENINGS: list[Callable[[random.Random], bytes]] = [
    lambda r: r.randbytes(r.randrange(1, 2000)),
    lambda r: UPGRADE[: r.randrange(len(UPGRADE))],
    lambda r: b"GET / HTTP/1.1\r\n" + b"".join(b"X-%d: %d\r\n" % (i, i) for i in range(r.randrange(1000))),
    lambda r: b"GET / HTTP/1.1\r\nX: " + b"a" * r.randrange(20_000),
    lambda r: UPGRADE + r.randbytes(r.randrange(1, 500)),
    lambda r: UPGRADE + b"\x82\xff" + (1 << r.randrange(30, 62)).to_bytes(8, "big") + b"aaaa",
    lambda r: UPGRADE + frame(HELLO)[: r.randrange(1, len(HELLO))],
    lambda r: UPGRADE + frame(pack({"type": "hello", "protocol": 1, "token": "wrong"})),
    lambda r: UPGRADE.replace(b"\r\n\r\n", b"\r\nAuthorization: Bearer wrong\r\n\r\n"),
    lambda r: UPGRADE + frame(object_array()),
    lambda r: UPGRADE + frame(HELLO) + frame(object_array()),
    lambda r: UPGRADE + frame(HELLO) * 3,
    lambda r: UPGRADE + frame(HELLO) + frame(b"\xdd\xff\xff\xff\xff"),
    lambda r: b"POST /v2/models/a/infer HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999999\r\n\r\n" + b"a" * 100,
    lambda r: UPGRADE + frame(b"a" * 125, 9) * 50,
]


def resident() -> int:
    return int(psutil.Process().memory_info().rss)


@pytest.mark.slow
def test_ten_thousand_hostile_openings_change_nothing_for_others() -> None:
    limits = Limits(handshake_seconds=2.0, openings_per_second=1e9)
    door = DoorThread(Door(Echo(), Listen("127.0.0.1", 0), security=Security(token=TOKEN), limits=limits))
    door.start()
    answered, stop, failed = [0], threading.Event(), []

    def play() -> None:
        try:
            client = Client(f"ws://127.0.0.1:{door.port}", token=TOKEN)
            while not stop.is_set():
                client._ask({"observation": 0})
                answered[0] += 1
            failed.extend(["came back"] * client.reconnections)
        except BaseException as problem:
            failed.append(repr(problem))

    thread = threading.Thread(target=play)
    thread.start()
    chance = random.Random(0)

    def open_one() -> None:
        with socket.create_connection(("127.0.0.1", door.port)) as raw:
            raw.settimeout(0.02)
            try:
                raw.sendall(OPENINGS[chance.randrange(len(OPENINGS))](chance))
                if chance.random() < 0.2:
                    while raw.recv(65_536):
                        pass
            except OSError:
                pass

    try:
        for _ in range(2000):
            open_one()
        before, count = resident(), answered[0]
        for _ in range(8000):
            open_one()
        after = resident()
    finally:
        stop.set()
        thread.join(10)
        counts = dict(door.door.counts)
        door.stop(grace=1.0)
    assert not failed
    assert answered[0] > count + 100, "the one who belongs there is served all the time"
    assert after - before < 16 << 20, f"memory grew by {(after - before) >> 10} KiB"
    assert counts.get("errors", 0) == 0, counts
    assert counts["refused_token"] > 100
    assert counts["refused_message"] > 100


CLIENT = textwrap.dedent(
    """
    import sys
    import numpy as np
    from shoal_client import Client, Ended
    url, who = sys.argv[1], int(sys.argv[2])
    space = {"kind": "box", "shape": [2], "dtype": "float32", "low": 0.0, "high": float(1 << 24)}
    action = {"kind": "discrete", "n": 2, "start": 0}
    with Client(url, observation_space=space, action_space=action, patience=90) as shoal:
        row, life = 0, [shoal.session, 0, 0]

        def ask(send, *rest):
            global row
            row += 1
            send(np.array([who, row - 1], np.float32), *rest)
            if shoal.session != life[0]:  # of a server that was lost: what it had said to be stored
                print("lost", life[1], life[2], flush=True)
            life[:] = [shoal.session, shoal.seq, shoal.stored]

        try:
            ask(shoal.reset)
            while True:
                ended = row % 50 == 49
                ask(shoal.step, 0.0, ended, False)
                if ended:
                    ask(shoal.reset)
        except Ended:
            print("ended", shoal.seq, shoal.reconnections, flush=True)
    """
)


def gateway_process(port: int) -> psutil.Process | None:
    """The node of the run that listens."""
    for one in psutil.net_connections("tcp"):
        if one.status == psutil.CONN_LISTEN and one.laddr.port == port and one.pid is not None:
            return psutil.Process(one.pid)
    return None


@dataclass
class Life:
    """Of one client."""

    process: subprocess.Popen[str]
    born: float
    died: float = math.inf
    said: list[list[str]] = field(default_factory=list)

    def end(self) -> None:
        out, _ = self.process.communicate(timeout=30)
        self.said = [line.split() for line in out.splitlines()]


class Simulators:
    """Clients in processes of their own, beside a run that they learn with."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = int(free.getsockname()[1])
        self.rows, self.told = folder / "rows", folder / "told"
        space = '{"kind": "box", "shape": [2], "dtype": "float32", "low": 0.0, "high": 16777216.0}'
        record = folder / "spaces.json"
        record.write_text(f'{{"observation": {space}, "action": {{"kind": "discrete", "n": 2, "start": 0}}}}')
        self._variables = os.environ | {
            "SHOAL_NUMBERED_ROWS": str(self.rows),
            "PYTHONPATH": str(ROOT / "clients" / "python"),
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
        }
        options = ["--env", "external", "--listen", f"127.0.0.1:{self.port}", "--spaces", str(record)]
        options += ["--run-dir", str(folder / "run"), "--session-seconds", "3", "--max-failures", "10"]
        options += ["--batch", "16", "--queue", "64", "--stop-seconds", "3600"]
        with open(self.told, "w") as told:
            self.learning = subprocess.Popen(
                [sys.executable, "-m", "shoal", "train", str(ROOT / "tests" / "chaos" / "numbered.py"), *options],
                env=self._variables,
                stdout=told,
                stderr=subprocess.STDOUT,
            )
        self.lives: list[Life] = []

    def start(self) -> None:
        command = [sys.executable, "-c", CLIENT, f"ws://127.0.0.1:{self.port}", str(len(self.lives))]
        process = subprocess.Popen(command, env=self._variables, stdout=subprocess.PIPE, text=True)
        self.lives.append(Life(process, time.monotonic()))

    @property
    def alive(self) -> list[Life]:
        return [life for life in self.lives if life.died == math.inf]

    def kill(self, life: Life) -> None:
        life.process.kill()
        life.died = time.monotonic()
        life.end()

    def kill_server(self, seconds: float = 60.0) -> float:
        """When."""
        deadline = time.monotonic() + seconds
        while (node := gateway_process(self.port)) is None:
            assert time.monotonic() < deadline, self.told.read_text()[-3000:]
            time.sleep(0.2)
        node.kill()
        return time.monotonic()

    def count(self) -> int:
        return self.rows.stat().st_size // 16 if self.rows.exists() else 0

    def close(self) -> None:
        for process in [self.learning, *(life.process for life in self.lives)]:
            if process.poll() is None:
                process.kill()
                process.wait()
        for life in self.lives:
            if life.process.stdout is not None:
                life.process.stdout.close()


def check_rows(rows: np.ndarray[Any, Any], lives: list[Life], kills: list[float]) -> tuple[int, int]:
    """Every row was given to the learner once, but for those that a killed gateway had not said to be stored; how many
    gaps there are, and rows in them."""
    gaps = missing = 0
    for who, life in enumerate(lives):
        numbers = np.sort(rows[rows[:, 0] == who, 1])
        assert len(np.unique(numbers)) == len(numbers), f"a row of client {who} was given twice"
        holes = np.flatnonzero(np.diff(numbers) > 1)
        lived_through = sum(life.born < when < life.died for when in kills)
        assert len(holes) <= lived_through, f"client {who} has {len(holes)} gaps and saw {lived_through} servers die"
        gaps, missing = gaps + len(holes), missing + int((np.diff(numbers) - 1).sum())
        given, first = set(numbers.tolist()), 0
        for seq, stored in (map(int, words[1:]) for words in life.said if words[0] == "lost"):
            absent = set(range(first, stored - 1)) - given
            assert not absent, f"client {who} was told that {stored} were stored, and {sorted(absent)[:20]} were not"
            first = seq  # the step that was not answered is the next server's first row
    return gaps, missing


def kill_at_random(folder: Path, *, clients: int, seconds: float) -> str:
    """A third of the clients is killed and replaced every ten seconds, and the gateway is killed twice."""
    simulators, chance = Simulators(folder), random.Random(0)
    try:
        for _ in range(clients):
            simulators.start()
        deadline = time.monotonic() + 120
        while simulators.count() < 10 * clients:
            assert simulators.learning.poll() is None, simulators.told.read_text()[-3000:]
            assert time.monotonic() < deadline, simulators.told.read_text()[-3000:]
            time.sleep(0.2)
        begun, kills, killed = time.monotonic(), [], 0
        while (passed := time.monotonic() - begun) < seconds:
            time.sleep(30.0 / clients)
            simulators.kill(chance.choice(simulators.alive))
            simulators.start()
            killed += 1
            if len(kills) < 2 and passed > seconds / 3 * (len(kills) + 1):
                kills.append(simulators.kill_server())
        assert simulators.learning.poll() is None, simulators.told.read_text()[-3000:]
        before, deadline = simulators.count(), time.monotonic() + 60
        while simulators.count() < before + 100 * clients:
            assert time.monotonic() < deadline, "the run goes on"
            time.sleep(0.5)
        time.sleep(5.0)  # those who were born last come in
        simulators.learning.send_signal(signal.SIGINT)
        simulators.learning.wait(60)
        alive = simulators.alive
        for life in alive:
            life.end()
        told = simulators.told.read_text()
        rows = numbered.read_rows(simulators.rows)
        gaps, missing = check_rows(rows, simulators.lives, kills)
    finally:
        simulators.close()
    assert len(kills) == 2
    assert killed >= seconds * clients / 45
    ended = sum(bool(life.said) and life.said[-1][0] == "ended" for life in alive)
    assert ended == clients, f"{ended} of {clients} heard of the end\n{told[-3000:]}"
    return (
        f"{len(rows):,} rows of {len(simulators.lives)} clients, {killed} killed, 2 servers killed: {gaps} gaps of "
        f"{missing} rows in all"
    )


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_clients_and_server_are_killed_and_no_row_is_lost_in_silence_or_doubled(tmp_path: Path) -> None:
    print(kill_at_random(tmp_path, clients=64, seconds=300.0))


class Killer:
    """Kills nodes of a run of this process, one after another, once it has learned for a while since the last time."""

    def __init__(self, *names: str) -> None:
        self._names, self._next, self.done = list(names), 50.0, False
        self.returns: list[float] = []

    def progress(self, told: Mapping[str, Any]) -> bool:
        steps = told.get("learner_steps", 0)
        if steps < self._next:
            return False
        if not self._names:  # it goes on, and judges well
            self.done = bool(self.returns) and self.returns[-1] >= 0.7
            return self.done
        name = self._names[0]
        found = [one for one in psutil.Process().children(recursive=True) if one.name() == name]
        if found:
            found[0].kill()
            self._names.pop(0)
            self._next, self.returns = steps + 100, []
        return False

    def evaluation(self, told: Mapping[str, Any]) -> None:
        self.returns.append(told["eval_return"])


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["impala", "ppo", "apex_dqn"])
def test_learner_and_gateway_are_killed_under_clients_who_go_on(algorithm: str, tmp_path: Path) -> None:
    port, killer = free_port(), Killer("learner", "gateway", "learner", "replay", "gateway")
    clients = Clients(f"ws://127.0.0.1:{port}", ["environment"] * 4 + ["evaluator"] * 2)
    cfg = ALGORITHMS[algorithm].Config(env="external", listen=f"127.0.0.1:{port}", **SIZES[algorithm])
    called = {"on_progress": killer.progress, "on_evaluation": killer.evaluation}
    result = shoal.train(cfg, quiet=True, stop_seconds=150, run_dir=str(tmp_path / "run"), max_failures=10, **called)
    clients.join()
    assert killer.done, (killer._names, killer.returns, result)
    assert result.restarts == 5
    assert not clients.failed
    assert len(clients.acted) == 6
    assert clients.ended == dict.fromkeys(clients.acted, "the run has ended")
