"""The gateway among those who mean no good: clients that die, a server that is killed, ten thousand strangers."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgpack
import numbered
import numpy as np
import psutil
import pytest

from shoal.gateway.server import Door, DoorThread, Limits, Listen, Peer, Security
from shoal.gateway.wire import Message, pack

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "clients" / "python"))

from shoal_client import Client  # noqa: E402

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
        row = 0
        def seen():
            global row
            row += 1
            return np.array([who, row - 1], np.float32)
        try:
            shoal.reset(seen())
            while True:
                ended = row % 50 == 49
                shoal.step(seen(), 0.0, ended, False)
                if ended:
                    shoal.reset(seen())
        except Ended:
            print(shoal.seq, shoal.reconnections)
    """
)


def gateway_process(listen: str) -> psutil.Process | None:
    """The node of the run that listens."""
    port = int(listen.rpartition(":")[2])
    for one in psutil.net_connections("tcp"):
        if one.status == psutil.CONN_LISTEN and one.laddr.port == port and one.pid is not None:
            return psutil.Process(one.pid)
    return None


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_clients_and_server_are_killed_and_no_row_is_lost_in_silence_or_doubled(tmp_path: Path) -> None:
    """64 clients whose observations are numbered; for 40 seconds a third of them is killed and replaced, and the
    gateway is killed twice. What the learner was given has no row twice, and gaps only where the gateway was killed."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        listen = f"127.0.0.1:{free.getsockname()[1]}"
    rows, run = tmp_path / "rows", tmp_path / "run"
    space = '{"kind": "box", "shape": [2], "dtype": "float32", "low": 0.0, "high": 16777216.0}'
    record = tmp_path / "spaces.json"
    record.write_text(f'{{"observation": {space}, "action": {{"kind": "discrete", "n": 2, "start": 0}}}}')
    variables = os.environ | {"SHOAL_NUMBERED_ROWS": str(rows), "PYTHONPATH": str(ROOT / "clients" / "python")}
    train = [sys.executable, "-m", "shoal", "train", str(ROOT / "tests" / "chaos" / "numbered.py")]
    train += ["--env", "external", "--listen", listen, "--spaces", str(record), "--run-dir", str(run)]
    train += [
        "--session-seconds",
        "3",
        "--stop-seconds",
        "60",
        "--batch",
        "16",
        "--queue",
        "64",
        "--max-failures",
        "10",
    ]
    learning = subprocess.Popen(train, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    clients: dict[int, subprocess.Popen[str]] = {}
    chance, lives = random.Random(0), 0

    def start() -> None:
        nonlocal lives
        command = [sys.executable, "-c", CLIENT, f"ws://{listen}", str(lives)]
        clients[lives] = subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, text=True)
        lives += 1

    try:
        for _ in range(64):
            start()
        begun, killed, server_kills = time.monotonic(), 0, 0
        while time.monotonic() - begun < 40.0 and learning.poll() is None:
            time.sleep(1.0)
            victim = chance.choice(list(clients))
            process = clients.pop(victim)
            process.send_signal(signal.SIGKILL)
            process.communicate()
            killed += 1
            start()
            if server_kills < 2 and time.monotonic() - begun > 15.0 * (server_kills + 1):
                node = gateway_process(listen)
                if node is not None:
                    node.kill()
                    server_kills += 1
        told, _ = learning.communicate(timeout=120)
        ends = [process.communicate(timeout=30)[0] for process in clients.values()]
    finally:
        for process in [learning, *clients.values()]:
            if process.poll() is None:
                process.kill()
                process.communicate()
    assert learning.returncode == 0, told[-3000:]
    assert server_kills == 2
    assert killed >= 20
    assert sum(bool(end.strip()) for end in ends) >= 60, "clients go on until they are told that the run has ended"
    seen = numbered.read_rows(rows)
    gaps = 0
    for who in np.unique(seen[:, 0]):
        numbers = np.sort(seen[seen[:, 0] == who, 1])
        assert len(np.unique(numbers)) == len(numbers), "a row was given twice"
        gaps += int((np.diff(numbers) > 1).sum())
    assert len(np.unique(seen[:, 0])) >= 64
    assert gaps <= 2 * 64, "a kill of the gateway costs every client its open block, and nothing else does"
    print(f"{len(seen):,} rows of {lives} clients, {killed} killed; {gaps} gaps")
