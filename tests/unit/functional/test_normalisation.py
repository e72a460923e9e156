"""Statistics summed over learners and merged over time are those of all the data together."""

from __future__ import annotations

import torch

from shoal.functional.normalisation import Moments, from_sums, masked_sums, merge, normalise, normalise_advantages

T, B = 7, 5


def rows(seed: int, *shape: int, offset: float = 0.0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(T, B, *shape, generator=generator, dtype=torch.float64) * 3.0 + offset
    valid = torch.rand(T, B, generator=generator) < 0.3 + 0.2 * seed
    x[~valid] = float("nan")
    return x, valid


def direct(*data: tuple[torch.Tensor, torch.Tensor]) -> Moments:
    together = torch.cat([x[valid] for x, valid in data])
    return Moments(together.mean(0), together.var(0, correction=0), torch.tensor(float(len(together))).double())


def test_sums_added_over_learners_give_the_statistics_of_the_concatenated_data() -> None:
    data = [rows(seed, 3, offset=1.0) for seed in range(3)]
    about = torch.tensor([1.0, 0.5, -2.0])
    for point in (None, about):
        total = torch.stack([masked_sums(x, valid=valid, about=point) for x, valid in data]).sum(0)
        torch.testing.assert_close(from_sums(total, about=point), direct(*data))


def test_merged_statistics_are_those_of_the_concatenated_data() -> None:
    data = [rows(seed, 2, 3, offset=float(seed)) for seed in range(4)]
    merged = from_sums(torch.zeros(3, 2, 3, dtype=torch.float64))
    for x, valid in data:
        merged = merge(a=merged, b=from_sums(masked_sums(x, valid=valid)))
    torch.testing.assert_close(merged, direct(*data))


def test_sums_about_a_nearby_number_keep_the_variance_of_distant_data() -> None:
    x, valid = rows(2, offset=1e8)
    about = torch.tensor(1e8, dtype=torch.float64)
    torch.testing.assert_close(
        from_sums(masked_sums(x, valid=valid, about=about), about=about), direct((x, valid)), rtol=1e-9, atol=0.0
    )


def test_a_variance_that_rounding_would_make_negative_is_zero() -> None:
    sums = torch.tensor([7e4, 7e8 - 1.0, 7.0], dtype=torch.float64)  # of seven rows of 10,000, and a little lost
    found = from_sums(sums)
    assert (float(found.mean), float(found.variance)) == (1e4, 0.0)
    advantages, valid = torch.full((7, 1), 1e4), torch.ones(7, 1, dtype=torch.bool)
    torch.testing.assert_close(normalise_advantages(advantages, valid=valid, sums=sums), torch.zeros(7, 1))


def test_the_statistics_of_no_rows_change_nothing() -> None:
    x, valid = rows(1, 3)
    nothing = from_sums(
        masked_sums(x, valid=torch.zeros_like(valid), about=torch.full((3,), 7.0)), about=torch.full((3,), 7.0)
    )
    known = from_sums(masked_sums(x, valid=valid))
    torch.testing.assert_close(merge(a=known, b=nothing), known)
    torch.testing.assert_close(merge(a=nothing, b=known), known)
    torch.testing.assert_close(merge(a=nothing, b=nothing), nothing)


def test_normalised_data_has_mean_zero_and_variance_one() -> None:
    x, valid = rows(2, 3, offset=4.0)
    found = normalise(x.float(), moments=from_sums(masked_sums(x, valid=valid)))
    assert found.dtype == torch.float32
    torch.testing.assert_close(found[valid].mean(0), torch.zeros(3), rtol=0.0, atol=1e-5)
    torch.testing.assert_close(found[valid].var(0, correction=0), torch.ones(3))


def test_advantages_are_normalised_over_the_rows_of_all_learners() -> None:
    data = [rows(seed, offset=2.0) for seed in range(3)]
    sums = torch.stack([masked_sums(x, valid=valid) for x, valid in data]).sum(0)
    known = direct(*data)
    for x, valid in data:
        found = normalise_advantages(x, valid=valid, sums=sums)
        assert torch.all(found[~valid] == 0.0)
        torch.testing.assert_close(found[valid], (x[valid] - known.mean) / known.variance.sqrt())
