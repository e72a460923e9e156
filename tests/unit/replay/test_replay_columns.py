"""Operations on columns, against numpy on each item by itself."""

from __future__ import annotations

import numpy as np
import pytest
from replay_streams import make_stream

from shoal.replay import Fifo, Replay, Table, Writer, n_step, rollout, sequence
from shoal.replay.extras import columns


def sample(operations: tuple[object, ...], layout: str = "time", pattern: object = None) -> dict[str, np.ndarray]:
    stream = make_stream(5, 60, 3, 12)
    image = np.arange(60 * 3 * 2 * 4 * 3, dtype=np.int16).reshape(60, 3, 2, 4, 3)
    stream.columns["image"] = image
    replay = Replay([Table("table", 500, operations=operations, sampler=Fifo(), max_times_sampled=1)])
    writer = Writer(replay, {"table": pattern or sequence(5, period=3)})
    writer.append(stream.columns)
    return replay.sample("table", 400, minimum=1, layout=layout).data  # type: ignore[arg-type]


def items(data: dict[str, np.ndarray], name: str, layout: str) -> list[np.ndarray]:
    """Each item's rows without padding."""
    axis = 1 if layout == "time" else 0
    mask = data["mask"]
    return [np.take(data[name], index, axis)[np.take(mask, index, axis)] for index in range(data[name].shape[axis])]


@pytest.mark.parametrize("bootstrap", [False, True])
@pytest.mark.parametrize("layout", ["time", "batch"])
def test_reductions_over_time_leave_out_padding_and_the_bootstrap_row(layout: str, bootstrap: bool) -> None:
    data = sample(
        (
            columns.mean("reward", into="mean", bootstrap=bootstrap),
            columns.minimum("reward", into="least", bootstrap=bootstrap),
            columns.maximum("reward", into="most", bootstrap=bootstrap),
            columns.maximum("observation", into="most_seen", bootstrap=bootstrap),
            columns.product("reward", into="product", bootstrap=bootstrap),
            columns.discounted_sum("reward", 0.9, into="return", bootstrap=bootstrap),
            columns.cumulative_product("reward", into="running", bootstrap=bootstrap),
        ),
        layout,
    )
    last = None if bootstrap else -1
    assert not data["mask"].all(), "the test needs padding"
    for index, reward in enumerate(items(data, "reward", layout)):
        reward = reward[:last]
        assert data["mean"][index] == pytest.approx(reward.mean(), abs=1e-6)
        assert data["least"][index] == reward.min()
        assert data["most"][index] == reward.max()
        assert data["product"][index] == pytest.approx(reward.prod(), rel=1e-5)
        assert data["return"][index] == pytest.approx((reward * 0.9 ** np.arange(len(reward))).sum(), abs=1e-5)
        running = np.take(data["running"], index, 1 if layout == "time" else 0)
        np.testing.assert_allclose(running[: len(reward)], np.cumprod(reward), rtol=1e-5)
    for index, seen in enumerate(items(data, "observation", layout)):
        np.testing.assert_array_equal(data["most_seen"][index], seen[:last].max(0))
    assert data["most_seen"].dtype == np.int32


@pytest.mark.parametrize("layout", ["time", "batch"])
def test_operations_on_a_rows_own_axes(layout: str) -> None:
    data = sample(
        (
            columns.transpose("image", (2, 0, 1), into="channels_first"),
            columns.truncate("image", 2, axis=2, into="narrow"),
            columns.truncate("image", -1, axis=0, into="earlier"),
            columns.mean("image", axis=-1, into="grey"),
            columns.concatenate(("image", "image"), axis=3, into="double"),
            columns.stack(("reward", "reward"), into="pair"),
        ),
        layout,
    )
    image = data["image"]
    time = 0 if layout == "time" else 1
    np.testing.assert_array_equal(data["channels_first"], np.moveaxis(image, -1, 2))
    np.testing.assert_array_equal(data["narrow"], image[:, :, :, :2])
    np.testing.assert_array_equal(data["earlier"], np.delete(image, -1, time))
    np.testing.assert_allclose(data["grey"], image.mean(-1), rtol=1e-6)
    np.testing.assert_array_equal(data["double"], np.concatenate([image, image], -1))
    np.testing.assert_array_equal(data["pair"], np.stack([data["reward"]] * 2, -1))
    for name in ("channels_first", "narrow", "earlier"):
        assert data[name].flags.c_contiguous


def test_operations_work_on_transitions_too() -> None:
    data = sample(
        (columns.concatenate(("observation", "next_observation"), into="both"), columns.mean("both")),
        pattern=n_step(2, 0.9),
    )
    both = np.concatenate([data["observation"], data["next_observation"]], 1)
    np.testing.assert_allclose(data["both"], both.mean(1), rtol=1e-6)


def test_what_does_not_exist_is_named() -> None:
    with pytest.raises(ValueError, match="'rewards'; the sample has"):
        sample((columns.mean("rewards"),))
    with pytest.raises(ValueError, match="axis 7 of 'reward'"):
        sample((columns.mean("reward", axis=7),))
    with pytest.raises(ValueError, match="transpose names axes"):
        sample((columns.transpose("image", (0, 1)),))


@pytest.mark.parametrize(
    ("pattern", "expected"), [(sequence(5, end="drop"), 35.0), (sequence(5), 35.0), (rollout(5), 35.0)]
)
def test_the_return_of_a_sequence_is_that_of_its_transitions(pattern, expected: float) -> None:
    """Rewards 5 to 9 are the item's; the 10 belongs to the row that is there for its observation."""
    table = Table("table", 1, operations=(columns.discounted_sum("reward", 1.0, into="return"),))
    replay = Replay([table])
    reward = np.arange(5.0, 11.0, dtype=np.float32)[:, None]
    Writer(replay, {"table": pattern}).append({"reward": reward, "valid": reward > 0})
    assert replay.sample("table", 1).data["return"].tolist() == [expected]
