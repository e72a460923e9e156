"""Bare loops: the same methods as one writes them in a single file, without services, flat optimizers or fused layers.

`nn.Linear` and an activation for each layer, `loss.backward()`, `torch.optim.Adam`, a loop over parameters for the
target networks, the laws of `shoal.functional`; the sizes are the config's. Observations and rewards are not
normalised. What a page's update takes beside this is what its machinery costs, or saves; what a program takes beside
the update is what its services cost.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any, Protocol, runtime_checkable

import torch
from gymnasium import spaces
from torch import Tensor, nn
from torch.nn import functional

from shoal.bench.parts import Parts
from shoal.envs import EnvSpec
from shoal.functional.distributional import categorical_loss, project
from shoal.functional.gae import gae
from shoal.functional.squashed import squashed_gaussian
from shoal.functional.vtrace import vtrace
from shoal.nets.heads import action_distribution
from shoal.options import (
    Acting,
    ActorAndCritics,
    ContinuousControl,
    OnPolicy,
    PolicyAndValue,
    Proximal,
    ReturnDistribution,
)

Batch = dict[str, Any]
Step = Callable[[Batch], None]


@runtime_checkable
class Smoothed(Protocol):
    """What TD3's config has beside the groups of continuous control."""

    @property
    def policy_delay(self) -> int: ...
    @property
    def target_noise(self) -> float: ...
    @property
    def target_noise_clip(self) -> float: ...


def bare(name: str, cfg: Acting, env: EnvSpec, parts: Parts) -> Step | None:
    """One update of a method from a batch that its learner would take; None where none is written: of other methods, of
    the user's own networks, and of observations that are no vectors."""
    seen, acted = env.observation_space, env.action_space
    if name not in METHODS or not isinstance(cfg, ActorAndCritics | PolicyAndValue) or cfg.network is not None:
        return None
    if not isinstance(seen, spaces.Box) or len(seen.shape) != 1 or env.stacks:
        return None
    if isinstance(cfg, PolicyAndValue) and cfg.lstm:
        return None
    actions = acted.shape[0] if isinstance(acted, spaces.Box) and acted.shape else 0
    return METHODS[name](cfg, env, seen.shape[0], actions, parts)


def _network(inputs: int, hidden: Iterable[int], outputs: int, activation: str, normalised: bool = False) -> nn.Module:
    layers: list[nn.Module] = []
    for index, width in enumerate(hidden):
        layers.append(nn.Linear(inputs, width))
        if normalised and index == 0:
            layers += [nn.LayerNorm(width), nn.Tanh()]
        else:
            layers.append(nn.ReLU() if activation == "relu" else nn.Tanh())
        inputs = width
    return nn.Sequential(*layers, nn.Linear(inputs, outputs))


def _control(cfg: ActorAndCritics, inputs: int, actions: int, outputs: int, critic_outputs: int, critics: int) -> Any:
    form = cfg.activation, cfg.layer_norm
    actor = _network(inputs, cfg.actor_hidden, outputs * actions, *form)
    made = [_network(inputs + actions, cfg.critic_hidden, critic_outputs, *form) for _ in range(critics)]
    return actor, nn.ModuleList(made)


class _Adam:
    """A step of an optimizer, its parts timed."""

    def __init__(self, network: nn.Module, rate: float, parts: Parts, clip: float = 0.0) -> None:
        self.parameters = list(network.parameters())
        self.optimizer = torch.optim.Adam(self.parameters, lr=rate)
        self.parts, self.clip = parts, clip

    def step(self, loss: Tensor) -> None:
        with self.parts.part("backward"):
            self.optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
        with self.parts.part("optimizer"):
            if self.clip:
                nn.utils.clip_grad_norm_(self.parameters, self.clip)
            self.optimizer.step()


def _follow(slow: nn.Module, fast: nn.Module, rate: float, parts: Parts) -> None:
    with parts.part("target"), torch.no_grad():
        for own, other in zip(slow.parameters(), fast.parameters()):
            own.mul_(1.0 - rate).add_(other, alpha=rate)


