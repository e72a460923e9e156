"""Every option of every algorithm arrives where it belongs: programs and learners are compared with their config."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import numpy as np
import pytest
import torch
from batches import CONTINUOUS, DISCRETE
from gymnasium import spaces
from torch import nn
from transitions import Spec

from logged_data import OFFLINE
from shoal import envs, optim
from shoal.algorithms import a3c, apex_dpg, apex_dqn, appo, d4pg, impala, ppo, r2d2, sac, td3
from shoal.envs import EnvSpec
from shoal.errors import UserError
from shoal.learning import Learning
from shoal.loops.evaluator import AT_ONCE
from shoal.loops.sources import TableSource
from shoal.loops.wiring import TRIM_EVERY, Settings, whole_requests
from shoal.program import Handle, Members, Node, Resources
from shoal.replay import MinSize, Prioritized, SamplesPerInsert, Table, Uniform, n_step, rollout, sequence
from shoal.runs import registry
from shoal.runtime.ray import placement
from shoal.services.group import Member

SETTINGS = Settings(target=123.0, max_updates=77, frozen="torso.*", eval_episodes=6, eval_every=2.5)
ACTING: dict[str, Any] = {"actors": 3, "envs_per_actor": 5, "vectorizer": "sync"}
EXPERIENCE: dict[str, Any] = ACTING | {"rows": 7, "capacity": 4321, "learning_starts": 66, "samples_per_insert": 2.5}
EXPERIENCE |= {"priority_exponent": 0.35, "importance_exponent": 0.65, "replay": "prioritized", "n": 4, "batch": 48}
EXPERIENCE |= {"publish_every": 6, "gamma": 0.93, "learner_threads": 2}
EXPERIENCED = {apex_dqn: apex_dqn.ApexDQN, apex_dpg: apex_dpg.ApexDPG, d4pg: d4pg.D4PG, sac: sac.SAC, td3: td3.TD3}
ROLLED = {impala: impala.Impala, appo: appo.APPO, ppo: ppo.PPO}
CONTINUOUS_PAGES = (apex_dpg, d4pg, sac, td3)
LEARNERS: dict[Any, Any] = {**EXPERIENCED, **ROLLED, r2d2: r2d2.R2D2}


def name_of(page: Any) -> str:
    return str(page.__name__).rpartition(".")[2]


def pages(chosen: Any) -> Any:
    return pytest.mark.parametrize("page", list(chosen), ids=name_of)


def nodes_of(page: Any, cfg: Any) -> tuple[dict[str, Node], EnvSpec]:
    env = envs.describe(cfg.env)
    return page.program(cfg, env, SETTINGS).nodes, env


def made_of(factory: Any) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """What a partial calls, with what."""
    return factory.func, factory.args, factory.keywords


def test_every_algorithm_is_here() -> None:
    others = {"a3c", *OFFLINE}  # of which test_offline_pages has those of data
    assert {name_of(page) for page in LEARNERS} | others == set(registry.names())


# ---- nodes that all programs have


@pages([*LEARNERS, a3c])
def test_the_evaluator_has_the_greedy_policy_the_settings_and_environments_of_its_own(page: Any) -> None:
    cfg = page.Config(actors=3, vectorizer="sync")
    nodes, env = nodes_of(page, cfg)
    node = nodes["evaluator"]
    build, policy, weights, metrics = node.args
    assert build.args == (env.for_evaluation(), 6, "sync")
    assert made_of(policy) == (page.make_policy, (cfg, env), {"greedy": True})
    assert (weights, metrics) == (Handle("weights"), Handle("metrics"))
    assert node.kwargs == {"episodes": 6, "every": 2.5, "target": 123.0, "note": env.evaluation_note, "filming": None}
    without = page.program(cfg, env, dataclasses.replace(SETTINGS, evaluate=False)).nodes
    assert without.keys() == nodes.keys() - {"evaluator"}


def check_actors(
    page: Any, cfg: Any, pattern: Any, table: str, rows: int, synchronous: bool = False, ahead: int = 0
) -> None:
    nodes, env = nodes_of(page, cfg)
    for index in range(3):
        build, policy, patterns, sent, replays, weights, metrics = nodes[f"actor/{index}"].args
        assert build.args == (env, 5, "sync")
        assert made_of(policy) == (page.make_policy, (cfg, env), {})
        assert patterns == {table: pattern}
        assert sent == rows
        assert (replays, weights, metrics) == ([Handle("replay")], Handle("weights"), Handle("metrics"))
        kwargs = nodes[f"actor/{index}"].kwargs
        assert kwargs == {"synchronous": synchronous, "ahead": ahead}
    assert "actor/3" not in nodes


def check_learners(page: Any, cfg: Any, table: str, batch: int, **expected: Any) -> None:
    """Each learner reads the batches of all, of which it takes its share."""
    publish_every = expected.pop("publish_every", 1)
    for count in (1, 3):
        nodes, env = nodes_of(page, dataclasses.replace(cfg, learners=count))
        for rank in range(count):
            node = nodes["learner" if rank == 0 else f"learner/{rank}"]
            make, source, weights, metrics = node.args
            assert make.func is LEARNERS[page]
            assert make.args == (dataclasses.replace(cfg, learners=count), env)
            reading = {"replay": Handle("replay"), "table": table, "batch": batch, "prefetch": 1, "synchronous": False}
            reading |= {"observation_space": env.observation_space}
            assert made_of(source) == (TableSource, (), reading | expected)
            assert (weights, metrics) == (Handle("weights"), Handle("metrics"))
            kwargs = dict(node.kwargs)
            join = kwargs.pop("join")
            assert (join and made_of(join)) == (
                (Member, (Handle("group"), rank, count, "cpu"), {}) if count > 1 else None
            )
            own = {"device": "cpu", "max_updates": 77, "publish_every": publish_every, "frozen": "torso.*"}
            own["follow_cores"] = cfg.learner_threads == "auto"
            assert kwargs == own
            assert node.resources.threads == cfg.learner_threads


# ---- replay


@pages([*EXPERIENCED, r2d2])
@pytest.mark.parametrize("kind", ["prioritized", "uniform"])
@pytest.mark.parametrize("ratio", [2.5, 0.0])
def test_the_table_of_experience(page: Any, kind: str, ratio: float) -> None:
    cfg = page.Config(**EXPERIENCE | {"replay": kind, "samples_per_insert": ratio})
    nodes, _ = nodes_of(page, cfg)
    block = -(-35 // cfg.period) if page is r2d2 else 35  # items of 5 environments in 7 rows
    limiter = SamplesPerInsert(2.5, 66, error_buffer=2 * 48 + 2.5 * block) if ratio else MinSize(66)
    sampler = Prioritized(0.35) if kind == "prioritized" else Uniform()
    table = Table("sequences" if page is r2d2 else "transitions", 4321, sampler, limiter=limiter, soft_capacity=True)
    assert nodes["replay"].args == ([table],)


@pages([*EXPERIENCED, r2d2])
@pytest.mark.parametrize("kind", ["prioritized", "uniform"])
def test_learners_from_experience(page: Any, kind: str) -> None:
    cfg = page.Config(**EXPERIENCE | {"replay": kind})
    beta = 0.65 if kind == "prioritized" else None
    table = "sequences" if page is r2d2 else "transitions"
    check_learners(page, cfg, table, 48, beta=beta, trim_every=TRIM_EVERY, publish_every=6)
    assert TRIM_EVERY == 100


@pages(EXPERIENCED)
def test_actors_of_transitions(page: Any) -> None:
    cfg = page.Config(**EXPERIENCE, reward_clip=0.9)
    pattern = n_step(4, 0.93, following=("observation", "value"), reward_clip=0.9)
    check_actors(page, cfg, pattern, "transitions", rows=7)


def test_actors_of_sequences() -> None:
    cfg = r2d2.Config(**EXPERIENCE, length=9, period=4, burn_in=3)
    check_actors(r2d2, cfg, sequence(9, period=4, burn_in=3, end="shift"), "sequences", rows=7)


@pages([*EXPERIENCED, r2d2])
def test_shards_share_capacity_and_learning_starts(page: Any) -> None:
    nodes, _ = nodes_of(page, page.Config(**EXPERIENCE | {"shards": 2}))
    for index in range(2):
        ((table,),) = nodes[f"replay/{index}"].args
        assert (table.capacity, table.limiter.min_size, table.limiter.ratio) == (2161, 33, 2.5)
        assert nodes[f"replay/{index}"].kwargs == {"seed": index}
    assert nodes["replay"].args == ([Handle("replay/0"), Handle("replay/1")],)
    assert nodes["actor/0"].args[4] == [Handle("replay/0"), Handle("replay/1")]


@pages([*EXPERIENCED, r2d2, impala, appo])
def test_central_inference(page: Any) -> None:
    own = EXPERIENCE if page not in ROLLED else ACTING | {"unroll": 7}
    central = {"inference": "central", "inference_servers": 2, "inference_batch": 11, "inference_wait": 0.5}
    cfg = page.Config(**own, **central)
    nodes, env = nodes_of(page, cfg)
    members = page.program(cfg, env, SETTINGS).members()
    for index, most in ((0, 10), (1, 5)):  # servers of two actors and of one
        node = nodes[f"inference/{index}"]
        assert made_of(node.args[0]) == (page.make_policy, (cfg, env), {})
        assert node.args[2] == 7
        assert node.kwargs["max_batch"](members[node.name]) == most
        assert node.kwargs["max_wait"] == 0.5
    assert nodes["actor/2"].args[2] == [Handle("inference/0"), Handle("inference/1")]


# ---- rollouts


@pages([impala, appo])
def test_rollouts_go_through_a_queue(page: Any) -> None:
    cfg = page.Config(**ACTING, unroll=9, queue=33, batch=12, publish_every=6, learner_threads=2)
    nodes, _ = nodes_of(page, cfg)
    assert nodes["replay"].args == ([Table.queue("rollouts", 33)],)
    check_actors(page, cfg, rollout(9), "rollouts", rows=9)
    ahead = {"prefetch": 0} if page is appo else {}
    check_learners(page, cfg, "rollouts", 12, synchronous=False, publish_every=6, **ahead)


def test_ppo_is_synchronous() -> None:
    cfg = ppo.Config(**ACTING, unroll=9, learner_threads=2)
    nodes, _ = nodes_of(ppo, cfg)
    assert nodes["replay"].args == (Table.quota("rollouts", 15),)
    assert nodes["replay"].kwargs["each"] == 5
    check_actors(ppo, cfg, rollout(9), "rollouts", rows=9, synchronous=True)
    check_learners(ppo, cfg, "rollouts", 15, synchronous=True, prefetch=0)


def test_ppo_that_acts_ahead_takes_so_many_rollouts_whoever_brings_them() -> None:
    cfg = ppo.Config(**ACTING, unroll=9, learner_threads=2, act_ahead=True)
    nodes, _ = nodes_of(ppo, cfg)
    assert nodes["replay"].args == ([Table.queue("rollouts", 15)],)
    check_actors(ppo, cfg, rollout(9), "rollouts", rows=9, synchronous=True, ahead=3)
    check_learners(ppo, cfg, "rollouts", 15, synchronous=False, prefetch=1)


def test_what_no_actor_steps_cannot_be_acted_on_ahead() -> None:
    cfg = ppo.Config(env="torch/CartPole-v1", act_ahead=True)
    with pytest.raises(
        UserError, match="--act-ahead is for actors, and torch/CartPole-v1 lives on the learner's device"
    ):
        nodes_of(ppo, cfg)


@pages([ppo, appo])
def test_more_minibatches_than_there_is_to_learn_from_are_refused(page: Any) -> None:
    options = ACTING | {"unroll": 9} | ({"batch": 15, "queue": 15} if page is appo else {})
    for lstm, learners, most, parts in ((0, 1, 135, "rows"), (8, 1, 15, "rollouts"), (0, 2, 63, "rows")):
        cfg = page.Config(**options, lstm=lstm, learners=learners, minibatches=most)
        nodes_of(page, cfg)
        with pytest.raises(UserError, match=f"--minibatches {most + 1} leaves some .* {most} {parts} for each learner"):
            nodes_of(page, dataclasses.replace(cfg, minibatches=most + 1))


class OwnRecurrent(nn.Module):
    """A user's network with a memory, of which the option --lstm knows nothing."""

    def __init__(self, observation_space: Any, action_space: Any) -> None:
        super().__init__()
        self.heads = nn.Linear(observation_space.shape[0], action_space.n + 1)

    def initial_state(self, count: int) -> dict[str, torch.Tensor]:
        return {"memory": torch.zeros(count, 1)}

    def forward(self, observation: torch.Tensor, state: dict[str, torch.Tensor]) -> tuple[Any, ...]:
        outputs = self.heads(observation)
        return outputs[:, 1:], outputs[:, 0] + state["memory"][:, 0], {"memory": state["memory"] + 1.0}


