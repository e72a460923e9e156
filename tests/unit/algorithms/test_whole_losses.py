"""The whole loss of every algorithm, written once more in plain loops and compared (A3C, R2D2, SAC and TD3 have their
own files). Networks are taken as given; everything that is made of their outputs is worked out here."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from batches import DISCRETE, Batch, T, tensors, update
from batches import batch_of as rollouts_of
from gymnasium import spaces
from transitions import Spec, batch_of, stored

from shoal.algorithms import apex_dpg, apex_dqn, appo, d4pg, impala, ppo, r2d2, sac, td3
from shoal.functional.q import SMALLEST_PRIORITY
from shoal.nets.weights import export_weights

POLICY: dict[str, Any] = {"hidden": (8,), "gamma": 0.9, "lambda_": 0.8, "reward_scale": 0.3, "reward_clip": 1.2}
POLICY |= {"value_cost": 0.7, "entropy_cost": 0.05, "learning_rate": 0.02}


# ---- rollouts


def seen_by(network: Any, batch: dict[str, Any]) -> tuple[Any, Any, Any]:
    """Log-probabilities of the actions taken, entropies and values, [T+1, B]."""
    with torch.no_grad():
        logits, values, _ = network(batch["observation"], {}, batch["first"])
    logits, action = logits.double().numpy(), batch["action"].numpy()
    log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    chosen = np.take_along_axis(log_probs, action[..., None], -1)[..., 0]
    return chosen, -(np.exp(log_probs) * log_probs).sum(-1), values.double().numpy()


def rewards_and_discounts(cfg: Any, columns: Batch) -> tuple[Any, Any]:
    clipped = np.clip(columns["reward"].astype(np.float64), -cfg.reward_clip, cfg.reward_clip)
    return clipped * cfg.reward_scale, np.where(columns["terminated"], 0.0, cfg.gamma)


def vtrace_by_hand(
    cfg: Any, columns: Batch, values: Any, ratio: Any, clip_pg_rho: float
) -> tuple[dict[Any, float], dict[Any, float]]:
    """Espeholt 2018: v_s = V + ρδ + γλc(v_s' − V'), advantages ρ(r + γ v_s' − V). By row and column, valid ones."""
    rewards, discounts = rewards_and_discounts(cfg, columns)
    targets, advantages = {}, {}
    for b in range(columns["valid"].shape[1]):
        after = values[T, b]
        for t in reversed(range(T)):
            if not columns["valid"][t, b]:
                after = values[t, b]
                continue
            rho, c = min(ratio[t, b], cfg.clip_rho), min(ratio[t, b], cfg.clip_c)
            error = rewards[t, b] + discounts[t, b] * values[t + 1, b] - values[t, b]
            weight = min(ratio[t, b], clip_pg_rho)
            ahead = cfg.lambda_ * after + (1.0 - cfg.lambda_) * values[t + 1, b]  # as RLax: on-policy it is GAE(λ)
            advantages[t, b] = weight * (rewards[t, b] + discounts[t, b] * ahead - values[t, b])
            after = values[t, b] + rho * error + discounts[t, b] * cfg.lambda_ * c * (after - values[t + 1, b])
            targets[t, b] = after
    return targets, advantages


def normalised(advantages: dict[Any, float]) -> dict[Any, float]:
    mean, deviation = np.mean(list(advantages.values())), np.std(list(advantages.values()))
    return {row: (advantage - mean) / deviation for row, advantage in advantages.items()}


def off_policy(module: Any, cfg: Any, seed: int = 0) -> Batch:
    """By a policy far from the learner's, so that ratios lie on both sides of every clip."""
    policy, random = module.make_policy(cfg, DISCRETE, 0), np.random.default_rng(7)
    shapes = {name: array.shape for name, array in export_weights(policy.network).items()}
    policy.load({name: random.normal(0.0, 0.6, shape).astype(np.float32) for name, shape in shapes.items()})
    return rollouts_of(policy, DISCRETE, seed)


def test_impala() -> None:
    cfg = impala.Config(**POLICY, clip_rho=1.1, clip_c=0.9, clip_pg_rho=1.05)
    columns = off_policy(impala, cfg)
    batch, learner = tensors(columns, DISCRETE), impala.Impala(cfg, DISCRETE, seed=0)
    log_prob, entropy, values = seen_by(learner.network, batch)
    ratio = np.exp(log_prob - columns["log_prob"])
    assert (ratio > 1.1).any()
    assert (ratio < 0.9).any()
    targets, advantages = vtrace_by_hand(cfg, columns, values, ratio, cfg.clip_pg_rho)
    losses = [
        -log_prob[row] * advantages[row]
        + cfg.value_cost * 0.5 * (values[row] - targets[row]) ** 2
        - cfg.entropy_cost * entropy[row]
        for row in targets
    ]
    loss, count, metrics = learner.loss(batch)
    assert int(count) == len(losses)
    assert float(loss.detach()) == pytest.approx(np.mean(losses), rel=1e-4)
    assert float(metrics["rho"]) == pytest.approx(np.mean([ratio[row] for row in targets]), rel=1e-4)


def test_impalas_loss_is_scaled_before_its_step() -> None:
    norms = []
    for scale in (1.0, 3.0):
        cfg = impala.Config(**POLICY, loss_scale=scale)
        norms.append(update(impala.Impala(cfg, DISCRETE, seed=0), off_policy(impala, cfg)).metrics["grad_norm"])
    assert norms[1] == pytest.approx(3.0 * norms[0], rel=1e-4)


@pytest.mark.parametrize("value_clip", [0.0, 0.05])
@pytest.mark.parametrize("normalize", [False, True])
def test_ppo(value_clip: float, normalize: bool) -> None:
    own = {"minibatches": 2, "epochs": 2, "clip": 0.1, "value_clip": value_clip, "normalize_advantages": normalize}
    cfg = ppo.Config(**POLICY, **own)
    columns = off_policy(ppo, cfg)
    batch, learner = tensors(columns, DISCRETE), ppo.PPO(cfg, DISCRETE, seed=0)
    _, _, before = seen_by(learner.network, batch)
    rows, _ = learner.prepare(batch)
    learner.update(batch)  # away from where the rows were prepared
    log_prob, entropy, values = seen_by(learner.network, batch)
    rewards, discounts = rewards_and_discounts(cfg, columns)
    advantages = {}
    for b in range(columns["valid"].shape[1]):
        for t in range(T):
            if not columns["valid"][t, b]:
                continue
            total, weight, k = 0.0, 1.0, t
            while k < T and columns["valid"][k, b]:  # Schulman 2016, eq. 16
                total += weight * (rewards[k, b] + discounts[k, b] * before[k + 1, b] - before[k, b])
                weight *= discounts[k, b] * cfg.lambda_
                k += 1
            advantages[t, b] = total
    losses, clipped, moved = [], 0, 0.0
    for row, weight in (normalised(advantages) if normalize else advantages).items():
        ratio = math.exp(log_prob[row] - columns["log_prob"][row])
        clipped += abs(ratio - 1.0) > cfg.clip
        moved += ratio - 1.0 - math.log(ratio)
        gain = min(ratio * weight, min(max(ratio, 0.9), 1.1) * weight)
        target = before[row] + advantages[row]
        errors = [(values[row] - target) ** 2]
        if value_clip:
            errors.append((before[row] + np.clip(values[row] - before[row], -value_clip, value_clip) - target) ** 2)
        losses.append(-gain + cfg.value_cost * 0.5 * max(errors) - cfg.entropy_cost * entropy[row])
    loss, count, metrics = learner.loss(rows)
    assert int(count) == len(losses)
    assert 0 < clipped < len(losses)
    assert float(loss.detach()) == pytest.approx(np.mean(losses), rel=1e-4)
    assert float(metrics["clipped"]) == pytest.approx(clipped / len(losses))
    assert float(metrics["kl"]) == pytest.approx(moved / len(losses), rel=1e-3)


def test_appo() -> None:
    cfg = appo.Config(**POLICY, clip=0.1, clip_rho=1.1, clip_c=0.9, target_every=100)
    columns = off_policy(appo, cfg)
    batch, learner = tensors(columns, DISCRETE), appo.APPO(cfg, DISCRETE, seed=0)
    for seed in range(3):  # away from the target policy
        update(learner, off_policy(appo, cfg, seed=seed))
    slow, _, _ = seen_by(learner.target.network, batch)
    log_prob, entropy, values = seen_by(learner.network, batch)
    behaviour = columns["log_prob"]
    assert (np.exp(behaviour - slow) > 2.0).any(), "the limit of the correction is reached"
    targets, advantages = vtrace_by_hand(cfg, columns, values, np.exp(slow - behaviour), clip_pg_rho=1.0)
    losses, moved = [], 0.0
    for row, advantage in normalised(advantages).items():
        ratio = min(2.0, math.exp(behaviour[row] - slow[row])) * math.exp(log_prob[row] - behaviour[row])
        gain = min(ratio * advantage, min(max(ratio, 0.9), 1.1) * advantage)
        value_error = 0.5 * (values[row] - targets[row]) ** 2
        losses.append(-gain + cfg.value_cost * value_error - cfg.entropy_cost * entropy[row])
        moved += math.exp(log_prob[row] - slow[row]) - 1.0 - (log_prob[row] - slow[row])
    rows, explained = learner.prepare(batch)
    errors, goals = [(values[row] - target) ** 2 for row, target in targets.items()], list(targets.values())
    assert float(explained) == pytest.approx(1.0 - np.mean(errors) / np.var(goals), rel=1e-4)
    loss, count, metrics = learner.loss(rows)
    assert int(count) == len(losses)
    assert float(loss.detach()) == pytest.approx(np.mean(losses), rel=1e-4)
    assert float(metrics["kl"]) == pytest.approx(moved / len(losses), rel=1e-3)


def test_appo_asks_a_target_policy_that_was_just_copied_no_second_time() -> None:
    cfg = appo.Config(**POLICY, target_every=2)
    learner, asked = appo.APPO(cfg, DISCRETE, seed=0), []
    learner.target.network.register_forward_hook(lambda *_: asked.append(int(learner.updates)))
    for seed in range(4):
        batch = tensors(off_policy(appo, cfg, seed=seed), DISCRETE)
        learner.target.follow(0)
        (asked_too, _), (alone, _) = learner.prepare(batch), learner.prepare(batch, copied=True)
        for name in ("target_log_prob", "target", "advantage"):
            assert torch.equal(asked_too[name], alone[name])
        del asked[:]
        learner.update(batch)
        assert len(asked) == seed % 2, "learner steps 0 and 2 have copied the network"


# ---- n-step transitions


BATCH = 24
REPLAY: dict[str, Any] = {"envs_per_actor": 4, "rows": 5, "n": 3, "gamma": 0.9, "reward_scale": 0.5}
CONTROL: dict[str, Any] = REPLAY | {"actor_hidden": (8,), "critic_hidden": (8,), "target_every": 1000}
CHOICES = Spec(spaces.Box(-1.0, 1.0, (3,), np.float32), spaces.Discrete(3))
BOUNDS = Spec(spaces.Box(-1.0, 1.0, (3,), np.float32), spaces.Box(np.float32([-2.0, 0.0]), np.float32([2.0, 10.0])))


def transitions(module: Any, cfg: Any, spec: Spec) -> tuple[Batch, dict[str, Any]]:
    """With importance weights, as columns and as a learner's batch; some are terminated, some cut short."""
    columns = batch_of(stored(cfg, module.make_policy(cfg, spec, 1), spec).sample("transitions", BATCH))
    columns["importance"] = np.linspace(0.2, 1.0, BATCH, dtype=np.float32)
    assert (columns["discount"] == 0.0).any()
    return columns, tensors(columns, spec)


def moved(learner: Any, batch: dict[str, Any], updates: int = 5) -> None:
    """So that the network is not its target."""
    for _ in range(updates):
        assert learner.update(batch).applied


def huber_by_hand(error: float, kappa: float) -> float:
    return 0.5 * error**2 if abs(error) <= kappa else kappa * (abs(error) - 0.5 * kappa)


def quantile_loss_by_hand(predicted: Any, targets: Any, kappa: float) -> float:
    """Dabney 2018, eq. 10."""
    total = 0.0
    for i, theta in enumerate(predicted):
        midpoint = (i + 0.5) / len(predicted)
        for target in targets:
            error = float(target - theta)
            total += abs(midpoint - (error < 0.0)) * huber_by_hand(error, kappa) / kappa / len(targets)
    return total


def pairwise_size(predicted: Any, targets: Any) -> float:
    return float(np.mean([abs(float(target - theta)) for theta in predicted for target in targets]))


@pytest.mark.parametrize(
    "own", [{}, {"huber": 0.3}, {"quantiles": 4}, {"quantiles": 4, "kappa": 0.3}], ids=["mean", "huber", "qr", "qr κ"]
)
def test_apex_dqn(own: dict[str, Any]) -> None:
    cfg = apex_dqn.Config(**REPLAY, **own, hidden=(8,), target_every=1000)
    columns, batch = transitions(apex_dqn, cfg, CHOICES)
    learner = apex_dqn.ApexDQN(cfg, CHOICES, seed=1)
    moved(learner, batch, 30)
    with torch.no_grad():
        now, ahead = (learner.network(batch[name]).double().numpy() for name in ("observation", "next_observation"))
        target = learner.target.network(batch["next_observation"]).double().numpy()
    losses, sizes = [], []
    for i in range(BATCH):
        best = int((ahead[i].mean(-1) if cfg.quantiles else ahead[i]).argmax())
        goal = 0.5 * columns["reward"][i] + columns["discount"][i] * target[i, best]
        q = now[i, columns["action"][i]]
        if cfg.quantiles:
            losses.append(quantile_loss_by_hand(q, goal, cfg.kappa))
            sizes.append(pairwise_size(q, goal))
        else:
            losses.append(huber_by_hand(goal - q, cfg.huber or math.inf))
            sizes.append(abs(goal - q))
    loss, priorities, _ = learner.loss(batch)
    assert float(loss.detach()) == pytest.approx(np.mean(columns["importance"] * losses), rel=1e-4)
    np.testing.assert_allclose(priorities, sizes, rtol=1e-3, atol=1e-5)
    del batch["importance"]
    assert float(learner.loss(batch)[0].detach()) == pytest.approx(np.mean(losses), rel=1e-4), "uniform replay"


def units_of(columns: Batch) -> Any:
    return torch.from_numpy((columns["action"] - np.float32([0.0, 5.0])) / np.float32([2.0, 5.0]))


def outputs_of(learner: Any, columns: Batch, batch: dict[str, Any]) -> tuple[Any, Any]:
    """Of the critic for the actions taken, and of the target critic for the target actor's next ones."""
    target = learner.target.network
    with torch.no_grad():
        now = learner.network.critic(batch["observation"], units_of(columns))
        ahead = target.critic(batch["next_observation"], target.actor(batch["next_observation"]))
    return now.double().numpy(), ahead.double().numpy()


def softmax(logits: Any) -> Any:
    return np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)


