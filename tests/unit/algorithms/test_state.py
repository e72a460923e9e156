"""A learner's state: whoever loads it goes on bit for bit, with parameters, moments, targets, statistics and draws."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from batches import CONTINUOUS, DISCRETE, Spec, tensors
from batches import batch_of as rollouts_of
from test_r2d2 import SMALL as SEQUENCES
from test_r2d2 import VECTOR, sampled
from transitions import batch_of, stored

from shoal.algorithms import (
    a3c,
    apex_dpg,
    apex_dqn,
    appo,
    bc,
    cql,
    d4pg,
    discrete_cql,
    impala,
    iql,
    ppo,
    r2d2,
    sac,
    td3,
    td3_bc,
)
from shoal.runs import registry
from shoal.services.gradients import GradientServer
from shoal.state import as_arrays, as_tensors

ROLLOUTS: dict[str, Any] = {"hidden": (8,)}
CONTROL: dict[str, Any] = {"actor_hidden": (8,), "critic_hidden": (8,), "envs_per_actor": 4, "rows": 5, "n": 2}
CONTROL |= {"target_rate": 0.3, "replay": "prioritized"}
NORMALISING: dict[str, Any] = {"normalize_observations": True, "normalize_rewards": True, "minibatches": 2}
CASES: dict[str, tuple[Any, Any, Any, dict[str, Any]]] = {
    "impala": (impala, impala.Impala, DISCRETE, ROLLOUTS | {"anneal_updates": 20}),
    "impala rmsprop": (impala, impala.Impala, DISCRETE, ROLLOUTS | {"optimizer": "rmsprop"}),
    "impala lstm": (impala, impala.Impala, CONTINUOUS, ROLLOUTS | {"lstm": 8}),
    "ppo": (ppo, ppo.PPO, DISCRETE, ROLLOUTS | NORMALISING | {"anneal_steps": 2000}),
    "ppo lstm": (ppo, ppo.PPO, CONTINUOUS, ROLLOUTS | NORMALISING | {"lstm": 8}),
    "appo": (appo, appo.APPO, DISCRETE, ROLLOUTS | NORMALISING | {"target_every": 3}),
    "appo lstm": (appo, appo.APPO, DISCRETE, ROLLOUTS | {"lstm": 8, "target_every": 3, "anneal_steps": 2000}),
    "apex_dqn": (apex_dqn, apex_dqn.ApexDQN, VECTOR, ROLLOUTS | {"envs_per_actor": 4, "rows": 5, "target_every": 3}),
    "apex_dqn rmsprop": (
        apex_dqn,
        apex_dqn.ApexDQN,
        VECTOR,
        ROLLOUTS | {"envs_per_actor": 4, "rows": 5, "optimizer": "rmsprop", "quantiles": 3, "target_every": 3},
    ),
    "apex_dpg": (apex_dpg, apex_dpg.ApexDPG, CONTINUOUS, CONTROL | {"target_every": 3}),
    "d4pg": (d4pg, d4pg.D4PG, CONTINUOUS, CONTROL | {"target_every": 3}),
    "d4pg quantile": (d4pg, d4pg.D4PG, CONTINUOUS, CONTROL | {"critic": "quantile", "target_every": 3}),
    "r2d2": (r2d2, r2d2.R2D2, VECTOR, SEQUENCES | {"target_every": 3}),
    "sac": (sac, sac.SAC, CONTINUOUS, CONTROL),
    "td3": (td3, td3.TD3, CONTINUOUS, CONTROL),
    "bc": (bc, bc.BC, DISCRETE, ROLLOUTS),
    "bc lstm": (bc, bc.BC, CONTINUOUS, ROLLOUTS | {"lstm": 8}),
    "td3_bc": (td3_bc, td3_bc.TD3BC, CONTINUOUS, CONTROL),
    "iql": (iql, iql.IQL, CONTINUOUS, CONTROL | {"anneal_updates": 20}),
    "cql": (cql, cql.CQL, CONTINUOUS, CONTROL | {"drawn_actions": 2}),
    "discrete_cql": (
        discrete_cql,
        discrete_cql.DiscreteCQL,
        VECTOR,
        ROLLOUTS | {"envs_per_actor": 4, "rows": 5, "target_every": 3, "replay": "prioritized"},
    ),
}
SAVED_AFTER, MORE = 4, 3


def test_every_algorithm_is_here() -> None:
    assert {name.split()[0] for name in CASES} | {"a3c"} == set(registry.names())


def batches_of(page: Any, cfg: Any, spec: Spec) -> list[dict[str, Any]]:
    if page is r2d2:
        return [tensors(sampled(cfg)[0], spec)]
    policy = page.make_policy(cfg, spec, seed=1)
    if hasattr(cfg, "unroll"):
        return [tensors(rollouts_of(policy, spec, seed), spec) for seed in range(SAVED_AFTER + MORE)]
    replay = stored(cfg, policy, spec)
    return [tensors(batch_of(replay.sample("transitions", 16)), spec) for _ in range(SAVED_AFTER + MORE)]


def check_same(one: Any, other: Any, where: str = "state") -> None:
    """To the last bit."""
    if isinstance(one, dict):
        assert one.keys() == other.keys(), where
        for name in one:
            check_same(one[name], other[name], f"{where}[{name!r}]")
    elif isinstance(one, list | tuple):
        assert len(one) == len(other), where
        for index, (a, b) in enumerate(zip(one, other)):
            check_same(a, b, f"{where}[{index}]")
    elif isinstance(one, torch.Tensor | np.ndarray):
        assert np.asarray(one).tobytes() == np.asarray(other).tobytes(), where
    else:
        assert one == other, where


def travelled(state: Any) -> Any:
    """As a snapshot comes back from the weight service."""
    return as_tensors(as_arrays(state))


@pytest.mark.parametrize("case", CASES)
def test_who_loads_a_state_goes_on_bit_for_bit(case: str) -> None:
    page, make, spec, options = CASES[case]
    cfg = page.Config(**options)
    batches = batches_of(page, cfg, spec)
    learner = make(cfg, spec, seed=0)
    for step in range(SAVED_AFTER):
        learner.update(batches[step % len(batches)])
    state = learner.state_dict()
    kept = copy.deepcopy(state)
    other = make(cfg, spec, seed=9)
    other.load_state_dict(travelled(state))
    check_same(learner.state_dict(), other.state_dict())
    for step in range(SAVED_AFTER, SAVED_AFTER + MORE):
        learner.update(batches[step % len(batches)])
        other.update(batches[step % len(batches)])
    check_same(learner.state_dict(), other.state_dict())
    check_same(state, kept)  # what was given does not change with the learner
    with pytest.raises(AssertionError):
        check_same(state, learner.state_dict())


@pytest.mark.parametrize("case", [case for case, (page, *_) in CASES.items() if page not in (impala, ppo, bc)])
def test_targets_are_those_of_then_and_not_copies_of_the_networks(case: str) -> None:
    page, make, spec, options = CASES[case]
    cfg = page.Config(**options)
    batches = batches_of(page, cfg, spec)
    learner, fresh = make(cfg, spec, seed=0), make(cfg, spec, seed=9)
    for step in range(SAVED_AFTER + (page is appo)):
        learner.update(batches[step % len(batches)])
    fresh.load_state_dict(learner.state_dict())
    assert learner.target.drift() > 0.0
    assert fresh.target.drift() == learner.target.drift()


@pytest.mark.parametrize("case", CASES)
def test_a_state_of_another_kind_is_refused(case: str) -> None:
    page, make, spec, options = CASES[case]
    learner = make(page.Config(**options), spec, seed=0)
    state = learner.state_dict()
    assert any("optimizer" in name for name in state)
    del state[next(name for name in state if "optimizer" in name)]
    with pytest.raises(ValueError, match="does not fit"):
        learner.load_state_dict(state)


# ---- A3C: half of its state is the gradient service's


def server_of(cfg: Any) -> GradientServer:
    return GradientServer(rate=cfg.learning_rate)


def initialised(cfg: Any, spec: Any) -> GradientServer:
    server = server_of(cfg)
    network = a3c.make_actor_critic(cfg, spec, 0)
    server.initialise(torch.cat([parameter.detach().flatten() for parameter in network.parameters()]).numpy())
    return server


@pytest.mark.parametrize("lstm", [0, 8])
def test_an_a3c_worker_and_its_service_go_on_bit_for_bit_also_the_second_time(lstm: int) -> None:
    """With a memory the policy acts on the network itself, without on a mirror of it: both must be the newest."""
    cfg = a3c.Config(hidden=(8,), lstm=lstm)
    batches = batches_of(a3c, cfg, DISCRETE)
    server = initialised(cfg, DISCRETE)
    worker = a3c.A3C(cfg, DISCRETE, 1, [server])
    observation, first = batches[0]["observation"][0].numpy(), np.ones(5, np.bool_)
    for _ in range(2):
        for batch in batches[:SAVED_AFTER]:
            assert worker.update(batch).applied
        follower = initialised(cfg, DISCRETE)
        follower.load_state_dict(server.state_dict())
        other = a3c.A3C(cfg, DISCRETE, 9, [follower])
        other.load_state_dict(travelled(worker.state_dict()))
        for batch in batches[SAVED_AFTER:]:
            acted = [each.policy.act(observation, each.policy.initial_state(5), first) for each in (worker, other)]
            check_same(*acted)
            worker.update(batch)
            other.update(batch)
        check_same(worker.network.state_dict(), other.network.state_dict())
        check_same(server.state_dict()["parameters"], follower.state_dict()["parameters"])
        check_same(server.state_dict()["optimizer"], follower.state_dict()["optimizer"])
        worker, server = other, follower