@pages([ppo, appo])
def test_minibatches_of_ones_own_recurrent_network_are_rollouts(page: Any) -> None:
    options = ACTING | {"unroll": 9} | ({"batch": 15, "queue": 15} if page is appo else {})
    nodes_of(page, page.Config(**options, network=OwnRecurrent, minibatches=15))
    with pytest.raises(UserError, match=r"--minibatches 16 leaves some .* 15 rollouts for each learner"):
        nodes_of(page, page.Config(**options, network=OwnRecurrent, minibatches=16))


# ---- A3C


@pytest.mark.parametrize("synchronous", [False, True])
def test_a3cs_service_publisher_and_workers(synchronous: bool) -> None:
    service = {"learning_rate": 0.02, "anneal_updates": 10, "decay": 0.8, "epsilon": 0.3, "max_staleness": 13}
    reduce = 1 if synchronous else 2
    cfg = a3c.Config(**ACTING, **service, unroll=9, publish_every=6, reduce=reduce, synchronous=synchronous)
    nodes, env = nodes_of(a3c, cfg)
    options = dict(nodes["gradients"].kwargs)
    rate = options.pop("rate")
    assert [rate(steps) for steps in (0, 5, 10, 11)] == pytest.approx([0.02, 0.01, 0.0, 0.0])
    expected = {"decay": 0.8, "epsilon": 0.3, "reduce": reduce, "max_staleness": 13, "max_steps": 77}
    expected |= {"snapshots": Handle("weights"), "workers": "actors", "for_workers": 0}
    assert options == expected | {"synchronous": 3 if synchronous else 0}
    publisher = nodes["learner"]
    assert made_of(publisher.args[0]) == (a3c.make_actor_critic, (cfg, env), {})
    assert publisher.args[1] == [Handle("gradients")]
    assert publisher.kwargs == {"publish_every": 6, "max_updates": 77}
    for index in range(3):
        build, worker, rows, servers, _ = nodes[f"worker/{index}"].args
        assert build.args == (env, 5, "sync")
        assert made_of(worker) == (a3c.A3C, (cfg, env), {})
        assert (rows, servers) == (9, [Handle("gradients")])


