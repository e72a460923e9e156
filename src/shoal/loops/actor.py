"""The actor: steps environments and sends what happened to the replay service, itself or by an inference server."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from shoal import tree
from shoal.acting import PerEnvironment, Policy, Recorder, Sender
from shoal.envs import EnvFault, Envs
from shoal.envs.state import NoState
from shoal.loops.loop import EXACT, Loop, LossReport
from shoal.program import Future, Members, NodeDied, current, futures
from shoal.replay import Pattern, Replay
from shoal.retry import retry
from shoal.services.inference import InferenceServer
from shoal.services.metrics import Metrics, Reporter
from shoal.services.weights import WeightStore
from shoal.state import Scope, State, has_state, load_state, state_of
from shoal.step import Step
from shoal.sync import process_ends, sign_of_life
from shoal.types import Columns, Role
from shoal.versions import NONE, updates_between

BETWEEN_ROWS = 2.0  # seconds in which an actor comes to the end of a row, unless others hold it up
HELD_UP = 0.1  # the same at the end of a run, when who has not ended by then waits for others that have
LAST_ROWS = 2  # the first block has one row more than an actor's step, and what a row gave is told with the next
LOOK = 1.0  # seconds between two looks at whether what was sent is still there


class EnvRunner:
    """Steps environments, with the counts that every actor reports."""

    def __init__(self, envs: Envs, metrics: Metrics) -> None:
        self.envs = envs
        self.report = Reporter(metrics)
        self._losses = LossReport(envs, self.report, "lost_environments")
        self.observation = envs.reset()
        self._limited = retry(metrics.step_limit) is not None
        if current().revived:
            self.report.count("lost_episodes", envs.count)  # those that its last life was in

    def step(self, action: Any) -> Step:
        self.report.lap("inference")
        step = self.envs.step(action)
        sign_of_life()
        self.observation = step.observation
        self.report.count("env_steps", int(np.count_nonzero(step.valid)))
        self.report.lap("environment")
        return step

    def state_dict(self) -> dict[str, Any]:
        """Where the environments stand, and what was observed last; or why they cannot say, and what is lost by it."""
        state: dict[str, Any] = {"open": self.envs.open_episodes(), "count": self.envs.count}
        try:
            observation = tree.flatten(self.observation, "observation")
            return state | {"envs": self.envs.state_dict(), "observation": observation}
        except NoState as reason:
            return state | {"why": str(reason)}

    def load_state_dict(self, state: Mapping[str, Any]) -> bool:
        """Whether the environments go on where they were; what is lost otherwise is counted and told."""
        why = state.get("why")
        if why is None:
            try:
                self.envs.load_state_dict(state["envs"])
                self.observation = tree.unflatten(state["observation"], "observation")
                return True
            except EnvFault as fault:
                why = str(fault)
                self.observation = self.envs.reset()
        self.report.count("lost_episodes", state["open"])
        self.report.note(f"the episodes that were open when the run was interrupted are lost: {why}")
        return False

    def end_of_block(self) -> bool:
        """Count the block; False when the run has all the steps that it was given."""
        report, more = self.report, True
        if self._limited:  # counted where all actors' steps meet, so that none goes on for longer than a block
            more = report.spend_steps()
        for episode in self.envs.episodes():
            report.count("episodes")
            report.average("actor_return", episode.return_)
            report.average("episode_length", episode.length)
        self._losses.tell()
        if report.due():
            report.flush()
        return more


class RowLoop(Loop):
    """A loop that steps environments: it can be asked for its state, which it has between two rows."""

    in_checkpoints = True
    restart = True  # it holds nothing that others need
    spread = True  # over the machines of a cluster

    def __init__(self, envs: Envs, metrics: Metrics) -> None:
        super().__init__()
        self._runner = EnvRunner(envs, metrics)
        self._reporter = self._runner.report
        self._leaving, self._open = False, 0  # open episodes that were counted as lost
        self._members = current().members
        self._asked = False
        self._given: State | None = None

    def regroup(self, members: Members) -> None:
        """Others act beside this node now; it takes its new place with its next step."""
        self._members = members

    def leave(self) -> None:
        """End after the present step, whose rows are not lost; open episodes are, and counted."""
        self._leaving = True

    def report(self) -> None:
        """As of any loop; one that leaves, or did not get to the end of its step, counts what is lost with it."""
        if self._leaving:
            before, self._open = self._open, self._runner.envs.open_episodes()
            self._reporter.count("lost_episodes", self._open - before)
        super().report()

    def state_dict(self, scope: Scope = "own") -> State | None:
        """Its state between two rows; None when others hold it up for too long. All nodes together are asked while they
        stand still."""
        if self._ended or scope == "exact":
            return self._row_state(scope)
        with self._at_work:
            patience = HELD_UP if self._finishing else BETWEEN_ROWS
            self._asked, self._given = True, None
            self._at_work.wait_for(lambda: self._given is not None, patience, "an actor's state")
            self._asked = False
            return self._given

    def _between_rows(self) -> None:
        """To be called where a row is complete."""
        if self._asked:
            with self._at_work:
                self._asked, self._given = False, self._row_state("own")
                self._at_work.notify_all()

    def close(self) -> None:
        self._runner.envs.close()

    def _record(self, recorder: Recorder) -> bool:
        """Act until a block is full; False when the run ends before."""
        runner, complete = self._runner, False
        while not complete:
            if self._finishing:
                return False
            complete = recorder.result(runner.step(recorder.act(runner.observation)))
            self._between_rows()
        return True

    def _recorded(self, recorder: Recorder) -> State:
        """What the environments, the policy and its recorder hold."""
        parts = {"recorder": recorder, "policy": recorder.policy, "environments": self._runner}
        return {name: state_of(part) for name, part in parts.items() if has_state(part)}

    def _row_state(self, scope: Scope) -> State:
        raise NotImplementedError


Stage = Literal["acting", "sending", "sent", "refreshing"]  # of an actor's step, between its waits


class ActorLoop(RowLoop):
    """Acts with its own copy of the policy. One step is one block of rows: act, write down, send, take new weights."""

    role = Role.ACTOR

    def __init__(
        self,
        make_envs: Callable[[int], Envs],
        make_policy: Callable[[int], Policy],
        patterns: Mapping[str, Pattern],  # the table each kind of item goes to
        rows: int,  # per block
        replays: Sequence[Replay],
        weights: WeightStore,
        metrics: Metrics,
        *,
        synchronous: bool = False,  # after every block, wait for weights that are newer than those that acted
        ahead: int = 0,  # act meanwhile, where learners take blocks of so many actors at once; 0: wait
    ) -> None:
        seed = current().seed
        super().__init__(make_envs(seed), metrics)
        policy, count = make_policy(seed + 1), self._runner.envs.count
        self._send = Sender(policy, replays, patterns, current().name, home=self._members.place)
        self._recorder = Recorder(policy, count, rows, self._ship, stacks=self._runner.envs.stacks)
        self._placed: Members | None = None
        self._take_place()
        self._weights = weights
        self._synchronous, self._ahead = synchronous, ahead
        self._acted: list[int] = []  # the versions that acted on the last blocks, of one that acts ahead
        self._fetching: Future | None = None
        self._stage: Stage = "acting"
        found = retry(lambda: weights.wait(NONE))
        if found is not None:
            self._recorder.load(*found)
        self._runner.report.lap("starting")

    def step(self) -> bool:
        if self._stage == "acting" and (self._leaving or not self._act_block()):
            return self._end()
        if self._stage == "sending":  # was held up when the run was interrupted
            with self._still():
                self._send.flush()
            self._sent()
        if self._stage == "sent":
            if not self._runner.end_of_block():
                return self._end()
            self._acted = [*self._acted, self._recorder.version][-1 - self._ahead :]
            self._stage = "refreshing"
        self._refresh()
        self._stage = "acting"
        return True

    def _take_place(self) -> None:
        """Its environments' place among those of all actors, where that is new."""
        if self._placed is not self._members:
            members, policy, player = self._members, self._recorder.policy, self._recorder.player
            player.place(members.place * player.count, members.total * player.count)
            if isinstance(policy, PerEnvironment):
                policy.set_environments(player.environments, player.total)
            self._placed = members

    def _act_block(self) -> bool:
        """Act until a block is full and sent; False when the run ends before."""
        self._take_place()
        return self._record(self._recorder)

    def _row_state(self, scope: Scope) -> State:
        """What the environments, the policy and its recorder hold; for all nodes together, what is on its way too."""
        state = self._recorded(self._recorder)
        if scope == "own":
            return state
        exact: State = {"stage": self._stage, "sender": self._send.state_dict()}
        exact |= {"reporter": self._reporter.state_dict()} | ({"acted": list(self._acted)} if self._ahead else {})
        return state | {EXACT: exact}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on in the middle of episodes, with the weights of the learner as it is now; or, with the rest, exactly
        where it was."""
        recorder = self._recorder
        if "policy" in state:
            load_state(recorder.policy, state["policy"])
        kept = self._runner.load_state_dict(state["environments"])
        if kept:
            recorder.load_state_dict(state["recorder"])
        if (exact := state.get(EXACT)) is not None and kept:
            self._stage = exact["stage"]
            self._acted = list(exact.get("acted", []))
            self._send.load_state_dict(exact["sender"])
            self._reporter.load_state_dict(exact["reporter"])
            return
        recorder.begin_stream()
        if (found := retry(lambda: self._weights.newer(NONE))) is not None:
            recorder.load(*found)

    def _ship(self, block: Columns) -> None:
        self._stage = "sending"
        with self._still():
            self._send(block)
        self._sent()

    def _sent(self) -> None:
        self._stage = "sent"
        for name, lost in self._send.take_lost().items():
            self._runner.report.count(name, lost)
        self._runner.report.lap("waiting to insert")

    def _refresh(self) -> None:
        """Take newer weights when they have arrived; ask for them without waiting, unless synchronous."""
        if self._synchronous:
            with self._still():
                found: Any = self._await_weights(self._newer_than())
            if found is not None and found[0] != self._recorder.version:
                self._recorder.load(*found)
            self._runner.report.lap("waiting for weights")
            return
        if self._fetching is None:
            self._fetching = futures(self._weights).newer(self._recorder.version)
        if self._fetching is not None and self._fetching.done():
            fetching, self._fetching = self._fetching, None
            try:
                found = fetching.result()
            except NodeDied:  # on its way back: it goes on with what it has
                found = None
            if found is not None:
                self._runner.report.values["acting_staleness"] = updates_between(self._recorder.version, found[0])
                self._recorder.load(*found)
        self._runner.report.lap("weights")

    def _newer_than(self) -> int:
        """The version than which the next must be newer: the one that acted, or with a block ahead the one before it.
        While there are fewer actors than at first, each acts on more blocks, so that learners get as many as they take.
        """
        if not self._ahead:
            return self._recorder.version
        most = 1 + -(-self._ahead // self._members.total)  # blocks of one version
        return self._acted[-most] if len(self._acted) >= most else NONE

    def _await_weights(self, than: int) -> Any:
        """Newer ones; or None where a replay has lost what these have brought, so that nothing newer will come of it:
        then the same weights act once more."""
        patience = LOOK if current().runtime.nodes_may_die else None
        while not self._finishing and not self._leaving and not process_ends():
            found: Any = retry(lambda: self._weights.wait(than, patience))
            if found is not None or patience is None or self._send.newest_is_lost():
                return found
        return None


class RemoteActorLoop(RowLoop):
    """Owns no network: sends observations to the inference server and does what it answers."""

    role = Role.ACTOR

    def __init__(
        self, make_envs: Callable[[int], Envs], rows: int, servers: Sequence[InferenceServer], metrics: Metrics
    ) -> None:
        super().__init__(make_envs(current().seed), metrics)
        self._inference = servers[self._members.place % len(servers)]
        self._rows = rows
        self._outcome: Step | None = None

    def step(self) -> bool:
        runner, node = self._runner, current()
        leaving = self._leaving  # then so many rows more, that those of the last block come to the server and are sent
        for _ in range(LAST_ROWS if leaving else self._rows):
            if self._finishing:
                return self._end()
            first = self._members.place * runner.envs.count
            action = self._inference.act(node.name, node.restarts, runner.observation, self._outcome, first)
            runner.report.lap("waiting for inference")
            self._outcome = runner.step(action)._replace(observation=None)  # which goes there with the next question
            self._between_rows()
        return True if runner.end_of_block() and not leaving else self._end()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The environments go on; what the inference server remembered of them begins anew."""
        self._runner.load_state_dict(state["environments"])

    def _row_state(self, scope: Scope) -> State:
        return {"environments": self._runner.state_dict()}
