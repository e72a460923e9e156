"""Clients in other languages against a server: the same actions as the policy's own. A game in a browser, looked at."""

from __future__ import annotations

import base64
import contextlib
import functools
import http.server
import itertools
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import websockets.sync.client

import shoal
from gateway_clients import free_port
from saved_runs import saved_run

ROOT = Path(__file__).parents[2]
OBSERVATIONS = np.random.default_rng(0).normal(scale=3.0, size=(40, 4)).astype(np.float32)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved_run(tmp_path_factory.mktemp("runs") / "cartpole", "ppo", env="CartPole-v1")


def node() -> list[str]:
    found = shutil.which("node")
    if found is None:
        pytest.skip("Node is not installed: the JavaScript client runs in it, and in browsers")
    version = subprocess.run([found, "--version"], capture_output=True, text=True).stdout.strip().lstrip("v")
    major, minor = (int(part) for part in version.split(".")[:2])
    if (major, minor) < (20, 10):
        pytest.skip(f"Node {version} has no WebSocket: it needs 20.10, or 22 without a flag")
    return [found] if major >= 22 else [found, "--experimental-websocket", "--no-warnings"]


def javascript(code: str, *words: str) -> Any:
    """What a module prints as JSON."""
    text = f'import {{ Client, ShoalError, array, pack, unpack }} from "{ROOT}/clients/javascript/shoal.js";\n{code}'
    command = [*node(), "--input-type=module", "-e", text, *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_javascript_client_gets_the_policys_own_actions(run: Path) -> None:
    with shoal.serve(run) as serving:
        found = javascript(
            """
            const [url, rows] = [process.argv[1], JSON.parse(process.argv[2])];
            const one = await Client.connect(url);
            const single = [];
            for (const row of rows) single.push((await one.act(row)).action);
            const all = await Promise.all(rows.map((row) => one.act(Float32Array.from(row))));
            const together = all.map((answer) => answer.action);
            const many = await Client.connect(url, { environments: rows.length });
            const answer = await many.act(array(rows));
            const told = await one.act([1, 2]).catch((problem) => [problem.code, problem.message]);
            const refused = await Client.connect(url, { role: "environment" }).catch((problem) => problem.message);
            one.close(); many.close();
            console.log(JSON.stringify({ single, together, many: [...answer.action.data].map(Number), told, refused }));
            """,
            serving.url,
            json.dumps(OBSERVATIONS.tolist()),
        )
    wanted = shoal.load(run).act(OBSERVATIONS).tolist()  # type: ignore[union-attr]
    assert found["single"] == found["together"] == found["many"] == wanted
    assert found["told"][0] == "message"
    assert "[2]" in found["told"][1]
    assert "finished policy" in found["refused"]


def test_the_javascript_client_comes_back_and_asks_again_what_was_not_answered(run: Path) -> None:
    with shoal.serve(run) as serving:
        port = serving.port
        script = (
            f'import {{ Client }} from "{ROOT}/clients/javascript/shoal.js";'
            + """
            const shoal = await Client.connect(process.argv[1], { retrySeconds: 20 });
            console.log("here");
            let answered = 0;
            for (;;) { await shoal.act([0, 0, 0, 0]); if (++answered % 100 === 0) console.log("here"); }
        """
        )
        process = subprocess.Popen(
            [*node(), "--input-type=module", "-e", script, serving.url], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        assert process.stdout is not None
        for _ in range(3):
            assert process.stdout.readline() == b"here\n"
    try:
        with shoal.serve(run, port=port):
            before = [process.stdout.readline() for _ in range(30)]  # what it had said before, and what it says now
            assert before == [b"here\n"] * 30
            assert process.poll() is None
    finally:
        process.kill()
        process.communicate()


def test_messages_of_the_javascript_client_are_those_of_the_server() -> None:
    from shoal.gateway.wire import pack, unpack

    said = {
        "a": [0, -1, 200, -200, 70_000, 1 << 40, 1.5, True, None, "é" * 40],
        "b": {"c": np.arange(6.0).reshape(2, 3)},
    }
    found = javascript(
        """
        const message = unpack(Buffer.from(process.argv[1], "base64"));
        console.log(JSON.stringify({ again: Buffer.from(pack(message)).toString("base64"), shape: message.b.c.shape }));
        """,
        base64.b64encode(pack(said, text_keys=True)).decode(),
    )
    again = unpack(base64.b64decode(found["again"]))
    assert found["shape"] == [2, 3]
    assert again["a"] == said["a"]
    assert np.array_equal(again["b"]["c"], said["b"]["c"])  # type: ignore[index]


def test_the_example_in_c_plays(run: Path, tmp_path: Path) -> None:
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("there is no C compiler")
    source, program = ROOT / "examples/c/shoal_client.c", tmp_path / "shoal_client"
    built = subprocess.run(
        [compiler, "-O1", "-Wall", "-Wextra", "-o", program, source, "-lm"], capture_output=True, text=True
    )
    assert (built.returncode, built.stderr) == (0, "")
    token = "0123456789abcdef"
    with shoal.serve(run, token=token) as serving:
        played = subprocess.run(
            [program, "127.0.0.1", str(serving.port), "3"],
            capture_output=True,
            text=True,
            timeout=60,
            env={"SHOAL_TOKEN": token},
        )
        assert played.returncode == 0, played.stderr
        assert played.stdout.count("version 1 of the policy") == 3
        refused = subprocess.run(
            [program, "127.0.0.1", str(serving.port)], capture_output=True, text=True, timeout=60, env={}
        )
        assert (refused.returncode, "token" in refused.stderr) == (1, True)


# ---- a browser


class Browser:
    """A page in headless Chromium, over its debugging protocol."""

    def __init__(self, url: str) -> None:
        program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
        if program is None:
            pytest.skip("Chromium is not installed: the page is looked at in it")
        options = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--window-size=1000,950",
        ]
        self._folder = folder = Path(tempfile.mkdtemp(prefix="b-"))  # a short name: its sockets lie there
        self.process = subprocess.Popen(
            [program, *options, "--remote-debugging-port=0", f"--user-data-dir={folder}", url],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            env={**os.environ, "HOME": str(folder), "TMPDIR": str(folder)},
        )
        self._ids = itertools.count(1)
        self._stack = contextlib.ExitStack()
        try:
            active = folder / "DevToolsActivePort"
            wait_for(active.exists, 60)
            port = active.read_text().splitlines()[0]
            pages: list[Any] = []
            wait_for(lambda: pages.extend(self._pages(port)) or bool(pages), 30)
            opening = websockets.sync.client.connect(pages[0]["webSocketDebuggerUrl"], max_size=None, proxy=None)
            self._socket = self._stack.enter_context(opening)
        except BaseException:
            self.close()
            raise

    @staticmethod
    def _pages(port: str) -> list[Any]:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/json", timeout=10) as answer:
            return [page for page in json.load(answer) if page["type"] == "page"]

    def call(self, method: str, **parameters: Any) -> Any:
        number = next(self._ids)
        self._socket.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while True:
            answer = json.loads(self._socket.recv(30))
            if answer.get("id") == number:
                return answer["result"]

    def evaluate(self, expression: str) -> Any:
        return self.call("Runtime.evaluate", expression=expression, returnByValue=True)["result"].get("value")

    def picture(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))

    def close(self) -> None:
        self._stack.close()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        while self._folder.exists():  # those that it has started end a moment later
            shutil.rmtree(self._folder, ignore_errors=True)