def test_a3cs_gradients_may_be_eight_steps_of_each_worker_old() -> None:
    nodes, _ = nodes_of(a3c, a3c.Config(actors=3, shards=2))
    assert [nodes[f"gradients/{index}"].kwargs["max_staleness"] for index in range(2)] == [24, 24]
    assert nodes["worker/0"].args[3] == [Handle("gradients/0"), Handle("gradients/1")]


# ---- optimizers and targets


CHOICES = Spec(spaces.Box(-1.0, 1.0, (3,), np.float32), spaces.Discrete(3))
STEPS: dict[str, Any] = {"epsilon": 0.03, "grad_clip": 7.0}
Made = list[dict[str, Any]]


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Made:
    """The options of all optimizers that were made."""
    found: Made = []
    usual: Callable[..., Any] = optim.make

    def watched(parameters: Any, peers: Any = optim.ALONE, **options: Any) -> Any:
        listed = list(parameters)
        rate = options["rate"]
        found.append(options | {"rate": rate(0) if callable(rate) else rate, "sizes": [p.numel() for p in listed]})
        return usual(listed, peers, **options)

    monkeypatch.setattr(optim, "make", watched)
    return found


def sizes(module: Any) -> list[int]:
    return [parameter.numel() for parameter in module.parameters()]


