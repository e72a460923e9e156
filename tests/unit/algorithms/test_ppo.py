"""PPO's learner and policy: what reaches an update, what does not, and that it learns a toy task."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
import torch
from batches import CONTINUOUS, DISCRETE, SPECS, B, Batch, Spec, T, bandit, batch_of, changed, equal, update, weights

from shoal.algorithms.ppo import PPO, PRESETS, Config, make_policy
from shoal.nets.building import make_actor_critic
from shoal.nets.normalize import LIMIT

SMALL = Config(hidden=(8,), minibatches=1, epochs=2)


def batch(cfg: Config, spec: Spec = DISCRETE, seed: int = 0) -> Batch:
    return batch_of(make_policy(cfg, spec, 0), spec, seed)


def after_update(cfg: Config, data: Batch, spec: Spec = DISCRETE) -> Batch:
    learner = PPO(cfg, spec, seed=0)
    update(learner, data, spec)
    return weights(learner)


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("lstm", [0, 8])
@pytest.mark.parametrize("normalize", [False, True])
def test_an_update_changes_what_is_published_and_policies_load_it(spec: str, lstm: int, normalize: bool) -> None:
    cfg = Config(hidden=(8,), lstm=lstm, normalize_observations=normalize, normalize_rewards=normalize)
    learner = PPO(cfg, SPECS[spec], seed=0)
    before = weights(learner)
    data = batch(cfg, SPECS[spec])
    for array in data.values():
        array.flags.writeable = False  # as received from another process
    measured = update(learner, data, SPECS[spec])
    after = weights(learner)
    assert all(np.isfinite(float(value)) for value in measured.metrics.values())
    assert measured.applied
    assert not equal(before, after)
    make_policy(cfg, SPECS[spec], seed=1, greedy=True).load(after)


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("lstm", [0, 8])
def test_before_it_is_changed_the_policy_has_not_moved(spec: str, lstm: int) -> None:
    """The log-probabilities that acting stores are those the learner finds with the same weights."""
    cfg = replace(SMALL, lstm=lstm, learning_rate=0.0, normalize_observations=True)
    learner = PPO(cfg, SPECS[spec], seed=0)
    measured = update(learner, batch(cfg, SPECS[spec]), SPECS[spec])
    assert float(measured.metrics["kl"]) == pytest.approx(0.0, abs=1e-6)
    assert float(measured.metrics["clipped"]) == 0.0


@pytest.mark.parametrize("lstm", [0, 8])
def test_what_an_invalid_row_holds_besides_its_observation_changes_nothing(lstm: int) -> None:
    cfg = replace(SMALL, lstm=lstm, normalize_observations=True, normalize_rewards=True)
    data = batch(cfg)

    def change(copy: Batch) -> None:
        invalid = ~data["valid"]
        copy["action"][invalid] = (copy["action"][invalid] + 1) % 3
        copy["log_prob"][invalid] = -np.inf
        copy["reward"][invalid] = 100.0

    assert equal(after_update(cfg, data), after_update(cfg, changed(data, change)), 1e-7)


@pytest.mark.parametrize("lstm", [0, 8])
def test_a_time_limit_bootstraps_from_the_final_observation_and_a_termination_does_not(lstm: int) -> None:
    cfg = replace(SMALL, lstm=lstm)
    data = batch(cfg)

    def other(row: int, environment: int) -> Batch:
        def change(copy: Batch) -> None:
            copy["observation"][row, environment] += 1.0

        return after_update(cfg, changed(data, change))

    assert equal(after_update(cfg, data), other(3, 0)), "the end of a terminated episode"
    assert not equal(after_update(cfg, data), other(4, 1)), "the end of a truncated one"
    assert not equal(after_update(cfg, data), other(T, 2)), "the row that only bootstraps"


def test_an_iteration_makes_epochs_times_minibatches_updates() -> None:
    learner = PPO(Config(hidden=(8,), epochs=3, minibatches=4), DISCRETE, seed=0)
    update(learner, batch(learner.cfg))
    assert learner.optimizer.updates == 12


@pytest.mark.parametrize("lstm", [0, 8])
def test_more_minibatches_than_rows_leave_the_weights_finite(lstm: int) -> None:
    cfg = Config(hidden=(8,), epochs=1, minibatches=50, lstm=lstm)
    learner = PPO(cfg, DISCRETE, seed=0)
    assert update(learner, batch(cfg)).applied
    assert all(np.isfinite(array).all() for array in weights(learner).values())


def test_passes_end_once_the_policy_has_moved_far_enough() -> None:
    cfg = Config(hidden=(8,), epochs=8, minibatches=2, learning_rate=0.01)
    free = update(PPO(cfg, DISCRETE, seed=0), batch(cfg))
    bound = update(PPO(replace(cfg, target_kl=float(free.metrics["kl"]) / 4), DISCRETE, seed=0), batch(cfg))
    assert free.metrics["epochs"] == 8
    assert 1 <= bound.metrics["epochs"] < 8
    assert float(bound.metrics["kl"]) < float(free.metrics["kl"])


def test_the_learning_rate_falls_with_the_steps_trained_on_and_ends_at_zero() -> None:
    steps = T * B - 2  # of a batch
    cfg = replace(SMALL, learning_rate=0.1, anneal_steps=4 * steps)
    learner = PPO(cfg, DISCRETE, seed=0)
    rates = [float(update(learner, batch(cfg, seed=i)).metrics["learning_rate"]) for i in range(5)]
    np.testing.assert_allclose(rates, [0.075, 0.05, 0.025, 0.0, 0.0], atol=1e-12)
    continued = PPO(cfg, DISCRETE, seed=1)
    continued.load_state_dict(learner.state_dict())
    rate = update(continued, batch(cfg)).metrics["learning_rate"]
    assert rate == 0.0, "what is loaded says how far training had come"


def test_a_value_clip_that_is_never_reached_changes_nothing_and_a_narrow_one_does() -> None:
    data = batch(SMALL)
    free = after_update(SMALL, data)
    assert equal(free, after_update(replace(SMALL, value_clip=1e6), data), 1e-7)
    assert not equal(free, after_update(replace(SMALL, value_clip=1e-6), data))


def test_advantages_are_judged_by_their_spread_only_when_normalised() -> None:
    def change(copy: Batch) -> None:
        copy["reward"] *= 5.0

    cfg = replace(SMALL, value_cost=0.0, lambda_=0.0, gamma=0.0, epochs=1)
    measured = [update(PPO(cfg, DISCRETE, 0), one) for one in (batch(cfg), changed(batch(cfg), change))]
    plain = replace(cfg, normalize_advantages=False)
    others = [update(PPO(plain, DISCRETE, 0), one) for one in (batch(cfg), changed(batch(cfg), change))]
    assert float(measured[1].metrics["grad_norm"]) < 1.5 * float(measured[0].metrics["grad_norm"])
    assert float(others[1].metrics["grad_norm"]) > 3.0 * float(others[0].metrics["grad_norm"])


def test_a_loss_that_is_not_finite_is_refused_and_the_weights_stay() -> None:
    learner = PPO(SMALL, DISCRETE, seed=0)
    before = weights(learner)

    def change(copy: Batch) -> None:
        copy["reward"][0, 0] = np.nan

    measured = update(learner, changed(batch(SMALL), change))
    assert not measured.applied
    assert equal(before, weights(learner))


def test_the_same_seed_gives_the_same_parameters_and_another_does_not() -> None:
    cfg = Config(hidden=(8,))
    learners = [PPO(cfg, DISCRETE, seed=seed) for seed in (3, 3, 4)]
    for learner in learners:
        for step in range(3):
            update(learner, batch(cfg, seed=step))
    one, same, other = (weights(learner) for learner in learners)
    assert equal(one, same)
    assert not equal(one, other)


# ---- normalisation


def test_statistics_of_observations_are_those_of_all_valid_rows_so_far() -> None:
    cfg = replace(SMALL, normalize_observations=True)
    learner = PPO(cfg, DISCRETE, seed=0)
    batches = [batch(cfg, seed=seed) for seed in range(4)]
    for data in batches:
        update(learner, data)
    rows = np.concatenate([data["observation"][:-1][data["valid"][:-1]] for data in batches]).astype(np.float64)
    published = weights(learner)
    assert published["normalizer.parts.0.rows"] == len(rows)
    np.testing.assert_allclose(published["normalizer.parts.0.mean"], rows.mean(0), rtol=1e-9)
    np.testing.assert_allclose(published["normalizer.parts.0.variance"], rows.var(0), rtol=1e-9)


def test_data_is_trained_on_with_the_statistics_it_was_acted_on_with() -> None:
    """After a first update statistics have changed; the next batch is acted on with them, and again nothing moved."""
    cfg = replace(SMALL, normalize_observations=True, learning_rate=0.0)
    learner = PPO(cfg, DISCRETE, seed=0)
    update(learner, batch(cfg))
    policy = make_policy(cfg, DISCRETE, 5)
    policy.load(weights(learner))
    assert float(update(learner, batch_of(policy, DISCRETE, 6)).metrics["kl"]) == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize("spec", [DISCRETE, CONTINUOUS])
def test_acting_without_torch_normalises_as_the_network_does(spec: Spec) -> None:
    cfg = replace(SMALL, normalize_observations=True)
    learner = PPO(cfg, spec, seed=0)
    update(learner, batch(cfg, spec), spec)
    network: Any = make_actor_critic(cfg, spec, 1)
    network.load_state_dict(learner.network.state_dict())
    policy = make_policy(cfg, spec, 1)
    policy.load(weights(learner))
    assert policy.mirror is not None
    observation = np.random.default_rng(0).uniform(-50.0, 50.0, (7, 3)).astype(np.float32)  # far enough to be clipped
    with torch.no_grad():
        expected, _, _ = network(torch.from_numpy(observation)[None], {}, torch.zeros(1, 7, dtype=torch.bool))
    np.testing.assert_allclose(policy.mirror(observation), expected[0], rtol=1e-4, atol=1e-5)


def test_images_and_whole_numbers_are_left_as_they_are() -> None:
    network: Any = make_actor_critic(replace(SMALL, normalize_observations=True), SPECS["nested"], 0)
    assert network.normalizer.names == ["observation/arm"]
    observation = {"camera": torch.ones(1, 2, 36, 36, 3), "place": torch.ones(1, 2), "arm": torch.full((1, 2, 2), 99.0)}
    seen = network.normalizer(observation)
    assert seen["camera"] is observation["camera"]
    assert seen["place"] is observation["place"]
    assert (seen["arm"] == LIMIT).all()


@pytest.mark.parametrize("column", ["observation", "reward"])
def test_one_bad_number_does_not_spoil_the_statistics_for_ever(column: str) -> None:
    cfg = replace(SMALL, normalize_observations=True, normalize_rewards=True)
    learner = PPO(cfg, DISCRETE, seed=0)

    def change(copy: Batch) -> None:
        copy[column][0, 0] = np.nan

    assert not update(learner, changed(batch(cfg), change)).applied
    assert update(learner, batch(cfg)).applied


@pytest.mark.parametrize("unit", [1e-3, 1e3])
def test_normalised_rewards_have_no_unit(unit: float) -> None:
    def change(copy: Batch) -> None:
        copy["reward"] *= np.float32(unit)

    cfg = replace(SMALL, normalize_rewards=True)
    data = batch(cfg)
    a, b = after_update(cfg, data), after_update(cfg, changed(data, change))
    assert equal(a, b, 1e-4)


def test_rewards_are_divided_by_the_spread_of_discounted_returns_within_unrolls() -> None:
    cfg = replace(SMALL, normalize_rewards=True, gamma=0.9)
    data = batch(cfg)
    returns = np.zeros((T + 1, B))
    for t in reversed(range(T)):
        goes_on = data["valid"][t] & ~data["terminated"][t]
        returns[t] = data["reward"][t] + 0.9 * goes_on * returns[t + 1]
    seen = returns[:-1][data["valid"][:-1]]
    learner = PPO(cfg, DISCRETE, seed=0)
    update(learner, data)
    np.testing.assert_allclose(learner.rewards.variance, seen.var(), rtol=1e-5)


# ---- presets and learning


@pytest.mark.parametrize("preset", PRESETS)
def test_presets_name_fields_of_the_config(preset: str) -> None:
    Config(preset=preset, **PRESETS[preset])
    assert set(PRESETS[preset]) <= {field.name for field in fields(Config)}


@pytest.mark.parametrize(("spec", "lstm"), [("discrete", 0), ("continuous", 0), ("discrete", 16)])
def test_it_learns_which_action_pays(spec: str, lstm: int) -> None:
    cfg = Config(hidden=(16,), lstm=lstm, learning_rate=0.005, entropy_cost=0.001)
    returns = bandit(PPO(cfg, SPECS[spec], 0), make_policy(cfg, SPECS[spec], 1), SPECS[spec], 40)
    assert np.mean(returns[-5:]) > (0.8 if spec == "discrete" else -0.3)
    assert np.mean(returns[:2]) < (0.5 if spec == "discrete" else -0.6)
