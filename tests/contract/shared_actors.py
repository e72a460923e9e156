"""A page with two policies and actors that hold both: IMPALA, and beside it Ape-X DQN under the name "blue".

Each plays its half of every actor's environments, and has its own learner, weights, table and evaluator.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal

import numpy as np

from shoal import tree
from shoal.acting import PerEnvironment, Policy, Recorder, Sender
from shoal.algorithms import apex_dqn, impala
from shoal.config import config
from shoal.envs import Envs, EnvSpec
from shoal.envs.episodes import EpisodeLog
from shoal.loops.actor import RowLoop
from shoal.loops.loop import EXACT
from shoal.loops.wiring import ReplayHandles, Settings, Wiring, make_envs
from shoal.program import Program, current
from shoal.replay import Pattern, Replay, Table, n_step, rollout
from shoal.retry import retry
from shoal.services.metrics import Metrics
from shoal.services.weights import WeightStore
from shoal.state import Scope, State, has_state, load_state, state_of
from shoal.step import Step
from shoal.types import MAIN, Columns, Role
from shoal.versions import NONE

BLUE = "blue"
PRESETS: dict[str, dict[str, Any]] = {}
make_policy = impala.make_policy  # what `shoal eval` plays


@config(actors=2, envs_per_actor=4, hidden=(8,), unroll=4, batch=4, queue=8)
class Config(impala.Config):
    blue_rate: float = 1e-3
    """The other policy's learning rate."""

    def blue(self) -> apex_dqn.Config:
        """Nobody waits for its table: it is sampled as fast as its learner can."""
        return apex_dqn.Config(
            env=self.env,
            actors=self.actors,
            envs_per_actor=self.envs_per_actor // 2,
            hidden=self.hidden,
            learning_rate=self.blue_rate,
            rows=3,
            n=2,
            batch=8,
            learning_starts=16,
            capacity=2_000,
            target_every=10,
        )


Stage = Literal["playing", "full", "sending", "sent"]


class Seat:
    """A policy in an actor that others share: it plays, writes down and sends to a table of its own."""

    def __init__(
        self,
        name: str,
        make_policy: Callable[[int], Policy],
        patterns: Mapping[str, Pattern],
        rows: int,
        replays: Sequence[Replay],
        weights: WeightStore,
        seed: int,
        count: int,
    ) -> None:
        self.name, self.log = name, EpisodeLog(count)
        self.stage: Stage = "playing"
        self.policy, self._weights = make_policy(seed), weights
        self._send = Sender(self.policy, replays, patterns, current().name)
        self._recorder = Recorder(self.policy, count, rows, self._keep)
        self._block: Columns = {}
        self.load_newest()

    def place(self, index: int, total: int) -> None:
        player = self._recorder.player
        player.place(index * player.count, total * player.count)
        if isinstance(self.policy, PerEnvironment):
            self.policy.set_environments(player.environments, player.total)

    def act(self, observation: Any) -> Any:
        return self._recorder.act(observation)

    def result(self, step: Step) -> None:
        self.log.add(step.reward, step.terminated | step.truncated)
        self._recorder.result(step)

    def _keep(self, block: Columns) -> None:
        self.stage, self._block = "full", block

    def send(self) -> None:
        """What is full, or was held up when the run was interrupted."""
        if self.stage == "sending":
            self._send.flush()
        elif self.stage == "full":
            self.stage = "sending"
            self._send(self._block)
        else:
            return
        self.stage = "sent"

    def take_lost(self) -> dict[str, int]:
        return self._send.take_lost()

    def refresh(self) -> None:
        found = retry(lambda: self._weights.newer(self._recorder.version))
        if found is not None:
            self._recorder.load(*found)
        self.stage = "playing"

    def load_newest(self) -> None:
        found = retry(lambda: self._weights.wait(NONE))
        if found is not None:
            self._recorder.load(*found)

    def state_dict(self, scope: Scope) -> State:
        state = {"recorder": self._recorder.state_dict(), "log": self.log.state_dict()}
        if has_state(self.policy):
            state["policy"] = state_of(self.policy)
        if scope == "exact":
            block = self._block if self.stage == "full" else {}
            kept = {name: np.array(column) for name, column in block.items()}
            state[EXACT] = {"stage": self.stage, "block": kept, "sender": self._send.state_dict()}
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if "policy" in state:
            load_state(self.policy, state["policy"])
        self._recorder.load_state_dict(state["recorder"])
        self.log.load_state_dict(state["log"])
        if (exact := state.get(EXACT)) is not None:
            self.stage, self._block = exact["stage"], dict(exact["block"])
            self._send.load_state_dict(exact["sender"])
            return
        self._recorder.begin_stream()
        self.load_newest()


