"""n-step returns against a walk along each row's own future."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from law_streams import stream

from shoal.functional.n_step import bootstrap, n_step_returns, n_step_targets
from shoal.replay import MinSize, Replay, Table, Uniform, Writer, n_step

T, B = 19, 6


@pytest.mark.parametrize("n", [1, 2, 3, 5, 30])
def test_n_step_targets_walk_until_n_rows_an_end_or_the_last_row(n: int) -> None:
    x = stream(T, B, seed=n)
    found = n_step_targets(**x, n=n)
    for b in range(B):
        for t in range(T):
            row, total, factor = t, 0.0, 1.0
            while row < T and row < t + n and x["valid"][row, b] and factor != 0.0:
                total += factor * float(x["rewards"][row, b])
                factor *= float(x["discounts"][row, b])
                row += 1
            expected = total + factor * float(x["values"][row, b])
            assert float(found[t, b]) == pytest.approx(expected, abs=1e-12)


def test_returns_discounts_and_steps_are_the_parts_of_the_target() -> None:
    x = stream(T, B, seed=9)
    returns, discounts, steps = n_step_returns(**{key: x[key] for key in ("rewards", "discounts", "valid")}, n=3)
    rows = torch.arange(T).unsqueeze(1) + steps
    target = returns + discounts * x["values"].gather(0, rows)
    torch.testing.assert_close(target, n_step_targets(**x, n=3))
    assert int(rows.max()) == T


def test_a_truncated_episode_is_bootstrapped_from_its_final_observation() -> None:
    x = {
        "values": torch.tensor([[1.0], [2.0], [10.0], [100.0], [1000.0]]),
        "rewards": torch.tensor([[1.0], [1.0], [0.0], [5.0]]),
        "discounts": torch.full((4, 1), 0.5),
        "valid": torch.tensor([[True], [True], [False], [True]]),
    }
    found = n_step_targets(**x, n=4)
    assert found.flatten().tolist() == [1.0 + 0.5 + 0.25 * 10.0, 1.0 + 0.5 * 10.0, 10.0, 5.0 + 0.5 * 1000.0]


def test_nothing_crosses_an_invalid_row() -> None:
    x = stream(T, B, seed=1)
    x["valid"][8] = False
    changed = {key: tensor.clone() for key, tensor in x.items()}
    changed["values"][9:] = float("nan")
    changed["rewards"][8:] = float("inf")
    torch.testing.assert_close(n_step_targets(**changed, n=5)[:9], n_step_targets(**x, n=5)[:9])


def test_a_terminated_row_ignores_even_an_infinite_value() -> None:
    x = stream(T, B, seed=2)
    x["discounts"][3] = 0.0
    x["valid"][3] = True
    x["values"][4] = float("inf")
    assert torch.equal(n_step_targets(**x, n=1)[3], x["rewards"][3])


def test_bootstrap_shifts_and_scales_every_quantile() -> None:
    returns, discounts = torch.tensor([1.0, 2.0]), torch.tensor([0.5, 0.0])
    quantiles = torch.tensor([[2.0, 4.0], [float("inf"), float("nan")]])
    assert bootstrap(returns=returns, discounts=discounts, values=quantiles).tolist() == [[2.0, 3.0], [2.0, 2.0]]


def test_n_step_targets_carry_no_gradient_and_leave_inputs_alone() -> None:
    x = stream(T, B, seed=3)
    before = {key: tensor.clone() for key, tensor in x.items()}
    x["values"].requires_grad_()
    assert not n_step_targets(**x, n=3).requires_grad
    for key, tensor in x.items():
        assert torch.equal(tensor, before[key])


@pytest.mark.parametrize("n", [1, 2, 5])
def test_the_replays_transitions_are_summed_by_this_law(n: int) -> None:
    """The replay knows no torch: what it gathers is held to the law here, for every row that begins an item."""
    x = stream(T, B, seed=20 + n)
    valid, discounts = x["valid"], x["discounts"]
    law = n_step_returns(rewards=x["rewards"], discounts=discounts, valid=valid, n=n)
    replay = Replay([Table("items", 1_000, sampler=Uniform(), limiter=MinSize(1))], seed=1)
    writer = Writer(replay, {"items": n_step(n, 0.9)})
    rows = np.arange(T * B, dtype=np.float32).reshape(T, B)  # an observation is the number of its row
    writer.append(
        {
            "observation": rows[..., None],
            "reward": x["rewards"].float().numpy(),
            "terminated": (discounts == 0.0).numpy() & valid.numpy(),
            "valid": valid.numpy(),
        }
    )
    writer.flush()
    found = replay.sample("items", 1_000).data
    t, b = np.divmod(found["observation"][:, 0].astype(int), B)
    np.testing.assert_allclose(found["reward"], law.returns.numpy()[t, b], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found["discount"], law.discounts.numpy()[t, b], rtol=1e-6)
    ends = found["discount"] != 0.0  # after a termination nothing follows that counts
    following = found["next_observation"][:, 0].astype(int)
    np.testing.assert_array_equal(following[ends], ((t + law.steps.numpy()[t, b]) * B + b)[ends])
    begun = {(row, column) for row, column in zip(t.tolist(), b.tolist())}
    whole = {(t, b) for t in range(T - n) for b in range(B) if valid[t, b]}
    assert whole <= begun, "every row whose return is complete"