def wait_for(true: Any, seconds: float) -> None:
    end = time.monotonic() + seconds
    while True:
        with contextlib.suppress(OSError):
            if true():
                return
        assert time.monotonic() < end
        time.sleep(0.1)


@contextlib.contextmanager
def pages() -> Iterator[int]:
    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=ROOT))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.slow
def test_the_game_in_the_browser_is_played_better_as_the_policy_is_trained(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    command = [sys.executable, "-m", "shoal", "train", "apex_dqn", "--env", "CartPole-v1", "--run-dir", str(folder)]
    training = subprocess.Popen(
        [*command, "--checkpoint-every", "1", "--stop-seconds", "150", "--stop-return", "490"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    browser = None
    try:
        wait_for(lambda: list(folder.glob("checkpoints/0*/manifest.json")), 60)
        with shoal.serve(folder, follow=True, follow_every=0.5) as serving, pages() as port:
            browser = Browser(
                f"http://127.0.0.1:{port}/examples/browser/?fast&server=ws://127.0.0.1:{serving.port}",
            )
            state = functools.partial(browser.evaluate, "window.shoalState")
            wait_for(lambda: (state() or {}).get("episodes", 0) > 20 or "error" in (state() or {}), 60)
            first = state()
            assert "error" not in first, first
            wait_for(lambda: state()["version"] > 1 and state()["mean"] > 150, 150)
            browser.picture(tmp_path / "page.png")
            assert (tmp_path / "page.png").stat().st_size > 10_000
    finally:
        if browser is not None:
            browser.close()
        training.send_signal(signal.SIGINT)
        training.wait(60)


@pytest.mark.slow
def test_a_run_learns_from_the_game_in_the_browser(tmp_path: Path) -> None:
    """The carts of the page are all that the policy ever sees; no simulator runs on this side."""
    port, folder = free_port(), tmp_path / "run"
    command = [sys.executable, "-m", "shoal", "train", "ppo", "--env", "external", "--run-dir", str(folder)]
    options = ["--listen", f"127.0.0.1:{port}", "--stop-seconds", "160", "--actors", "1", "--envs-per-actor", "16"]
    training = subprocess.Popen([*command, *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    browser = None
    try:
        wait_for(lambda: socket.create_connection(("127.0.0.1", port), 1.0).close() is None, 60)
        with pages() as site:
            page = f"http://127.0.0.1:{site}/examples/browser/?role=environment&server=ws://127.0.0.1:{port}"
            browser = Browser(page)
            state = functools.partial(browser.evaluate, "window.shoalState")
            wait_for(lambda: (state() or {}).get("episodes", 0) > 20 or "error" in (state() or {}), 90)
            first = state()
            assert "error" not in first, first
            assert first["mean"] < 100, "nobody can play at first"
            wait_for(lambda: state()["version"] > 20 and state()["mean"] > 150, 120)
            assert "learns from these carts" in browser.evaluate("document.getElementById('told').textContent")
            browser.picture(tmp_path / "page.png")
            assert (tmp_path / "page.png").stat().st_size > 10_000
    finally:
        if browser is not None:
            browser.close()
        training.send_signal(signal.SIGINT)
        training.wait(60)


def test_the_python_client_plays_and_comes_back(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "clients/python"))
    from shoal_client import Client

    wanted = shoal.load(run).act(OBSERVATIONS).tolist()  # type: ignore[union-attr]
    with shoal.serve(run) as serving:
        client = Client(serving.url, role="player", patience=20.0)
        assert [client.act(row) for row in OBSERVATIONS] == wanted
        many = Client(serving.url, role="player", environments=40)
        assert many.act(OBSERVATIONS).tolist() == wanted
        many.close()
        port = serving.port
    with shoal.serve(run, port=port):
        assert [client.act(row) for row in OBSERVATIONS] == wanted
        assert client.reconnections >= 1
        client.close()