def projected_by_hand(probabilities: Any, reward: float, discount: float, support: Any) -> Any:
    """Bellemare 2017, algorithm 1."""
    gap, result = support[1] - support[0], np.zeros_like(probabilities)
    for probability, atom in zip(probabilities, support):
        place = (min(max(reward + discount * atom, support[0]), support[-1]) - support[0]) / gap
        low = min(int(place), len(support) - 2)
        result[low] += probability * (low + 1 - place)
        result[low + 1] += probability * (place - low)
    return result


def check_actor_loss(learner: Any, batch: dict[str, Any]) -> None:
    """−E[Q(s, tanh(raw))] + cost · Σ raw², and its gradient through the actor alone, element by element clipped."""
    network, cfg, observation = learner.network, learner.cfg, batch["observation"]
    raw = network.actor.raw(observation)
    action = torch.tanh(raw).detach().requires_grad_()
    value = network.critic.expected_return(observation, action)
    (slope,) = torch.autograd.grad(value.sum(), action)
    loss, slopes = learner.actor_loss(observation)
    expected = -value.mean() + cfg.saturation_cost * raw.square().sum(-1).mean()
    assert float(loss.detach()) == pytest.approx(float(expected.detach()), rel=1e-4)
    torch.testing.assert_close(slopes, slope.norm(dim=-1))
    by_raw = -slope.clamp(-cfg.slope_clip, cfg.slope_clip) * (1.0 - action.detach().square()) / len(action)
    by_raw += 2.0 * cfg.saturation_cost * raw.detach() / len(action)
    parameters = list(network.actor.parameters())
    gradients = torch.autograd.grad(loss, parameters)
    for found, wanted in zip(gradients, torch.autograd.grad(raw, parameters, by_raw)):
        torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-6)