@pages([impala, appo, ppo, apex_dqn, r2d2])
def test_the_optimizer_of_one_network(page: Any, made: Made) -> None:
    learner = LEARNERS[page](page.Config(**STEPS, learning_rate=0.004), CHOICES, seed=0)
    (options,) = made
    assert options["sizes"] == sizes(learner.network)
    assert (options["rate"], options["epsilon"], options["clip_norm"]) == (0.004, 0.03, 7.0)


@pages([impala, apex_dqn])
def test_the_kind_of_optimizer(page: Any, made: Made) -> None:
    for kind in ("adam", "rmsprop"):
        LEARNERS[page](page.Config(optimizer=kind), CHOICES, seed=0)
        assert made[-1]["kind"] == kind
        assert made[-1]["epsilon_inside"] is True
        if page is apex_dqn:
            assert made[-1]["centred"] is True
            assert made[-1]["decay"] == (0.95 if kind == "rmsprop" else None)


@pages([apex_dpg, d4pg, sac, td3])
def test_the_optimizers_of_actor_and_critics(page: Any, made: Made) -> None:
    rates = {"actor_rate": 0.002, "critic_rate": 0.005} | ({"temperature_rate": 0.009} if page is sac else {})
    learner = LEARNERS[page](page.Config(**STEPS, **rates), CONTINUOUS, seed=0)
    by_rate = {options["rate"]: options["sizes"] for options in made}
    expected = {0.002: sizes(learner.network.actor), 0.005: sizes(learner.network.critic)}
    assert by_rate == expected | ({0.009: [1]} if page is sac else {})
    assert all((options["epsilon"], options["clip_norm"]) == (0.03, 7.0) for options in made)