class SharedActor(RowLoop):
    """Steps environments of which each seat plays its share. One step is one row, and sending what it completed."""

    role = Role.ACTOR

    def __init__(
        self, make_envs: Callable[[int], Envs], seats: Sequence[Callable[[int, int], Seat]], metrics: Metrics
    ) -> None:
        seed = current().seed
        super().__init__(make_envs(seed), metrics)
        share = self._runner.envs.count // len(seats)
        self._parts = [slice(index * share, (index + 1) * share) for index in range(len(seats))]
        self._seats = [make(seed + 1 + index, share) for index, make in enumerate(seats)]
        self._placed: Any = None

    def step(self) -> bool:
        seats = self._seats
        if self._finishing or self._leaving:
            return self._end()
        if all(seat.stage == "playing" for seat in seats):
            self._play_row()
        for seat in seats:
            with self._still():
                seat.send()
            for name, lost in seat.take_lost().items():
                self._reporter.count(name, lost)
        self._reporter.lap("waiting to insert")
        if any(seat.stage == "sent" for seat in seats):
            more = self._end_of_block()
            for seat in seats:
                if seat.stage == "sent":
                    seat.refresh()
            self._reporter.lap("weights")
            if not more:
                return self._end()
        self._between_rows()
        return True

    def _play_row(self) -> None:
        runner = self._runner
        if self._placed is not self._members:
            self._placed = self._members
            for seat in self._seats:
                seat.place(self._members.place, self._members.total)
        parts = [tree.map(lambda x, part=part: x[part], runner.observation) for part in self._parts]
        step = runner.step(np.concatenate([seat.act(seen) for seat, seen in zip(self._seats, parts)]))
        for seat, part in zip(self._seats, self._parts):
            seat.result(Step(*(None if x is None else tree.map(lambda x, part=part: x[part], x) for x in step)))

    def _end_of_block(self) -> bool:
        self._runner.envs.episodes()  # each seat has its own
        for seat in self._seats:
            for episode in seat.log.finished():
                self._reporter.count("episodes")
                own = "" if seat.name == MAIN else f"{seat.name}/"
                self._reporter.average(f"{own}actor_return", episode.return_)
        return self._runner.end_of_block()

    def _row_state(self, scope: Scope) -> State:
        state: State = {seat.name: seat.state_dict(scope) for seat in self._seats}
        state["environments"] = self._runner.state_dict()
        return state | ({EXACT: {"reporter": self._reporter.state_dict()}} if scope == "exact" else {})

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        kept = self._runner.load_state_dict(state["environments"])
        for seat in self._seats if kept else []:
            exact = EXACT in state
            seat.load_state_dict({name: part for name, part in state[seat.name].items() if exact or name != EXACT})
        if kept and EXACT in state:
            self._reporter.load_state_dict(state[EXACT]["reporter"])


def program(cfg: Config, env: EnvSpec, settings: Settings) -> Program:
    main, other = Wiring(cfg, env, settings), cfg.blue()
    blue = Wiring(other, env, settings, policy=BLUE, beside=main)
    rollouts = main.add_replay(Table.queue("rollouts", cfg.queue))
    main.add_learners(impala.Impala, source=main.table_source(rollouts, cfg.batch))
    transitions = blue.add_experience("transitions", block=other.envs_per_actor * other.rows)
    blue.add_learners(apex_dqn.ApexDQN, source=blue.table_source(transitions, other.batch))
    items = n_step(other.n, other.gamma, following=("observation", "value"))

    def seat(wiring: Wiring[Any], make: Any, writes: ReplayHandles, pattern: Pattern, rows: int) -> Any:
        policy = partial(make, wiring.cfg, env)
        return partial(Seat, wiring.policy, policy, {writes.table: pattern}, rows, writes.shards, wiring.weights)

    seats = [
        seat(main, impala.make_policy, rollouts, rollout(cfg.unroll), cfg.unroll),
        seat(blue, apex_dqn.make_policy, transitions, items, other.rows),
    ]
    build = partial(make_envs, env, cfg.envs_per_actor, cfg.vectorizer)
    main.group("actors").add_alike("actor", cfg.actors, SharedActor, build, seats, main.metrics)
    main.add_evaluator(impala.make_policy)
    blue.add_evaluator(apex_dqn.make_policy)
    return main.program
