"""Items of a stream, compared with ones formed row by row."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from replay_streams import Stream, make_stream, naive_n_step, naive_sequences, naive_stack

from shoal.replay import Appended, Pattern, Replay, Sample, Spans, Table, Writer, n_step, rollout, sequence
from shoal.replay.patterns import Viewed
from shoal.replay.views import View, Whole

CASES = {
    "seed": st.integers(0, 10_000),
    "rows": st.integers(1, 150),
    "environments": st.integers(1, 4),
    "episode": st.integers(1, 40),
    "block": st.integers(1, 60),
}


def everything(stream: Stream, pattern: Pattern, seed: int, block: int, **options: object) -> Sample | None:
    """All items that a writer makes of a stream cut at random places, in the order of insertion."""
    replay = Replay([Table.queue("all", 100_000)], chunk_length=1 << seed % 7)  # items reach over many chunks, or none
    writer = Writer(replay, {"all": pattern}, **options)  # type: ignore[arg-type]
    for columns in stream.blocks(np.random.default_rng(seed), block):
        writer.append(columns)
    writer.close()
    return replay.sample("all", 100_000, minimum=1) if replay.info()["all"]["size"] else None


@settings(max_examples=60, deadline=None)
@given(**CASES, n=st.integers(1, 7), frames=st.integers(1, 4), padding=st.sampled_from(["repeat", "zero"]))
def test_every_transition_becomes_one_n_step_item(seed, rows, environments, episode, block, n, frames, padding) -> None:
    stream = make_stream(seed, rows, environments, episode)
    pattern = n_step(n, 0.9, following=("observation", "frame"), stack={"frame": frames}, padding=padding)
    expected = naive_n_step(stream, n, 0.9)
    sample = everything(stream, pattern, seed, block)
    if sample is None:
        assert not expected
        return
    data = sample.data
    found = {(int(who), int(row)): index for index, (who, row, _) in enumerate(data["observation"])}
    assert len(found) == len(sample)
    assert found.keys() == expected.keys()
    for (who, row), index in found.items():
        item = expected[who, row]
        assert data["reward"][index] == pytest.approx(item["reward"], abs=1e-5)
        assert data["discount"][index] == pytest.approx(item["discount"], abs=1e-6)
        assert tuple(data["next_observation"][index][:2]) == (who, item["next"])
        assert data["action"][index] == stream.columns["action"][row, who]
        assert data["state/core"][index, 0] == who * 1000 + row
        assert data["frame"][index, :, 0].tolist() == naive_stack(stream, who, row, frames, padding)
        assert data["next_frame"][index, :, 0].tolist() == naive_stack(stream, who, item["next"], frames, padding)


@settings(max_examples=60, deadline=None)
@given(
    **CASES,
    length=st.integers(1, 20),
    part=st.floats(0.1, 1.0),
    burn_in=st.integers(0, 10),
    end=st.sampled_from(["pad", "drop", "shift"]),
    frames=st.integers(1, 4),
)
def test_sequences_cover_each_episode_and_never_cross_its_end(
    seed, rows, environments, episode, block, length, part, burn_in, end, frames
) -> None:
    stream = make_stream(seed, rows, environments, episode)
    period = max(1, int(length * part))
    pattern = sequence(length, period=period, burn_in=burn_in, end=end, stack={"frame": frames})
    expected = naive_sequences(stream, length, period, burn_in, end)
    sample = everything(stream, pattern, seed, block)
    if sample is None:
        assert not expected
        return
    data = sample.data
    size = burn_in + length + 1
    mask = data.get("mask", np.ones((size, len(sample)), bool))
    found = set()
    for index in range(len(sample)):
        count = int(mask[:, index].sum())
        assert mask[:count, index].all()
        who, row, _ = data["observation"][0, index]
        found.add((int(who), int(row), count))
        for name, values in stream.columns.items():
            if name == "state/core":
                assert data[name][index] == values[row, who]
            elif name != "frame":
                np.testing.assert_array_equal(data[name][:count, index], values[row : row + count, who])
                assert not data[name][count:, index].any(), f"padding of {name} must be zero"
        for step in range(count):
            stacked = data["frame"][step, index, :, 0].tolist()
            assert stacked == naive_stack(stream, int(who), int(row) + step, frames, "repeat")
        assert not data["frame"][count:, index].any()
    assert len(found) == len(sample)
    assert found == expected


@settings(max_examples=40, deadline=None)
@given(**CASES, length=st.integers(1, 25), frames=st.integers(1, 4), padding=st.sampled_from(["repeat", "zero"]))
def test_rollouts_are_slices_of_the_stream_with_stacks_that_stop_at_episode_starts(
    seed, rows, environments, episode, block, length, frames, padding
) -> None:
    stream = make_stream(seed, rows, environments, episode)
    pattern = rollout(length, stack={"frame": frames}, padding=padding)
    sample = everything(stream, pattern, seed, block)
    slices = max(0, rows - 1) // length
    assert (0 if sample is None else len(sample)) == slices * environments
    for index in range(slices * environments):
        begin, who = index // environments * length, index % environments
        np.testing.assert_array_equal(
            sample.data["observation"][:, index], stream.columns["observation"][begin : begin + length + 1, who]
        )
        for step in range(length + 1):
            stacked = sample.data["frame"][step, index, :, 0].tolist()
            assert stacked == naive_stack(stream, who, begin + step, frames, padding)


@settings(max_examples=30, deadline=None)
@given(**CASES, n=st.integers(1, 5), rows_per_call=st.integers(1, 30))
def test_collecting_small_appends_gives_the_same_items(
    seed, rows, environments, episode, block, n, rows_per_call
) -> None:
    stream = make_stream(seed, rows, environments, episode)
    one = everything(stream, n_step(n, 0.9), seed, block)
    other = everything(stream, n_step(n, 0.9), seed, block, rows=rows_per_call)
    assert (one is None) == (other is None)
    if one is not None and other is not None:
        for name, values in one.data.items():
            np.testing.assert_array_equal(values, other.data[name])


@dataclass(frozen=True)
class Starts:
    """A pattern of a user's own: the first rows of every episode."""

    count: int

    @property
    def rows(self) -> int:
        return self.count

    @property
    def view(self) -> View:
        return Whole(self.count)

    def spans(self, block: Appended) -> Spans:
        step, environment = np.nonzero(block.position == self.count - 1)
        zeros = np.zeros(len(step), int)
        return Spans(environment, block.first_row + step - self.count + 1, zeros + self.count, zeros)