def test_learning_rates_fall_with_updates_in_impala_and_with_steps_in_ppo_and_appo() -> None:
    seen: list[Any] = []
    learner = impala.Impala(impala.Config(learning_rate=0.4, anneal_updates=8), CHOICES, seed=0)
    seen = [learner.optimizer._rate(updates) for updates in (0, 4, 8)]
    assert seen == pytest.approx([0.4, 0.2, 0.0])
    options: dict[str, Any] = {"learning_rate": 0.4, "anneal_steps": 100}
    for schedule in (
        ppo.PPO(ppo.Config(**options), CHOICES, seed=0).rate,
        appo.APPO(appo.Config(**options), CHOICES, seed=0).rate,
    ):
        schedule.steps = 25
        assert schedule() == pytest.approx(0.3)


@pages([apex_dqn, r2d2, apex_dpg, d4pg, sac, td3, appo])
def test_targets_follow_every_so_many_updates_by_so_much(page: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[Any, ...]] = []

    class Watched(page.Target):  # type: ignore[misc, name-defined]
        def __init__(self, network: Any, every: int, rate: float = 1.0) -> None:
            seen.append((network, every, rate))
            super().__init__(network, every, rate)

    monkeypatch.setattr(page, "Target", Watched)
    control = page in (apex_dpg, d4pg, sac, td3)
    cfg = page.Config(target_every=17, **({"target_rate": 0.4} if control else {}))
    learner = LEARNERS[page](cfg, CONTINUOUS if control else CHOICES, seed=0)
    followed = learner.network.critic if page is sac else learner.network
    assert seen == [(followed, 17, 0.4 if control else 1.0)]


# ---- exploration