SLOPES: dict[str, Any] = {"slope_clip": 0.02, "saturation_cost": 0.3, "critic_rate": 1e-2, "actor_rate": 5e-2}


def test_d4pg_with_atoms() -> None:
    cfg = d4pg.Config(**CONTROL, **SLOPES, atoms=11, support_low=-2.0, support_high=2.0)
    columns, batch = transitions(d4pg, cfg, BOUNDS)
    learner = d4pg.D4PG(cfg, BOUNDS, seed=1)
    moved(learner, batch)
    support, (now, ahead) = np.linspace(-2.0, 2.0, 11), outputs_of(learner, columns, batch)
    losses, sizes = [], []
    for i in range(BATCH):
        reward, discount = 0.5 * float(columns["reward"][i]), float(columns["discount"][i])
        goal = projected_by_hand(softmax(ahead[i]), reward, discount, support)
        losses.append(-(goal * np.log(softmax(now[i]))).sum())
        expected = reward + discount * (softmax(ahead[i]) * support).sum()
        sizes.append(abs(expected - (softmax(now[i]) * support).sum()))
    loss, priorities, _ = learner.critic_loss(batch)
    assert float(loss.detach()) == pytest.approx(np.mean(columns["importance"] * losses), rel=1e-4)
    np.testing.assert_allclose(priorities, sizes, rtol=1e-3, atol=1e-5)
    check_actor_loss(learner, batch)


