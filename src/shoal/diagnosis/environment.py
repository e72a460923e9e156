"""Looking at an environment: what it returns against what it declares, seeds, states, limits, rewards, speed.

Everything happens in the process that calls; `doctor` has one of its own for it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from gymnasium import spaces

from shoal import envs, tree
from shoal.diagnosis.findings import Tell
from shoal.diagnosis.stepping import Raw, Row, in_this_process
from shoal.envs import EVALUATION_LIMIT, EnvFault, EnvSpec, check
from shoal.envs.choosing import Meter
from shoal.envs.state import NoState
from shoal.pixels import is_image
from shoal.types import Array

STEPS, SECONDS = 3_000, 3.0  # of random actions that are looked at, at most
SAME_STEPS, SAME_SECONDS = 200, 1.0  # that are repeated to see whether they come out the same
BEFORE, AFTER = 7, 20  # steps before a state is taken, and after it was taken back
MANY = 1_024  # of those that live on a device, whose speed is measured together
MEASURED = 1.0  # seconds in which speed is measured
LARGE = 50.0  # observations beyond this are far from what networks are made for
IMAGE = 16  # rows and columns from which on two axes look like an image

FEW, DEVICE_STEPS = 16, 600  # environments of tensors that are looked at, and their steps

Doing = Callable[[str], None]  # what the user's code is asked for next


@dataclass
class Seen:
    """What steps with random actions have shown."""

    steps: int = 0
    rewards: list[Array] = field(default_factory=list)  # of valid steps
    returns: list[float] = field(default_factory=list)  # of whole episodes
    lengths: list[int] = field(default_factory=list)
    terminations: int = 0
    truncations: int = 0
    low: dict[str, Array] = field(default_factory=dict)
    high: dict[str, Array] = field(default_factory=dict)
    dtypes: dict[str, np.dtype[Any]] = field(default_factory=dict)

    @property
    def all_rewards(self) -> Array:
        return np.concatenate(self.rewards) if self.rewards else np.zeros(0)

    @property
    def largest_observation(self) -> float:
        """Among those that are no images, whose bytes are scaled."""
        parts = [
            np.maximum(np.abs(self.low[name]), np.abs(self.high[name])).max(initial=0.0)
            for name, dtype in self.dtypes.items()
            if dtype.kind == "f"
        ]
        return float(max(parts, default=0.0))


@dataclass
class Environment:
    """One environment under examination."""

    spec: EnvSpec
    tell: Tell
    doing: Doing
    seen: Seen = field(default_factory=Seen)
    measured: dict[str, Any] = field(default_factory=dict)

    def examine(self) -> bool:
        """Whether it can be trained on: False after a fault."""
        try:
            self.spaces()
            self.device()
            self.play()
            self.rewards()
            self.time_limit()
            self.seeds()
            self.state()
            self.speed()
        except EnvFault as fault:
            self.tell("fault", "environment", str(fault), "correct it before you train")
            return False
        return True

    # ---- what it declares

    def spaces(self) -> None:
        spec = self.spec
        self.measured["kind"] = spec.kind
        told = f"observations {check.shown(spec.observation_space)}; actions {check.shown(spec.action_space)}"
        self.tell("ok", "spaces", f"{told}; kind {spec.kind}")
        if spec.mask_note is not None:
            said, remedy = spec.mask_note.split(", so ", 1)
            self.tell("warning", "masks", said.removeprefix(f"{spec.name}: "), remedy.rstrip("."))
        for name, space in tree.leaf_spaces(spec.observation_space, "observation").items():
            shape = check.shape_of(space)
            large = 2 <= len(shape) <= 4 and sorted(shape[-3:])[-2] >= IMAGE
            if not isinstance(space, spaces.Box) or space.dtype == np.uint8 or not large:
                continue
            built = "convolutions are built for it, but" if is_image(space) else "no convolutions are built for it, and"
            self.tell(
                "warning",
                "spaces",
                f"{name!r} is {list(shape)} of {space.dtype}: {built} it takes several times the memory of bytes",
                "if it is an image, give its space dtype=np.uint8, from 0 to 255",
            )

    # ---- where it lives

    def device(self) -> None:
        """Of a vector of tensors: where they are, when it resets, what it does with final observations."""
        if not self.spec.on_device:
            return
        self.doing("step a vector of tensors")
        made = envs.make_tensors(self.spec, FEW, seed=1, device=self.spec.device)
        try:
            made.reset()
            spread = torch.tensor(np.stack([np.asarray(self.spec.action_space.sample()) for _ in range(FEW)]))
            for _ in range(DEVICE_STEPS):
                made.step(spread.to(made.device))
            made.take_returns()
            lost = made.take_notes()
        finally:
            made.close()
        mode = "in a step of its own (NEXT_STEP)" if made.autoreset == "next_step" else "within a step (SAME_STEP)"
        self.measured |= {"device": str(made.device), "autoreset": made.autoreset, "loses_finals": bool(lost)}
        told = f"a vector of tensors on {made.device}, which resets {mode}; no copy to the host in a step"
        self.tell("ok", "device", f"{told}; the learner acts itself, with no actors")
        for note in lost:
            said, _, remedy = note.rpartition("; ")
            self.tell("warning", "device", said, remedy)

    # ---- what it gives

    def play(self) -> None:
        """Whole episodes with random actions."""
        self.doing("make it, reset it and step it with random actions")
        raw, seen = Raw(self.spec, seed=0), self.seen
        total, length = np.zeros(raw.count), np.zeros(raw.count, np.int64)
        outside: dict[str, str] = {}
        expected = tree.leaf_spaces(raw.space, "observation")
        for row in _closing(raw, STEPS, SECONDS):
            for name, leaf in row.leaves.items():
                self._look(name, leaf, expected[name], outside)
            _check_finite(row, self.spec.name)
            valid = ~row.first
            seen.steps += int(valid.sum())
            seen.rewards.append(row.reward[valid])
            total, length = (total + row.reward) * valid, (length + 1) * valid
            for index in np.flatnonzero((row.terminated | row.truncated) & valid):
                seen.returns.append(float(total[index]))
                seen.lengths.append(int(length[index]))
                seen.terminations += bool(row.terminated[index])
                seen.truncations += bool(row.truncated[index] and not row.terminated[index])
            if raw.same_step:
                goes_on = ~(row.terminated | row.truncated)
                total, length = total * goes_on, length * goes_on
        self._tell_dtypes(expected)
        for sentence in outside.values():
            self.tell("warning", "bounds", sentence, "declare the bounds that it has, or clip what it returns")
        if not outside:
            self.tell("ok", "observations", f"finite and inside their space in {seen.steps:,} steps")
        if seen.steps > 1 and all(np.array_equal(seen.low[name], seen.high[name]) for name in seen.low):
            self.tell(
                "warning",
                "observations",
                f"the observation was the same in all {seen.steps:,} steps: there is nothing to learn from",
                "look whether step() returns an array that it has forgotten to fill",
            )
        ends = f"{seen.terminations} by the environment, {seen.truncations} by a time limit"
        kind = f"a vector with {raw.autoreset} autoreset" if not raw.single else "reset after each"
        if seen.returns:
            self.tell("ok", "episodes", f"{len(seen.returns)} ended, {ends}; {kind}")

    def _look(self, name: str, leaf: Array, space: Any, outside: dict[str, str]) -> None:
        seen = self.seen
        lowest, highest = leaf.min(0), leaf.max(0)
        seen.dtypes.setdefault(name, leaf.dtype)
        seen.low[name] = np.minimum(seen.low.get(name, lowest), lowest)
        seen.high[name] = np.maximum(seen.high.get(name, highest), highest)
        if isinstance(space, spaces.Box) and name not in outside:
            wrong = (leaf < space.low) | (leaf > space.high)
            if wrong.any():
                place = tuple(int(part) for part in np.argwhere(wrong)[0])
                within = place[1:]
                low, high = space.low[within], space.high[within]
                where = f" at {list(within)}" if within else ""
                outside[name] = (
                    f"{name!r} was {leaf[place]:.6g}{where}, and its space goes from {low:.6g} to {high:.6g}"
                )

    def _tell_dtypes(self, expected: Mapping[str, Any]) -> None:
        other = {
            name: (dtype, expected[name].dtype)
            for name, dtype in self.seen.dtypes.items()
            if isinstance(expected[name], spaces.Box) and dtype != expected[name].dtype
        }
        for name, (came, declared) in other.items():
            self.tell(
                "warning",
                "dtypes",
                f"{name!r} comes as {came}, and its space says {declared}: it is converted at every step",
                f"return {declared}, or declare dtype=np.{came}",
            )
        if not other:
            kinds = ", ".join(sorted({str(dtype) for dtype in self.seen.dtypes.values()}))
            wide = "; learned from as float32" if "float64" in kinds else ""
            self.tell("ok", "dtypes", f"{kinds}, as declared{wide}")

    # ---- rewards and ends

    def rewards(self) -> None:
        seen, rewards = self.seen, self.seen.all_rewards
        if not len(rewards):
            return
        low, high = float(rewards.min()), float(rewards.max())
        some = rewards[rewards != 0]
        size = float(np.quantile(np.abs(some), 0.95)) if len(some) else 0.0
        self.measured |= {"reward_lowest": low, "reward_highest": high, "reward_size": size}
        self.measured |= {"reward_share": len(some) / len(rewards), "reward_mean": float(np.abs(rewards).mean())}
        if seen.returns:
            self.measured |= {"return_lowest": min(seen.returns), "return_highest": max(seen.returns)}
        if not len(some):
            self.tell(
                "warning",
                "rewards",
                f"all {len(rewards):,} rewards of random actions were 0: if chance never finds one, no algorithm "
                "here learns",
                "give rewards on the way to the goal, or make an easy version of the task to begin with",
            )
            return
        told = f"{_range(low, high)}, {len(some) / len(rewards):.0%} of them not 0"
        if seen.returns:
            told += f"; returns of random play {_range(min(seen.returns), max(seen.returns))}"
        self.tell("ok", "rewards", told)

    def time_limit(self) -> None:
        spec, seen = self.spec, self.seen
        limit = spec.max_episode_steps
        self.measured["time_limit"] = limit
        if limit is not None:
            self.tell("ok", "time limit", f"{limit:,} steps")
            return
        means = f"evaluation cuts episodes after {EVALUATION_LIMIT:,} steps and training never does"
        if seen.lengths:
            ended = f"random episodes ended after {_range(min(seen.lengths), max(seen.lengths))} steps"
            self.tell("ok", "time limit", f"none is stated, and {ended}; {means}, should a trained policy stay alive")
            return
        self.tell(
            "warning",
            "time limit",
            f"none is stated, and no episode ended in {seen.steps:,} steps: {means}, so that no return may be seen "
            "for long",
            "wrap it in gymnasium.wrappers.TimeLimit; --eval-limit cuts the evaluator's episodes alone",
        )

    # ---- seeds and states

    def seeds(self) -> None:
        self.doing("make two of it with one seed and step them with the same actions")
        one, same = self._course(1), self._course(1)
        difference = next((found for a, b in zip(one, same) if (found := _difference(a, b)) is not None), None)
        self.measured["deterministic"] = difference is None
        if difference is not None:
            at = next(number for number, (a, b) in enumerate(zip(one, same)) if _difference(a, b) is not None)
            when = "with the first observation" if at == 0 else f"at step {at:,}"
            self.tell(
                "warning",
                "seeds",
                f"two with one seed and the same actions differ {when}, in {difference}: runs cannot be repeated",
                "call super().reset(seed=seed) in reset() and draw every number from self.np_random",
            )
            return
        steps = min(len(one), len(same)) - 1
        other = self._course(2)
        begins = _difference(one[0], other[0]) is None
        same_start = "; every seed begins with the same observation" if begins else ""
        self.tell("ok", "seeds", f"one seed gives the same {steps:,} steps twice{same_start}")

    def _course(self, seed: int) -> list[Row]:
        raw = Raw(self.spec, seed)
        raw.seed_actions(0)
        return list(_closing(raw, SAME_STEPS, SAME_SECONDS))

    def state(self) -> None:
        """Can it be saved in the middle of an episode, and does it go on as it would have?"""
        self.doing("take its state in the middle of an episode and give it to a new one")
        spec = self.spec if self.spec.vectorizer != "async" else in_this_process(self.spec)
        one, other = (envs.make(spec, 1, seed=seed) for seed in (3, 4))
        try:
            actions = _actions(spec, 1, BEFORE + AFTER)
            one.reset()
            for action in actions[:BEFORE]:
                one.step(action)
            try:
                taken = one.state_dict()
            except NoState as reason:
                self.measured["state"] = False
                text, _, remedy = str(reason).rstrip(".").partition(": ")
                self.tell("warning", "state", text, remedy or None)
                return
            wanted = [one.step(action) for action in actions[BEFORE:]]
            other.reset()
            other.load_state_dict(taken)
            for number, (action, expected) in enumerate(zip(actions[BEFORE:], wanted), 1):
                if (what := _difference(expected, other.step(action))) is not None:
                    self.measured["state"] = False
                    self.tell(
                        "fault",
                        "state",
                        f"one that was given the state of another goes on differently: step {number} differs in "
                        f"{what}, and a resumed run would go on in other episodes than it was in",
                        "let state_dict() and load_state_dict() hold everything that step() depends on",
                    )
                    return
        finally:
            one.close()
            other.close()
        self.measured["state"] = True
        self.tell("ok", "state", "can be saved in mid-episode: a resumed run goes on in its episodes")

    # ---- speed

    def speed(self) -> None:
        self.doing("measure how long its steps take")
        spec = in_this_process(self.spec)
        count = 1 if spec.vectorizer == "sync" else MANY if spec.on_device else 16
        made = envs.make(spec, count, seed=5)
        try:
            made.reset()
            actions = _actions(spec, made.count, 16)
            made.step(actions[0])
            steps, begin, meter = 0, time.perf_counter(), Meter()
            with meter:
                while (passed := time.perf_counter() - begin) < MEASURED:
                    made.step(actions[steps % 16])
                    steps += 1
            waits = meter.waits(steps)
        finally:
            made.close()
        rate = steps * made.count / passed
        self.measured |= {"steps_per_second": round(rate, 1), "waits": waits}
        how = f"{count} at once, resets included" if count > 1 else "one by one, resets included"
        idle = "; most of it waits for something else than this core" if waits else ""
        self.tell("ok", "speed", f"{rate:,.0f} steps/s on one core ({how}){idle}")


# ---- helpers


def _range(low: float, high: float) -> str:
    return f"{low:,.4g}" if low == high else f"{low:,.4g} to {high:,.4g}"


def _actions(spec: EnvSpec, count: int, rows: int) -> list[Array]:
    """As a policy gives them: discrete ones counted from 0."""
    space = spec.action_space
    space.seed(0)
    return [np.stack([np.asarray(space.sample()) for _ in range(count)]) for _ in range(rows)]


def _check_finite(row: Row, name: str) -> None:
    for part, array in {**row.leaves, "reward": row.reward}.items():
        if array.dtype.kind == "f":
            check.refuse_what_is_not_finite(array, name, part)


def _closing(raw: Raw, steps: int, seconds: float) -> Iterator[Row]:
    try:
        yield from raw.rows(steps, seconds)
    finally:
        raw.close()


def _difference(one: Any, other: Any) -> str | None:
    """The first part of two rows or steps in which they are not the same."""
    for part in one._fields:
        first, second = getattr(one, part), getattr(other, part)
        a, b = (tree.flatten(value, part) for value in (first, second))
        for name in a:
            if not np.array_equal(a[name], b[name], equal_nan=np.asarray(a[name]).dtype.kind == "f"):
                return "'observation'" if part == "leaves" and len(a) == 1 else f"{name.removeprefix('leaves/')!r}"
    return None
