"""Peers to measure beside Shoal, each in an environment of its own below .bench: their dependencies conflict."""

from __future__ import annotations

import json
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
TORCH = "torch==2.13.0"  # the same for all; of others the package index has gigabytes for GPUs
MUJOCO = ("mujoco==3.17.0", "imageio", "packaging")
PACKAGES = {
    "reverb": ["dm-reverb[tensorflow]==0.14.0"],
    "cpprb": ["cpprb==11.0.0"],
    "sb3": ["stable-baselines3==2.9.0", TORCH, "ale-py==0.12.1", "opencv-python-headless", *MUJOCO],
    "rllib": ["ray[rllib]==2.60.0", TORCH, "ale-py==0.12.1", "opencv-python-headless"],
    "sample_factory": ["sample-factory==2.1.1", TORCH, "ale-py==0.12.1"],  # its own Atari extra brings no games
    "serving": ["ray[serve]==2.60.0", TORCH, "websockets==17.4", "msgpack==1.2.4"],
    "cleanrl": [TORCH, "gymnasium==1.4.0", "ale-py==0.12.1", "opencv-python-headless", *MUJOCO],
    "d3rlpy": ["d3rlpy==2.8.1", TORCH],
    "torchrl": ["torchrl==0.14.1", TORCH, "gymnasium==1.4.0", *MUJOCO],
}


def environment(name: str) -> Path:
    """The interpreter of an environment that has the peer; made when it is missing or has other packages."""
    folder = ROOT / ".bench" / name
    python, ready = folder / "bin" / "python", folder / "ready"
    wanted = " ".join(PACKAGES[name])
    if not ready.exists() or ready.read_text() != wanted:
        print(f"installing {wanted} into {folder}", file=sys.stderr)
        venv.create(folder, with_pip=True, clear=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *PACKAGES[name]], check=True)
        ready.write_text(wanted)
    return python


def last_line(*command: Any) -> dict[str, Any]:
    """The object that a command prints as its last line."""
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if done.returncode not in (0, 3):  # 3: a training's time ran out, which is a result too
        raise SystemExit(f"{command} failed:\n{done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found
