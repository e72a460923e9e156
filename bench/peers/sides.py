"""Who is measured on which task with which method, and how each may have the machine's two cores.

A side has several settings of threads and processes to choose from. All of them are tried for a short time before the
rounds, and the side goes on with the one that was fastest for it: nobody is held to what suits somebody else.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.peers import environment
from bench.peers.tasks import CONTROL, METHODS, TASKS, Work

HERE = Path(__file__).resolve().parent
NAMES = {
    "shoal": "Shoal",
    "sb3": "Stable-Baselines3",
    "rllib": "RLlib",
    "sample_factory": "Sample Factory",
    "cleanrl": "CleanRL-style",
    "torchrl": "TorchRL",
    "cleanrl_native": "CleanRL-style",
}


@dataclass(frozen=True)
class Side:
    peer: str  # a key of NAMES
    method: str  # a key of METHODS
    settings: dict[str, list[Any]]  # further words of the command by what they mean, to choose from

    @property
    def key(self) -> str:
        return f"{self.peer}-{self.method}"

    @property
    def label(self) -> str:
        native = ", native vectors" if self.peer == "cleanrl_native" else ""
        return f"{NAMES[self.peer]} {METHODS[self.method]}{native}"

    def command(self, task: str, setting: str, seconds: float) -> list[str]:
        words = ["--seconds", seconds, *self.settings[setting]]
        if self.peer == "shoal":
            told = [sys.executable, "-m", "shoal", "bench", "throughput", self.method, "--json", "--no-limits"]
            return [str(word) for word in (*told, *shoal_words(task, self.method), *words)]
        name = self.peer.removesuffix("_native")
        script = HERE / f"{name}_{'control' if self.method in CONTROL else 'side'}.py"
        return [str(word) for word in (environment(name), script, task, "--method", self.method, *words)]


def shoal_words(task: str, method: str) -> list[Any]:
    """The task's sizes as options of Shoal, but for who acts."""
    work: Work = TASKS[task].work(method)
    if method in CONTROL:
        layers = ["--actor-hidden", 256, 256, "--critic-hidden", 256, 256]
        replay = ["--batch", work.rows, "--samples-per-insert", work.epochs, "--learning-starts", 1_000]
        return ["--env", TASKS[task].env, "--preset", "none", *layers, *replay]
    words: list[Any] = ["--env", TASKS[task].env, "--unroll", work.unroll]
    words += ["--preset", "atari"] if task == "pong" else ["--hidden", 64, 64, "--no-shared-torso"]
    if method != "impala":
        words += ["--epochs", work.epochs, "--minibatches", work.minibatches]
    if method != "ppo":  # PPO takes all that its actors have brought
        items = work.rows // work.unroll
        words += ["--batch", items, "--queue", 2 * items]
    return words


def actors(count: int, environments: int, threads: int, *more: Any) -> list[Any]:
    each = environments // count
    return ["--actors", count, "--envs-per-actor", each, "--learner-threads", threads, *more]


def threads(count: int, *more: Any) -> list[Any]:
    return ["--threads", count, *more]


def control_sides(method: str) -> list[Side]:
    """One environment, an update of every side for each of its steps."""
    single = {"torch with 2 threads": threads(2), "torch with 1 thread": threads(1)}
    ours = {
        "learner that follows idle cores": ["--actors", 1, "--envs-per-actor", 1],
        "learner with 2 threads": actors(1, 1, 2),
        "learner with 1 thread": actors(1, 1, 1),
    }
    return [Side("shoal", method, ours), *(Side(peer, method, single) for peer in ("sb3", "cleanrl", "torchrl"))]


def sides(task: str) -> list[Side]:
    """In the order of the table."""
    if task == "halfcheetah":
        return [side for method in CONTROL for side in control_sides(method)]
    atari = task == "pong"
    some = {method: TASKS[task].work(method).environments for method in TASKS[task].works}
    stepping = ["--env-option", "num_threads=2"] if atari else []
    single = {"torch with 2 threads": threads(2), "torch with 1 thread": threads(1)}
    if not atari:  # whose networks are too small for two, but let them try
        single = dict(reversed(single.items()))
    theirs = ["--wrappers", "gymnasium"] if atari else []
    shoal_ppo = {
        "2 actors, learner with 2 threads": actors(2, some["ppo"], 2),
        "2 actors, 2 learners": actors(2, some["ppo"], 1, "--learners", 2),
        "2 actors, learner with 1 thread": actors(2, some["ppo"], 1),
        "1 actor, learner with 2 threads": actors(1, some["ppo"], 2, *stepping),
    }
    if not atari:  # where a learner leaves a core idle that can act
        ahead = {"1 actor ahead, learner with 1 thread": actors(1, some["ppo"], 1, "--act-ahead")}
        shoal_ppo = ahead | {"1 actor, learner with 1 thread": actors(1, some["ppo"], 1)} | shoal_ppo
    if atari:
        sb3 = {
            "torch with 2 threads": threads(2, "--vector", "dummy"),
            "8 processes step, torch with 2 threads": threads(2, "--vector", "subproc"),
        }
        rllib = {
            "one process with Gymnasium's wrappers, 2 threads": threads(2, "--runners", 0, *theirs),
            "2 env runners with Gymnasium's wrappers, learner with 2 threads": threads(2, "--runners", 2, *theirs),
            "2 env runners, learner with 2 threads": threads(2, "--runners", 2),
        }
        rllib_queued = {
            "2 env runners, 1 learner": threads(1, "--runners", 2),
            "2 env runners with Gymnasium's wrappers, 1 learner": threads(1, "--runners", 2, *theirs),
        }
        factory = {
            "2 workers": threads(1, "--workers", 2),
            "2 workers with Gymnasium's wrappers": threads(1, "--workers", 2, *theirs),
        }
        factory_ppo = {
            "one process with Gymnasium's wrappers, 2 threads": threads(2, "--workers", 0, *theirs)
        } | factory
    else:
        sb3 = single
        rllib = {
            "2 env runners, learner with 1 thread": threads(1, "--runners", 2),
            "one process, 1 thread": threads(1, "--runners", 0),
            "one process, 2 threads": threads(2, "--runners", 0),
        }
        rllib_queued = {
            "2 env runners, 1 learner": threads(1, "--runners", 2),
            "1 env runner, 1 learner": threads(1, "--runners", 1),
        }
        factory = {"2 workers": threads(1, "--workers", 2), "1 worker": threads(1, "--workers", 1)}
        factory_ppo = factory | {"one process, 1 thread": threads(1, "--workers", 0)}
    native = {name: [*words, "--vector", "native"] for name, words in single.items()}
    found = [
        Side("shoal", "ppo", shoal_ppo),
        Side("sb3", "ppo", sb3),
        Side("rllib", "ppo", rllib),
        Side("sample_factory", "ppo", factory_ppo),
        Side("cleanrl", "ppo", single),
        Side("cleanrl_native", "ppo", native),
    ]
    for method in ("impala", "appo"):
        count = some[method]
        queued = {"1 actor, 1 learner": actors(1, count, 1), "2 actors, 1 learner": actors(2, count, 1)}
        found += [Side("shoal", method, queued), Side("rllib", method, rllib_queued)]
    return [*found, Side("sample_factory", "appo", factory)]
