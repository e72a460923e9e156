"""Where a learner's batches come from: its own network acts, in environments on its own device."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, SupportsFloat

import numpy as np
import torch

from shoal import tree
from shoal.acting import Player, Policy
from shoal.acting.network_policy import NetworkPolicy
from shoal.acting.policy import PerEnvironment
from shoal.acting.ring import Ring
from shoal.acting.rollouts import Rollouts, stand_at, stand_of
from shoal.batches import Batch
from shoal.envs.faults import EnvFault
from shoal.envs.state import NoState
from shoal.envs.tensors import TensorEnvs
from shoal.learning import Learning, Source, Taken, Update
from shoal.nets.weights import export_weights
from shoal.program import current
from shoal.replay.views import Transition
from shoal.state import Scope, State
from shoal.sync import sign_of_life

MakeTensorEnvs = Callable[[int, torch.device], TensorEnvs]  # of a seed and of the learner's device


class DeviceSource(Source):
    """Acts with the weights as they are now. Each learner of a group has environments of its own."""

    activity = "acting"

    def __init__(self, learning: Learning, *, make_envs: MakeTensorEnvs, make_policy: Callable[[int], Policy]) -> None:
        made = make_policy(learning.seed + 1)
        if not isinstance(made, NetworkPolicy):
            raise TypeError(f"who acts on a learner's device acts with its network, and {type(made).__name__} does not")
        self._policy = made.share(learning.learner.network)
        self._envs = make_envs(learning.seed, learning.device)
        count, rank = self._envs.count, learning.rank
        if isinstance(made, PerEnvironment):
            made.set_environments(np.arange(rank * count, (rank + 1) * count), learning.learners * count)
        self._notes: list[str] = []
        self._lost = self._envs.count if current().revived else 0  # episodes that its last life was in

    def wait(self) -> None:
        """There is always something to give."""

    def learned(self, taken: Taken, update: Update) -> None:
        """Nothing of it changes what is acted next but the weights."""

    def measure(self, taken: Taken) -> Mapping[str, SupportsFloat]:
        episodes, mean = self._envs.take_returns()
        return {"actor_return": mean} if episodes else {}

    def notes(self) -> list[str]:
        told, self._notes = self._notes, []
        return told + self._envs.take_notes()

    def state_dict(self, scope: Scope = "own") -> State:
        """The random numbers of acting go on, with "exact" the open episodes too; else episodes begin anew."""
        state = {name: part for name, part in self._policy.state_dict().items() if name != "weights"}
        if scope == "own":
            return state
        try:
            return state | {"stand": self.stand()}
        except NoState as reason:
            return state | {"stand": {"why": str(reason)}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        policy = {name: part for name, part in state.items() if name != "stand"}
        self._policy.load_state_dict({**policy, "weights": export_weights(self._policy.network)})
        stand = state.get("stand")
        if stand is None:
            return
        why = stand.get("why")
        if why is None:
            try:
                self.stand_at(_as_arrays(stand))
                return
            except EnvFault as fault:
                why = str(fault)
        self._lost += self._envs.count
        self._notes.append(f"the episodes that were open when the run was interrupted are lost: {why}")

    def stand(self) -> State:
        """Where it stands between two batches, as arrays; `NoState` where environments cannot say it."""
        raise NotImplementedError

    def stand_at(self, state: Mapping[str, Any]) -> None:
        raise NotImplementedError


class RolloutSource(DeviceSource):
    """Rollouts of the weights as they are, so that learning is on-policy; of many environments perhaps in several
    batches, one after another."""

    def __init__(
        self,
        learning: Learning,
        *,
        make_envs: MakeTensorEnvs,
        make_policy: Callable[[int], Policy],
        rows: int,  # transitions of each environment per rollout
        batch: int | None = None,  # rollouts per update of this learner, at most; None: those of all its environments
    ) -> None:
        super().__init__(learning, make_envs=make_envs, make_policy=make_policy)
        self._rollouts = Rollouts(self._envs, self._policy, rows, sign_of_life)
        count = self._envs.count
        self._parts = -(-count // batch) if batch else 1
        self._edges = [count * part // self._parts for part in range(self._parts + 1)]
        self._whole: Batch = {}  # of which parts are left to be learned from
        self._transitions: list[int] = []  # in each of these
        self._steps = 0

    def take(self) -> Taken:
        if not self._transitions:
            self._whole = self._rollouts.next()
            valid = self._whole["valid"][:-1].sum(0)
            counts = [valid[begin:end].sum() for begin, end in zip(self._edges, self._edges[1:])]
            self._transitions = torch.stack(counts).tolist()
            self._steps += sum(self._transitions)
        part = self._parts - len(self._transitions)
        return Taken(self._part(part), self._transitions.pop(0))

    def _part(self, part: int) -> Batch:
        if self._parts == 1:
            return self._whole
        columns = slice(self._edges[part], self._edges[part + 1])
        batch = {name: tree.map(lambda x: x[:, columns], x) for name, x in self._whole.items() if name != "state"}
        return batch | {"state": {name: x[columns] for name, x in self._whole["state"].items()}}

    def counts(self) -> Mapping[str, float]:
        return {"env_steps": self._steps} | ({"lost_episodes": self._lost} if self._lost else {})

    def stand(self) -> State:
        state: State = {"rollouts": self._rollouts.state_dict(), "steps": self._steps}
        if self._transitions:
            state |= {"transitions": list(self._transitions), "whole": tree.flatten(self._whole)}
        return state

    def stand_at(self, state: Mapping[str, Any]) -> None:
        self._rollouts.load_state_dict(state["rollouts"])
        self._steps = state["steps"]
        if "whole" in state:
            self._transitions = [int(count) for count in state["transitions"]]
            device = self._envs.device
            whole = {name: torch.from_numpy(array).to(device) for name, array in state["whole"].items()}
            self._whole = {"state": {}, **tree.unflatten(whole)}


class RingSource(DeviceSource):
    """A ring of the newest rows, from which items are drawn uniformly, again and again."""

    def __init__(
        self,
        learning: Learning,
        *,
        make_envs: MakeTensorEnvs,
        make_policy: Callable[[int], Policy],
        capacity: int,  # transitions, of this learner
        starts: int,  # that are there before the first batch
        batch: int,  # items per update of this learner
        samples_per_insert: float,  # 0: one step of all environments for every update
        view: Transition,
    ) -> None:
        super().__init__(learning, make_envs=make_envs, make_policy=make_policy)
        count, n = self._envs.count, view.n
        self._observation = self._envs.reset()
        self._player = Player(self._policy, count).on_device(self._envs.device)
        self._ring = Ring(
            capacity // count,
            count,
            n=n,
            discount=view.discount,
            reward_clip=view.reward_clip,
            seed=learning.seed + 2,
            device=self._envs.device,
        )
        self._starts, self._batch, self._ratio = starts, batch, samples_per_insert
        self._inserted = self._sampled = 0
        self._made = torch.zeros((), dtype=torch.int64, device=self._envs.device)  # transitions

    def take(self) -> Taken:
        network = self._policy.network
        training = network.training
        if not self._ratio and self._begun:
            self._act()
        while not self._begun or (self._ratio and self._sampled > self._ratio * (self._inserted - self._starts)):
            self._act()
        network.train(training)  # acting has left it in evaluation mode
        self._sampled += self._batch
        return Taken(self._ring.sample(self._batch, self._envs.observation_space), self._batch)

    @property
    def _begun(self) -> bool:
        return self._inserted >= self._starts and self._ring.ready

    def _act(self) -> None:
        """One step of all environments."""
        action = self._player.act(self._observation)
        step = self._envs.step(action)
        self._ring.add(self._observation, action, step)
        self._player.result(step)
        self._made = self._made + step.valid.sum()
        self._observation = step.observation
        self._inserted += self._envs.count
        sign_of_life()

    def measure(self, taken: Taken) -> Mapping[str, SupportsFloat]:
        return {**super().measure(taken), "replay_size": self._ring.size * self._ring.count}

    def counts(self) -> Mapping[str, float]:
        return {"env_steps": int(self._made)} | ({"lost_episodes": self._lost} if self._lost else {})

    def stand(self) -> State:
        here = {"player": self._player.state_dict(), "ring": self._ring.state_dict(), "made": int(self._made)}
        here |= {"inserted": self._inserted, "sampled": self._sampled}
        return stand_of(self._envs, self._observation) | here

    def stand_at(self, state: Mapping[str, Any]) -> None:
        self._observation = stand_at(self._envs, state, self._observation)
        self._player.load_state_dict(state["player"])
        self._ring.load_state_dict(state["ring"])
        self._made = torch.full_like(self._made, state["made"])
        self._inserted, self._sampled = state["inserted"], state["sampled"]


def _as_arrays(state: Any) -> Any:
    """What was read as tensors, as it was given."""
    if isinstance(state, torch.Tensor):
        return state.numpy()
    if isinstance(state, Mapping):
        return {name: _as_arrays(part) for name, part in state.items()}
    return state
