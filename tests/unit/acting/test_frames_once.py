"""Frames are stored and sent once: a learner's stacks are those that the policy saw, and bytes are counted."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from shoal.acting import Recorder, Stacker
from shoal.acting.q import QPolicy
from shoal.algorithms import apex_dqn
from shoal.envs import EnvSpec
from shoal.envs.check import stacked_space
from shoal.nets.q import make_q_network
from shoal.replay import Block, Inserted, Pattern, Replay, Table, Writer, n_step, rollout, sequence
from shoal.replay.frames import FrameStack
from shoal.replay.patterns import stacked
from shoal.types import Array, Arrays, Columns
from steps import outcome

COUNT, LENGTHS, STACK = 3, (1, 2, 3, 7, 5), 4


class Watching:
    """A policy that keeps what it sees, by the number that is written into each frame."""

    def __init__(self) -> None:
        self.seen: dict[int, Array] = {}

    def initial_state(self, count: int) -> Columns:
        return {}

    def act(self, observation: Any, state: Columns, first: Array) -> tuple[Array, Columns, Columns]:
        stacks = observation["camera"]
        for stack in stacks:
            self.seen[number_of(stack[-1])] = stack.copy()
        return np.zeros(len(first), np.int64), {}, {}

    def load(self, weights: Arrays) -> None:
        raise NotImplementedError


def frame_of(number: int) -> Array:
    return np.frombuffer(np.int32(number).tobytes(), np.uint8).reshape(2, 2)


def number_of(frame: Array) -> int:
    return int.from_bytes(frame.tobytes(), "little")


def drive(recorder: Recorder, rows: int) -> None:
    """Episodes of several lengths, down to one step, that end at different times in the environments."""
    left = [LENGTHS[i % len(LENGTHS)] for i in range(COUNT)]
    for row in range(rows):
        camera = np.stack([frame_of(1 + row * COUNT + i) for i in range(COUNT)])
        recorder.act({"camera": camera, "speed": np.ones((COUNT, 1), np.float32)})
        valid = np.array([steps > 0 for steps in left])
        terminated = np.array([steps == 1 for steps in left])
        left = [steps - 1 if steps > 0 else LENGTHS[(row + i) % len(LENGTHS)] for i, steps in enumerate(left)]
        recorder.result(outcome(np.ones(COUNT, np.float32), terminated, valid))


class Every:
    """A pattern of the user's that knows nothing of stacks: every single transition."""

    rows, view = 2, rollout(1).view

    def spans(self, block: Any) -> Any:
        return rollout(1).spans(block)


PATTERNS: dict[str, Pattern] = {
    "rollouts": rollout(5),
    "transitions": n_step(1, 0.9),
    "3-step transitions": n_step(3, 0.9),
    "sequences": sequence(4, period=2, burn_in=1, end="shift"),
    "padded sequences": sequence(4, period=2),
    "a user's own": Every(),
}


@pytest.mark.parametrize("name", PATTERNS)
def test_the_stacks_of_a_batch_are_those_that_the_policy_saw(name: str) -> None:
    policy, stacks = Watching(), {"observation/camera": STACK}
    pattern = stacked(PATTERNS[name], stacks)
    replay = Replay([Table.queue("items", 10_000)], chunk_length=8)
    writer = Writer(replay, {"items": pattern})
    drive(Recorder(policy, COUNT, 4, writer.append, stacks=stacks), 61)
    size = replay.info()["items"]["size"]
    data = replay.sample("items", size).data
    compared = 0
    for column in ("observation/camera", "next_observation/camera"):
        if column not in data:
            continue
        there = data["mask"] if "mask" in data else np.ones(data[column].shape[: data[column].ndim - 3], np.bool_)
        for stack in data[column][there]:
            assert np.array_equal(stack, policy.seen[number_of(stack[-1])])
            compared += 1
    assert compared > 100
    assert not any("|frames" in column for column in data)


def test_a_small_observation_is_not_touched() -> None:
    pattern = n_step(3, 0.9)
    assert stacked(pattern, {}) is pattern
    recorder = Recorder(Watching(), 1, 4, lambda block: None)
    observation = {"camera": np.zeros((1, 1, 2, 2), np.uint8)}
    assert recorder.player.look(observation)[0] is observation


def test_zeros_or_the_first_frame_stand_where_an_episode_has_no_frames_yet() -> None:
    for padding, expected in (("repeat", [1, 1, 2]), ("zero", [0, 1, 2])):
        stack = FrameStack(3, padding)  # type: ignore[arg-type]
        stack.push(np.full((1, 2, 2), 1, np.uint8), np.array([True]))
        frame, begins = np.full((1, 2, 2), 2, np.uint8), np.array([False])
        assert stack.peek(frame, begins)[0, :, 0, 0].tolist() == expected
        assert stack.push(frame, begins)[0, :, 0, 0].tolist() == expected