def _sac(cfg: ContinuousControl, env: EnvSpec, inputs: int, actions: int, parts: Parts) -> Step:
    actor, critics = _control(cfg, inputs, actions, 2, 1, 2)
    targets = copy.deepcopy(critics)
    log_temperature = nn.Parameter(torch.zeros(()))
    critic_adam, actor_adam = _Adam(critics, cfg.critic_rate, parts), _Adam(actor, cfg.actor_rate, parts)
    temperature_adam = _Adam(nn.ParameterList([log_temperature]), cfg.actor_rate, parts)

    def draw(observation: Tensor) -> Any:
        mean, log_std = actor(observation).chunk(2, dim=-1)
        return squashed_gaussian(mean=mean, log_std=log_std.clamp(-5.0, 2.0), noise=torch.randn_like(mean))

    def values(of: Iterable[nn.Module], observation: Tensor, action: Tensor) -> Tensor:
        seen = torch.cat([observation, action], dim=-1)
        return torch.stack([critic(seen).squeeze(-1) for critic in of])

    def step(batch: Batch) -> None:
        observation, following = batch["observation"], batch["next_observation"]
        temperature = log_temperature.detach().exp()
        with torch.no_grad():
            action, log_prob = draw(following)
            value = values(targets, following, action).amin(0) - temperature * log_prob
            wanted = batch["reward"] * cfg.reward_scale + batch["discount"] * value
        critic_adam.step(0.5 * (values(critics, observation, batch["action"]) - wanted).square().sum(0).mean())
        action, log_prob = draw(observation)
        actor_adam.step((temperature * log_prob - values(critics, observation, action).amin(0)).mean())
        temperature_adam.step(-(log_temperature * (log_prob.detach().mean() - actions)))
        _follow(targets, critics, cfg.target_rate, parts)

    return step


def _td3(cfg: ContinuousControl, env: EnvSpec, inputs: int, actions: int, parts: Parts) -> Step:
    assert isinstance(cfg, Smoothed)
    delay, noise, noise_clip = cfg.policy_delay, cfg.target_noise, cfg.target_noise_clip
    actor, critics = _control(cfg, inputs, actions, 1, 1, 2)
    target_actor, target_critics = copy.deepcopy(actor), copy.deepcopy(critics)
    critic_adam, actor_adam = _Adam(critics, cfg.critic_rate, parts), _Adam(actor, cfg.actor_rate, parts)
    made = 0

    def values(of: Iterable[nn.Module], observation: Tensor, action: Tensor) -> Tensor:
        seen = torch.cat([observation, action], dim=-1)
        return torch.stack([critic(seen).squeeze(-1) for critic in of])

    def step(batch: Batch) -> None:
        nonlocal made
        observation, following = batch["observation"], batch["next_observation"]
        with torch.no_grad():
            drawn = (torch.randn_like(batch["action"]) * noise).clamp(-noise_clip, noise_clip)
            action = (torch.tanh(target_actor(following)) + drawn).clamp(-1.0, 1.0)
            value = values(target_critics, following, action).amin(0)
            wanted = batch["reward"] * cfg.reward_scale + batch["discount"] * value
        critic_adam.step((values(critics, observation, batch["action"]) - wanted).square().sum(0).mean())
        made += 1
        if made % delay == 0:
            actor_adam.step(-values(critics[:1], observation, torch.tanh(actor(observation))).mean())
        if made % cfg.target_every == 0:
            _follow(target_critics, critics, cfg.target_rate, parts)
            _follow(target_actor, actor, cfg.target_rate, parts)

    return step


def _dpg(cfg: ContinuousControl, env: EnvSpec, inputs: int, actions: int, parts: Parts) -> Step:
    """D4PG with a categorical critic, or DPG with a critic of values."""
    atoms = cfg.atoms if isinstance(cfg, ReturnDistribution) else 1
    actor, (critic,) = _control(cfg, inputs, actions, 1, atoms, 1)
    target_actor, target_critic = copy.deepcopy(actor), copy.deepcopy(critic)
    critic_adam = _Adam(critic, cfg.critic_rate, parts, cfg.grad_clip)
    actor_adam = _Adam(actor, cfg.actor_rate, parts, cfg.grad_clip)
    low, high = (cfg.support_low, cfg.support_high) if isinstance(cfg, ReturnDistribution) else (0.0, 1.0)
    support = torch.linspace(low, high, atoms)
    made = 0

    def outputs(network: nn.Module, observation: Tensor, action: Tensor) -> Tensor:
        found: Tensor = network(torch.cat([observation, action], dim=-1))
        return found

    def step(batch: Batch) -> None:
        nonlocal made
        observation, following = batch["observation"], batch["next_observation"]
        returns, discounts = batch["reward"] * cfg.reward_scale, batch["discount"]
        weights = batch.get("importance", 1.0)
        with torch.no_grad():
            after = outputs(target_critic, following, torch.tanh(target_actor(following)))
        now = outputs(critic, observation, batch["action"])
        if atoms > 1:
            probabilities = torch.softmax(after, dim=-1)
            targets = project(probabilities=probabilities, returns=returns, discounts=discounts, support=support)
            losses = categorical_loss(logits=now, targets=targets)
        else:
            losses = 0.5 * (now.squeeze(-1) - (returns + discounts * after.squeeze(-1))).square()
        critic_adam.step((weights * losses).mean())
        value = outputs(critic, observation, torch.tanh(actor(observation)))
        actor_adam.step(-((torch.softmax(value, dim=-1) * support).sum(-1) if atoms > 1 else value).mean())
        made += 1
        if made % cfg.target_every == 0:
            _follow(target_critic, critic, cfg.target_rate, parts)
            _follow(target_actor, actor, cfg.target_rate, parts)

    return step


