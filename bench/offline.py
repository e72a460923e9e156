"""Learning from data that anybody can make.

    python -m bench.offline data TASK      policies of a medium and of an expert return, and datasets of what they do
    python -m bench.offline table TASK     what pages learn from these, over seeds: returns of 50 greedy episodes

All lies below `--folder`, and both commands go on where they were interrupted.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

import shoal
from shoal.data import DatasetWriter, episode, is_dataset, open_dataset
from shoal.runs import registry

EPISODES = 50  # that judge a policy
Act = Callable[[Any], Any]


@dataclasses.dataclass(frozen=True)
class Task:
    """An environment, who learns it, and what counts as medium and as expert."""

    env: str
    page: str
    medium: float
    expert: float
    steps: int  # of each dataset
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    seed: int = 1


ONE_UPDATE_A_STEP = {"n": 1, "batch": 128, "samples_per_insert": 128.0}
TASKS = {
    "cartpole": Task("CartPole-v1", "ppo", 150.0, 490.0, 20_000),
    "lunarlander": Task("LunarLander-v3", "ppo", 50.0, 220.0, 50_000),
    "pendulum": Task("Pendulum-v1", "sac", -700.0, -180.0, 20_000),
    "hopper": Task("Hopper-v5", "sac", 1_000.0, 2_900.0, 100_000, ONE_UPDATE_A_STEP, seed=2),
    "halfcheetah": Task("HalfCheetah-v5", "sac", 1_500.0, 4_500.0, 100_000),
}
SETS = ("random", "medium", "expert")
MIXED = "mixed"  # a third of the steps of each of them
REPLAY = "medium-replay"  # what the actors did until the medium policy was there


# ---- data


def run_of(folder: Path, name: str, stage: str) -> Path:
    return folder / name / f"run-{stage}"


def train_until(folder: Path, name: str, stage: str) -> Path:
    """The run that came to the stage's return; an expert goes on where the medium policy was, in a run of its own."""
    task, run = TASKS[name], run_of(folder, name, stage)
    target = task.medium if stage == "medium" else task.expert
    config = registry.load(task.page).Config(env=task.env, **task.options)
    shoal.train(
        config,
        run_dir=str(run),
        resume="auto",
        seed=task.seed if stage == "medium" else task.seed + 100,
        stop_return=target,
        checkpoint_replay=True,
        **(
            {"record_data": str(folder / name / REPLAY)}
            if stage == "medium"
            else {"restore": str(run_of(folder, name, "medium"))}
        ),
    )
    return run


def collect(folder: Path, env: str, act: Act, steps: int, seed: int) -> None:
    """Whole episodes until there are so many steps."""
    made = gymnasium.make(env)
    with DatasetWriter(folder, made.observation_space, made.action_space, env=env) as writer:
        done = 0
        while done < steps:
            observation, _ = made.reset(seed=seed)
            seen, taken, earned = [observation], [], []
            terminated = truncated = False
            while not (terminated or truncated):
                action = act(observation)
                observation, reward, terminated, truncated, _ = made.step(action)
                seen.append(observation)
                taken.append(action)
                earned.append(float(reward))
            ends = {"terminated": terminated, "truncated": truncated, "seed": seed}
            writer.append(episode(np.stack(seen), np.stack(taken), np.asarray(earned), **ends))
            done, seed = done + len(earned), seed + 1
    made.close()


def behaviour(folder: Path, name: str, kind: str) -> Act:
    """Who acts for a dataset: nobody who knows anything, or a policy with its exploration."""
    task = TASKS[name]
    if kind == "random":
        space = gymnasium.make(task.env).action_space
        space.seed(task.seed)
        return lambda _: space.sample()
    policy = shoal.load(train_until(folder, name, kind), seed=task.seed)
    return lambda seen: policy.act(seen, explore=True)


def make_data(folder: Path, name: str) -> None:
    task = TASKS[name]
    for number, kind in enumerate(SETS):
        place = folder / name / kind
        if not is_dataset(place):
            collect(place, task.env, behaviour(folder, name, kind), task.steps, seed=1_000_000 * (number + 1))
    mixed = folder / name / MIXED
    if not is_dataset(mixed):
        parts = [open_dataset(folder / name / kind) for kind in SETS]
        with DatasetWriter(mixed, parts[0].observation_space, parts[0].action_space, env=task.env) as writer:
            for part in parts:
                done = 0
                for whole in part.episodes():
                    if done >= task.steps // len(parts):
                        break
                    writer.append(whole)
                    done += len(whole)
    for kind in (*SETS, REPLAY, MIXED):
        print(f"{name:12} {kind:13} {described(open_dataset(folder / name / kind))}")


def described(data: Any) -> str:
    best = np.sort(data.returns)[-max(1, len(data) // 4) :].mean()
    return (
        f"{data.steps:,} steps, {len(data):,} episodes, return {data.returns.mean():,.1f} "
        f"(best quarter {best:,.1f}, best {data.returns.max():,.1f})"
    )


# ---- what is learned from it


def learn(folder: Path, name: str, kind: str, page: str, seed: int, updates: int, options: dict[str, Any]) -> float:
    """The return of 50 greedy episodes of a page that has learned from a dataset; known results are read."""
    run = folder / name / f"{page}-{kind}-{updates}-{seed}"
    found = run / "judged.json"
    if found.is_file():
        return float(json.loads(found.read_text())["return"])
    config = registry.load(page).Config(data=str(folder / name / kind), **options)
    begin = time.monotonic()
    result = shoal.train(config, run_dir=str(run), resume="auto", quiet=True, seed=seed, stop_updates=updates)
    judged = shoal.evaluate(str(run), env=TASKS[name].env, episodes=EPISODES, seed=7)
    seconds = time.monotonic() - begin
    found.write_text(json.dumps({"return": judged.eval_return, "updates": result.learner_steps, "seconds": seconds}))
    return judged.eval_return


def typed(words: Sequence[str]) -> dict[str, Any]:
    return {name: json.loads(value) for name, value in (word.split("=", 1) for word in words)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("command", choices=("data", "table"))
    parser.add_argument("task", choices=TASKS)
    parser.add_argument("--folder", type=Path, default=Path("offline-data"))
    parser.add_argument("--sets", nargs="*", default=["medium"])
    parser.add_argument("--pages", nargs="*", default=["bc", "td3_bc", "iql"])
    parser.add_argument("--seeds", type=int, nargs="*", default=[1, 2, 3])
    parser.add_argument("--updates", type=int, default=20_000)
    parser.add_argument("--options", nargs="*", default=[], help="of the pages' configs, as name=JSON")
    asked = parser.parse_args()
    if asked.command == "data":
        make_data(asked.folder, asked.task)
        return
    for kind in asked.sets:
        print(f"{asked.task} {kind}: {described(open_dataset(asked.folder / asked.task / kind))}")
        for page in asked.pages:
            given = (asked.folder, asked.task, kind, page)
            returns = [learn(*given, seed, asked.updates, typed(asked.options)) for seed in asked.seeds]
            shown = " ".join(f"{value:10,.1f}" for value in returns)
            print(f"  {page:14} {asked.updates:,} updates: {shown}   mean {np.mean(returns):,.1f}", flush=True)


if __name__ == "__main__":
    main()