def test_a_pattern_of_ones_own_is_four_lines() -> None:
    stream = make_stream(3, 200, 3, 20)
    sample = everything(stream, Starts(4), 0, 16)
    assert sample is not None
    assert (sample.data["observation"][..., 2] == np.arange(4)[:, None]).all()
    expected = sum(last - first >= 3 for who in range(3) for first, last, _ in stream.episodes(who))
    assert len(sample) == expected


def test_impossible_patterns_are_refused_in_one_sentence() -> None:
    for make in (
        lambda: rollout(0),
        lambda: n_step(0, 0.9),
        lambda: n_step(1, 1.5),
        lambda: sequence(10, period=11),
        lambda: sequence(10, end="maybe"),  # type: ignore[arg-type]
        lambda: rollout(3, stack={"frame": 0}),
    ):
        with pytest.raises(ValueError, match=r"^[^\n]+$"):
            make()


def test_rewards_are_clipped_before_they_are_summed() -> None:
    replay = Replay([Table("steps", 10)])
    writer = Writer(replay, {"steps": n_step(3, 0.5, reward_clip=1.0)})
    rewards = np.array([5.0, -0.5, -3.0, 0.0], np.float32)
    flags = np.ones((4, 1), bool)
    columns = {"observation": np.zeros((4, 1, 1), np.float32), "reward": rewards[:, None], "terminated": ~flags}
    writer.append({**columns, "valid": flags})
    assert replay.sample("steps", 1).data["reward"].tolist() == [1.0 - 0.25 - 0.25]


def test_a_view_without_stacks_begins_behind_the_history_of_a_pattern_with_them() -> None:
    replay = Replay([Table("items", 400)])
    writer = Writer(replay, {"items": Viewed(rollout(4, stack={"observation": 3}), Whole(5))})
    writer.append({"observation": np.arange(64)[:, None]})
    rows = replay.sample("items", 20).data["observation"]
    assert (rows[0] % 4 == 0).all()  # slices begin every four rows; their history is not part of them
    assert (rows - rows[0] == np.arange(5)[:, None]).all()
