"""SAC and TD3: whole losses by hand, targets, temperature, delays, noise, several learners, first priorities."""

from __future__ import annotations

import itertools
import math
import threading
from typing import Any

import numpy as np
import pytest
import torch
from batches import Together, tensors, together, update, weights
from gymnasium import spaces
from torch import Tensor
from torch.distributions import Independent, Normal, TransformedDistribution
from torch.distributions.transforms import TanhTransform
from transitions import Columns, Spec, batch_of, stored

from logged_data import dataset
from shoal import envs
from shoal.algorithms import sac, td3
from shoal.errors import UserError
from shoal.loops.mixture import MixedSource
from shoal.loops.wiring import Settings
from shoal.nets.weights import export_weights

BATCH = 24
SMALL: dict[str, Any] = {"actor_hidden": (16,), "critic_hidden": (16,), "envs_per_actor": 4, "rows": 5, "n": 3}
SMALL |= {"gamma": 0.9, "reward_scale": 0.5, "replay": "prioritized", "random_steps": 0}
CENTRE, HALF = np.float32([0.0, 5.0]), np.float32([2.0, 5.0])
SPEC = Spec(spaces.Box(-1.0, 1.0, (3,), np.float32), spaces.Box(CENTRE - HALF, CENTRE + HALF))
NESTED = Spec(
    spaces.Dict(camera=spaces.Box(0, 255, (36, 36, 3), np.uint8), place=spaces.Discrete(4)), SPEC.action_space
)
both = pytest.mark.parametrize("page", [sac, td3], ids=["sac", "td3"])


def config(page: Any, **options: Any) -> Any:
    return page.Config(**(SMALL | options))


MAKING = threading.Lock()  # networks are drawn from torch's one generator, which learners in threads would share


def learner_of(cfg: Any, spec: Spec = SPEC, **options: Any) -> Any:
    with MAKING:
        return (sac.SAC if isinstance(cfg, sac.Config) else td3.TD3)(cfg, spec, seed=1, **options)


def some(page: Any, cfg: Any, spec: Spec = SPEC, count: int = BATCH) -> Columns:
    columns = batch_of(stored(cfg, page.make_policy(cfg, spec, seed=1), spec).sample("transitions", count))
    columns["importance"] = np.linspace(0.2, 1.0, count, dtype=np.float32)
    return columns


def units(columns: Columns) -> Tensor:
    return torch.from_numpy((columns["action"] - CENTRE) / HALF)


