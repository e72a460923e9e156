"""Wiring that every algorithm's program shares: its actors, its learners and its evaluator."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, cast

import torch
from torch import nn

from shoal import envs
from shoal.acting import Policy
from shoal.config import validate
from shoal.envs import EnvSpec
from shoal.envs.tensors import TensorEnvs
from shoal.errors import UserError
from shoal.learning import Learner, MakeSource
from shoal.loops.actor import ActorLoop, RemoteActorLoop
from shoal.loops.datasets import DatasetSource
from shoal.loops.device import RingSource, RolloutSource
from shoal.loops.evaluator import AT_ONCE, Evaluator
from shoal.loops.filming import Filming, FilmPlan
from shoal.loops.learner import LearnerLoop
from shoal.loops.mixture import MixedSource
from shoal.loops.prefilling import Prefill
from shoal.loops.recorded import RecordedReplay, Recording, RecordPlan
from shoal.loops.sources import TableSource
from shoal.loops.tables import limiter, pattern_of, share_of
from shoal.loops.worker import Publisher, Worker, WorkerLoop
from shoal.nets.building import make_actor_critic
from shoal.optim import Peers
from shoal.options import (
    Acting,
    CentralInference,
    Data,
    DataShare,
    Experience,
    Learning,
    OffPolicy,
    Online,
    OnPolicy,
    Outside,
    Proximal,
    Unrolls,
    on_gpu,
)
from shoal.program import Group, Members, Program, Resources, current
from shoal.replay import (
    Block,
    Inserted,
    MinSize,
    Pattern,
    Prioritized,
    Quota,
    Replay,
    Sample,
    SamplesPerInsert,
    ShardedReplay,
    Table,
    Uniform,
    rollout,
)
from shoal.replay.messages import Layout
from shoal.replay.patterns import stacked
from shoal.replay.views import Transition
from shoal.services.gradients import GradientServer
from shoal.services.group import Group as Meeting
from shoal.services.group import Member
from shoal.services.inference import InferenceServer
from shoal.services.metrics import Metrics
from shoal.services.weights import WeightStore
from shoal.types import MAIN, Role

if TYPE_CHECKING:
    from shoal.loops.gateway import GatewayLoop

ACTING_SHARE = 0.25  # of a GPU that is left to those who act where a learner works on it
SMALLEST_SHARE = 1e-4  # of a GPU that can be asked for
MOST_ROLLOUTS = 1 << 16  # in a round, however many actors there will be; a slot without an item costs nothing
TRIM_EVERY = 100  # updates after which a table is cut down to its soft capacity (Horgan 2018)

C = TypeVar("C", bound=Acting)
Off = TypeVar("Off", bound=OffPolicy)
Logged = TypeVar("Logged", bound=Data)
Gathering = TypeVar("Gathering", bound=Online)
On = TypeVar("On", bound=OnPolicy)
G = TypeVar("G")
Taken = TypeVar("Taken", bound=Acting, contravariant=True)


class MakePolicy(Protocol[Taken]):
    """A page's factory of what acts."""

    def __call__(self, cfg: Taken, env: EnvSpec, /, seed: int, greedy: bool = False) -> Policy: ...


class MakeLearner(Protocol[Taken]):
    """A page's learner."""

    def __call__(self, cfg: Taken, env: EnvSpec, /, seed: int, peers: Peers = ...) -> Learner: ...


class MakeWorker(Protocol[Taken]):
    """A page's learner that acts with the weights which it trains."""

    def __call__(self, cfg: Taken, env: EnvSpec, /, seed: int, servers: Sequence[GradientServer]) -> Worker: ...