@pages([apex_dqn, r2d2])
def test_the_ladder_of_epsilons(page: Any) -> None:
    cfg = page.Config(actors=2, envs_per_actor=3, ladder_base=0.5, ladder_exponent=4.0)
    expected = [0.5 ** (1 + 4 * i / 5) for i in range(6)]
    policy = page.make_policy(cfg, CHOICES, 1)
    policy.set_environments(np.arange(6), 6)
    np.testing.assert_allclose(policy.exploration, expected, rtol=1e-5)
    assert page.make_policy(cfg, CHOICES, 1, greedy=True).exploration is None


@pages([apex_dpg, d4pg, td3])
def test_the_ladder_of_noise(page: Any) -> None:
    options: dict[str, Any] = {"actors": 2, "envs_per_actor": 3, "noise": 0.8}
    policy = page.make_policy(page.Config(**options, noise_smallest=0.1), CONTINUOUS, 1)
    policy.set_environments(np.arange(6), 6)
    ladder = policy.exploration
    np.testing.assert_allclose(ladder, [0.8 * (1 / 8) ** (i / 5) for i in range(6)], rtol=1e-5)
    if page is not apex_dpg:
        same = page.make_policy(page.Config(**options, noise_smallest=0.0), CONTINUOUS, 1)
        same.set_environments(np.arange(6), 6)
        np.testing.assert_allclose(same.exploration, [0.8] * 6, rtol=1e-6)
    assert page.make_policy(page.Config(**options), CONTINUOUS, 1, greedy=True).exploration is None


@pages(LEARNERS)
def test_policies_act_on_the_device_they_are_told(page: Any) -> None:
    spec = CONTINUOUS if page in (apex_dpg, d4pg, sac, td3) else DISCRETE
    policy = page.make_policy(page.Config(acting_device="meta"), spec, 1)
    assert policy.device.type == "meta"
    assert page.make_policy(page.Config(), spec, 1).device.type == "cpu"


@pytest.mark.parametrize(("learners", "shares"), [(1, [48]), (3, [16, 16, 16]), (5, [9, 10, 9, 10, 10])])
def test_learners_share_a_batch_without_losing_an_item(learners: int, shares: list[int]) -> None:
    nodes, _ = nodes_of(apex_dqn, apex_dqn.Config(**EXPERIENCE, learners=learners))
    found: list[int] = []

    class Asked:
        def sample(self, table: str, batch: int, timeout: float | None) -> Any:
            found.append(batch)
            raise KeyError

    for rank in range(learners):
        source = nodes["learner" if rank == 0 else f"learner/{rank}"].args[1]
        learning = Learning(cast(Any, None), torch.device("cpu"), rank=rank, learners=learners)
        with pytest.raises(KeyError):
            partial(source.func, **source.keywords | {"replay": Asked(), "prefetch": 0})(learning).wait()
    assert found == shares
    assert sum(found) == EXPERIENCE["batch"]


def test_more_evaluation_episodes_than_environments_are_played_in_rounds() -> None:
    cfg = impala.Config()
    for episodes, environments in ((5, 5), (1000, AT_ONCE)):
        settings = dataclasses.replace(SETTINGS, eval_episodes=episodes)
        evaluator = impala.program(cfg, envs.describe(cfg.env), settings).nodes["evaluator"]
        assert made_of(evaluator.args[0])[1][1] == environments
        assert evaluator.kwargs["episodes"] == episodes


def test_the_user_is_told_how_it_is_judged() -> None:
    cfg = impala.Config()
    env = dataclasses.replace(envs.describe(cfg.env), evaluation_cap=7)
    note = impala.program(cfg, env, SETTINGS).nodes["evaluator"].kwargs["note"]
    assert note == "--eval-limit 7: evaluation ends its episodes after 7 steps and counts their return so far."


@pytest.mark.parametrize(
    ("actors", "limit", "expected"), [(3, 0, 12), (3, 100, 12), (3, 8, 8), (3, 9, 8), (3, 4, 4), (1, 8, 4)]
)
def test_a_server_answers_whole_requests_of_four(actors: int, limit: int, expected: int) -> None:
    assert whole_requests(4, limit, "actors", Members(0, 1, {"actors": actors})) == expected


