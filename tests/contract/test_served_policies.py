"""`shoal.serve`: what clients get is what the policy itself would do, whatever they speak and whatever others do."""

from __future__ import annotations

import functools
import json
import re
import shutil
import signal
import ssl
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import websockets.exceptions
from gymnasium import spaces

import shoal
from gateway_clients import Client as PythonClient
from gateway_clients import Refused, certificates
from saved_runs import saved_run
from serving_clients import Client, http
from shoal import UserError
from shoal.checkpoints import Checkpoints
from shoal.gateway.server import Limits
from shoal.playing.exporting import export
from shoal.runs import directory
from shoal.serving import server
from shoal.serving.server import Serving

OBSERVATIONS = np.random.default_rng(0).normal(scale=3.0, size=(40, 4)).astype(np.float32)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved_run(tmp_path_factory.mktemp("runs") / "cartpole", "ppo", env="CartPole-v1")


@pytest.fixture(scope="module")
def recurrent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved_run(tmp_path_factory.mktemp("runs") / "memory", "r2d2", seed=4, env="CartPole-v1", lstm=8)


@pytest.fixture(autouse=True)
def nothing_of_onnxruntime() -> Iterator[None]:
    """It leaves a file of its own in the folder for temporary ones."""
    yield
    (Path(tempfile.gettempdir()) / ".ses").unlink(missing_ok=True)


@pytest.fixture(scope="module")
def served(run: Path) -> Iterator[Serving]:
    with shoal.serve(run, max_size=65_536) as serving:
        yield serving


def test_a_player_gets_the_policys_own_actions_one_by_one_and_many_at_once(run: Path, served: Serving) -> None:
    policy = shoal.load(run)
    wanted = policy.act(OBSERVATIONS)
    with Client(served.port) as client:
        assert client.welcome["type"] == "welcome"
        assert client.welcome["spaces"]["action"]["n"] == 2
        found = [client.act(row) for row in OBSERVATIONS]
        assert [answer["action"] for answer in found] == wanted.tolist()  # type: ignore[union-attr]
        assert [answer["seq"] for answer in found] == list(range(1, 41))
        assert {answer["version"] for answer in found} == {1}
    with Client(served.port, environments=40) as client:
        assert np.array_equal(client.act(OBSERVATIONS)["action"], wanted)


def test_openpis_own_client_acts_unchanged(run: Path, served: Serving) -> None:
    reason = "openpi's client is not installed: pip install --no-deps openpi-client"
    client_of = pytest.importorskip("openpi_client.websocket_client_policy", reason=reason)
    client = client_of.WebsocketClientPolicy("127.0.0.1", served.port)
    assert client.get_server_metadata()["algorithm"] == "ppo"
    wanted = shoal.load(run).act(OBSERVATIONS)
    found = [client.infer({"observation": row}) for row in OBSERVATIONS]
    assert [int(answer["actions"]) for answer in found] == wanted.tolist()  # type: ignore[union-attr]
    assert found[0]["server_timing"]["infer_ms"] >= 0
    assert np.array_equal(client.infer({"observation": OBSERVATIONS})["actions"], wanted)
    with pytest.raises(RuntimeError, match=r"shape \[3\]"):
        client.infer({"observation": np.zeros(3, np.float32)})
    assert int(client.infer({"observation": OBSERVATIONS[0]})["actions"]) == wanted[0]  # type: ignore[index]
    client._ws.close()


def test_messages_as_openpis_client_sends_them_without_a_hello(run: Path, served: Serving) -> None:
    wanted = shoal.load(run).act(OBSERVATIONS)
    with Client(served.port, hello=False) as client:
        client.send({"observation": OBSERVATIONS[0]})
        assert int(client.receive()["actions"]) == wanted[0]  # type: ignore[index]
        client.send({"observation": [1.0, 2.0]})
        told = client.socket.recv(10)
        assert isinstance(told, str)
        assert "[2]" in told