def test_d4pg_with_quantiles() -> None:
    cfg = d4pg.Config(**CONTROL, **SLOPES, critic="quantile", quantiles=5, kappa=0.3)
    columns, batch = transitions(d4pg, cfg, BOUNDS)
    learner = d4pg.D4PG(cfg, BOUNDS, seed=1)
    moved(learner, batch)
    now, ahead = outputs_of(learner, columns, batch)
    goals = 0.5 * columns["reward"][:, None] + columns["discount"][:, None] * ahead
    losses = [quantile_loss_by_hand(now[i], goals[i], cfg.kappa) for i in range(BATCH)]
    loss, priorities, _ = learner.critic_loss(batch)
    assert float(loss.detach()) == pytest.approx(np.mean(columns["importance"] * losses), rel=1e-4)
    np.testing.assert_allclose(priorities, abs(goals.mean(-1) - now.mean(-1)), rtol=1e-3, atol=1e-5)
    check_actor_loss(learner, batch)


def test_apex_dpg() -> None:
    cfg = apex_dpg.Config(**CONTROL, **SLOPES)
    columns, batch = transitions(apex_dpg, cfg, BOUNDS)
    learner = apex_dpg.ApexDPG(cfg, BOUNDS, seed=1)
    moved(learner, batch)
    now, ahead = outputs_of(learner, columns, batch)
    errors = 0.5 * columns["reward"] + columns["discount"] * ahead - now
    loss, priorities, _ = learner.critic_loss(batch)
    assert float(loss.detach()) == pytest.approx(np.mean(columns["importance"] * 0.5 * errors**2), rel=1e-4)
    np.testing.assert_allclose(priorities, abs(errors), rtol=1e-3, atol=1e-5)
    check_actor_loss(learner, batch)