def noise_of(learner: Any, shape: tuple[int, ...]) -> Tensor:
    """What the learner will draw next."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(0).set_state(learner.noise.get_state()))


def moved(page: Any, **options: Any) -> tuple[Any, Columns, dict[str, Any]]:
    """A learner whose networks are not its targets."""
    cfg = config(page, actor_rate=1e-2, critic_rate=1e-2, target_rate=0.1, **options)
    columns = some(page, cfg)
    learner = learner_of(cfg)
    for _ in range(6):
        assert update(learner, columns, SPEC).applied
    return learner, columns, tensors(columns, SPEC)


# ---- losses by hand


def test_sacs_critics_learn_the_soft_value_of_the_smaller_target() -> None:
    learner, columns, batch = moved(sac)
    network, following = learner.network, batch["next_observation"]
    temperature = torch.tensor(0.7)
    with torch.no_grad():
        mean, log_std = network.actor(following)
        policy = TransformedDistribution(Normal(mean, log_std.exp()), [TanhTransform(cache_size=1)])
        action = torch.tanh(mean + log_std.exp() * noise_of(learner, (BATCH, 2)))
        log_prob = Independent(policy, 1).log_prob(action)
        target = learner.target.network
        smaller = torch.minimum(target.first(following, action), target.second(following, action))
        first, second = (
            critic(batch["observation"], units(columns)) for critic in (network.critic.first, network.critic.second)
        )
    goal = 0.5 * columns["reward"] + columns["discount"] * (smaller - temperature * log_prob).numpy()
    losses = 0.5 * (goal - first.numpy()) ** 2 + 0.5 * (goal - second.numpy()) ** 2
    loss, priorities, _ = learner.critic_loss(batch, temperature)
    assert float(loss.detach()) == pytest.approx(np.mean(columns["importance"] * losses), rel=1e-4)
    sizes = (abs(goal - first.numpy()) + abs(goal - second.numpy())) / 2.0
    np.testing.assert_allclose(priorities, sizes, rtol=1e-3, atol=1e-5)


def test_sacs_actor_earns_the_smaller_value_and_entropy() -> None:
    learner, _, batch = moved(sac)
    network, observation = learner.network, batch["observation"]
    mean, log_std = network.actor(observation)
    u = mean + log_std.exp() * noise_of(learner, (BATCH, 2))
    action = torch.tanh(u)
    log_prob = (Normal(mean, log_std.exp()).log_prob(u) - torch.log(1.0 - action.square())).sum(-1)
    values = torch.minimum(network.critic.first(observation, action), network.critic.second(observation, action))
    expected = (0.7 * log_prob - values).mean()
    loss, entropy = learner.actor_loss(observation, torch.tensor(0.7))
    torch.testing.assert_close(loss, expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(entropy, -log_prob.detach().mean(), rtol=1e-4, atol=1e-5)
    parameters = list(network.actor.parameters())
    for a, b in zip(torch.autograd.grad(loss, parameters), torch.autograd.grad(expected, parameters)):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-5)
    unused = torch.autograd.grad(
        learner.actor_loss(observation, torch.tensor(0.7))[0], list(network.critic.parameters()), allow_unused=True
    )
    assert all(gradient is None for gradient in unused)


@pytest.mark.parametrize(("target_entropy", "direction"), [(50.0, 1.0), (-50.0, -1.0)])
def test_the_temperature_rises_while_there_is_less_entropy_than_wanted_and_falls_while_there_is_more(
    target_entropy: float, direction: float
) -> None:
    cfg = config(sac, target_entropy=target_entropy, temperature_rate=0.01)
    learner = learner_of(cfg)
    measured = update(learner, some(sac, cfg), SPEC)
    assert float(measured.metrics["temperature"]) == pytest.approx(1.0)
    assert float(learner.network.log_temperature.detach()) == pytest.approx(0.01 * direction, rel=1e-3)  # Adam's first


def test_the_temperatures_gradient_is_entropy_minus_its_target() -> None:
    cfg = config(sac, target_entropy=-3.0)
    learner = learner_of(cfg)
    columns = some(sac, cfg)
    seen: list[float] = []
    step = learner.temperature_optimizer.step

    def watched(loss: Tensor, count: Tensor) -> Any:
        (gradient,) = torch.autograd.grad(loss, learner.network.log_temperature, retain_graph=True)
        seen.append(float(gradient))
        return step(loss, count)

    learner.temperature_optimizer.step = watched
    measured = update(learner, columns, SPEC)
    assert seen == [pytest.approx(float(measured.metrics["entropy"]) + 3.0, rel=1e-5)]


def test_the_target_entropy_is_minus_the_number_of_action_components_unless_given() -> None:
    assert learner_of(config(sac)).target_entropy == -2.0
    assert learner_of(config(sac, target_entropy=0.25)).target_entropy == 0.25
    assert learner_of(config(sac, target_entropy=0.0)).target_entropy == 0.0


def test_td3s_critics_learn_the_smaller_target_of_a_smoothed_action() -> None:
    learner, columns, batch = moved(td3, target_noise=0.4, target_noise_clip=0.3)
    network, target, following = learner.network, learner.target.network, batch["next_observation"]
    noise = np.clip(0.4 * noise_of(learner, (BATCH, 2)).numpy(), -0.3, 0.3)
    assert (abs(noise) == np.float32(0.3)).any()
    with torch.no_grad():
        action = torch.from_numpy(np.clip(target.actor(following).numpy() + noise, -1.0, 1.0))
        smaller = torch.minimum(target.critic.first(following, action), target.critic.second(following, action)).numpy()
        first = network.critic.first(batch["observation"], units(columns)).numpy()
        second = network.critic.second(batch["observation"], units(columns)).numpy()
    goal = 0.5 * columns["reward"] + columns["discount"] * smaller
    losses = (goal - first) ** 2 + (goal - second) ** 2
    loss, priorities, _ = learner.critic_loss(batch)
    assert float(loss.detach()) == pytest.approx(np.mean(columns["importance"] * losses), rel=1e-4)
    np.testing.assert_allclose(priorities, (abs(goal - first) + abs(goal - second)) / 2.0, rtol=1e-3, atol=1e-5)


def test_smoothed_actions_stay_within_their_bounds() -> None:
    """Noise is clipped in units of half the range, and the sum once more: with huge noise targets see bounds only."""
    learner, _, batch = moved(td3, target_noise=1e6, target_noise_clip=1e6)
    seen: list[Tensor] = []
    critic = learner.target.network.critic
    critic.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[1]))
    learner.critic_loss(batch)
    assert (seen[0].abs() == 1.0).all()


def test_td3s_actor_climbs_the_first_critic_alone() -> None:
    learner, _, batch = moved(td3)
    network, observation = learner.network, batch["observation"]
    expected = -network.critic.first(observation, network.actor(observation)).mean()
    loss = learner.actor_loss(observation)
    torch.testing.assert_close(loss, expected)
    parameters = list(network.actor.parameters())
    for a, b in zip(torch.autograd.grad(loss, parameters), torch.autograd.grad(expected, parameters)):
        torch.testing.assert_close(a, b)
    with torch.no_grad():
        for parameter in network.critic.second.parameters():
            parameter.zero_()
    torch.testing.assert_close(learner.actor_loss(observation), loss)


# ---- what moves, and when


@pytest.mark.parametrize(("policy_delay", "target_every"), [(2, 2), (2, 1), (1, 2), (3, 1)])
def test_td3s_actor_and_targets_move_with_every_so_many_updates_of_the_critics(
    policy_delay: int, target_every: int
) -> None:
    """Each by its own option; by default both with every second one, as in the paper."""
    assert (td3.Config().policy_delay, td3.Config().target_every) == (2, 2)
    cfg = config(td3, target_rate=0.25, policy_delay=policy_delay, target_every=target_every)
    learner, columns = learner_of(cfg), some(td3, cfg)
    history = []
    for _ in range(5):
        update(learner, columns, SPEC)
        network, target = learner.network, learner.target.network
        history.append(
            [
                torch.nn.utils.parameters_to_vector(part.parameters()).clone()
                for part in (network.actor, network.critic, target)
            ]
        )
    still = [[torch.equal(a, b) for a, b in zip(before, after)] for before, after in itertools.pairwise(history)]
    assert still == [[bool(n % policy_delay), False, bool(n % target_every)] for n in range(2, 6)]


@both
def test_target_networks_go_a_part_of_the_way(page: Any) -> None:
    cfg = config(page, target_every=1, target_rate=0.25)
    learner, columns = learner_of(cfg), some(page, cfg)
    before = weights(learner)
    update(learner, columns, SPEC)
    after = weights(learner)
    prefix = "critic." if page is sac else ""
    for name, slow in learner.target.network.state_dict().items():
        fast = after[prefix + name]
        np.testing.assert_allclose(slow.numpy(), 0.75 * before[prefix + name] + 0.25 * fast, rtol=1e-4, atol=1e-6)


@both
@pytest.mark.parametrize("spec", [SPEC, NESTED], ids=["vector", "nested"])
def test_an_update_gives_priorities_and_weights_that_policies_load(page: Any, spec: Spec) -> None:
    cfg = config(page, target_every=1, **({"policy_delay": 1} if page is td3 else {}))
    learner = learner_of(cfg, spec)
    before = weights(learner)
    measured = update(learner, some(page, cfg, spec), spec)
    after = weights(learner)
    assert measured.applied
    assert measured.priorities.shape == (BATCH,)
    for part in ("actor", "critic.first", "critic.second"):
        assert any(not np.array_equal(before[name], after[name]) for name in before if name.startswith(part))
    policy = page.make_policy(cfg, spec, seed=5, greedy=True)
    policy.load(after)


@both
def test_a_batch_that_is_not_finite_changes_neither_weights_nor_priorities(page: Any) -> None:
    cfg = config(page)
    columns = some(page, cfg) | {"reward": np.full(BATCH, np.nan, np.float32)}
    learner = learner_of(cfg)
    before = weights(learner)
    measured = update(learner, columns, SPEC)
    assert not measured.applied
    assert measured.priorities is None
    assert all(np.array_equal(before[name], array) for name, array in weights(learner).items())


@both
def test_what_follows_a_termination_does_not_count(page: Any) -> None:
    cfg = config(page)
    columns = some(page, cfg)
    learner, state = learner_of(cfg), None
    ended = columns["discount"] == 0.0
    assert ended.any()
    found = []
    for filler in (0.5, 100.0):
        state = learner.noise.get_state() if state is None else state
        learner.noise.set_state(state)
        other = np.where(ended[:, None], filler, columns["next_observation"]).astype(np.float32)
        temperature = [torch.tensor(0.7)] if page is sac else []
        found.append(learner.critic_loss(tensors(columns | {"next_observation": other}, SPEC), *temperature)[0])
    torch.testing.assert_close(*found)


# ---- several learners


@both
def test_two_learners_with_halves_of_a_batch_make_the_update_of_one_with_the_whole(page: Any) -> None:
    rates = {"actor_rate": 1e-2, "critic_rate": 1e-2, "epsilon": 1e-3}  # Adam must not blow up what is rounding
    cfg = config(page, target_every=1, **rates, **({"target_noise": 0.0} if page is td3 else {}))
    columns = some(page, cfg)

    def learn(half: slice, **options: Any) -> Columns:
        learner = learner_of(cfg, **options)
        if page is sac:  # noise by what is seen, so that it does not matter who sees it

            def draw(observation: Tensor) -> Any:
                mean, log_std = learner.network.actor(observation)
                noise = torch.sin(9.0 * observation[:, :2])
                return sac.squashed_gaussian(mean=mean, log_std=log_std, noise=noise)

            learner.draw = draw
        for _ in range(3):
            update(learner, {name: column[half] for name, column in columns.items()}, SPEC)
        return weights(learner)

    alone = learn(slice(None))
    bounds = [slice(0, 9), slice(9, BATCH)]  # of different sizes: each counts by its items

    def work(peer: Together) -> Columns:
        return learn(bounds[peer.rank], peers=peer)

    one, other = together(2, work)
    for name, array in alone.items():
        np.testing.assert_array_equal(one[name], other[name])
        np.testing.assert_allclose(one[name], array, rtol=2e-3, atol=2e-5, err_msg=name)


# ---- acting


@both
@pytest.mark.parametrize("spec", [SPEC, NESTED], ids=["vector", "nested"])
def test_the_first_priorities_are_errors_by_the_smaller_value_that_was_acted_on(page: Any, spec: Spec) -> None:
    """Of TD3 exactly those of a learner that knew the smaller value only; SAC's depend on its draws."""
    cfg = config(page)
    policy = page.make_policy(cfg, spec, seed=1)
    random = np.random.default_rng(0)
    values: dict[str, Any] = {
        name: random.standard_normal(9).astype(np.float32) for name in ("q", "next_value", "reward")
    }
    values["discount"] = np.where(random.random(9) < 0.3, 0.0, 0.8).astype(np.float32)
    expected = abs(0.5 * values["reward"] + values["discount"] * values["next_value"] - values["q"])
    np.testing.assert_allclose(policy.first_priorities.law(values), expected, rtol=1e-5)
    assert policy.first_priorities.columns == policy.first_priorities.transient == ("q", "value")


