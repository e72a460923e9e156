"""Simulators outside in threads, for tests of gateways: a small task, and what became of each of them."""

from __future__ import annotations

import datetime
import socket
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np

from shoal.algorithms import apex_dqn, impala, ppo

sys.path.insert(0, str(Path(__file__).parents[1] / "clients" / "python"))

from shoal_client import Client, Ended, Lost, Refused

__all__ = [
    "ALGORITHMS",
    "SIGNS",
    "SIZES",
    "Client",
    "Clients",
    "Ended",
    "Lost",
    "Refused",
    "certificates",
    "free_port",
]

SIGNS: dict[str, Any] = {
    "observation": {
        "kind": "dict",
        "parts": {
            "place": {"kind": "box", "shape": [1], "dtype": "float32", "low": -3.0, "high": 3.0},
            "sign": {"kind": "discrete", "n": 2, "start": 0},
        },
    },
    "action": {"kind": "discrete", "n": 2, "start": 0},
}
FLAT: dict[str, Any] = {  # the same as one vector
    "observation": {"kind": "box", "shape": [2], "dtype": "float32", "low": -3.0, "high": 3.0},
    "action": SIGNS["action"],
}
ALGORITHMS: dict[str, Any] = {"impala": impala, "ppo": ppo, "apex_dqn": apex_dqn}
ROLLOUTS: dict[str, Any] = {"hidden": (16,), "unroll": 8, "learning_rate": 5e-3, "reward_scale": 1.0}
SIZES: dict[str, dict[str, Any]] = {  # of configs that learn it in seconds
    "impala": {**ROLLOUTS, "batch": 4, "queue": 4},
    "ppo": {**ROLLOUTS, "actors": 1, "envs_per_actor": 4, "minibatches": 2},
    "apex_dqn": {
        "hidden": (32,),
        "n": 3,
        "rows": 4,
        "batch": 64,
        "learning_rate": 3e-3,
        "reward_scale": 1.0,
        "learning_starts": 100,
        "samples_per_insert": 16.0,
        "target_every": 20,
    },
}


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


class Clients:
    """Simulators in threads, and what became of them."""

    def __init__(self, url: str, roles: list[str], *, mode: str = "central", **options: Any) -> None:
        self.acted: set[int] = set()  # who was ever answered
        self.ended: dict[int, str] = {}
        self.failed: list[BaseException] = []
        self._options, self._mode = {"patience": 60.0, **options}, mode
        self._threads = [
            threading.Thread(target=self._play, args=(url, who, role), daemon=True) for who, role in enumerate(roles)
        ]
        for thread in self._threads:
            thread.start()

    def join(self) -> None:
        """Wait for those who took part: who comes back when the run has ended finds nobody."""
        for who in sorted(self.acted):
            self._threads[who].join(20)

    def _play(self, url: str, who: int, role: str) -> None:
        """Two doors, three steps to the left and to the right, one of which is the right one: learned in no time, and
        no policy that does not look at the sign finds it."""
        place = time_ = sign = 0

        def observed() -> Any:
            if self._mode == "local":
                return np.array([place, sign], np.float32)
            return {"place": np.array([place], np.float32), "sign": np.int64(sign)}

        try:
            stated = FLAT if self._mode == "local" else SIGNS
            spaces = {f"{name}_space": space for name, space in stated.items()}
            mode = self._mode if role == "environment" else "central"
            with Client(url, role=role, mode=mode, **spaces, **self._options) as client:
                action = client.reset(observed())
                self.acted.add(who)
                while True:
                    place, time_ = place + (1 if action else -1), time_ + 1
                    terminated, truncated = abs(place) == 3, time_ == 12
                    found = terminated and (place > 0) == bool(sign)
                    reward = (1.0 if found else -1.0) if terminated else -0.05
                    action = client.step(observed(), reward, terminated, truncated)
                    if terminated or truncated:
                        place, time_, sign = 0, 0, 1 - sign
                        action = client.reset(observed())
        except Ended as end:
            self.ended[who] = str(end)
        except BaseException as problem:
            self.failed.append(problem)


def certificates(folder: Path) -> tuple[Path, Path]:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    secret = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder(name, name, secret.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(secret, hashes.SHA256())
    )
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    certificate.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    plain = serialization.NoEncryption()
    key.write_bytes(secret.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain))
    return certificate, key
