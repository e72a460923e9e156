"""IQL and TD3+BC as one file has them, in the style of CORL: tensors for the data, two critics as two modules.

    python bench/offline_speed/single_file.py iql [--seconds 10] [--threads 2]

Needs torch and numpy. Written for this comparison, with the choices that single files are known for:
`torch.optim.Adam`, `loss.backward()`, a loop over parameters for targets, a batch indexed out of whole columns.
"""

from __future__ import annotations

import argparse
import copy
import json
import time

import torch
from torch import Tensor, nn
from torch.nn import functional

ROWS, OBSERVATION, ACTION, BATCH, WIDTH = 100_000, 17, 6, 256, 256
GAMMA, TAU, RATE = 0.99, 0.005, 3e-4
WARM_UP = 1.0  # seconds


def columns() -> list[Tensor]:
    """Observations, actions, rewards, following observations and ends, as wide as HalfCheetah-v5's."""
    random = torch.Generator().manual_seed(0)
    seen = torch.randn(ROWS + 1, OBSERVATION, generator=random)
    action = torch.rand(ROWS, ACTION, generator=random) * 2 - 1
    reward = torch.randn(ROWS, 1, generator=random)
    ended = (torch.arange(ROWS) % 1_000 == 999).float().unsqueeze(1)
    return [seen[:-1], action, reward, seen[1:], ended]


def layers(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(inputs, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, outputs)
    )


def follow(slow: nn.Module, fast: nn.Module) -> None:
    for own, other in zip(slow.parameters(), fast.parameters()):
        own.data.copy_((1 - TAU) * own.data + TAU * other.data)


def step(adam: torch.optim.Adam, loss: Tensor) -> None:
    adam.zero_grad()
    loss.backward()
    adam.step()


class IQL:
    """Kostrikov 2022: expectile 0.7, sharpness 3, a Gaussian whose deviation sees no state."""

    def __init__(self) -> None:
        self.actor, self.value = layers(OBSERVATION, ACTION), layers(OBSERVATION, 1)
        self.log_std = nn.Parameter(torch.zeros(ACTION))
        self.critics = nn.ModuleList([layers(OBSERVATION + ACTION, 1) for _ in range(2)])
        self.targets = copy.deepcopy(self.critics).requires_grad_(False)
        self.actor_adam = torch.optim.Adam([*self.actor.parameters(), self.log_std], lr=RATE)
        self.value_adam = torch.optim.Adam(self.value.parameters(), lr=RATE)
        self.critic_adam = torch.optim.Adam(self.critics.parameters(), lr=RATE)

    def update(self, batch: list[Tensor]) -> None:
        seen, action, reward, following, ended = batch
        both = torch.cat([seen, action], 1)
        with torch.no_grad():
            worth = torch.min(self.targets[0](both), self.targets[1](both))
            next_value = self.value(following)
        advantage = worth - self.value(seen)
        step(self.value_adam, (torch.abs(0.7 - (advantage < 0).float()) * advantage.square()).mean())
        wanted = reward + (1 - ended) * GAMMA * next_value
        losses = [functional.mse_loss(critic(both), wanted) for critic in self.critics]
        step(self.critic_adam, (losses[0] + losses[1]) / 2)
        follow(self.targets, self.critics)
        weight = torch.exp(3.0 * advantage.detach()).clamp(max=100.0)
        normal = torch.distributions.Normal(torch.tanh(self.actor(seen)), self.log_std.clamp(-20, 2).exp())
        step(self.actor_adam, -(weight * normal.log_prob(action).sum(1, keepdim=True)).mean())


class TD3BC:
    """Fujimoto 2021: the actor moves with every second update, towards value and data."""

    def __init__(self) -> None:
        self.actor = layers(OBSERVATION, ACTION)
        self.critics = nn.ModuleList([layers(OBSERVATION + ACTION, 1) for _ in range(2)])
        self.slow_actor = copy.deepcopy(self.actor).requires_grad_(False)
        self.targets = copy.deepcopy(self.critics).requires_grad_(False)
        self.actor_adam = torch.optim.Adam(self.actor.parameters(), lr=RATE)
        self.critic_adam = torch.optim.Adam(self.critics.parameters(), lr=RATE)
        self.made = 0

    def update(self, batch: list[Tensor]) -> None:
        seen, action, reward, following, ended = batch
        with torch.no_grad():
            noise = (torch.randn_like(action) * 0.2).clamp(-0.5, 0.5)
            after = torch.cat([following, (torch.tanh(self.slow_actor(following)) + noise).clamp(-1, 1)], 1)
            wanted = reward + (1 - ended) * GAMMA * torch.min(self.targets[0](after), self.targets[1](after))
        both = torch.cat([seen, action], 1)
        losses = [functional.mse_loss(critic(both), wanted) for critic in self.critics]
        step(self.critic_adam, losses[0] + losses[1])
        self.made += 1
        if self.made % 2 == 0:
            own = torch.tanh(self.actor(seen))
            worth = self.critics[0](torch.cat([seen, own], 1))
            weight = 2.5 / worth.abs().mean().detach()
            step(self.actor_adam, functional.mse_loss(own, action) - weight * worth.mean())
            follow(self.targets, self.critics)
            follow(self.slow_actor, self.actor)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("method", choices=("iql", "td3_bc"))
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    data, agent = columns(), IQL() if options.method == "iql" else TD3BC()
    begin, made = time.perf_counter(), 0
    warm = False
    while time.perf_counter() - begin < (options.seconds if warm else WARM_UP):
        chosen = torch.randint(0, ROWS, (BATCH,))
        agent.update([column[chosen] for column in data])
        made += 1
        if not warm and time.perf_counter() - begin >= WARM_UP:
            begin, made, warm = time.perf_counter(), 0, True
    print(json.dumps({"updates_per_second": made / (time.perf_counter() - begin)}))


if __name__ == "__main__":
    main()
