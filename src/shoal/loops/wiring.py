"""Wiring that every algorithm's program shares: its actors, its learners and its evaluator."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol, cast

from shoal import envs
from shoal.envs import EnvSpec
from shoal.errors import UserError
from shoal.factories import load_factory
from shoal.loops.actor import ActorLoop, RemoteActorLoop
from shoal.loops.evaluator import Evaluator
from shoal.loops.learner import GroupLearner, LearnerLoop
from shoal.loops.recorder import Policy
from shoal.program import Program
from shoal.replay import MinSize, Pattern, Replay, SamplesPerInsert, ShardedReplay, Table
from shoal.replay.patterns import Viewed
from shoal.replay.views import Transition
from shoal.services.group import Group
from shoal.services.inference import InferenceServer
from shoal.services.metrics import Metrics
from shoal.services.weights import WeightStore


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What a program needs to know of the experiment around it."""

    target: float | None = None  # the return at which the evaluator confirms that the task is solved
    max_updates: int | None = None
    evaluate: bool = True
    eval_episodes: int = 10
    eval_every: float = 0.5  # seconds from one evaluation to the next


class EvaluatorConfig(Protocol):
    """The fields of an algorithm's config that judging needs."""

    @property
    def vectorizer(self) -> str: ...


class ActorConfig(EvaluatorConfig, Protocol):
    """The fields of an algorithm's config that acting needs."""

    @property
    def actors(self) -> int: ...
    @property
    def envs_per_actor(self) -> int: ...
    @property
    def inference(self) -> str: ...
    @property
    def inference_servers(self) -> int: ...
    @property
    def inference_batch(self) -> int: ...
    @property
    def inference_wait(self) -> float: ...


def make_envs(spec: EnvSpec, count: int, vectorizer: str, seed: int) -> envs.Envs:
    return envs.make(spec.spec, count, seed=seed, vectorizer=cast(envs.Vectorizer, vectorizer))


def limiter(samples_per_insert: float, min_size: int, batch: int, block: int) -> MinSize | SamplesPerInsert:
    """Acting and learning at a ratio, or with 0 each at its own pace once there are `min_size` items.

    Neither side waits for less than a batch (of those asked for ahead) and a block of items, so that both work in turn
    and not in lockstep.
    """
    if not samples_per_insert:
        return MinSize(min_size)
    return SamplesPerInsert(samples_per_insert, min_size, error_buffer=2 * batch + samples_per_insert * block)


@dataclass(frozen=True)
class Shards:
    """A replay of several services: learners ask the one in front, which asks the others; writers know them all."""

    front: Replay
    parts: list[Replay]


class Front(ShardedReplay):
    """One service that speaks for several, so that batches of all of them can be asked for ahead of time."""

    restart = True  # it holds nothing

    def close(self) -> None:
        """The services are nodes themselves, and closed as such."""


def add_replay(program: Program, tables: Sequence[Table], shards: int, actors: int) -> Replay | Shards:
    """`replay`, and with several shards `replay/0`, `replay/1`, …, which share the tables' capacity."""
    if shards == 1:
        return program.add("replay", Replay, tables)
    if shards > actors:
        raise UserError(f"--shards {shards} cannot be filled by --actors {actors}: each actor writes to one shard.")
    own = [_share(table, shards) for table in tables]
    parts = [program.add(f"replay/{index}", Replay, own, seed=index) for index in range(shards)]
    program.place("replay/*", restart=True)  # a lost one costs its own items
    return Shards(cast(Replay, program.add("replay", Front, parts)), parts)


