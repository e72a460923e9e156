"""IMPALA's learner and policy: what reaches the loss, what does not, and that it learns a toy task."""

from __future__ import annotations

from dataclasses import fields

import batches
import numpy as np
import pytest
import torch
from batches import CONTINUOUS, DISCRETE, NESTED, B, Batch, Spec, T, bandit, tensors, update, weights

from shoal.algorithms.impala import PRESETS, Config, Impala, make_policy


def batch_of(spec: Spec, cfg: Config, seed: int = 0) -> Batch:
    return batches.batch_of(make_policy(cfg, spec, seed), spec, seed)


@pytest.mark.parametrize("spec", [DISCRETE, CONTINUOUS, NESTED], ids=["discrete", "continuous", "nested"])
@pytest.mark.parametrize("lstm", [0, 8])
def test_an_update_changes_what_is_published_and_policies_load_it(spec: Spec, lstm: int) -> None:
    cfg = Config(hidden=(8,), lstm=lstm)
    learner = Impala(cfg, spec, seed=0)
    before = weights(learner)
    batch = batch_of(spec, cfg)
    for array in batch.values():
        array.flags.writeable = False  # as received from another process
    measured = update(learner, batch, spec)
    after = weights(learner)
    assert all(np.isfinite(float(value)) for value in measured.metrics.values())
    assert measured.applied
    assert any(not np.array_equal(before[name], after[name]) for name in before)
    policy = make_policy(cfg, spec, seed=1, greedy=True)
    policy.load(after)


@pytest.mark.parametrize("lstm", [0, 8])
def test_on_policy_ratios_are_one(lstm: int) -> None:
    """The log-probabilities that acting stores are those the learner finds with the same weights."""
    for spec in (DISCRETE, CONTINUOUS, NESTED):
        cfg = Config(hidden=(8,), lstm=lstm)
        learner = Impala(cfg, spec, seed=0)
        _, _, metrics = learner.loss(tensors(batch_of(spec, cfg, seed=0), spec))
        assert float(metrics["rho"]) == pytest.approx(1.0, abs=1e-4)


@pytest.mark.parametrize("lstm", [0, 8])
def test_what_an_invalid_row_holds_besides_its_observation_changes_nothing(lstm: int) -> None:
    cfg = Config(hidden=(8,), lstm=lstm)
    learner = Impala(cfg, DISCRETE, seed=0)
    batch = batch_of(DISCRETE, cfg)
    expected, count, _ = learner.loss(tensors(batch, DISCRETE))
    changed = {name: array.copy() for name, array in batch.items()}
    invalid = ~batch["valid"]
    changed["action"][invalid] = (changed["action"][invalid] + 1) % 3
    changed["log_prob"][invalid] = -np.inf
    changed["reward"][invalid] = 100.0
    found, _, _ = learner.loss(tensors(changed, DISCRETE))
    assert int(count) == T * B - 2
    torch.testing.assert_close(found, expected)


def test_statistics_of_observations_grow_by_what_was_learned_from_and_are_published() -> None:
    cfg = Config(hidden=(8,), normalize_observations=True)
    learner = Impala(cfg, DISCRETE, seed=0)
    batch = batch_of(DISCRETE, cfg)
    update(learner, batch)
    published = weights(learner)
    rows = batch["observation"][:-1][batch["valid"][:-1]].astype(np.float64)
    assert published["normalizer.parts.0.rows"] == len(rows)
    np.testing.assert_allclose(published["normalizer.parts.0.mean"], rows.mean(0), rtol=1e-9)
    np.testing.assert_allclose(published["normalizer.parts.0.variance"], rows.var(0), rtol=1e-9)


def test_normalised_rewards_do_not_know_the_units_of_the_environment() -> None:
    cfg = Config(hidden=(8,), normalize_rewards=True)
    batch = batch_of(DISCRETE, cfg)
    in_other_units = batch | {"reward": batch["reward"] * 1000.0}
    losses = [Impala(cfg, DISCRETE, seed=0).loss(tensors(rows, DISCRETE))[0] for rows in (batch, in_other_units)]
    torch.testing.assert_close(*losses)
    plain = Impala(Config(hidden=(8,)), DISCRETE, seed=0).loss(tensors(batch, DISCRETE))[0]
    assert losses[0].item() != pytest.approx(plain.item())


def loss_with_other_observation(row: int, environment: int, lstm: int = 0) -> tuple[float, float]:
    cfg = Config(hidden=(8,), lstm=lstm)
    learner = Impala(cfg, DISCRETE, seed=0)
    batch = batch_of(DISCRETE, cfg)
    before, _, _ = learner.loss(tensors(batch, DISCRETE))
    batch["observation"][row, environment] += 1.0
    after, _, _ = learner.loss(tensors(batch, DISCRETE))
    return before.item(), after.item()


