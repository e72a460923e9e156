"""APPO's learner: on-policy it is PPO, off-policy it corrects, and its target policy moves slowly."""

from __future__ import annotations

from dataclasses import fields, replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from batches import DISCRETE, SPECS, Batch, Spec, T, bandit, batch_of, changed, equal, update, weights

from shoal.algorithms import ppo
from shoal.algorithms.appo import APPO, PRESETS, Config, make_policy
from shoal.optim import StepReport

SMALL = Config(hidden=(8,), minibatches=1, epochs=2)


def batch(cfg: Config, spec: Spec = DISCRETE, seed: int = 0) -> Batch:
    return batch_of(make_policy(cfg, spec, 0), spec, seed)


def after_update(cfg: Config, data: Batch, spec: Spec = DISCRETE) -> Batch:
    learner = APPO(cfg, spec, seed=0)
    update(learner, data, spec)
    return weights(learner)


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("lstm", [0, 8])
@pytest.mark.parametrize("normalize", [False, True])
def test_an_update_changes_what_is_published_and_policies_load_it(spec: str, lstm: int, normalize: bool) -> None:
    cfg = Config(hidden=(8,), lstm=lstm, normalize_observations=normalize, normalize_rewards=normalize)
    learner = APPO(cfg, SPECS[spec], seed=0)
    before = weights(learner)
    data = batch(cfg, SPECS[spec])
    for array in data.values():
        array.flags.writeable = False  # as received from another process
    measured = update(learner, data, SPECS[spec])
    assert all(np.isfinite(float(value)) for value in measured.metrics.values())
    assert measured.applied
    assert not equal(before, weights(learner))
    make_policy(cfg, SPECS[spec], seed=1, greedy=True).load(weights(learner))


@pytest.mark.parametrize("refused", range(5))
def test_an_update_is_applied_only_if_all_its_minibatches_were(refused: int, monkeypatch: pytest.MonkeyPatch) -> None:
    cfg = replace(SMALL, minibatches=2)
    learner = APPO(cfg, DISCRETE, seed=0)
    reports = [StepReport(1.0, number != refused) for number in range(4)]
    monkeypatch.setattr(learner.optimizer, "step", lambda loss, count: reports.pop(0))
    assert update(learner, batch(cfg)).applied is (refused == 4)
    assert not reports


@pytest.mark.parametrize("lstm", [0, 8])
def test_with_data_of_the_target_policy_it_is_ppo(lstm: int) -> None:
    """V-trace with ratios of 1 gives the advantages of GAE(1), and the surrogate's ratio is π/μ."""
    cfg = Config(hidden=(8,), lambda_=1.0, lstm=lstm, epochs=3, minibatches=2)
    same = {field.name: getattr(cfg, field.name) for field in fields(ppo.Config) if hasattr(cfg, field.name)}
    other = ppo.PPO(ppo.Config(**same), DISCRETE, seed=0)
    data = batch(cfg)
    update(other, data)
    assert equal(after_update(cfg, data), weights(other), 1e-5)


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


def test_the_target_policy_is_a_copy_that_stays_between_updates_of_it() -> None:
    learner = APPO(replace(SMALL, target_every=3), DISCRETE, seed=0)
    targets = []
    for step in range(7):
        update(learner, batch(SMALL, seed=step))
        targets.append(next(learner.target.network.parameters()).detach().clone())
    same = [bool((a == b).all()) for a, b in pairwise(targets)]
    assert same == [True, True, False, True, True, False]


def test_a_learner_that_loads_a_state_has_the_target_policy_of_then_and_not_a_copy_of_its_network() -> None:
    cfg = replace(SMALL, target_every=100)
    trained = APPO(cfg, DISCRETE, seed=0)
    for step in range(3):
        update(trained, batch(SMALL, seed=step))
    fresh = APPO(cfg, DISCRETE, seed=1)
    fresh.load_state_dict(trained.state_dict())
    pairs = list(zip(fresh.target.network.parameters(), trained.target.network.parameters()))
    assert all(torch.equal(a, b) for a, b in pairs)
    assert not any(torch.equal(a, b) for a, b in zip(fresh.target.network.parameters(), fresh.network.parameters()))


def test_actions_that_the_target_policy_would_not_have_taken_count_for_little() -> None:
    """Where the behaviour was far likelier to act as it did, V-trace's ratio nears 0: rewards there change little."""
    data = batch(SMALL)

    def unlikely(copy: Batch) -> None:
        copy["log_prob"][:, 2] += 12.0  # as if the behaviour had been far surer of its actions than the target

    def rewarded(copy: Batch) -> None:
        unlikely(copy)
        copy["reward"][:, 2] += 1.0

    cfg = replace(SMALL, normalize_advantages=False)
    assert equal(after_update(cfg, changed(data, unlikely)), after_update(cfg, changed(data, rewarded)), 1e-4)


@pytest.mark.parametrize("preset", PRESETS)
def test_presets_name_fields_of_the_config(preset: str) -> None:
    Config(preset=preset, **PRESETS[preset])
    assert set(PRESETS[preset]) <= {field.name for field in fields(Config)}


@pytest.mark.parametrize("lag", [0, 3])
@pytest.mark.parametrize(("spec", "lstm"), [("discrete", 0), ("continuous", 0), ("discrete", 16)])
def test_it_learns_which_action_pays_also_from_old_actions(spec: str, lstm: int, lag: int) -> None:
    cfg = Config(hidden=(16,), lstm=lstm, learning_rate=0.005, entropy_cost=0.001)
    returns = bandit(APPO(cfg, SPECS[spec], 0), make_policy(cfg, SPECS[spec], 1), SPECS[spec], 60, lag)
    assert np.mean(returns[-5:]) > (0.8 if spec == "discrete" else -0.3)
    assert np.mean(returns[:2]) < (0.5 if spec == "discrete" else -0.6)
