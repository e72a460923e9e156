"""Pages that learn from data: whole losses by hand, the data's statistics, two learners as one, and their programs."""

from __future__ import annotations

import math
import threading
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from batches import CONTINUOUS, DISCRETE, Together, equal, tensors, together, update, weights
from torch import Tensor
from torch.distributions import Independent, Normal

from logged_data import ENVS, OFFLINE, page_options
from shoal import envs
from shoal.algorithms import bc, cql, discrete_cql, iql, td3_bc
from shoal.data import Moments, open_dataset
from shoal.errors import UserError
from shoal.functional.squashed import squashed_gaussian
from shoal.loops.datasets import DatasetSource
from shoal.loops.mixture import MixedSource
from shoal.loops.wiring import Settings
from shoal.replay import n_step, sequence
from shoal.runs import registry

Columns = dict[str, Any]
BATCH = 24
SMALL: dict[str, Any] = {"actor_hidden": (16,), "critic_hidden": (16,), "hidden": (16,), "envs_per_actor": 4}
LEARNERS: dict[Any, Any] = {td3_bc: td3_bc.TD3BC, iql: iql.IQL, cql: cql.CQL, discrete_cql: discrete_cql.DiscreteCQL}
CONTROL = [td3_bc, iql, cql]
SPECS: dict[Any, Any] = dict.fromkeys(CONTROL, CONTINUOUS) | {discrete_cql: DISCRETE}


MAKING = threading.Lock()  # networks are drawn from torch's one generator, which learners in threads would share


def name_of(page: Any) -> str:
    return str(page.__name__).rpartition(".")[2]


def pages(chosen: Any) -> Any:
    return pytest.mark.parametrize("page", list(chosen), ids=name_of)


def config(page: Any, **options: Any) -> Any:
    fields = page.Config.__dataclass_fields__
    return page.Config(**{name: value for name, value in SMALL.items() if name in fields} | options)


def transitions(spec: Any, count: int = BATCH) -> Columns:
    random = np.random.default_rng(0)
    discrete = spec is DISCRETE
    action = random.integers(3, size=count) if discrete else random.uniform(-2.0, 2.0, (count, 2)).astype(np.float32)
    return {
        "observation": random.normal(size=(count, 3)).astype(np.float32),
        "next_observation": random.normal(size=(count, 3)).astype(np.float32),
        "action": action,
        "reward": random.normal(size=count).astype(np.float32),
        "discount": np.where(random.random(count) < 0.3, 0.0, 0.9).astype(np.float32),
    }


def moved(page: Any, **options: Any) -> tuple[Any, Columns, Columns]:
    """A learner whose networks are not its targets, a batch, and the same as tensors."""
    rates = {"learning_rate": 1e-2} if page is discrete_cql else {"actor_rate": 1e-2, "critic_rate": 1e-2}
    cfg = config(page, **rates, **options)
    learner, columns = LEARNERS[page](cfg, SPECS[page], seed=1), transitions(SPECS[page])
    for _ in range(5):
        assert update(learner, columns, SPECS[page]).applied
    return learner, columns, tensors(columns, SPECS[page])