def _share(table: Table, shards: int) -> Table:
    waits = table.limiter
    if isinstance(waits, MinSize):
        waits = replace(waits, items=-(-waits.items // shards))
    elif isinstance(waits, SamplesPerInsert):
        waits = replace(waits, min_size=-(-waits.min_size // shards))
    return replace(table, capacity=-(-table.capacity // shards), limiter=waits)


def user_pattern(cfg: Any, usual: Pattern) -> Pattern:
    """The pattern that --pattern names, or the `usual` one, whose items the learner can read."""
    if cfg.pattern is None:
        return usual
    pattern: Pattern = load_factory(cfg.pattern, "pattern")(cfg)
    if pattern.view.timed != usual.view.timed:
        kinds = {True: "sequences", False: "transitions"}
        raise UserError(
            f"--pattern {cfg.pattern} makes {kinds[pattern.view.timed]}, and the learner reads "
            f"{kinds[usual.view.timed]}: give a pattern of those."
        )
    if usual.view.timed and pattern.rows < cfg.burn_in + 2:
        raise UserError(
            f"--pattern {cfg.pattern} makes items of {pattern.rows} rows, of which --burn-in {cfg.burn_in} leaves "
            "nothing to train: make longer ones or burn in less."
        )
    if isinstance(pattern.view, Transition) and isinstance(usual.view, Transition):
        following = tuple(dict.fromkeys((*pattern.view.following, *usual.view.following)))
        return Viewed(pattern, replace(pattern.view, following=following))
    return pattern


def add_actors(
    program: Program,
    cfg: ActorConfig,
    env: EnvSpec,
    policy: Callable[[int], Policy],
    patterns: Mapping[str, Pattern],
    rows: int,
    replay: Replay | Shards,
    weights: WeightStore,
    metrics: Metrics,
    *,
    synchronous: bool = False,
) -> None:
    """Actors `actor/0`, `actor/1`, … each with its own environments, and its own policy or a central one."""
    into = replay.parts if isinstance(replay, Shards) else replay
    build: Any = partial(make_envs, env, cfg.envs_per_actor, cfg.vectorizer)
    first_environments = {f"actor/{index}": index * cfg.envs_per_actor for index in range(cfg.actors)}
    if cfg.inference == "local":
        for name, first_environment in first_environments.items():
            program.add(
                name,
                ActorLoop,
                build,
                policy,
                patterns,
                rows,
                into,
                weights,
                metrics,
                synchronous=synchronous,
                first_environment=first_environment,
            )
        return
    count = min(cfg.inference_servers, cfg.actors)
    limit = cfg.inference_batch
    if 0 < limit < cfg.envs_per_actor:
        raise UserError(
            f"--inference-batch {limit} cannot hold one request of --envs-per-actor {cfg.envs_per_actor} environments: "
            f"give {cfg.envs_per_actor} or more, or 0 for all environments of a server's actors."
        )
    servers = [
        program.add(
            f"inference/{index}",
            InferenceServer,
            policy,
            patterns,
            rows,
            into,
            weights,
            metrics,
            max_batch=_whole_requests(cfg.envs_per_actor, len(range(index, cfg.actors, count)), limit),
            max_wait=cfg.inference_wait,
            first_environments=first_environments,
        )
        for index in range(count)
    ]
    for index, name in enumerate(first_environments):
        program.add(name, RemoteActorLoop, build, rows, servers[index % count], metrics)


def _whole_requests(environments: int, actors: int, limit: int) -> int:
    """The environments a server answers at once: those of as many of its actors as fit, so that it never waits for a
    request that is not in the batch anyway."""
    return environments * (min(actors, limit // environments) if limit else actors)


def add_learners(
    program: Program,
    count: int,
    make_learner: Callable[..., GroupLearner],  # of a seed, and of the `Member` where there are several
    table: str,
    batch: int,  # items per update, of all learners together
    replay: Replay | Shards,
    weights: WeightStore,
    metrics: Metrics,
    **options: Any,  # of LearnerLoop
) -> None:
    """`learner`, and with several `learner/1`, `learner/2`, …: each takes its share of every batch."""
    if isinstance(replay, Shards):
        replay = replay.front
    if count == 1:
        program.add("learner", LearnerLoop, make_learner, table, batch, replay, weights, metrics, **options)
        return
    if batch < count:
        raise UserError(f"--learners {count} cannot share batches of {batch} items: give fewer learners or more items.")
    group = program.add("group", Group, count)
    for rank in range(count):
        program.add(
            "learner" if rank == 0 else f"learner/{rank}",
            LearnerLoop,
            make_learner,
            table,
            batch * (rank + 1) // count - batch * rank // count,
            replay,
            weights,
            metrics,
            group=group,
            rank=rank,
            learners=count,
            **options,
        )
    program.place("learner*", restart=True)


def add_evaluator(
    program: Program,
    settings: Settings,
    cfg: EvaluatorConfig,
    env: EnvSpec,
    policy: Callable[[int], Policy],
    weights: WeightStore,
    metrics: Metrics,
) -> None:
    if not settings.evaluate:
        return
    build: Any = partial(make_envs, env, settings.eval_episodes, cfg.vectorizer)
    program.add(
        "evaluator",
        Evaluator,
        build,
        policy,
        weights,
        metrics,
        episodes=settings.eval_episodes,
        every=settings.eval_every,
        target=settings.target,
    )