def test_open_inference_in_json_and_in_bytes(run: Path, served: Serving) -> None:
    wanted = shoal.load(run).act(OBSERVATIONS)
    assert http(served.port, "/v2/health/ready") == (200, {"ready": True})
    status, model = http(served.port, "/v2/models/cartpole")
    assert (status, model["inputs"]) == (200, [{"name": "observation", "datatype": "FP32", "shape": [-1, 4]}])
    tensor: dict[str, Any] = {"name": "observation", "datatype": "FP32", "shape": [40, 4]}
    given = {"id": "7", "inputs": [tensor | {"data": OBSERVATIONS.tolist()}]}
    status, answer = http(served.port, "/v2/models/cartpole/infer", given)
    assert (status, answer["id"], answer["outputs"][0]["data"]) == (200, "7", wanted.tolist())  # type: ignore[union-attr]
    data = OBSERVATIONS.tobytes()
    head = json.dumps(
        {
            "inputs": [tensor | {"parameters": {"binary_data_size": len(data)}}],
            "outputs": [{"name": "action", "parameters": {"binary_data": True}}],
        }
    ).encode()
    lengths = {"Inference-Header-Content-Length": str(len(head))}
    status, body = http(served.port, "/v2/models/cartpole/infer", head + data, lengths)
    assert status == 200
    assert np.array_equal(np.frombuffer(body[-320:], np.int64), wanted)


@pytest.mark.parametrize(
    ("path", "body", "status", "said"),
    [
        ("/v2/models/other", None, 404, "cartpole"),
        ("/v2/models/cartpole/infer", b"{", 400, "no JSON"),
        ("/v2/models/cartpole/infer", {"inputs": []}, 400, "list of tensors"),
        ("/v2/models/cartpole/infer", {"inputs": [{"name": "x"}]}, 400, "unknown"),
        (
            "/v2/models/cartpole/infer",
            {"inputs": [{"name": "observation", "datatype": "BYTES", "shape": [1, 4], "data": ["a"]}]},
            400,
            "datatype 'BYTES'",
        ),
        (
            "/v2/models/cartpole/infer",
            {"inputs": [{"name": "observation", "datatype": "FP32", "shape": [2, 4], "data": [1, 2]}]},
            400,
            "as many as the shape",
        ),
        (
            "/v2/models/cartpole/infer",
            {"inputs": [{"name": "observation", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, float("nan")]}]},
            400,
            "NaN",
        ),
        (
            "/v2/models/cartpole/infer",
            {"inputs": [{"name": "observation", "datatype": "FP32", "shape": [999, 4], "data": [0] * 3996}]},
            400,
            "not 999",
        ),
    ],
)
def test_a_bad_http_request_is_one_sentence(path: str, body: Any, status: int, said: str, served: Serving) -> None:
    found, answer = http(served.port, path, body)
    assert found == status
    assert said in answer["error"]


def test_a_bad_message_is_one_sentence_and_the_connection_goes_on(served: Serving) -> None:
    with Client(served.port) as client:
        for observation, said in (
            (np.zeros(3, np.float32), "shape [3]"),
            (np.full(4, np.inf, np.float32), "infinity"),
            ("text", "no array"),
            (None, "missing"),
        ):
            answer = client.act(observation)
            assert (answer["type"], answer["code"], answer["seq"]) == ("error", "message", client.seq)
            assert said in answer["message"]
        assert client.act(OBSERVATIONS[0])["type"] == "action"


def test_a_client_that_wants_to_learn_or_has_other_spaces_is_refused(served: Serving) -> None:
    with Client(served.port, hello=False) as client:
        client.send({"type": "hello", "protocol": 1, "role": "environment"})
        assert "finished policy" in client.receive()["message"]
    with Client(served.port, hello=False) as client:
        spaces = {
            "observation": {"kind": "discrete", "n": 3, "start": 0},
            "action": {"kind": "discrete", "n": 2, "start": 0},
        }
        client.send({"type": "hello", "protocol": 1, "role": "player", "spaces": spaces})
        assert client.receive()["code"] == "spaces"


def test_metrics_are_prometheus_text(served: Serving) -> None:
    with Client(served.port) as client:
        client.act(OBSERVATIONS[0])
    status, text = http(served.port, "/metrics")
    lines = text.decode().splitlines()
    assert status == 200
    assert "shoal_policy_version 1" in lines
    counted = {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if not line.startswith("#")}
    assert counted['shoal_requests_total{way="websocket",result="ok"}'] >= 1
    assert counted['shoal_request_seconds_bucket{le="+Inf"}'] == counted["shoal_request_seconds_count"]
    assert http(served.port, "/healthz")[0] == 200


# ---- memory


def remembered(run: Path, count: int) -> list[int]:
    policy = shoal.load(run)
    return [int(policy.act(OBSERVATIONS[i], reward=None if i == 0 else float(i % 3))) for i in range(count)]


