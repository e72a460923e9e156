"""Rollouts that are made where the learner is: environments of tensors, its own network, batches that never leave.

```python
learner = PPO(cfg, env, seed=0)
policy = make_policy(cfg, env, seed=1).share(learner.network)
rollouts = Rollouts(TensorEnvs(vector), policy, rows=cfg.unroll)
while True:
    learner.update(rollouts.next())
```
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
import torch

from shoal import tree
from shoal.acting.network_policy import NetworkPolicy
from shoal.acting.recorder import Recorder
from shoal.batches import Batch, episode_starts, nested, with_final_rows
from shoal.step import Step
from shoal.types import Columns, Values


class DeviceEnvs(Protocol):
    """A vector of environments whose steps are tensors: `shoal.envs.tensors.TensorEnvs`."""

    count: int
    observation_space: Any

    def reset(self) -> Any: ...
    def step(self, action: Any) -> Step: ...
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


class Rollouts:
    """Plays a policy and gives what it did as batches for the `update` of an on-policy page: rows [T+1, B, ...], the
    last of which only bootstraps.

    Whenever environments reset, a batch has the same form: after the row that ended an episode comes one that is no
    transition and holds its final observation. Where they reset within a step the batch is longer by the most ends of
    one environment (`with_final_rows`), which is the one number that is read back from the device.
    """

    def __init__(
        self,
        envs: DeviceEnvs,
        policy: NetworkPolicy[Any],
        rows: int,
        alive: Callable[[], object] = lambda: None,  # called after every row
    ) -> None:
        self._envs, self._policy, self._alive = envs, policy, alive
        self._recorder = Recorder(policy, envs.count, rows, self._take, overlap=0, store_finals=True)
        self._observation = envs.reset()
        self._recorder.player.on_device(tree.leaf(self._observation).device)
        self._batch: Batch = {}

    def next(self) -> Batch:
        """The next batch; its memory is used again by the one after it."""
        network, recorder = self._policy.network, self._recorder
        training = network.training
        complete = False
        while not complete:
            step = self._envs.step(recorder.act(self._observation))
            self._observation = step.observation
            complete = recorder.result(step)
            self._alive()
        network.train(training)  # acting has left it in evaluation mode
        return self._batch

    def state_dict(self) -> dict[str, Any]:
        """Where every environment stands between two batches, as arrays."""
        return stand_of(self._envs, self._observation) | {"player": self._recorder.player.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._observation = stand_at(self._envs, state, self._observation)
        self._recorder.player.load_state_dict(state["player"])

    def _take(self, block: Columns) -> None:
        columns: dict[str, Values] = dict(block)
        for name, following in tree.flatten(self._observation, "observation").items():
            columns[name][-1] = following
        columns["valid"][-1] = False  # of the last row only the observation is known
        state = {name: columns.pop(name)[0] for name in list(columns) if tree.is_under(name, "state")}
        if (ended := columns.pop("ended", None)) is not None:
            finals = [name for name in columns if tree.is_under(name, "final_observation")]
            final = {name.removeprefix("final_"): columns.pop(name)[:-1] for name in finals}
            columns = with_final_rows(columns, final, ended[:-1])
        columns["first"] = episode_starts(columns["valid"])
        self._batch = nested(columns | state, self._envs.observation_space)


def stand_of(envs: DeviceEnvs, observation: Any) -> dict[str, Any]:
    """Where environments stand, and what they showed last, as arrays."""
    shown = {name: part.cpu().numpy().copy() for name, part in tree.flatten(observation, "observation").items()}
    return {"environments": envs.state_dict(), "observation": shown}


def stand_at(envs: DeviceEnvs, state: Mapping[str, Any], like: Any) -> Any:
    """Bring environments there; what they have shown last, where `like` is."""
    envs.load_state_dict(state["environments"])
    device = tree.leaf(like).device
    shown = {name: torch.as_tensor(np.array(part)).to(device) for name, part in state["observation"].items()}
    return tree.nest(envs.observation_space, shown, "observation")
