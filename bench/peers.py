"""Peers to measure beside Shoal, each in an environment of its own below .bench: their dependencies conflict."""

from __future__ import annotations

import json
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = {
    "reverb": ["dm-reverb[tensorflow]==0.14.0"],
    "cpprb": ["cpprb==11.0.0"],
    "sb3": ["stable-baselines3==2.9.0", "torch==2.13.0"],
}


def environment(name: str) -> Path:
    """The interpreter of an environment that has the peer; made when it is missing."""
    folder = ROOT / ".bench" / name
    python, ready = folder / "bin" / "python", folder / "ready"
    if not ready.exists():
        print(f"installing {' '.join(PACKAGES[name])} into {folder}", file=sys.stderr)
        venv.create(folder, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *PACKAGES[name]], check=True)
        ready.touch()
    return python


def last_line(*command: Any) -> dict[str, Any]:
    """The object that a command prints as its last line."""
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if done.returncode not in (0, 3):  # 3: a training's time ran out, which is a result too
        raise SystemExit(f"{command} failed:\n{done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found
