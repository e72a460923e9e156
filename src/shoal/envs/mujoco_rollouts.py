"""MuJoCo's own threads as a vector of tensors: `mujoco.rollout` steps all environments at once, on the CPU.

A class says which model it is of, and what is seen and rewarded, in tensors (docs/gpu-simulators.md). States are
MuJoCo's whole physics, as numpy and torch see the same memory; a step copies actions in, and nothing out.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from shoal.envs.tensor_vector import Autoreset
from shoal.envs.torch_tasks.task import Numbers, TorchTask
from shoal.errors import UserError


class MujocoTask(TorchTask):
    """Environments of one model, each of which takes `frame_skip` of its steps with an action."""

    xml: str  # a file of the model
    frame_skip = 1

    def __init__(
        self,
        count: int = 1,
        seed: int = 0,
        device: str | torch.device = "cpu",
        autoreset: Autoreset = "next_step",
        max_episode_steps: int | None = None,
        threads: int = 1,
    ) -> None:
        import mujoco
        from mujoco import rollout

        if torch.device(device).type != "cpu":
            raise UserError(
                f"{type(self).__name__} is stepped by MuJoCo's threads: leave --device at cpu, not {device}."
            )
        super().__init__(count, seed, device, autoreset, max_episode_steps)
        self._model = mujoco.MjModel.from_xml_path(self.xml)
        self._data = [mujoco.MjData(self._model) for _ in range(max(1, threads))]
        self._rollout = rollout.Rollout(nthread=threads if threads > 1 else 0)
        whole = mujoco.mj_stateSize(self._model, mujoco.mjtState.mjSTATE_FULLPHYSICS)
        self._zeros = torch.zeros(count, whole, dtype=torch.float64)

    def start(self) -> tuple[Tensor, Tensor]:
        """Positions [B, nq] and velocities [B, nv] at an episode's beginning."""
        raise NotImplementedError

    def observe(self, position: Tensor, velocity: Tensor) -> Tensor:
        """What is seen of them, [B, ...]."""
        raise NotImplementedError

    def judge(self, position: Tensor, velocity: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """The reward [B] of an action that led there, and where the episode has terminated, bool [B]."""
        raise NotImplementedError

    def begin(self) -> Numbers:
        position, velocity = self.start()
        state = self._zeros.clone()
        state[:, 1 : 1 + self._model.nq] = position
        state[:, 1 + self._model.nq : 1 + self._model.nq + self._model.nv] = velocity
        return {"physics": state}

    def move(self, state: Numbers, action: Tensor) -> tuple[Numbers, Tensor, Tensor]:
        control = action.double().unsqueeze(1).expand(-1, self.frame_skip, -1).contiguous().numpy()
        states, _ = self._rollout.rollout(self._model, self._data, state["physics"].numpy(), control)
        after = torch.from_numpy(states[:, -1])
        return {"physics": after}, *self.judge(*self._parts(after), action)

    def see(self, state: Numbers) -> Tensor:
        return self.observe(*self._parts(state["physics"])).float()

    def close(self) -> None:
        super().close()
        self._rollout.close()

    def _parts(self, physics: Tensor) -> tuple[Any, Any]:
        """Position and velocity: the first number is the time."""
        nq, nv = self._model.nq, self._model.nv
        return physics[:, 1 : 1 + nq], physics[:, 1 + nq : 1 + nq + nv]