class _PolicyAndValue(nn.Module):
    """Two networks, or with a shared torso one with two heads, and a log deviation where actions are continuous."""

    def __init__(self, cfg: PolicyAndValue, env: EnvSpec, inputs: int, actions: int) -> None:
        super().__init__()
        self.distribution = action_distribution(env.action_space)
        outputs = actions or self.distribution.size
        torso = cfg.hidden[-1] if cfg.hidden else inputs
        self.torso = _network(inputs, cfg.hidden[:-1], torso, cfg.activation)
        self.value_torso = self.torso if cfg.shared_torso else _network(inputs, cfg.hidden[:-1], torso, cfg.activation)
        self.activation = torch.relu if cfg.activation == "relu" else torch.tanh
        self.policy, self.value = nn.Linear(torso, outputs), nn.Linear(torso, 1)
        self.log_std = nn.Parameter(torch.zeros(actions)) if actions else None

    def forward(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        features = self.activation(self.torso(observation))
        for_value = features if self.value_torso is self.torso else self.activation(self.value_torso(observation))
        parameters = self.policy(features)
        if self.log_std is not None:
            parameters = torch.cat([parameters, self.log_std.expand_as(parameters)], dim=-1)
        return parameters, self.value(for_value).squeeze(-1)


def _ppo(cfg: OnPolicy, env: EnvSpec, inputs: int, actions: int, parts: Parts) -> Step:
    assert isinstance(cfg, Proximal)
    network = _PolicyAndValue(cfg, env, inputs, actions)
    adam = _Adam(network, cfg.learning_rate, parts, cfg.grad_clip)

    def step(batch: Batch) -> None:
        with torch.no_grad():
            _, values = network(batch["observation"])
            advantages, targets = gae(
                values=values,
                rewards=batch["reward"][:-1],
                discounts=torch.where(batch["terminated"][:-1], 0.0, cfg.gamma),
                valid=batch["valid"][:-1],
                lambda_=cfg.lambda_,
            )
        rows = batch["valid"][:-1].flatten().nonzero().squeeze(1)
        flat = [batch[name][:-1].flatten(0, 1)[rows] for name in ("observation", "action", "log_prob")]
        flat += [advantages.flatten()[rows], targets.flatten()[rows]]
        for _ in range(cfg.epochs):
            for chosen in torch.randperm(len(rows)).tensor_split(cfg.minibatches):
                observation, action, behaviour, advantage, target = (column[chosen] for column in flat)
                advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
                parameters, value = network(observation)
                log_prob, entropy = network.distribution.log_prob_and_entropy(parameters, action)
                ratio = (log_prob - behaviour).exp()
                clipped = ratio.clamp(1.0 - cfg.clip, 1.0 + cfg.clip)
                gain = torch.minimum(ratio * advantage, clipped * advantage).mean()
                error = 0.5 * (value - target).square().mean()
                adam.step(cfg.value_cost * error - gain - cfg.entropy_cost * entropy.mean())

    return step


def _impala(cfg: OnPolicy, env: EnvSpec, inputs: int, actions: int, parts: Parts) -> Step:
    network = _PolicyAndValue(cfg, env, inputs, actions)
    adam = _Adam(network, cfg.learning_rate, parts, cfg.grad_clip)

    def step(batch: Batch) -> None:
        valid = batch["valid"][:-1]
        parameters, values = network(batch["observation"])
        log_prob, entropy = network.distribution.log_prob_and_entropy(parameters[:-1], batch["action"][:-1])
        rho = torch.where(valid, (log_prob.detach() - batch["log_prob"][:-1]).exp(), 0.0)
        targets, advantages = vtrace(
            values=values.detach(),
            rewards=batch["reward"][:-1],
            discounts=torch.where(batch["terminated"][:-1], 0.0, cfg.gamma),
            rho=rho,
            lambda_=cfg.lambda_,
        )
        gain = (log_prob * advantages)[valid].mean()
        error = 0.5 * functional.mse_loss(values[:-1][valid], targets[valid])
        adam.step(cfg.value_cost * error - gain - cfg.entropy_cost * entropy[valid].mean())

    return step


METHODS: dict[str, Callable[..., Step]] = {
    "sac": _sac,
    "td3": _td3,
    "d4pg": _dpg,
    "apex_dpg": _dpg,
    "ppo": _ppo,
    "impala": _impala,
}