def test_a_recurrent_policys_memory_is_kept_by_session_also_over_a_lost_connection(recurrent: Path) -> None:
    wanted = remembered(recurrent, 20)
    assert len(set(wanted)) > 1
    with shoal.serve(recurrent, session_expiry=0.3) as serving:
        found = []
        with Client(serving.port) as client:
            found = [client.act(OBSERVATIONS[i], reward=float(i % 3))["action"] for i in range(10)]
            with Client(serving.port) as other:  # somebody else's episode
                assert other.act(OBSERVATIONS[3])["action"] == int(shoal.load(recurrent).act(OBSERVATIONS[3]))
            session = client.welcome["session"]
        with Client(serving.port, session=session) as client:
            assert (client.welcome["resumed"], client.welcome["seq"]) == (True, 10)
            client.seq = 9
            assert client.act(OBSERVATIONS[9], reward=0.0)["action"] == found[-1]  # asked again, not acted on again
            found += [client.act(OBSERVATIONS[i], reward=float(i % 3))["action"] for i in range(10, 20)]
            assert client.act(OBSERVATIONS[0])["code"] == "message"  # without what its last action gave
            client.seq = 3
            assert client.act(OBSERVATIONS[0], reward=0.0)["code"] == "seq"
            client.seq = 50
            assert client.act(OBSERVATIONS[0], reset=True)["action"] == wanted[0]
        assert found == wanted
        time.sleep(1.0)
        with Client(serving.port, session=session) as client:
            assert not client.welcome["resumed"]


def test_open_inference_keeps_memory_by_sequence(recurrent: Path) -> None:
    wanted = remembered(recurrent, 12)
    with shoal.serve(recurrent) as serving:
        found = []
        for i in range(12):
            inputs = [
                {"name": "observation", "datatype": "FP32", "shape": [1, 4], "data": OBSERVATIONS[i].tolist()},
                {"name": "reward", "datatype": "FP32", "shape": [1], "data": [float(i % 3)]},
            ]
            body = {
                "inputs": inputs,
                "parameters": {"sequence_id": 5, "sequence_start": i == 0, "sequence_end": i == 11},
            }
            found.append(http(serving.port, "/v2/models/memory/infer", body)[1]["outputs"][0]["data"][0])
        assert found == wanted
        assert "shoal_sessions 0" in serving.metrics()


