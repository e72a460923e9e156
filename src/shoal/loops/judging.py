"""Evaluation where environments are outside: clients that declare themselves evaluators play the newest weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Protocol

import numpy as np

from shoal.acting import Player, Policy, act_together
from shoal.loops.evaluator import Evaluator
from shoal.loops.filming import Interrupted
from shoal.loops.loop import Loop
from shoal.loops.sessions import Request, Row, Session
from shoal.retry import retry
from shoal.services.metrics import Metrics
from shoal.services.weights import WeightStore
from shoal.step import Step
from shoal.sync import Condition, sign_of_life
from shoal.types import Array, Columns
from shoal.versions import NONE

LOOK = 1.0  # seconds between two looks at whether somebody plays


class Judgement:
    """Weights that are being evaluated by clients."""

    def __init__(self, number: int, version: int, weights: Columns, quota: int) -> None:
        self.number, self.version, self.weights = number, version, weights
        self.loaded = False
        self.quota = quota  # episodes of each environment
        self.returns: list[float] = []


class Judges:
    """The evaluators among a gateway's clients: they are answered while there is something to judge, and wait
    meanwhile."""

    def __init__(
        self,
        sessions: Mapping[str, Session],
        make_greedy: Callable[[], Policy],
        stacks: Mapping[str, int],
        changed: Condition,  # of the node: somebody has played
        turn: Callable[[], None],  # have those looked at who wait
    ) -> None:
        self._sessions, self._make_greedy, self._stacks = sessions, make_greedy, stacks
        self._changed, self._turn = changed, turn
        self._policy: Policy | None = None
        self._judge: Judgement | None = None
        self._judgements = 0
        self.held: list[Request] = []  # while there is nothing for them to do

    # ---- for the one who judges, on threads of its calls

    def judge(self, version: int, weights: Columns, episodes: int) -> int | None:
        """Have these weights played; the number under which to ask for what came of it, or None where nobody plays."""
        with self._changed:
            environments = self.environments()
            if not environments:
                return None
            self._judgements += 1
            self._judge = Judgement(self._judgements, version, weights, -(-episodes // environments))
            for session in list(self._sessions.values()):
                session.judged[:], session.counts[:] = 0, False
            self._turn()
            return self._judgements

    def judged(self, number: int, episodes: int, seconds: float, closed: Callable[[], bool]) -> list[float] | None:
        """The returns, when all have played; an empty list where it takes longer; None when nobody plays any more."""
        with self._changed:
            judge = self._judge
            if judge is None or judge.number != number:
                return None
            self._changed.wait_for(lambda: self._complete(judge, episodes) or closed(), seconds, "evaluators")
            if self._complete(judge, episodes):
                self._judge = None
                return list(judge.returns)
            if not self.environments():
                self._judge = None
                return None
            return []

    def environments(self) -> int:
        """Of the clients that evaluate, at the moment."""
        return sum(one.reader.count for one in self._playing())

    def _playing(self) -> list[Session]:
        return [one for one in list(self._sessions.values()) if one.evaluates and one.peer is not None]

    def _complete(self, judge: Judgement, episodes: int) -> bool:
        """Every environment has played as often as the others, so that short episodes count no more than long ones."""
        playing = self._playing()
        if not all((one.judged >= judge.quota).all() for one in playing):
            return False
        if len(judge.returns) >= episodes:
            return True
        if playing:
            judge.quota += 1  # somebody has left: the others play on
            self._turn()
        return False

    # ---- for the thread that answers

    def forget(self, session: Session) -> None:
        self.held = [one for one in self.held if one.session is not session]

    def act(self, requests: list[Request], reply: Callable[[Request, Array, int], None]) -> list[Session]:
        """Act for evaluators with the greedy policy; who has nothing to do at the moment waits. Who was answered."""
        with self._changed:
            for request in requests:
                self._take_note(request)
            if requests:
                self._changed.notify_all()
            judge = self._judge
            waiting, self.held = self.held + requests, []
            playing: list[Request] = []
            for request in waiting:
                busy = judge is not None and bool((request.session.judged < judge.quota).any())
                (playing if busy else self.held).append(request)
            if judge is None or not playing:
                return []
            players = [self._player(request.session, judge) for request in playing]
        assert self._policy is not None
        seen = [request.row.observation for request in playing]
        actions = act_together(self._policy, players, seen)
        for request, action in zip(playing, actions):
            reply(request, action, judge.version)
        return [request.session for request in playing]

    def _player(self, session: Session, judge: Judgement) -> Player:
        """The session's, with the weights to judge; an episode that begins now will count."""
        if self._policy is None:
            self._policy = self._make_greedy()
        if not judge.loaded:
            self._policy.load(judge.weights)
            judge.loaded = True
        if session.player is None:
            session.player = Player(self._policy, session.reader.count, self._stacks)
        session.counts = np.where(session.player.first, session.judged < judge.quota, session.counts)
        return session.player

    def _take_note(self, request: Request) -> None:
        """What came of an evaluator's last actions."""
        session, row, judge = request.session, request.row, self._judge
        assert isinstance(row, Row)
        if session.player is None:
            return
        session.player.result(Step(None, row.reward, row.terminated, row.truncated, row.reset, row.final))
        session.returns += row.reward
        ended = row.terminated | row.truncated
        for index in np.flatnonzero(ended & session.counts):
            if judge is not None:
                judge.returns.append(float(session.returns[index]))
                session.judged[index] += 1
            session.counts[index] = False
        session.returns[ended | row.reset] = 0.0


class Plays(Protocol):
    """A gateway, as the one who judges sees it."""

    def judge(self, version: int, weights: Columns, episodes: int) -> int | None: ...
    def judged(self, number: int, episodes: int, seconds: float) -> list[float] | None: ...
    def evaluators(self) -> int: ...


class ClientsEvaluator(Evaluator):
    """The judge where environments are outside: clients that declare themselves evaluators play for it. While there are
    none nothing is evaluated, which is said."""

    spread = False
    most_of_time = 1.0  # what plays is not of this machine's

    def __init__(
        self,
        gateway: Plays,
        weights: WeightStore,
        metrics: Metrics,
        *,
        episodes: int = 10,
        every: float = 0.5,
        target: float | None = None,
    ) -> None:
        Loop.__init__(self)
        self._gateway = gateway
        self._weights, self._metrics = weights, metrics
        self._prepare_judging(metrics, episodes, every, target)
        self._newest: tuple[int, Columns] = (NONE, {})
        self._told = False
        self._filming = None

    def _load(self, version: int, weights: Columns) -> None:
        self._newest = (version, weights)

    def _ready(self) -> bool:
        if retry(lambda: self._gateway.evaluators()) > 0:
            return True
        if not self._told:
            self._told = True
            self._reporter.note(
                "no client evaluates: the policy is not judged until one says hello with the role 'evaluator'."
            )
        return False

    def close(self) -> None:
        pass

    def _play(self, episodes: int, give_up: Callable[[], bool]) -> list[float]:
        """By the clients; `Interrupted` where there are none left, or what plays was lost."""
        version, weights = self._newest
        while not give_up():
            asked: int | None = retry(partial(self._gateway.judge, version, weights, episodes))
            while asked is not None and not give_up():
                found = retry(partial(self._gateway.judged, asked, episodes, LOOK))
                sign_of_life()
                if found is None:
                    break
                if found:
                    self._reporter.lap("evaluating")
                    return list(found)
            with self._at_work:
                self._at_work.wait_for(lambda: self._finishing, LOOK, "clients that evaluate")
        raise Interrupted