@pytest.mark.parametrize(
    "page", [apex_dqn, apex_dpg, d4pg, sac, td3], ids=lambda page: page.__name__.rpartition(".")[2]
)
def test_an_item_without_error_keeps_a_priority_above_zero(page: Any) -> None:
    """An actor's; a learner's are by the same law."""
    cfg = page.Config(replay="prioritized")
    zero = dict.fromkeys(("q", "next_value", "reward", "discount"), np.zeros(4, np.float32))
    policy = page.make_policy(cfg, CHOICES if page is apex_dqn else BOUNDS, 1)
    assert (policy.first_priorities.law(zero) == np.float32(SMALLEST_PRIORITY)).all()


def test_quantiles_and_sequences_without_error_keep_a_priority_above_zero() -> None:
    cfg = apex_dqn.Config(hidden=(8,), quantiles=3)
    learner = apex_dqn.ApexDQN(cfg, CHOICES, seed=1)
    with torch.no_grad():
        for parameter in [*learner.network.parameters(), *learner.target.network.parameters()]:
            parameter.zero_()
    _, batch = transitions(apex_dqn, apex_dqn.Config(**REPLAY, hidden=(8,)), CHOICES)
    _, priorities, _ = learner.loss(batch | {"reward": torch.zeros(BATCH)})
    assert (priorities == SMALLEST_PRIORITY).all()
    rows = {"reward": torch.zeros(5, 2), "terminated": torch.zeros(5, 2, dtype=torch.bool)}
    rows["valid"] = ~rows["terminated"]
    rows |= {"q": torch.zeros(5, 2), "value": torch.zeros(5, 2), "state/last_action": torch.zeros(1, 2)}
    assert (r2d2.priorities_of(r2d2.Config(), rows) == SMALLEST_PRIORITY).all()


