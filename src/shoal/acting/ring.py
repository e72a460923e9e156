"""A replay of tensors where the learner is: a ring of the newest rows of every environment, n-step items of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from shoal import tree
from shoal.batches import Batch, nested
from shoal.functional.n_step import n_step_returns
from shoal.step import Step

TRIES = 8  # draws of an item, of which the first that is a transition is taken


class Ring:
    """The newest `rows` rows of `count` environments, each [rows, B, ...], and transitions of up to `n` steps drawn
    uniformly from them.

    A drawn row may be no transition (a reset), and the device is not asked: of `TRIES` draws the first that is one is
    taken. If none is, which happens to one item in 256 where every second row is a reset and practically never
    elsewhere, the item says that its observation is worth what it is worth. Final observations are the next row's where
    environments reset in a step of their own; else what each row led to is stored beside it.
    """

    def __init__(
        self,
        rows: int,
        count: int,
        *,
        n: int,
        discount: float,
        reward_clip: float = 0.0,
        seed: int,
        device: torch.device,
    ) -> None:
        self.rows, self.count = rows, count
        self.size = 0  # rows that are there
        self._n, self._discount, self._reward_clip, self._device = n, discount, reward_clip, device
        self._next = 0  # the row that is written next
        self._columns: dict[str, Tensor] = {}
        self._random = torch.Generator(device).manual_seed(seed)

    def add(self, observation: Any, action: Tensor, step: Step) -> None:
        """What an action gave in every environment."""
        row: dict[str, Tensor] = {**tree.flatten(observation, "observation"), "action": action}
        row |= {"reward": step.reward, "terminated": step.terminated, "valid": step.valid}
        if step.final_observation is not None:
            ended = step.terminated | step.truncated
            row["ended"] = ended
            final = tree.flatten(step.final_observation, "following")
            for name, led_to in tree.flatten(step.observation, "following").items():
                row[name] = torch.where(ended.view(-1, *[1] * (led_to.dim() - 1)), final[name], led_to)
        if not self._columns:
            for name, part in row.items():
                self._columns[name] = torch.zeros((self.rows, *part.shape), dtype=part.dtype, device=self._device)
        for name, part in row.items():
            self._columns[name][self._next] = part
        self._next = (self._next + 1) % self.rows
        self.size = min(self.size + 1, self.rows)

    @property
    def ready(self) -> bool:
        """Whether there are rows enough for an item."""
        return self.size > self._n

    def sample(self, items: int, observation_space: Any) -> Batch:
        """Columns [items, ...] of n-step transitions: observation, action, reward, discount, next_observation."""
        columns, device = self._columns, self._device
        oldest = self._next if self.size == self.rows else 0
        shape = (TRIES, items)
        start = torch.randint(self.size - self._n, shape, generator=self._random, device=device)
        start = (start + oldest) % self.rows
        environment = torch.randint(self.count, shape, generator=self._random, device=device)
        found = columns["valid"][start, environment].to(torch.uint8).argmax(0, keepdim=True)
        start, environment = start.gather(0, found)[0], environment.gather(0, found)[0]
        window = (start + torch.arange(self._n, device=device).unsqueeze(1)) % self.rows  # [n, items]
        reward, terminated, valid = (columns[name][window, environment] for name in ("reward", "terminated", "valid"))
        if self._reward_clip:
            reward = reward.clamp(-self._reward_clip, self._reward_clip)
        stored_beside = "ended" in columns
        if stored_beside:  # the row after an end is the next episode's
            valid[1:] &= ~columns["ended"][window[:-1], environment]
        returns = n_step_returns(
            rewards=reward, discounts=torch.where(terminated, 0.0, self._discount), valid=valid, n=self._n
        )
        steps = returns.steps[0]
        last = (start + (steps - 1).clamp(min=0) if stored_beside else start + steps) % self.rows
        batch: Batch = {"reward": returns.returns[0], "discount": returns.discounts[0]}
        batch["action"] = columns["action"][start, environment]
        for name, column in columns.items():
            if tree.is_under(name, "observation"):
                batch[name] = column[start, environment]
                source = columns["following" + name.removeprefix("observation")] if stored_beside else column
                batch[f"next_{name}"] = source[last, environment]
        return nested(batch, observation_space)

    def state_dict(self) -> dict[str, Any]:
        """All of it, as arrays."""
        return {
            "size": self.size,
            "next": self._next,
            "columns": {name: column[: self.size].cpu().numpy() for name, column in self._columns.items()},
            "random": self._random.get_state().numpy(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.size, self._next = int(state["size"]), int(state["next"])
        for name, array in state["columns"].items():
            stored = torch.from_numpy(np.array(array)).to(self._device)
            self._columns[name] = torch.zeros((self.rows, *stored.shape[1:]), dtype=stored.dtype, device=self._device)
            self._columns[name][: self.size] = stored
        self._random.set_state(torch.from_numpy(np.array(state["random"])))