def test_an_export_acts_as_its_run_and_does_not_explore(recurrent: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime", reason="needs the onnx extra")
    export(recurrent, tmp_path / "export")
    wanted = remembered(recurrent, 20)
    with shoal.serve(tmp_path / "export") as serving, Client(serving.port) as client:
        assert [client.act(OBSERVATIONS[i], reward=float(i % 3))["action"] for i in range(20)] == wanted
        assert "greedy alone" in client.act(OBSERVATIONS[0], reward=0.0, greedy=False)["message"]
    with pytest.raises(UserError, match="--explore is not for an export"):
        shoal.serve(tmp_path / "export", explore=True)
    (tmp_path / "export" / "policy.onnx").write_bytes(b"damaged")
    with pytest.raises(UserError, match="its model cannot be loaded"):
        shoal.serve(tmp_path / "export")


# ---- newer policies


def test_newer_checkpoints_are_taken_under_load_and_damaged_ones_are_not(run: Path, tmp_path: Path) -> None:
    mine = tmp_path / "run"
    shutil.copytree(run, mine)
    weights = dict(directory.read_weights(mine))
    (mine / directory.WEIGHTS).unlink()
    checkpoints = Checkpoints(mine / directory.CHECKPOINTS, keep=10)
    checkpoints.save({"weights": weights}, {"updates": 1})
    told: list[str] = []
    versions: list[list[int]] = [[] for _ in range(4)]
    failed: list[Any] = []
    ended = threading.Event()

    def ask(number: int, port: int) -> None:
        with Client(port) as client:
            while not ended.is_set():
                answer = client.act(OBSERVATIONS[number])
                (versions[number] if answer["type"] == "action" else failed).append(answer.get("version"))

    with shoal.serve(mine, follow=True, follow_every=0.05, tell=told.append) as serving:
        threads = [threading.Thread(target=ask, args=(number, serving.port)) for number in range(4)]
        for thread in threads:
            thread.start()
        for number in range(2, 6):
            changed = {name: value + np.float32(0.1 * number) for name, value in weights.items()}
            saved = checkpoints.save({"weights": changed}, {"updates": number})
            wait_for(lambda number=number: serving.version == number)  # type: ignore[misc]
        part = next(saved.path.glob("weights*.safetensors"))
        damaged = checkpoints.save({"weights": weights}, {"updates": 6}).path
        file = damaged / part.name
        file.write_bytes(file.read_bytes()[:-8])
        nan = {name: value * np.float32("nan") for name, value in weights.items()}
        wait_for(lambda: any("damaged" in sentence for sentence in told) or serving.version > 5)
        checkpoints.save({"weights": nan}, {"updates": 7})
        wait_for(lambda: any("not finite" in sentence for sentence in told) or serving.version > 6)
        time.sleep(0.2)
        last = serving.version
        ended.set()
        for thread in threads:
            thread.join()
    assert not failed
    assert all(each == sorted(each) and each[-1] == last for each in versions)
    assert last in (5, 6)  # the sixth may have been read before it was damaged


def wait_for(true: Any, seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)


# ---- who may come in


def test_a_token_is_asked_for_and_needed_off_loopback(run: Path) -> None:
    with pytest.raises(UserError, match="must show a token"):
        shoal.serve(run, host="0.0.0.0")
    token = "0123456789abcdef"
    with shoal.serve(run, token=token) as serving:
        bearer = {"Authorization": f"Bearer {token}"}
        assert http(serving.port, "/metrics")[0] == 401
        assert http(serving.port, "/metrics", headers=bearer)[0] == 200
        assert http(serving.port, "/healthz")[0] == 200
        with Client(serving.port, token=token) as client:
            assert client.act(OBSERVATIONS[0])["type"] == "action"
        with Client(serving.port, token="wrong") as client:
            assert client.welcome["code"] == "token"
        with Client(serving.port, headers={"Authorization": f"Api-Key {token}"}) as client:
            assert client.act(OBSERVATIONS[0])["type"] == "action"
        with pytest.raises(websockets.exceptions.InvalidStatus):
            Client(serving.port, headers={"Authorization": "Bearer wrong-wrong-wrong"})


def test_tls_and_a_token_by_the_command(run: Path, tmp_path: Path) -> None:
    """wss and https with the user's certificate; the token stands in a file; plain text is not answered."""
    certificate, key = certificates(tmp_path)
    token = "a token of the test's own"
    (tmp_path / "token").write_text(token + "\n")
    files = ["--tls-certificate", str(certificate), "--tls-key", str(key), "--token-file", str(tmp_path / "token")]
    command = [sys.executable, "-m", "shoal", "serve", str(run), "--port", "0", *files]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            lines = iter(process.stdout.readline, "")
            port = next(int(found[1]) for line in lines if (found := re.search(r"listening on wss://.*:(\d+)", line)))
            trusting = ssl.create_default_context(cafile=str(certificate))
            player = {"role": "player", "patience": 1.0}
            with PythonClient(f"wss://localhost:{port}", token=token, tls=trusting, **player) as client:
                assert [client.act(row) for row in OBSERVATIONS] == shoal.load(run).act(OBSERVATIONS).tolist()  # type: ignore[union-attr]
            with pytest.raises(Refused, match=r"401: .*token"):
                PythonClient(f"wss://localhost:{port}", token="another token altogether", tls=trusting, **player)
            with pytest.raises(ssl.SSLCertVerificationError):
                PythonClient(f"wss://localhost:{port}", token=token, **player)
            with pytest.raises(OSError, match=r"1006|reset|closed"):
                PythonClient(f"ws://localhost:{port}", token=token, **player)
            asked = urllib.request.Request(f"https://localhost:{port}/v2", headers={"Authorization": f"Bearer {token}"})
            with urllib.request.urlopen(asked, timeout=20, context=trusting) as answer:
                assert json.load(answer)["name"] == "shoal"
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0
        finally:
            process.kill()


def test_web_pages_of_other_hosts_need_a_token(run: Path, served: Serving) -> None:
    with Client(served.port, headers={"Origin": "http://localhost:8000"}) as client:
        assert client.act(OBSERVATIONS[0])["type"] == "action"
    for origin in ("https://elsewhere.example", "null", "http://127.0.0.1.elsewhere.example"):
        with pytest.raises(websockets.exceptions.InvalidStatus):
            Client(served.port, headers={"Origin": origin})
    token = "0123456789abcdef"
    page = {"Origin": "https://elsewhere.example"}
    with shoal.serve(run, token=token) as serving, Client(serving.port, headers=page, token=token) as client:
        assert client.act(OBSERVATIONS[0])["type"] == "action"


def test_a_client_may_be_silent_for_longer_than_a_stranger(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "Limits", functools.partial(Limits, handshake_seconds=0.3))
    token = "0123456789abcdef"
    with shoal.serve(run, token=token) as serving:
        with Client(serving.port, hello=False, headers={"Authorization": f"Api-Key {token}"}) as client:
            time.sleep(1.0)
            client.send({"observation": OBSERVATIONS[0]})
            assert "actions" in client.receive()
        with Client(serving.port, hello=False) as stranger:
            assert "within 0.3 s" in str(stranger.socket.recv(5))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"workers": 1}, "give that, and not a policy"),
        ({"follow": True}, "give that, and not a policy"),
        ({"colour": "red"}, "has no option 'colour'"),
        ({"max_batch": 0}, "max"),
    ],
)
def test_what_a_loaded_policy_cannot_be_served_with(options: dict[str, Any], said: str, run: Path) -> None:
    with pytest.raises(UserError, match=said):
        shoal.serve(shoal.load(run), **options)