def test_td3s_policy_records_the_smaller_value_of_the_action_taken_and_of_its_own() -> None:
    cfg = config(td3)
    policy = td3.make_policy(cfg, SPEC, seed=1)
    observation = np.random.default_rng(0).uniform(-1, 1, (4, 3)).astype(np.float32)
    action, _, extras = policy.act(observation, {}, np.zeros(4, np.bool_))
    critic, seen = policy.network.critic, torch.from_numpy(observation)
    with torch.no_grad():
        own = policy.network.actor(seen)
        taken = torch.from_numpy((action - CENTRE) / HALF)
        for name, chosen in (("q", taken), ("value", own)):
            smaller = torch.minimum(critic.first(seen, chosen), critic.second(seen, chosen))
            np.testing.assert_allclose(extras[name], smaller, rtol=1e-4, atol=1e-6)


def test_sacs_policy_draws_from_its_gaussian_and_records_soft_values() -> None:
    cfg = config(sac)
    policy = sac.make_policy(cfg, SPEC, seed=1)
    with torch.no_grad():
        policy.network.log_temperature.fill_(math.log(0.3))
        policy.network.actor.body.layers[-1].bias.add_(0.9)  # where tanh bends
    observation = np.random.default_rng(0).uniform(-1, 1, (4, 3)).astype(np.float32)
    policy.random = np.random.default_rng(5)
    action, _, extras = policy.act(observation, {}, np.zeros(4, np.bool_))
    seen = torch.from_numpy(observation)
    with torch.no_grad():
        mean, log_std = policy.network.actor(seen)
        noise = torch.from_numpy(np.random.default_rng(5).standard_normal((4, 2), dtype=np.float32))
        own = torch.tanh(mean + log_std.exp() * noise)
        policy_density = TransformedDistribution(Normal(mean, log_std.exp()), [TanhTransform(cache_size=1)])
        log_prob = Independent(policy_density, 1).log_prob(own)
        smaller = torch.minimum(policy.network.critic.first(seen, own), policy.network.critic.second(seen, own))
    np.testing.assert_allclose(action, CENTRE + HALF * own.numpy(), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(extras["q"], smaller, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(extras["value"], smaller - 0.3 * log_prob, rtol=1e-3, atol=1e-4)
    greedy = sac.make_policy(cfg, SPEC, seed=1, greedy=True)
    greedy.load(export_weights(policy.network))
    np.testing.assert_allclose(
        greedy.act(observation, {}, np.zeros(4, np.bool_))[0],
        CENTRE + HALF * torch.tanh(mean).numpy(),
        rtol=1e-5,
        atol=1e-5,
    )


@both
@pytest.mark.parametrize(("steps", "rows"), [(0, 0), (1, 1), (12, 1), (13, 2), (24, 2)])
def test_random_steps_are_those_of_all_actors_together(page: Any, steps: int, rows: int) -> None:
    """A row of 3 actors with 4 environments each has 12 steps."""
    policy = page.make_policy(config(page, random_steps=steps, actors=3), SPEC, seed=1)
    assert policy.state_dict()["random_rows"] == rows


@both
def test_the_first_rows_are_uniform_in_all_environments_together(page: Any) -> None:
    """10 steps of 2 actors with 4 environments each are 2 rows, rounded up; none where the policy is greedy."""
    cfg = config(page, random_steps=10, actors=2, **({"noise": 0.0} if page is td3 else {}))
    observation, first = np.zeros((400, 3), np.float32), np.zeros(400, np.bool_)
    policy = page.make_policy(cfg, SPEC, seed=1)
    policy.set_environments(np.arange(400) % 8, 8)
    spreads = [((policy.act(observation, {}, first)[0] - CENTRE) / HALF).std() for _ in range(3)]
    assert spreads[0] == pytest.approx(1.0 / math.sqrt(3.0), abs=0.05)
    assert spreads[1] == pytest.approx(1.0 / math.sqrt(3.0), abs=0.05)
    if page is td3:
        assert spreads[2] < 0.1
    greedy = page.make_policy(cfg, SPEC, seed=1, greedy=True)
    actions = greedy.act(observation, {}, first)[0]
    assert (actions == actions[0]).all()


@both
def test_with_uniform_replay_nothing_is_recorded_and_no_priorities_are_asked_for(page: Any) -> None:
    cfg = config(page, replay="uniform")
    policy = page.make_policy(cfg, SPEC, seed=1)
    assert policy.act(np.zeros((4, 3), np.float32), {}, np.zeros(4, np.bool_))[2] == {}
    nodes = page.program(cfg, envs.describe("Pendulum-v1"), Settings()).nodes
    assert nodes["learner"].args[1].keywords["beta"] is None


@both
def test_it_learns_which_action_pays(page: Any) -> None:
    """The reward falls with the square of the action's distance, in units, to the first two numbers seen."""
    networks = {"actor_hidden": (32, 32), "critic_hidden": (32, 32)}
    cfg = config(page, actor_rate=3e-3, critic_rate=1e-2, reward_scale=3.0, **networks)
    random = np.random.default_rng(0)
    learner = learner_of(cfg)
    for _ in range(400):
        observation = random.uniform(-0.8, 0.8, (64, 3)).astype(np.float32)
        taken = random.uniform(-1, 1, (64, 2)).astype(np.float32)
        columns = {"observation": observation, "next_observation": observation, "action": CENTRE + HALF * taken}
        columns |= {"reward": -np.square(taken - observation[:, :2]).sum(-1), "discount": np.zeros(64, np.float32)}
        update(learner, columns, SPEC)
    policy = page.make_policy(cfg, SPEC, seed=2, greedy=True)
    policy.load(weights(learner))
    observation = random.uniform(-0.8, 0.8, (500, 3)).astype(np.float32)
    action, _, _ = policy.act(observation, {}, np.zeros(500, np.bool_))
    assert np.abs((action - CENTRE) / HALF - observation[:, :2]).mean() < 0.2  # of an actor that does nothing: 0.4


# ---- several critics, and data


def test_a_target_takes_the_smallest_of_the_critics_that_were_drawn_and_the_actor_the_mean_of_all() -> None:
    learner, _, batch = moved(sac, critics=5, drawn_critics=2)
    following, observation = batch["next_observation"], batch["observation"]
    state = learner.noise.get_state()
    with torch.no_grad():
        action, log_prob = learner.draw(following)
        drawn = torch.randperm(5, generator=learner.noise)[:2]
        goal = learner.target.network(following, action)[drawn].amin(0) - 0.7 * log_prob
    learner.noise.set_state(state)
    loss, _, metrics = learner.critic_loss(batch, torch.tensor(0.7))
    target = 0.5 * batch["reward"] + batch["discount"] * goal
    q = learner.network.critic(observation, learner.network.actor.units.to_units(batch["action"]))
    assert q.shape == (5, BATCH)
    expected = (batch["importance"] * 0.5 * (target - q).square().sum(0)).mean()
    torch.testing.assert_close(loss, expected, rtol=1e-4, atol=1e-5)
    assert set(metrics) >= {"critic_loss", "q_mean"}

    state = learner.noise.get_state()
    action, log_prob = learner.draw(observation)
    values = learner.network.critic(observation, action)
    learner.noise.set_state(state)
    torch.testing.assert_close(
        learner.actor_loss(observation, torch.tensor(0.7))[0], (0.7 * log_prob - values.mean(0)).mean()
    )


def test_every_critic_learns_apart_from_the_others() -> None:
    learner, _, _ = moved(sac, critics=4)
    parts = [learner.network.critic.first, learner.network.critic.second, *learner.network.critic.others]
    firsts = [next(iter(part.parameters())) for part in parts]
    assert len(parts) == 4
    assert all(not torch.equal(one, other) for one, other in itertools.combinations(firsts, 2))


def test_more_critics_than_there_are_cannot_be_drawn() -> None:
    with pytest.raises(UserError, match=r"^--drawn-critics 3 cannot be drawn of --critics 2"):
        sac.program(sac.Config(drawn_critics=3), envs.describe("Pendulum-v1"), Settings())


def test_with_data_half_of_each_batch_is_theirs() -> None:
    cfg = sac.Config(data=dataset("Pendulum-v1"), batch=64, preset="rlpd")
    source = sac.program(cfg, envs.describe("Pendulum-v1"), Settings()).nodes["learner"].args[1]
    assert source.func is MixedSource
    assert [source.keywords[part].keywords["batch"] for part in ("table", "data")] == [32, 32]