class MakeNetwork(Protocol[Taken]):
    def __call__(self, cfg: Taken, env: EnvSpec, /, seed: int) -> nn.Module: ...


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What a program needs to know of the experiment around it."""

    target: float | None = None  # the return at which the evaluator confirms that the task is solved
    max_updates: int | None = None
    max_steps: int | None = None  # of all environments together
    evaluate: bool = True
    eval_episodes: int = 10
    eval_every: float = 0.5  # seconds from one evaluation to the next
    frozen: str | None = None  # patterns of the parameters that are not trained
    films: FilmPlan | None = None  # of the greedy policy, while the run goes on
    recording: RecordPlan | None = None  # of what actors do, as a dataset


@dataclass(frozen=True)
class ReplayHandles:
    """A replay in a program: learners sample from the one in front, which may ask others; writers know them all."""

    table: str
    front: Replay
    shards: list[Replay]
    reading: Mapping[str, Any] = field(default_factory=dict)  # options of TableSource that go with the kind of table


class ReplayFrontend(ShardedReplay):
    """One service that speaks for several, so that batches of all of them can be asked for ahead of time."""

    role = Role.FRONT
    restart = True  # it holds nothing

    def close(self) -> None:
        """The services are nodes themselves, and closed as such."""


class Rounds(Replay):
    """A table whose rounds need `each` items of every writer in a group, however many these are at the moment. Of
    several readers each asks for its share of what the first round was."""

    role = Role.QUEUE

    def __init__(self, table: Table, *, each: int, writers: str, readers: int) -> None:
        super().__init__([replace(table, capacity=max(table.capacity, MOST_ROLLOUTS))])
        self._name, self._each, self._writers, self._readers = table.name, each, writers, readers
        self._first = table.capacity
        self._items = self._first
        self.regroup(current().members)

    def regroup(self, members: Members) -> None:
        self._items = min(self._each * members.totals.get(self._writers, self._first // self._each), MOST_ROLLOUTS)
        self.set_quota(self._name, self._items)

    def sample(
        self,
        table: str,
        batch: int,
        *,
        timeout: float | None = None,
        layout: Layout = "time",
        minimum: int | None = None,
    ) -> Sample:
        """A round as it is when it is complete, or with several readers a share of it."""
        most = MOST_ROLLOUTS if self._readers == 1 else max(1, batch * self._items // self._first)
        return super().sample(table, most, timeout=timeout, layout=layout, minimum=1)


class RecordedRounds(Rounds):
    """Rounds that keep what they are sent."""

    def __init__(self, table: Table, *, recording: RecordPlan, metrics: Metrics, **options: Any) -> None:
        super().__init__(table, **options)
        self._recording = Recording(recording, metrics)

    def insert(self, block: Block, timeout: float | None = None) -> Inserted:
        result = super().insert(block, timeout)
        if not result.repeated:
            self._recording.take(block)
        return result

    def close(self, table: str | None = None) -> None:
        super().close(table)
        if table is None:
            self._recording.close()


class Wiring(Generic[C]):
    """A program that is being put together for an algorithm: services, replay, learners, actors, evaluator.

    The factories of learners and policies are those of an algorithm's page: `learner(cfg, env, seed, peers)` and
    `policy(cfg, env, seed, greedy)`.
    """

    def __init__(
        self, cfg: C, env: EnvSpec, settings: Settings, *, policy: str = MAIN, beside: Wiring[Any] | None = None
    ) -> None:
        """With `beside`, a further policy in the program of another wiring: it has its own learners, weights and
        tables, whose names begin with the policy's, and shares the metrics."""
        validate(cfg)
        self.cfg, self.env, self.settings, self.policy = cfg, env, settings, policy
        if beside is None:
            self.program = Program()
            self.metrics = self.program.add("metrics", Metrics, max_steps=settings.max_steps)
        else:
            self.program, self.metrics = beside.program, beside.metrics
        self.gateway: GatewayLoop | None = None
        self.weights = self.group("weights").add(self.name("weights"), WeightStore)

    def name(self, stem: str) -> str:
        """What a node, or a group, of this policy is called."""
        return stem if self.policy == MAIN else f"{self.policy}/{stem}"

    def group(self, stem: str, role: Role | None = None) -> Group:
        """Where nodes of this policy are added."""
        return self.program.group(self.name(stem), role, self.policy)

    # ---- replay

    def add_replay(self, table: Table, shards: int = 1) -> ReplayHandles:
        """`replay`, and with several shards `replay/0`, `replay/1`, …, which share the table's capacity."""
        program, name = self.program, self.name("replay")
        replays = self.group("replay", Role.REPLAY if _keeps(table) else Role.QUEUE)
        plan = self.settings.recording
        kept: dict[str, Any] = {} if plan is None else {"recording": plan, "metrics": self.metrics}
        if kept and shards > 1:
            raise UserError(f"--record-data needs one replay service: leave out --shards {shards}.")
        if isinstance(table.limiter, Quota):
            each, learners = table.limiter.items // self.cfg.actors, _with(Learning, self.cfg).learners
            options: dict[str, Any] = {"each": each, "writers": self.name("actors"), "readers": learners}
            make_rounds: Callable[..., Rounds] = RecordedRounds if kept else Rounds
            rounds = replays.add(name, make_rounds, table, **options, **kept)
            program.place(name, restart=True)
            return ReplayHandles(table.name, rounds, [rounds])
        if shards == 1:
            make_replay: Callable[..., Replay] = RecordedReplay if kept else Replay
            replay = replays.add(name, make_replay, [table], **kept)
            program.place(name, restart=True)  # it comes back empty, and its writers begin again
            return ReplayHandles(table.name, replay, [replay])
        share = share_of(table, shards)
        parts = [replays.add(f"{name}/{index}", Replay, [share], seed=index) for index in range(shards)]
        program.place(f"{name}/*", restart=True)  # a lost one costs its own items
        front = self.group("front").add(name, ReplayFrontend, parts)
        return ReplayHandles(table.name, cast(Replay, front), parts)

    def add_experience(self, table: str, block: int) -> ReplayHandles:
        """The replay of an algorithm that samples its items again and again (`shoal.options.Experience`); actors bring
        about `block` items at once."""
        cfg = _with(Experience, self.cfg)
        prioritized = cfg.replay == "prioritized"
        description = Table(
            table,
            cfg.capacity,
            sampler=Prioritized(cfg.priority_exponent) if prioritized else Uniform(),
            limiter=limiter(cfg.samples_per_insert, cfg.learning_starts, cfg.batch, block),
            soft_capacity=True,
        )
        reading = {"beta": cfg.importance_exponent if prioritized else None, "trim_every": TRIM_EVERY}
        return replace(self.add_replay(description, cfg.shards), reading=reading)

    def table_source(
        self,
        reads: ReplayHandles,
        batch: int,  # items per update, of all learners together
        *,
        prefetch: int = 1,  # batches asked for ahead of the next one
        synchronous: bool = False,  # what was acted with older weights than the newest is thrown away
    ) -> MakeSource:
        """What learners read: batches of a table, of which each takes its share."""
        count = _with(Learning, self.cfg).learners
        _check_share(count, batch)
        return partial(
            TableSource,
            replay=reads.front,
            table=reads.table,
            batch=batch,
            observation_space=self.env.observation_space,
            prefetch=prefetch,
            synchronous=synchronous,
            **reads.reading,
        )

    def dataset_source(self, batch: int, pattern: Pattern) -> MakeSource:
        """What learners read: items of the dataset that the config names, of which each takes its share."""
        cfg, count = _with(Data, self.cfg), _with(Learning, self.cfg).learners
        _check_share(count, batch)
        if cfg.data is None:
            raise UserError("--data is missing: name the dataset to learn from.")
        return partial(
            DatasetSource,
            path=cfg.data,
            pattern=stacked(pattern, self.env.stacks),
            batch=batch,
            observation_space=self.env.observation_space,
            **_drawing(self.cfg),
        )

    def mixed_source(self, reads: ReplayHandles, batch: int, pattern: Pattern) -> MakeSource:
        """What learners read: batches of which the config's share is the dataset's, the rest a table's."""
        share = _with(DataShare, self.cfg).data_share
        logged = min(max(1, round(batch * share)), batch - 1) if share else 0
        if not logged:
            return self.table_source(reads, batch)
        table, data = self.table_source(reads, batch - logged), self.dataset_source(logged, pattern)
        return partial(MixedSource, table=table, data=data)

    def add_prefill(self, make_policy: MakePolicy[C], *, writes: ReplayHandles, pattern: Pattern) -> None:
        """`prefill`, where the config names a dataset to fill the replay with; with several shards one for each."""
        cfg = _with(Experience, self.cfg)
        if cfg.prefill is None:
            return
        patterns = {writes.table: stacked(pattern_of(cfg, pattern), self.env.stacks)}
        total, name = len(writes.shards), self.name("prefill")
        for part, shard in enumerate(writes.shards):
            given: dict[str, Any] = {"path": cfg.prefill, "part": part, "total": total}
            self.group("prefill").add(
                name if total == 1 else f"{name}/{part}",
                Prefill,
                partial(make_policy, self.cfg, self.env),
                patterns,
                shard,
                self.metrics,
                **given,
            )

    # ---- actors

    def add_actors(
        self,
        make_policy: MakePolicy[C],
        *,
        writes: ReplayHandles,
        pattern: Pattern,
        rows: int,  # steps between two messages to the replay
        synchronous: bool = False,  # after every block, wait for weights that are newer than those that acted
        ahead: bool = False,  # act on a further block meanwhile
    ) -> None:
        """Actors `actor/0`, `actor/1`, … each with its own environments, and its own policy or a central one."""
        cfg = self.cfg
        _refuse_on_device(self.env)
        policy = partial(make_policy, cfg, self.env)
        if self.env.outside:
            self._add_gateway(policy, writes, pattern, rows, cfg.actors * cfg.envs_per_actor if synchronous else 0)
            return
        build = partial(make_envs, self.env, cfg.envs_per_actor, cfg.vectorizer)
        patterns = {writes.table: stacked(pattern_of(cfg, pattern), self.env.stacks)}
        if isinstance(cfg, CentralInference) and cfg.inference == "central":
            self._add_remote_actors(cfg, build, policy, writes, patterns, rows)
            return
        self.group("actors").add_alike(
            self.name("actor"),
            cfg.actors,
            ActorLoop,
            build,
            policy,
            patterns,
            rows,
            writes.shards,
            self.weights,
            self.metrics,
            synchronous=synchronous,
            ahead=cfg.actors if ahead else 0,
        )
        self.place_acting(f"{self.name('actor')}/*", cfg.actors, cfg.actor_gpus)

    def _add_gateway(
        self, policy: Callable[..., Policy], writes: ReplayHandles, pattern: Pattern, rows: int, round_items: int
    ) -> None:
        """`gateway`, in the place of actors: clients bring the environments."""
        from shoal.loops.gateway import GatewayLoop, security  # needs packages of an extra

        cfg = _with(Outside, self.cfg)
        assert cfg.listen is not None  # by its constraint
        self.gateway = self.group("actors", Role.GATEWAY).add(
            self.name("gateway"),
            GatewayLoop,
            policy,
            {writes.table: stacked(pattern_of(cfg, pattern), self.env.stacks)},
            rows,
            writes.shards,
            self.weights,
            self.metrics,
            env=self.env,
            listen=cfg.listen,
            security=partial(security, cfg.token_file, cfg.tls_certificate, cfg.tls_key),
            max_wait=cfg.clients_wait,
            expiry=cfg.session_seconds,
            round_items=round_items,
            message_bytes=cfg.largest_message,
        )
        self.place_acting(self.name("gateway"), 1, cfg.actor_gpus)

    def _add_remote_actors(
        self,
        inference: CentralInference,
        build: Callable[[int], envs.Envs],
        policy: Callable[[int], Policy],
        writes: ReplayHandles,
        patterns: Mapping[str, Pattern],
        rows: int,
    ) -> None:
        cfg, actors = self.cfg, self.name("actors")
        count = min(inference.inference_servers, cfg.actors)
        servers = self.group("inference").add_alike(
            self.name("inference"),
            count,
            InferenceServer,
            policy,
            patterns,
            rows,
            writes.shards,
            self.weights,
            self.metrics,
            max_batch=partial(whole_requests, cfg.envs_per_actor, inference.inference_batch, actors),
            max_wait=inference.inference_wait,
            actors=actors,
            stacks=self.env.stacks,
        )
        self.group("actors").add_alike(
            self.name("actor"), cfg.actors, RemoteActorLoop, build, rows, servers, self.metrics
        )
        self.place_acting(f"{self.name('inference')}/*", count, inference.inference_gpus)

    # ---- acting on the learner's device

    def rollout_source(self, make_policy: MakePolicy[C], batch: int) -> MakeSource:
        """What learners read whose environments live where they are: rollouts of their own, `batch` of all learners at
        a time."""
        rows, learners = _with(Unrolls, self.cfg).unroll, _with(Learning, self.cfg).learners
        return partial(RolloutSource, **self.acting_on_device(make_policy), rows=rows, batch=max(1, batch // learners))

    def ring_source(self, make_policy: MakePolicy[C], pattern: Pattern) -> MakeSource:
        """The same for learners that sample what was acted again and again: a ring on their device."""
        cfg, learners, name = _with(Experience, self.cfg), _with(Learning, self.cfg).learners, self.env.name
        _check_share(learners, cfg.batch)
        if not isinstance(pattern.view, Transition) or cfg.pattern is not None:
            _refuse_on_device(self.env)
        if cfg.replay == "prioritized":
            raise UserError(
                f"--replay prioritized is not drawn on a device, where {name} lives: give --replay uniform."
            )
        assert isinstance(pattern.view, Transition)
        least = (pattern.view.n + 2) * cfg.envs_per_actor * learners
        if cfg.capacity < least:
            raise UserError(
                f"--capacity {cfg.capacity} is too small for returns over {pattern.view.n} steps in "
                f"{cfg.envs_per_actor} environments of each learner: give at least {least}."
            )
        return partial(
            RingSource,
            **self.acting_on_device(make_policy),
            capacity=cfg.capacity // learners,
            starts=-(-cfg.learning_starts // learners),
            batch=cfg.batch // learners,
            samples_per_insert=cfg.samples_per_insert,
            view=pattern.view,
        )

    def acting_on_device(self, make_policy: MakePolicy[C]) -> dict[str, Any]:
        """The environments and the policy of a `DeviceSource`."""
        cfg, env = self.cfg, self.env
        if env.stacks:
            raise UserError(f"--frame-stack {env.stack} is not made on a device: let {env.name} stack its own frames.")
        if isinstance(cfg, CentralInference) and cfg.inference == "central":
            raise UserError(f"{env.name} lives where the learner is, which acts itself: leave out --inference central.")
        there = replace(cfg, acting_device=_with(Learning, cfg).device)
        return {
            "make_envs": partial(make_tensor_envs, env, cfg.envs_per_actor),
            "make_policy": partial(make_policy, there, env),
        }

    # ---- learners

    def add_learners(
        self,
        make_learner: MakeLearner[C],
        *,
        source: MakeSource,
        publish_every: int = 1,
    ) -> None:
        """`learner`, and with several `learner/1`, `learner/2`, …: each has a source of its own."""
        learning = _with(Learning, self.cfg)
        count, learner = learning.learners, partial(make_learner, self.cfg, self.env)
        meeting = self.group("peers").add(self.name("group"), Meeting, count) if count > 1 else None
        learners, name = self.group("learners"), self.name("learner")
        for rank in range(count):
            learners.add(
                name if rank == 0 else f"{name}/{rank}",
                LearnerLoop,
                learner,
                source,
                self.weights,
                self.metrics,
                join=None if meeting is None else partial(Member, meeting, rank, count, learning.device),
                device=learning.device,
                publish_every=publish_every,
                max_updates=self.settings.max_updates,
                frozen=self.settings.frozen,
                follow_cores=learning.learner_threads == "auto",
            )
        threads = 1 if learning.learner_threads == "auto" else learning.learner_threads
        self.place_learning(f"{name}*", learning.device, threads)

    # ---- acting and learning in one node, around a gradient service

    def add_gradient_servers(self, shards: int, **options: Any) -> list[GradientServer]:
        """`gradients`, or with several shards `gradients/0`, …, among which the parameters are divided."""
        name, services = self.name("gradients"), self.group("gradients")
        names = [f"{name}/{index}" for index in range(shards)] if shards > 1 else [name]
        options |= {"max_steps": self.settings.max_updates, "snapshots": self.weights}
        options |= {"workers": self.name("actors")}
        return [services.add(name, GradientServer, **options) for name in names]

    def add_publisher(self, make_network: MakeNetwork[C], servers: list[GradientServer], *, publish_every: int) -> None:
        """`learner`: it starts the gradient service and publishes what it has."""
        self.group("learners").add(
            self.name("learner"),
            Publisher,
            partial(make_network, self.cfg, self.env),
            servers,
            self.weights,
            self.metrics,
            publish_every=publish_every,
            max_updates=self.settings.max_updates,
        )

    def add_workers(self, make_worker: MakeWorker[C], servers: list[GradientServer], *, rows: int) -> None:
        """`worker/0`, `worker/1`, …"""
        cfg = self.cfg
        _refuse_on_device(self.env)
        build = partial(make_envs, self.env, cfg.envs_per_actor, cfg.vectorizer)
        worker = partial(make_worker, cfg, self.env)
        self.group("actors").add_alike(
            self.name("worker"),
            cfg.actors,
            WorkerLoop,
            build,
            worker,
            rows,
            servers,
            self.metrics,
            observation_space=self.env.observation_space,
            device=cfg.acting_device,
            frozen=self.settings.frozen,
        )
        self.place_acting(f"{self.name('worker')}/*", cfg.actors, cfg.actor_gpus)

    # ---- the judge

    def add_evaluator(self, make_policy: MakePolicy[C]) -> None:
        """`evaluator`, with the greedy policy and environments of its own."""
        settings, cfg = self.settings, self.cfg
        if settings.evaluate and self.env.outside:
            self._add_judge()
            return
        if not settings.evaluate or not self.env.at_hand:
            return
        at_once = min(settings.eval_episodes, AT_ONCE)
        build = partial(make_envs, self.env.for_evaluation(), at_once, cfg.vectorizer)
        policy = partial(make_policy, cfg, self.env, greedy=True)
        films, drawn = settings.films, self.env.for_evaluation()
        filming = None if films is None else partial(Filming, films, drawn, policy)
        self.group("evaluators").add(
            self.name("evaluator"),
            Evaluator,
            build,
            policy,
            self.weights,
            self.metrics,
            episodes=settings.eval_episodes,
            every=settings.eval_every,
            target=settings.target,
            note=self.env.evaluation_note,
            filming=filming,
        )
        self.place_acting(self.name("evaluator"), cfg.actors, cfg.actor_gpus)

    def _add_judge(self) -> None:
        """`evaluator`: clients of the gateway play for it."""
        from shoal.loops.judging import ClientsEvaluator

        assert self.gateway is not None
        settings = self.settings
        self.group("evaluators").add(
            self.name("evaluator"),
            ClientsEvaluator,
            self.gateway,
            self.weights,
            self.metrics,
            episodes=settings.eval_episodes,
            every=settings.eval_every,
            target=settings.target,
        )

    # ---- machines

    def place_learning(self, pattern: str, device: str, threads: int) -> None:
        """What was asked for, else a GPU for each of these nodes, or most of one where others act on it, too."""
        share = 0.0
        if on_gpu(device):
            share = 1.0 - ACTING_SHARE if on_gpu(self.cfg.acting_device) else 1.0
            share = _with(Learning, self.cfg).learner_gpus or share
        self._place(pattern, device, share, threads)

    def place_acting(self, pattern: str, nodes: int, share: float | None = None) -> None:
        """The `share` that was asked for, else equal parts of one GPU, or of what a learner leaves of it, for these
        nodes and for the evaluator."""
        if on_gpu(self.cfg.acting_device) and share is None:
            learns = isinstance(self.cfg, Learning) and on_gpu(self.cfg.device)
            parts = (ACTING_SHARE if learns else 1.0) / (nodes + 1) // SMALLEST_SHARE
            share = max(1.0, parts) * SMALLEST_SHARE
        self._place(pattern, self.cfg.acting_device, share or 0.0)

    def _place(self, pattern: str, device: str, gpus: float, threads: int = 1) -> None:
        if device == "cpu" and threads == 1:
            return
        bound = self.cfg.gpu_memory
        memory = None if bound is None or not on_gpu(device) else int(bound * 2**30)
        resources = Resources(cpus=0.0, gpus=gpus, threads=threads, device=device, gpu_memory=memory)
        self.program.place(pattern, resources)


def experience_program(
    cfg: Off,
    env: EnvSpec,
    settings: Settings,
    *,
    learner: MakeLearner[Off],
    policy: MakePolicy[Off],
    pattern: Pattern,
    table: str = "transitions",
    period: int = 1,  # steps from one item of an environment to the next
) -> Program:
    """Actors fill a table, learners sample it, and logged data beside it where the config names some, and send back how
    surprising each item was. Where the environment lives on a device there are no actors: each learner has
    `cfg.envs_per_actor` environments and a ring of its own."""
    if not env.at_hand and not env.outside:
        raise UserError("--env is missing: name the environment in which actors act.")
    wiring = Wiring(cfg, env, settings)
    logged = isinstance(cfg, DataShare) and cfg.data is not None
    if env.on_device:
        if cfg.prefill is not None:
            raise UserError(f"--prefill goes with a replay service, and {env.name} lives on a device.")
        if logged:
            raise UserError(f"--data goes with environments that actors step, and {env.name} lives on a device.")
        source = wiring.ring_source(policy, pattern)
        wiring.add_learners(learner, source=source, publish_every=cfg.publish_every)
        wiring.add_evaluator(policy)
        return wiring.program
    replay = wiring.add_experience(table, block=-(-cfg.envs_per_actor * cfg.rows // period))
    source = wiring.mixed_source(replay, cfg.batch, pattern) if logged else wiring.table_source(replay, cfg.batch)
    wiring.add_learners(learner, source=source, publish_every=cfg.publish_every)
    wiring.add_prefill(policy, writes=replay, pattern=pattern)
    wiring.add_actors(policy, writes=replay, pattern=pattern, rows=cfg.rows)
    wiring.add_evaluator(policy)
    return wiring.program


def rollout_program(
    cfg: On,
    env: EnvSpec,
    settings: Settings,
    *,
    learner: MakeLearner[On],
    policy: MakePolicy[On],
    table: Table,
    batch: int,
    synchronous: bool = False,
    ahead: bool = False,
    publish_every: int = 1,
    prefetch: int = 1,
) -> Program:
    """Actors bring rollouts of `cfg.unroll` steps, learners take each once. Where the environment lives on a device
    there are no actors: each learner makes its own, in `cfg.envs_per_actor` environments.

    Of synchronous programs `ahead` has the actors make the next rollouts while the last are learned from."""
    if ahead and (env.on_device or env.outside):
        where = "lives on the learner's device" if env.on_device else "is stepped by clients"
        raise UserError(f"--act-ahead is for actors, and {env.name} {where}: leave it out.")
    if isinstance(cfg, Proximal):
        rollouts = max(1, batch // cfg.learners)  # of each learner
        recurrent = cfg.minibatches > rollouts and bool(make_actor_critic(cfg, env, seed=0).initial_state(1))
        cfg.check_minibatches(rollouts, 1 if recurrent else cfg.unroll)
    wiring = Wiring(cfg, env, settings)
    if env.on_device:
        wiring.add_learners(learner, source=wiring.rollout_source(policy, batch), publish_every=publish_every)
        wiring.add_evaluator(policy)
        return wiring.program
    rounds = synchronous
    if synchronous and (env.outside or ahead):  # so many rollouts are a round, whoever brings them, acted when they may
        table, synchronous = Table.queue(table.name, batch), False
    rollouts = wiring.add_replay(table)
    source = wiring.table_source(rollouts, batch, prefetch=prefetch, synchronous=synchronous)
    wiring.add_learners(learner, source=source, publish_every=publish_every)
    rows = cfg.unroll
    wiring.add_actors(policy, writes=rollouts, pattern=rollout(rows), rows=rows, synchronous=rounds, ahead=ahead)
    wiring.add_evaluator(policy)
    return wiring.program


def source_program(
    cfg: C,
    env: EnvSpec,
    settings: Settings,
    *,
    learner: MakeLearner[C],
    policy: MakePolicy[C],  # of the evaluator
    source: MakeSource,
    publish_every: int = 1,
) -> Program:
    """Learners that have a source of their own: no actors, no replay."""
    wiring = Wiring(cfg, env, settings)
    wiring.add_learners(learner, source=source, publish_every=publish_every)
    wiring.add_evaluator(policy)
    return wiring.program


def offline_program(
    cfg: Logged,
    env: EnvSpec,
    settings: Settings,
    *,
    learner: MakeLearner[Logged],
    policy: MakePolicy[Logged],  # of the evaluator
    pattern: Pattern,
) -> Program:
    """Learners that read a dataset: no actors, no replay."""
    wiring = Wiring(cfg, env, settings)
    source = wiring.dataset_source(cfg.batch, pattern)
    wiring.add_learners(learner, source=source, publish_every=cfg.publish_every)
    wiring.add_evaluator(policy)
    return wiring.program


def data_program(
    cfg: Gathering,
    env: EnvSpec,
    settings: Settings,
    *,
    learner: MakeLearner[Gathering],
    policy: MakePolicy[Gathering],
    pattern: Pattern,
) -> Program:
    """Learners read a dataset; where the config says `online`, actors fill a table beside it."""
    make = experience_program if cfg.online else offline_program
    return make(cfg, env, settings, learner=learner, policy=policy, pattern=pattern)


def _drawing(cfg: Acting) -> dict[str, Any]:
    """Options of DatasetSource that say how items are drawn."""
    if not isinstance(cfg, Experience) or cfg.replay == "uniform":
        return {}
    return {"exponent": cfg.priority_exponent, "beta": cfg.importance_exponent}


def _check_share(learners: int, batch: int) -> None:
    if batch < learners:
        raise UserError(
            f"--learners {learners} cannot share batches of {batch} items: give fewer learners or more items."
        )


def _refuse_on_device(env: EnvSpec) -> None:
    if env.on_device:
        raise UserError(
            f"{env.name} is a vector of tensors, which is stepped where the learner is, and this algorithm has actors "
            "elsewhere, or items that are not made there: choose another (ppo, appo, impala, sac, td3, …)."
        )


def _with(group: type[G], cfg: Acting) -> G:
    """The config as one of a group whose options are read."""
    if not isinstance(cfg, group):
        raise TypeError(f"{type(cfg).__module__}.{type(cfg).__qualname__} lacks the options of {group.__qualname__}")
    return cfg


def _keeps(table: Table) -> bool:
    """Whether items are sampled again and again; a queue's, or a round's, are learned from once."""
    return isinstance(table.limiter, MinSize | SamplesPerInsert)


def make_envs(env: EnvSpec, count: int, vectorizer: str, seed: int) -> envs.Envs:
    """With "auto", the environment's own vectorizer: what was chosen when it was described."""
    chosen = None if vectorizer == "auto" else cast(envs.Vectorizer, vectorizer)
    return envs.make(env, count, seed=seed, vectorizer=chosen, replaces=True)


def make_tensor_envs(env: EnvSpec, count: int, seed: int, device: torch.device) -> TensorEnvs:
    return envs.make_tensors(env, count, seed=seed, device=str(device))


def whole_requests(environments: int, limit: int, actors: str, server: Members) -> int:
    """The environments a server answers at once: those of as many of its actors as fit, so that it never waits for a
    request that is not in the batch anyway."""
    own = max(1, len(range(server.place, server.totals.get(actors, 1), server.total)))
    return environments * (min(own, limit // environments) if limit else own)
