"""IMPALA's learner and policy: what reaches the loss, what does not, and that it learns a toy task."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from gymnasium import spaces

from shoal.algorithms.impala import PRESETS, Config, Impala, make_policy

T, B = 6, 5
Batch = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class Spec:
    observation_space: spaces.Space[Any]
    action_space: spaces.Space[Any]


DISCRETE = Spec(spaces.Box(-1.0, 1.0, (3,), np.float32), spaces.Discrete(3))
CONTINUOUS = Spec(spaces.Box(-1.0, 1.0, (3,), np.float32), spaces.Box(-2.0, 2.0, (2,)))
NESTED = Spec(
    spaces.Dict(camera=spaces.Box(0, 255, (36, 36, 3), np.uint8), place=spaces.Discrete(4)),
    spaces.MultiDiscrete([2, 3]),
)


def batch_of(spec: Spec, cfg: Config, seed: int = 0) -> Batch:
    """Rows as an actor would store them, with an episode that ends in a termination and one cut by a time limit."""
    random = np.random.default_rng(seed)
    policy = make_policy(cfg, spec, seed)
    state = policy.initial_state(B)
    rows: dict[str, list[npt.NDArray[Any]]] = {}
    start = {f"state/{name}": value for name, value in state.items()}
    valid = np.ones((T + 1, B), np.bool_)
    terminated = np.zeros((T + 1, B), np.bool_)
    valid[3, 0] = valid[4, 1] = False
    terminated[2, 0] = True  # environment 0 terminates with row 2, environment 1 is truncated with row 3
    spec.observation_space.seed(seed)
    first = np.zeros(B, np.bool_)
    for t in range(T + 1):
        drawn = [spec.observation_space.sample() for _ in range(B)]
        if isinstance(spec.observation_space, spaces.Dict):
            observation: Any = {key: np.stack([row[key] for row in drawn]) for key in spec.observation_space.spaces}
            flat = {f"observation/{key}": value for key, value in observation.items()}
        else:
            observation = np.stack(drawn)
            flat = {"observation": observation}
        action, state, extras = policy.act(observation, state, first)
        first = ~valid[t]
        for name, value in (flat | extras | {"action": action}).items():
            rows.setdefault(name, []).append(value)
    reward = random.standard_normal((T + 1, B)).astype(np.float32)
    stacked = {name: np.stack(values) for name, values in rows.items()}
    return stacked | start | {"reward": np.where(valid, reward, 0.0), "terminated": terminated, "valid": valid}


def tensors(batch: Batch) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(array) for name, array in batch.items()}


@pytest.mark.parametrize("spec", [DISCRETE, CONTINUOUS, NESTED], ids=["discrete", "continuous", "nested"])
@pytest.mark.parametrize("lstm", [0, 8])
def test_an_update_changes_what_is_published_and_policies_load_it(spec: Spec, lstm: int) -> None:
    cfg = Config(hidden=(8,), lstm=lstm)
    learner = Impala(cfg, spec, seed=0)
    before = learner.weights()
    batch = batch_of(spec, cfg)
    for array in batch.values():
        array.flags.writeable = False  # as received from another process
    metrics = learner.update(batch)
    after = learner.weights()
    assert all(np.isfinite(float(value)) for value in metrics.values())
    assert metrics["applied"] == 1.0
    assert any(not np.array_equal(before[name], after[name]) for name in before)
    policy = make_policy(cfg, spec, seed=1, greedy=True)
    policy.load(after)


@pytest.mark.parametrize("lstm", [0, 8])
def test_on_policy_ratios_are_one(lstm: int) -> None:
    """The log-probabilities that acting stores are those the learner finds with the same weights."""
    for spec in (DISCRETE, CONTINUOUS, NESTED):
        cfg = Config(hidden=(8,), lstm=lstm)
        learner = Impala(cfg, spec, seed=0)
        _, _, metrics = learner.loss(tensors(batch_of(spec, cfg, seed=0)))
        assert float(metrics["rho"]) == pytest.approx(1.0, abs=1e-4)


@pytest.mark.parametrize("lstm", [0, 8])
def test_what_an_invalid_row_holds_besides_its_observation_changes_nothing(lstm: int) -> None:
    cfg = Config(hidden=(8,), lstm=lstm)
    learner = Impala(cfg, DISCRETE, seed=0)
    batch = batch_of(DISCRETE, cfg)
    expected, count, _ = learner.loss(tensors(batch))
    changed = {name: array.copy() for name, array in batch.items()}
    invalid = ~batch["valid"]
    changed["action"][invalid] = (changed["action"][invalid] + 1) % 3
    changed["log_prob"][invalid] = -np.inf
    changed["reward"][invalid] = 100.0
    found, _, _ = learner.loss(tensors(changed))
    assert int(count) == T * B - 2
    torch.testing.assert_close(found, expected)


def loss_with_other_observation(row: int, environment: int, lstm: int = 0) -> tuple[float, float]:
    cfg = Config(hidden=(8,), lstm=lstm)
    learner = Impala(cfg, DISCRETE, seed=0)
    batch = batch_of(DISCRETE, cfg)
    before, _, _ = learner.loss(tensors(batch))
    batch["observation"][row, environment] += 1.0
    after, _, _ = learner.loss(tensors(batch))
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
    whole = tensors(batch_of(DISCRETE, cfg))
    names = [name for name in whole if not name.startswith("state/")]
    alone = {name: tensor[:, 1:2] if name in names else tensor[1:2] for name, tensor in whole.items()}
    before = alone | {name: alone[name][:5] for name in names}
    zero = {name: torch.zeros_like(tensor) for name, tensor in alone.items() if name not in names}
    after = alone | {name: alone[name][5:] for name in names} | zero
    total, rows, _ = learner.loss(alone)
    parts = [learner.loss(part)[:2] for part in (before, after)]
    assert int(rows) == sum(int(count) for _, count in parts)
    torch.testing.assert_close(total * rows, sum(loss * count for loss, count in parts))


def test_a_loss_that_is_not_finite_is_refused_and_the_weights_stay() -> None:
    cfg = Config(hidden=(8,))
    learner = Impala(cfg, DISCRETE, seed=0)
    before = learner.weights()
    batch = batch_of(DISCRETE, cfg)
    batch["reward"][0, 0] = np.nan
    metrics = learner.update(batch)
    assert metrics["applied"] == 0.0
    for name, array in learner.weights().items():
        np.testing.assert_array_equal(array, before[name])


def test_a_learning_rate_goes_on_falling_where_a_lost_learner_left_it() -> None:
    cfg = Config(hidden=(8,), anneal_updates=3, optimizer="rmsprop")
    learner, another = (Impala(cfg, DISCRETE, seed=0) for _ in range(2))
    for step in range(3):
        learner.update(batch_of(DISCRETE, cfg, seed=step))
    another.load(learner.weights())
    another.update(batch_of(DISCRETE, cfg, seed=3))
    for name, array in another.weights().items():
        if name != "learner.updates":
            np.testing.assert_array_equal(array, learner.weights()[name])


def test_rewards_are_clipped_before_they_are_scaled() -> None:
    batch = batch_of(DISCRETE, Config(hidden=(8,)))
    scaled = batch | {"reward": np.clip(batch["reward"], -0.5, 0.5) * np.float32(0.1)}
    plain = Impala(Config(hidden=(8,)), DISCRETE, seed=0)
    ours = Impala(Config(hidden=(8,), reward_clip=0.5, reward_scale=0.1), DISCRETE, seed=0)
    torch.testing.assert_close(ours.loss(tensors(batch))[0], plain.loss(tensors(scaled))[0])


def test_the_same_seed_gives_the_same_parameters_and_another_does_not() -> None:
    cfg = Config(hidden=(8,))
    learners = [Impala(cfg, DISCRETE, seed=seed) for seed in (3, 3, 4)]
    for learner in learners:
        for step in range(3):
            learner.update(batch_of(DISCRETE, cfg, seed=step))
    one, same, other = (learner.weights() for learner in learners)
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
    learner = Impala(cfg, spec, seed=0)
    policy = make_policy(cfg, spec, seed=1)
    random = np.random.default_rng(0)
    returns = []
    for _ in range(150):
        policy.load(learner.weights())
        observation = random.uniform(-1.0, 1.0, (9, 32, 3)).astype(np.float32)
        state = policy.initial_state(32)
        start = {f"state/{name}": value for name, value in state.items()}
        drawn = [policy.act(row, policy.initial_state(32), np.ones(32, np.bool_)) for row in observation]
        action = np.stack([row[0] for row in drawn])
        if spec is DISCRETE:
            reward = (action == observation.argmax(-1)).astype(np.float32)
        else:
            reward = -np.square(action - observation[..., :2]).sum(-1)
        ends = np.ones((9, 32), np.bool_)
        batch = {
            "observation": observation,
            "action": action,
            "reward": reward,
            "terminated": ends,
            "valid": ends,
            "log_prob": np.stack([row[2]["log_prob"] for row in drawn]),
        }
        learner.update(batch | start)
        returns.append(float(reward.mean()))
    assert np.mean(returns[-10:]) > (0.8 if spec is DISCRETE else -0.3)
    assert np.mean(returns[:5]) < (0.5 if spec is DISCRETE else -0.6)