@pytest.mark.parametrize(
    ("device", "acting", "gpus"),
    [
        ("cuda", "cuda", [0.75, 0.05]),
        ("cuda:1", "cuda:1", [0.75, 0.05]),
        ("cuda", "cpu", [1.0, 0.0]),
        ("cpu", "cuda", [0.0, 0.2]),
        ("cpu", "cpu", [0.0, 0.0]),
    ],
)
def test_a_learner_has_a_gpu_or_shares_it_with_those_who_act(device: str, acting: str, gpus: list[float]) -> None:
    cfg = impala.Config(actors=4, device=device, acting_device=acting)
    nodes, _ = nodes_of(impala, cfg)
    found = [nodes[name].resources.gpus for name in ("learner", "actor/3", "evaluator")]
    np.testing.assert_allclose(found, [*gpus, gpus[1]])


OFFERED = {"CPU": 4.0, "GPU": 1.0, "memory": 1e9}
WITH_ONE_GPU = placement.Machine("one", "one", "10.0.0.1", OFFERED, OFFERED)


@pytest.mark.parametrize("inference", ["local", "central"])
@pytest.mark.parametrize("actors", [1, 3, 7, 100])
def test_one_gpu_is_enough_for_a_run_that_acts_and_learns_on_it(actors: int, inference: Any) -> None:
    cfg = impala.Config(actors=actors, device="cuda", acting_device="cuda", inference=inference)
    program = impala.program(cfg, envs.describe(cfg.env), SETTINGS)
    placement.check(program.nodes.values(), [WITH_ONE_GPU], placement.Wishes())


@pages([*LEARNERS, a3c])
@pytest.mark.parametrize("learning", ["cpu", "cuda"])
def test_four_actors_on_a_gpu_ask_for_one_and_not_for_more(page: Any, learning: str) -> None:
    where = {"device": learning} if hasattr(page.Config(), "device") else {}
    cfg = page.Config(env="Pendulum-v1" if page in CONTINUOUS_PAGES else "CartPole-v1", actors=4, **where)
    cfg = dataclasses.replace(cfg, acting_device="cuda")
    program = page.program(cfg, envs.describe(cfg.env), SETTINGS)
    placement.check(program.nodes.values(), [WITH_ONE_GPU], placement.Wishes())


def test_what_is_asked_of_gpus_reaches_the_nodes() -> None:
    cfg = impala.Config(actors=2, device="cuda", acting_device="cuda", inference="central", learner_gpus=0.5)
    cfg = dataclasses.replace(cfg, inference_gpus=0.3, actor_gpus=0.1, gpu_memory=2.5)
    nodes, _ = nodes_of(impala, cfg)
    asked = {name: node.resources for name, node in nodes.items() if node.resources.device != "cpu"}
    assert {name: one.gpus for name, one in asked.items()} == {"learner": 0.5, "inference/0": 0.3, "evaluator": 0.1}
    assert {one.gpu_memory for one in asked.values()} == {int(2.5 * 2**30)}
    assert {one.device for one in asked.values()} == {"cuda"}
    nodes, _ = nodes_of(a3c, a3c.Config(actors=2, acting_device="cuda", actor_gpus=0.2))
    assert nodes["worker/1"].resources == Resources(cpus=0.0, gpus=0.2, device="cuda")


def test_as_many_shards_as_actors_can_be_filled() -> None:
    nodes_of(apex_dqn, apex_dqn.Config(**EXPERIENCE | {"shards": 3}))
    with pytest.raises(UserError, match="--shards 4 cannot be filled by --actors 3"):
        nodes_of(apex_dqn, apex_dqn.Config(**EXPERIENCE | {"shards": 4}))


def test_a3cs_workers_leave_alone_what_is_frozen() -> None:
    nodes, env = nodes_of(a3c, a3c.Config())
    assert nodes["worker/0"].kwargs == {
        "observation_space": env.observation_space,
        "device": "cpu",
        "frozen": "torso.*",
    }
