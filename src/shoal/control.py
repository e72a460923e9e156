"""Training a deterministic actor and its critic: what the algorithms for continuous control share beside their laws."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy.typing as npt
import torch
from torch import Tensor

from shoal import optim
from shoal.functional.deterministic import deterministic_policy_loss
from shoal.nets.building import export_weights, import_weights, named_tensors
from shoal.nets.control import ControlNetworks
from shoal.nets.targets import Drift, Target, frozen

Array = npt.NDArray[Any]


class TrainingConfig(Protocol):
    """The fields of an algorithm's config that say how both networks are trained."""

    @property
    def actor_rate(self) -> float: ...
    @property
    def critic_rate(self) -> float: ...
    @property
    def epsilon(self) -> float: ...
    @property
    def grad_clip(self) -> float: ...
    @property
    def slope_clip(self) -> float: ...
    @property
    def saturation_cost(self) -> float: ...
    @property
    def target_every(self) -> int: ...
    @property
    def target_rate(self) -> float: ...


class Training:
    """Both networks, an optimizer for each, and the slow copy that targets come from.

    A step is one of the critic on the loss that the algorithm gives, one of the actor up the slope of that critic, and
    one of the copy after both. When the critic's is refused there is none.
    """

    def __init__(self, networks: ControlNetworks, cfg: TrainingConfig, peers: optim.Peers = optim.ALONE) -> None:
        self.actor, self.critic = networks.actor, networks.critic
        options: dict[str, Any] = {"epsilon": cfg.epsilon, "clip_norm": cfg.grad_clip}
        self._actor_optimizer = optim.make(self.actor.parameters(), peers, rate=cfg.actor_rate, **options)
        self._critic_optimizer = optim.make(self.critic.parameters(), peers, rate=cfg.critic_rate, **options)
        self._copy = Target(networks, cfg.target_every, cfg.target_rate)
        self.target = self._copy.network
        self._judge = frozen(self.critic)
        self._slope_clip, self._saturation_cost = cfg.slope_clip or None, cfg.saturation_cost
        self._tensors = named_tensors(networks)

    def weights(self) -> dict[str, Array]:
        return export_weights(self._tensors)

    def load(self, weights: Mapping[str, Array]) -> None:
        import_weights(self._tensors, weights)
        self._copy.reset()

    def step(self, critic_loss: Tensor, observation: Any, count: int) -> dict[str, Any]:
        """Step on a critic's mean loss over the `count` items whose observations are given; measurements."""
        critic = self._critic_optimizer.step(critic_loss, torch.tensor(count))
        measured: dict[str, Any] = {"critic_loss": critic_loss.detach(), "critic_grad_norm": critic.grad_norm}
        if not critic.applied:
            return measured | {"applied": False}
        loss, slopes = self.actor_loss(observation)
        actor = self._actor_optimizer.step(loss, torch.tensor(count))
        self._copy.follow(self._critic_optimizer.updates)
        measured |= {"actor_loss": loss.detach(), "actor_grad_norm": actor.grad_norm, "slope": slopes.mean()}
        return measured | {"target_drift": Drift(self._copy), "applied": actor.applied}

    def actor_loss(self, observation: Any) -> tuple[Tensor, Tensor]:
        """Minus the mean expected return of the actor's own actions, what their saturation costs, and norms of dQ/da
        before clipping [B]."""
        judge, raw = self._judge, self.actor.raw(observation)
        losses, slopes = deterministic_policy_loss(
            torch.tanh(raw), lambda actions: judge.expected(judge(observation, actions)), clip=self._slope_clip
        )
        return losses.mean() + self._saturation_cost * raw.square().sum(-1).mean(), slopes