def test_a_loaded_policy_is_served_by_this_process(run: Path) -> None:
    policy = shoal.load(run)
    with shoal.serve(policy) as serving, Client(serving.port) as client:
        assert client.act(OBSERVATIONS[0])["action"] == policy.act(OBSERVATIONS[0])


def test_who_asks_more_often_than_allowed_waits_or_is_told(run: Path) -> None:
    with shoal.serve(run, max_rate=20.0) as serving:
        tensor = {"name": "observation", "datatype": "FP32", "shape": [1, 4], "data": [0, 0, 0, 0]}
        found = [http(serving.port, "/v2/models/cartpole/infer", {"inputs": [tensor]}) for _ in range(40)]
        assert {status for status, _ in found} == {200, 429}
        assert "20 requests a second" in next(answer["error"] for status, answer in found if status == 429)
        with Client(serving.port) as client:
            begun = time.monotonic()
            for _ in range(30):
                assert client.act(OBSERVATIONS[0])["type"] == "action"
            assert time.monotonic() - begun > 0.3


def test_frames_are_stacked_by_the_server(tmp_path: Path) -> None:
    run = saved_run(tmp_path / "pixels", "ppo", seed=1, env=Frames, frame_stack=3)
    frames = np.random.default_rng(0).integers(0, 255, (8, 36, 36), np.uint8)
    policy = shoal.load(run)
    wanted = [int(policy.act(frame)) for frame in frames]
    with shoal.serve(run) as serving, Client(serving.port) as client:
        assert client.welcome["spaces"]["observation"]["shape"] == [36, 36]
        assert [client.act(frame)["action"] for frame in frames] == wanted
        assert client.act(frames[0], reset=True)["action"] == wanted[0]


class Frames(gymnasium.Env[Any, Any]):
    observation_space = spaces.Box(0, 255, (36, 36), np.uint8)
    action_space = spaces.Discrete(4)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        return np.zeros((36, 36), np.uint8), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return np.zeros((36, 36), np.uint8), 0.0, True, False, {}


def test_a_nested_observation_by_every_way(tmp_path: Path) -> None:
    run = saved_run(tmp_path / "nested", "ppo", seed=2, env=Nested)
    seen = {"goal": np.asarray(2), "speed": np.asarray([0.5, -0.5], np.float32)}
    wanted = shoal.load(run).act(seen)
    with shoal.serve(run) as serving:
        with Client(serving.port) as client:
            assert np.array_equal(client.act(seen)["action"], wanted)
            assert "map of goal, speed" in client.act({"goal": 1})["message"]
        with Client(serving.port, hello=False) as client:
            for said in (seen, {f"observation/{name}": value for name, value in seen.items()}, {"observation": seen}):
                client.send(said)
                assert np.array_equal(client.receive()["actions"], wanted)
        inputs = [
            {"name": "observation/goal", "datatype": "INT64", "shape": [1], "data": [2]},
            {"name": "observation/speed", "datatype": "FP32", "shape": [1, 2], "data": [[0.5, -0.5]]},
        ]
        status, answer = http(serving.port, "/v2/models/nested/infer", {"inputs": inputs})
        assert status == 200
        assert answer["outputs"][0]["data"] == np.ravel(wanted).tolist()


class Nested(gymnasium.Env[Any, Any]):
    observation_space = spaces.Dict({"goal": spaces.Discrete(3), "speed": spaces.Box(-1, 1, (2,), np.float32)})
    action_space = spaces.Box(-1, 1, (2,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return {"goal": 1, "speed": np.zeros(2, np.float32)}, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return {"goal": 1, "speed": np.zeros(2, np.float32)}, 0.0, True, False, {}
