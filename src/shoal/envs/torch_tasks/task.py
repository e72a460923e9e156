"""What environments of tensors share: episodes that end and begin again, on a device that is never waited for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

import gymnasium
import numpy as np
import torch
from gymnasium import Space
from gymnasium.vector import AutoresetMode
from torch import Tensor

from shoal.envs.tensor_vector import FINAL, Autoreset
from shoal.errors import UserError

Numbers = dict[str, Tensor]  # where every environment stands, each part [B, ...]


class TorchTask:
    """A vector of `count` environments, of which a class says how they begin, move and are seen.

    New episodes are drawn for all environments with every step, and taken where one begins: to draw only so many would
    be to ask the device how many they are. Where numbers are computed in more than float32 (by torch's default), they
    are still seen in float32.
    """

    single_observation_space: Space[Any]
    single_action_space: Space[Any]
    usual_limit: int | None = None  # steps after which an episode is truncated
    drawn_as: str | None = None  # an id of Gymnasium's that looks the same

    def __init__(
        self,
        count: int = 1,
        seed: int = 0,
        device: str | torch.device = "cpu",
        autoreset: Autoreset = "next_step",
        max_episode_steps: int | None = None,
    ) -> None:
        if autoreset not in get_args(Autoreset):
            raise UserError(f"autoreset {autoreset!r} is unknown; choose from {', '.join(get_args(Autoreset))}.")
        if max_episode_steps is not None and (isinstance(max_episode_steps, bool) or max_episode_steps < 1):
            raise UserError(f"max_episode_steps {max_episode_steps!r} is no such value; give a whole number from 1 up.")
        self.num_envs, self.device = count, torch.device(device)
        self._same = autoreset == "same_step"
        self.metadata = {"autoreset_mode": AutoresetMode.SAME_STEP if self._same else AutoresetMode.NEXT_STEP}
        self._limit = self.usual_limit if max_episode_steps is None else max_episode_steps
        self._random = torch.Generator(self.device).manual_seed(seed)
        self._state: Numbers = {}
        self._drawn: gymnasium.Env[Any, Any] | None = None

    def begin(self) -> Numbers:
        """New episodes, one for each environment."""
        raise NotImplementedError

    def move(self, state: Numbers, action: Tensor) -> tuple[Numbers, Tensor, Tensor]:
        """Where actions [B, ...] lead, the reward [B], and where the episode has terminated, bool [B]."""
        raise NotImplementedError

    def see(self, state: Numbers) -> Tensor:
        """The observations [B, ...]."""
        raise NotImplementedError

    def reset(self, seed: int | None = None) -> tuple[Tensor, dict[str, Any]]:
        """New episodes everywhere; with a seed, those that always follow it."""
        if seed is not None:
            self._random.manual_seed(seed)
        self._state = self.begin()
        self._age = torch.zeros(self.num_envs, dtype=torch.int32, device=self.device)
        self._ended = torch.zeros(self.num_envs, dtype=torch.bool, device=self.device)
        return self.see(self._state), {}

    def step(self, actions: Tensor, /) -> tuple[Tensor, Tensor, Tensor, Tensor, dict[str, Any]]:
        after, reward, terminated = self.move(self._state, actions)
        age = self._age + 1
        truncated = torch.zeros_like(terminated) if self._limit is None else age >= self._limit
        ended = terminated | truncated  # an episode may end both ways, as in Gymnasium
        resets = ended if self._same else self._ended
        self._state = {name: _where(resets, first, after[name]) for name, first in self.begin().items()}
        self._age = age.masked_fill_(resets, 0)
        if self._same:
            return self.see(self._state), reward, terminated, truncated, {FINAL[0]: self.see(after)}
        goes_on = ~resets
        self._ended = ended & goes_on
        reward = reward * goes_on
        return self.see(self._state), reward, terminated & goes_on, truncated & goes_on, {}

    def show(self, state: Numbers, picture_of: Any) -> None:
        """Put an environment of `drawn_as` where a state of one environment is, its parts [1, ...]."""
        raise NotImplementedError

    def render(self) -> list[Any]:
        """What the first environment looks like, bytes [height, width, 3]."""
        if self.drawn_as is None:
            return [np.repeat(self.see(self._state)[0].cpu().numpy()[..., None], 3, -1)]
        if self._drawn is None:
            self._drawn = gymnasium.make(self.drawn_as, render_mode="rgb_array")
            self._drawn.reset()
        self.show({name: part[:1].cpu() for name, part in self._state.items()}, self._drawn.unwrapped)
        return [self._drawn.unwrapped.render()]

    def uniform(self, low: float, high: float, *shape: int) -> Tensor:
        """Random numbers [B, *shape]."""
        drawn = torch.rand((self.num_envs, *shape), generator=self._random, device=self.device)
        return drawn.mul_(high - low).add_(low)

    def state_dict(self) -> dict[str, Any]:
        """Where every environment stands, and the random numbers to come, as arrays."""
        if not self._state:
            return {"random": self._random.get_state().numpy()}
        parts = {name: part.cpu().numpy() for name, part in self._state.items()}
        flags = {"age": self._age.cpu().numpy(), "ended": self._ended.cpu().numpy()}
        return {"random": self._random.get_state().numpy(), "parts": parts, **flags}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._random.set_state(torch.as_tensor(np.array(state["random"])))
        if "parts" not in state:
            return
        self._state = {name: self._own(part) for name, part in state["parts"].items()}
        self._age, self._ended = self._own(state["age"]), self._own(state["ended"])

    def close(self) -> None:
        if self._drawn is not None:
            self._drawn.close()
            self._drawn = None

    def _own(self, array: Any) -> Tensor:
        return torch.as_tensor(np.array(array)).to(self.device)


def _where(mask: Tensor, one: Tensor, other: Tensor) -> Tensor:
    return torch.where(mask.view(-1, *[1] * (one.dim() - 1)), one, other)