def test_ppos_passes_end_by_the_mean_kl_over_rows() -> None:
    cfg = ppo.Config(**POLICY | {"learning_rate": 0.0}, minibatches=2, epochs=3)
    columns = off_policy(ppo, cfg)
    learner = ppo.PPO(cfg, DISCRETE, seed=0)
    rows, _ = learner.prepare(tensors(columns, DISCRETE))
    moved_by = float(learner.loss(rows)[2]["kl"])
    for target, epochs in ((1.5 * moved_by, 3), (0.5 * moved_by, 1)):
        measured = update(ppo.PPO(replace(cfg, target_kl=target), DISCRETE, seed=0), columns)
        assert measured.metrics["epochs"] == epochs
        assert float(measured.metrics["kl"]) == pytest.approx(moved_by, rel=1e-4)


def test_appos_learning_rate_falls_with_the_rows_trained_on() -> None:
    cfg = appo.Config(**POLICY, anneal_steps=100)
    columns = off_policy(appo, cfg)
    rows = int(columns["valid"][:-1].sum())
    learner = appo.APPO(cfg, DISCRETE, seed=0)
    rates = [float(update(learner, columns).metrics["learning_rate"]) for _ in range(2)]
    assert rates == pytest.approx([0.02 * (1.0 - rows / 100), 0.02 * (1.0 - 2 * rows / 100)])