def test_a_peek_shows_what_a_push_will_return_also_where_an_episode_begins() -> None:
    for padding, begun in (("repeat", [9, 9, 9]), ("zero", [0, 0, 9])):
        stack = FrameStack(3, padding)  # type: ignore[arg-type]
        for number in range(1, 6):
            stack.push(np.full((2, 1, 1), number, np.uint8), np.full(2, number == 1))
        frames, begins = np.full((2, 1, 1), 9, np.uint8), np.array([True, False])
        peeked = stack.peek(frames, begins)
        assert peeked[:, :, 0, 0].tolist() == [begun, [4, 5, 9]]
        assert np.array_equal(peeked, stack.push(frames, begins))


def test_a_stacker_keeps_nothing_of_what_it_peeks_at() -> None:
    stacker = Stacker({"observation": 3})
    for number in (1, 2, 3):
        stacker.push(np.full((1, 1, 1), number, np.uint8), np.array([number == 1]))
    for number, begins, expected in ((4, False, [2, 3, 4]), (8, True, [8, 8, 8]), (9, False, [2, 3, 9])):
        seen = stacker.peek(np.full((1, 1, 1), number, np.uint8), np.array([begins]))
        assert seen[0, :, 0, 0].tolist() == expected
    pushed = stacker.push(np.full((1, 1, 1), 4, np.uint8), np.array([False]))
    assert pushed[0, :, 0, 0].tolist() == [2, 3, 4]


def test_a_stacker_goes_on_from_its_state() -> None:
    one, other = Stacker({"observation": STACK}), Stacker({"observation": STACK})
    frames = np.random.default_rng(0).integers(0, 255, (6, 2, 3, 3), np.uint8)
    for number in range(3):
        one.push(frames[number], np.array([number == 0, number == 2]))
    other.load_state_dict(one.state_dict())
    for number in range(3, 6):
        first = np.array([False, number == 4])
        assert np.array_equal(other.push(frames[number], first), one.push(frames[number], first))


def atari_spec(stack: int = STACK) -> EnvSpec:
    space = stacked_space(spaces.Box(0, 255, (84, 84), np.uint8), stack)
    return EnvSpec("ALE/Pong-v5", space, spaces.Discrete(6), "atari", None, None, stack=stack)


def test_a_stored_and_sent_step_of_apex_dqn_is_one_frame_and_at_most_64_bytes() -> None:
    count, rows = 4, 25
    cfg = apex_dqn.Config(envs_per_actor=count, hidden=(8,), network=None)
    env = atari_spec()
    policy = apex_dqn.make_policy(cfg, env, 0)
    sent: list[int] = []
    stored: list[int] = []

    class Counting:
        def insert(self, block: Block, timeout: float | None = None) -> Inserted:
            buffers: list[pickle.PickleBuffer] = []
            head = pickle.dumps(block, 5, buffer_callback=buffers.append)
            sent.append(len(head) + sum(buffer.raw().nbytes for buffer in buffers))
            stored.append(sum(column.nbytes for column in block.columns.values()))
            return Inserted({}, {})

        def forget_writer(self, name: str) -> None: ...

    pattern = stacked(n_step(3, 0.99, following=("observation", "value")), env.stacks)
    priorities = policy.first_priorities
    assert priorities is not None
    writer = Writer(Counting(), {"t": pattern}, priority_columns=priorities.columns, transient=priorities.transient)
    recorder = Recorder(policy, count, rows, lambda block: writer.append(block, priorities.law), stacks=env.stacks)
    random = np.random.default_rng(0)
    for _ in range(2 * rows + 1):
        recorder.act(random.integers(0, 255, (count, 84, 84), np.uint8))
        recorder.result(outcome(np.zeros(count, np.float32), np.zeros(count, np.bool_), np.ones(count, np.bool_)))
    steps = count * rows
    assert stored[1] / steps <= 7_056 + 64
    assert sent[1] / steps <= 7_056 + 64


def test_a_policy_gives_the_same_from_single_frames_as_from_stacks() -> None:
    cfg, env = apex_dqn.Config(hidden=(8,)), atari_spec()
    network = make_q_network(cfg, env, 0, 0)
    policy = QPolicy(network, 0, epsilons=None)
    frames = np.random.default_rng(0).integers(0, 255, (6, 2, 84, 84), np.uint8)
    stacker = Stacker(env.stacks)
    for number, frame in enumerate(frames):
        seen = stacker.push(frame, np.array([number == 0] * 2))
    whole = np.ascontiguousarray(frames[2:6].swapaxes(0, 1))
    assert np.array_equal(seen, whole)
    with torch.inference_mode():
        expected = network(torch.from_numpy(whole)).argmax(-1).numpy()
    assert np.array_equal(policy.act(seen, {}, np.zeros(2, np.bool_))[0], expected)