@pytest.mark.parametrize("lstm", [0, 8])
def test_a_time_limit_bootstraps_from_the_final_observation_and_a_termination_does_not(lstm: int) -> None:
    before, after = loss_with_other_observation(row=3, environment=0, lstm=lstm)
    assert after == before  # the end of a terminated episode
    before, after = loss_with_other_observation(row=4, environment=1, lstm=lstm)
    assert after != before  # the end of a truncated one


@pytest.mark.parametrize("lstm", [0, 8])
def test_a_batch_with_an_end_inside_is_its_episodes_apart(lstm: int) -> None:
    """Environment 1 is cut after row 3: the losses of both sides apart, weighted by their rows, are the whole's."""
    cfg = Config(hidden=(8,), lstm=lstm)
    learner = Impala(cfg, DISCRETE, seed=0)
    whole = batch_of(DISCRETE, cfg)
    names = [name for name in whole if not name.startswith("state/")]
    alone = {name: column[:, 1:2] if name in names else column[1:2] for name, column in whole.items()}
    before = alone | {name: alone[name][:5] for name in names}
    zero = {name: np.zeros_like(column) for name, column in alone.items() if name not in names}
    after = alone | {name: alone[name][5:] for name in names} | zero
    total, rows, _ = learner.loss(tensors(alone, DISCRETE))
    parts = [learner.loss(tensors(part, DISCRETE))[:2] for part in (before, after)]
    assert int(rows) == sum(int(count) for _, count in parts)
    torch.testing.assert_close(total * rows, sum(loss * count for loss, count in parts))


def test_a_loss_that_is_not_finite_is_refused_and_the_weights_stay() -> None:
    cfg = Config(hidden=(8,))
    learner = Impala(cfg, DISCRETE, seed=0)
    before = weights(learner)
    batch = batch_of(DISCRETE, cfg)
    batch["reward"][0, 0] = np.nan
    measured = update(learner, batch)
    assert not measured.applied
    for name, array in weights(learner).items():
        np.testing.assert_array_equal(array, before[name])


def test_a_learning_rate_goes_on_falling_where_a_lost_learner_left_it() -> None:
    cfg = Config(hidden=(8,), anneal_updates=3, optimizer="rmsprop")
    learner, another = (Impala(cfg, DISCRETE, seed=0) for _ in range(2))
    for step in range(3):
        update(learner, batch_of(DISCRETE, cfg, seed=step))
    another.load_state_dict(learner.state_dict())
    update(another, batch_of(DISCRETE, cfg, seed=3))
    for name, array in weights(another).items():
        np.testing.assert_array_equal(array, weights(learner)[name])


def test_rewards_are_clipped_before_they_are_scaled() -> None:
    batch = batch_of(DISCRETE, Config(hidden=(8,)))
    scaled = batch | {"reward": np.clip(batch["reward"], -0.5, 0.5) * np.float32(0.1)}
    plain = Impala(Config(hidden=(8,)), DISCRETE, seed=0)
    ours = Impala(Config(hidden=(8,), reward_clip=0.5, reward_scale=0.1), DISCRETE, seed=0)
    torch.testing.assert_close(ours.loss(tensors(batch, DISCRETE))[0], plain.loss(tensors(scaled, DISCRETE))[0])


def test_the_same_seed_gives_the_same_parameters_and_another_does_not() -> None:
    cfg = Config(hidden=(8,))
    learners = [Impala(cfg, DISCRETE, seed=seed) for seed in (3, 3, 4)]
    for learner in learners:
        for step in range(3):
            update(learner, batch_of(DISCRETE, cfg, seed=step))
    one, same, other = (weights(learner) for learner in learners)
    assert all(np.array_equal(one[name], same[name]) for name in one)
    assert any(not np.array_equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("preset", PRESETS)
def test_presets_name_fields_of_the_config(preset: str) -> None:
    Config(preset=preset, **PRESETS[preset])
    assert set(PRESETS[preset]) <= {field.name for field in fields(Config)}


@pytest.mark.parametrize(("spec", "lstm"), [(DISCRETE, 0), (CONTINUOUS, 0), (DISCRETE, 16)])
def test_it_learns_which_action_pays(spec: Spec, lstm: int) -> None:
    """A bandit that sees a context: reward 1 for the action named by the largest entry, or near a multiple of it."""
    cfg = Config(hidden=(16,), lstm=lstm, learning_rate=0.01, entropy_cost=0.001)
    returns = bandit(Impala(cfg, spec, seed=0), make_policy(cfg, spec, seed=1), spec, 150)
    assert np.mean(returns[-10:]) > (0.8 if spec is DISCRETE else -0.3)
    assert np.mean(returns[:5]) < (0.5 if spec is DISCRETE else -0.6)