def noise_of(learner: Any, shape: tuple[int, ...]) -> Tensor:
    """What the learner will draw next."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(0).set_state(learner.noise.get_state()))


# ---- losses by hand


def test_bcs_loss_is_the_cross_entropy_of_discrete_actions() -> None:
    learner = bc.BC(config(bc), DISCRETE, seed=1)
    batch = tensors(transitions(DISCRETE), DISCRETE)
    first = torch.zeros(1, BATCH, dtype=torch.bool)
    logits, _, _ = learner.network(batch["observation"].unsqueeze(0), {}, first)
    loss, count, _ = learner.loss(batch)
    assert int(count) == BATCH
    torch.testing.assert_close(loss, torch.nn.functional.cross_entropy(logits[0], batch["action"]))


def test_bcs_loss_is_minus_the_density_of_continuous_actions() -> None:
    learner = bc.BC(config(bc), CONTINUOUS, seed=1)
    batch = tensors(transitions(CONTINUOUS), CONTINUOUS)
    parameters, _, _ = learner.network(batch["observation"].unsqueeze(0), {}, torch.zeros(1, BATCH, dtype=torch.bool))
    mean, log_std = parameters[0].chunk(2, dim=-1)
    expected = -Independent(Normal(2.0 * mean, 2.0 * log_std.exp()), 1).log_prob(batch["action"]).mean()
    torch.testing.assert_close(learner.loss(batch)[0], expected)


def test_bc_with_a_memory_learns_from_the_rows_that_are_transitions() -> None:
    learner = bc.BC(config(bc, lstm=8), DISCRETE, seed=1)
    random = np.random.default_rng(0)
    valid = np.ones((6, 4), np.bool_)
    valid[3:, 0] = False
    columns = {
        "observation": random.normal(size=(6, 4, 3)).astype(np.float32),
        "action": random.integers(3, size=(6, 4)),
        "valid": valid,
    }
    loss, count, _ = learner.loss(tensors(columns, DISCRETE))
    assert int(count) == 21
    spoiled = {**columns, "action": np.where(valid, columns["action"], 2)}
    torch.testing.assert_close(learner.loss(tensors(spoiled, DISCRETE))[0], loss)


def test_td3_bcs_actor_earns_lambda_times_the_first_critic_and_pays_for_the_distance() -> None:
    learner, _, batch = moved(td3_bc, normalize_observations=False, alpha=1.7)
    network, units = learner.network, batch["action"] / 2.0
    own = network.actor(batch["observation"])
    value = network.critic(batch["observation"], own)[0]
    expected = (own - units).square().mean() - 1.7 / value.detach().abs().mean() * value.mean()
    loss, distance = learner.actor_loss(batch["observation"], batch["action"])
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(distance, (own - units).square().mean().detach())
    parameters = list(network.actor.parameters())
    for a, b in zip(torch.autograd.grad(loss, parameters), torch.autograd.grad(expected, parameters)):
        torch.testing.assert_close(a, b)


def test_iqls_losses_are_those_of_the_paper() -> None:
    learner, _, batch = moved(iql, normalize_observations=False, reward_scale=0.5)
    network, observation = learner.network, batch["observation"]
    units = (batch["action"] / 2.0).clamp(-1.0 + 1e-5, 1.0 - 1e-5)
    with torch.no_grad():
        target = learner.target.network(observation, units).amin(0)
        value = network.value(observation)[:, 0]
        advantage = target - value
    loss, found = learner.value_loss(batch)
    torch.testing.assert_close(found, advantage)
    torch.testing.assert_close(loss.detach(), (torch.where(advantage < 0, 0.3, 0.7) * advantage**2).mean())

    with torch.no_grad():
        goal = 0.5 * batch["reward"] + batch["discount"] * network.value(batch["next_observation"])[:, 0]
        both = network.critic(observation, units)
    critic_loss, priorities, _ = learner.critic_loss(batch)
    torch.testing.assert_close(critic_loss.detach(), (goal - both).square().sum(0).mean())
    torch.testing.assert_close(priorities, (goal - both).abs().mean(0))

    mean, log_std = network.actor(observation)
    assert (mean.abs() < 1.0).all()
    assert (log_std == log_std[0]).all(), "the deviation sees no state"
    actor_loss, weights_found = learner.actor_loss(batch, advantage)
    expected = torch.exp(3.0 * advantage).clamp(max=100.0)
    torch.testing.assert_close(weights_found, expected)
    log_prob = Independent(Normal(mean, log_std.exp()), 1).log_prob(units)
    torch.testing.assert_close(actor_loss, -(expected * log_prob).mean())


def test_cqls_critics_pay_for_actions_that_look_better_than_the_datas() -> None:
    learner, _, batch = moved(cql, drawn_actions=3, conservative_cost=2.0)
    network, observation, units = learner.network, batch["observation"], batch["action"] / 2.0
    state = learner.noise.get_state()
    with torch.no_grad():
        mean, log_std = network.actor(batch["next_observation"])
        noise = torch.randn(mean.shape, generator=learner.noise)
        action, _ = squashed_gaussian(mean=mean, log_std=log_std, noise=noise)
        goal = batch["reward"] + batch["discount"] * learner.target.network(batch["next_observation"], action).amin(0)
        uniform = torch.rand(3 * BATCH, 2, generator=learner.noise) * 2.0 - 1.0
        drawn, densities = [uniform], [torch.full((3 * BATCH,), 2 * math.log(0.5))]
        for seen in (observation, batch["next_observation"]):
            action, log_prob = learner.draw(seen.repeat(3, 1))
            drawn.append(action)
            densities.append(log_prob)
        q = network.critic(observation, units)
        others = torch.stack([network.critic(observation.repeat(3, 1), part) for part in drawn])  # [3, 2, 3 · B]
        scores = others - torch.stack(densities).unsqueeze(1)
        scores = scores.view(3, 2, 3, BATCH).permute(1, 0, 2, 3).reshape(2, 9, BATCH)
        gap = torch.logsumexp(scores, 1) - math.log(9) - q
    learner.noise.set_state(state)
    loss, _, metrics = learner.critic_loss(batch)
    torch.testing.assert_close(metrics["gap"], gap.mean())
    torch.testing.assert_close(loss.detach(), ((goal - q).square() + 2.0 * gap).sum(0).mean())


def test_discrete_cqls_loss_adds_the_gap_to_double_q_learning() -> None:
    learner, _, batch = moved(discrete_cql, conservative_cost=3.0, target_every=2)
    network = learner.network
    with torch.no_grad():
        following = network(batch["next_observation"]).argmax(-1, keepdim=True)
        value = learner.target.network(batch["next_observation"]).gather(1, following)[:, 0]
        values = network(batch["observation"])
    goal = batch["reward"] + batch["discount"] * value
    q = values.gather(1, batch["action"].unsqueeze(1))[:, 0]
    gap = torch.nn.functional.cross_entropy(values, batch["action"], reduction="none")
    torch.testing.assert_close(learner.loss(batch)[0].detach(), (0.5 * (goal - q) ** 2 + 3.0 * gap).mean())


# ---- what all of them do


def by_what_is_seen(learner: Any, observation: Tensor) -> Any:
    mean, log_std = learner.network.actor(observation)
    return squashed_gaussian(mean=mean, log_std=log_std, noise=torch.sin(9.0 * observation[:, :2]))


@pages(LEARNERS)
def test_what_follows_a_termination_does_not_count(page: Any) -> None:
    cfg, spec = config(page), SPECS[page]
    columns = transitions(spec)
    columns["discount"] = np.zeros(BATCH, np.float32)
    other = {**columns, "next_observation": columns["next_observation"] + 1.0}
    ends = [LEARNERS[page](cfg, spec, seed=1) for _ in range(2)]
    found = [update(learner, part, spec) for learner, part in zip(ends, (columns, other))]
    torch.testing.assert_close(found[0].priorities, found[1].priorities)


@pages(LEARNERS)
def test_a_batch_that_is_not_finite_is_refused(page: Any) -> None:
    learner, columns, _ = moved(page)
    columns["reward"][3] = np.nan
    before = weights(learner)
    critics = {name: value for name, value in before.items() if "critic" in name or page is discrete_cql}
    made = update(learner, columns, SPECS[page])
    assert not made.applied
    assert made.priorities is None
    assert equal(critics, {name: weights(learner)[name] for name in critics})


@pages(LEARNERS)
def test_two_learners_with_parts_of_a_batch_make_the_update_of_one_with_the_whole(page: Any) -> None:
    rates = {"learning_rate": 1e-2} if page is discrete_cql else {"actor_rate": 1e-2, "critic_rate": 1e-2}
    own = {td3_bc: {"target_noise": 0.0, "policy_delay": 1}}.get(page, {})
    cfg, spec = config(page, epsilon=1e-3, **rates, **own), SPECS[page]
    columns = transitions(spec)

    def learn(part: slice, **options: Any) -> Columns:
        with MAKING:
            learner = LEARNERS[page](cfg, spec, seed=1, **options)
        if page is cql:  # noise by what is seen, so that it does not matter who sees it
            learner.draw = partial(by_what_is_seen, learner)
            learner.gaps = lambda batch, q: q * 0.1
        for _ in range(3):
            update(learner, {name: column[part] for name, column in columns.items()}, spec)
        return weights(learner)

    alone = learn(slice(None))
    parts = [slice(0, 9), slice(9, BATCH)]  # of different sizes: each counts by its items

    def work(peer: Together) -> Columns:
        return learn(parts[peer.rank], peers=peer)

    one, other = together(2, work)
    for name, array in alone.items():
        np.testing.assert_array_equal(one[name], other[name])
        np.testing.assert_allclose(one[name], array, rtol=2e-3, atol=2e-5, err_msg=name)


def spread(mean: Any, deviation: Any) -> Moments:
    mean, deviation = np.asarray(mean, np.float64), np.asarray(deviation, np.float64)
    return Moments(100, mean, deviation, mean - 3 * deviation, mean + 3 * deviation)


@pages([bc, td3_bc, iql, cql])
def test_the_datas_mean_and_deviation_belong_to_the_policy(page: Any) -> None:
    """Whoever loads the weights sees through them, and sees what the learner saw."""
    cfg = config(page, normalize_observations=True)
    statistics = {"observation": spread([1.0, -2.0, 5.0], [2.0, 0.5, 0.0])}
    make = (LEARNERS | {bc: bc.BC})[page]
    learner = make(cfg, CONTINUOUS, seed=1, statistics=statistics)
    columns = transitions(CONTINUOUS)
    assert update(learner, columns, CONTINUOUS).applied
    policy = page.make_policy(cfg, CONTINUOUS, seed=5, greedy=True)
    policy.load(weights(learner))
    seen = (columns["observation"] - [1.0, -2.0, 5.0]) / np.asarray([2.001, 0.501, 0.001])
    seen = np.clip(seen, -10.0, 10.0).astype(np.float32)
    plain = page.make_policy(config(page, normalize_observations=False), CONTINUOUS, seed=6, greedy=True)
    plain.load({name: value for name, value in weights(learner).items() if not name.startswith("normalizer")})
    first = np.ones(BATCH, np.bool_)
    acted, expected = policy.act(columns["observation"], {}, first)[0], plain.act(seen, {}, first)[0]
    np.testing.assert_allclose(acted, expected, atol=1e-4)


def test_iqls_policy_draws_from_its_gaussian_within_the_bounds() -> None:
    cfg = config(iql, random_steps=0)
    policy = iql.make_policy(cfg, CONTINUOUS, seed=1)
    network = policy.network
    with torch.no_grad():
        network.actor.log_std.log_std.fill_(0.0)
    observation = np.zeros((4000, 3), np.float32)
    action = np.asarray(policy.act(observation, {}, np.ones(4000, np.bool_))[0])
    assert (np.abs(action) <= 2.0).all()
    assert (np.abs(action) == 2.0).mean() == pytest.approx(0.317, abs=0.03)  # beyond one deviation, clipped


# ---- programs


def nodes_of(algorithm: str, **chosen: Any) -> Any:
    page = registry.load(algorithm)
    cfg: Any = page.Config(**page_options(algorithm), **chosen)
    return page.program(cfg, envs.describe(cfg.env), Settings(max_updates=7)).nodes, cfg


def source_of(nodes: Any) -> Any:
    return nodes["learner"].args[1]


@pytest.mark.parametrize("algorithm", OFFLINE)
def test_a_program_has_learners_and_a_judge_and_nobody_who_acts(algorithm: str) -> None:
    nodes, cfg = nodes_of(algorithm, learners=2, batch=50, publish_every=3)
    assert set(nodes) == {"metrics", "weights", "group", "learner", "learner/1", "evaluator"}
    source = source_of(nodes)
    assert source.func is DatasetSource
    assert (source.keywords["path"], source.keywords["batch"]) == (cfg.data, 50)
    assert "exponent" not in source.keywords
    assert nodes["learner"].kwargs["publish_every"] == 3


@pytest.mark.parametrize("algorithm", [name for name in OFFLINE if name != "bc"])
def test_online_a_share_of_each_batch_is_the_datas(algorithm: str) -> None:
    nodes, _ = nodes_of(algorithm, online=True, batch=50, data_share=0.3, replay="prioritized", n=4, gamma=0.9)
    assert {"actor/0", "replay"} <= set(nodes)
    source = source_of(nodes)
    assert source.func is MixedSource
    table, data = source.keywords["table"].keywords, source.keywords["data"].keywords
    assert (table["batch"], data["batch"]) == (35, 15)
    assert data["pattern"] == n_step(4, 0.9, following=("observation", "value"))
    assert (data["exponent"], data["beta"]) == (0.6, 0.4)


def test_a_memory_makes_bc_read_stretches_that_overlap_by_half() -> None:
    nodes, _ = nodes_of("bc", lstm=8, unroll=9)
    assert source_of(nodes).keywords["pattern"] == sequence(9, period=5)
    assert source_of(nodes_of("bc")[0]).keywords["pattern"] == n_step(1, 0.99)


def test_iqls_rewards_are_scaled_by_the_range_of_the_datas_returns() -> None:
    nodes, cfg = nodes_of("iql", return_range=30.0, reward_scale=2.0)
    returns = open_dataset(cfg.data).returns
    learner = nodes["learner"].args[0]
    assert learner.args[0].reward_scale == pytest.approx(60.0 / (returns.max() - returns.min()))
    nodes, cfg = nodes_of("iql")
    data = open_dataset(cfg.data)
    longest = data.lengths.max() / 2.0 / (data.returns.max() - data.returns.min())
    assert nodes["learner"].args[0].args[0].reward_scale == pytest.approx(longest)
    assert nodes_of("iql", return_range=0.0)[0]["learner"].args[0].args[0].reward_scale == 1.0


@pytest.mark.parametrize("algorithm", OFFLINE)
def test_without_data_there_is_one_sentence(algorithm: str) -> None:
    page = registry.load(algorithm)
    cfg: Any = page.Config(env=ENVS[algorithm])
    with pytest.raises(UserError, match=r"^--data is missing"):
        page.program(cfg, envs.describe(cfg.env), Settings())


def test_online_without_an_environment_is_one_sentence() -> None:
    options = page_options("td3_bc") | {"env": "none", "online": True}
    with pytest.raises(UserError, match=r"^--online needs --env"):
        td3_bc.program(td3_bc.Config(**options), envs.describe("Pendulum-v1"), Settings())
