"""SAC or TD3 in one file, one process and one loop, as CleanRL writes them: gymnasium, torch, arrays for a replay.

    python bench/peers/cleanrl_control.py halfcheetah --method sac [--seconds 30] [--threads 2]

Run by `python -m bench.peers` in an environment that has torch, gymnasium and mujoco. Written for this comparison, with
the choices CleanRL is known for: two critics as two modules, `torch.optim.Adam`, a loop over parameters for targets.
"""

from __future__ import annotations

import copy
import math

import gymnasium
import numpy as np
import torch
from tasks import TASKS, Clock, arguments
from torch import Tensor, nn
from torch.nn import functional

GAMMA, TAU, RATE, STARTS, CAPACITY = 0.99, 0.005, 3e-4, 1_000, 1_000_000
DELAY, TARGET_NOISE, NOISE_CLIP, NOISE = 2, 0.2, 0.5, 0.1  # of TD3


def layers(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, outputs))


class Replay:
    """The newest transitions, drawn uniformly."""

    def __init__(self, observation: int, action: int) -> None:
        self.columns = [np.zeros((CAPACITY, width), np.float32) for width in (observation, action, 1, observation, 1)]
        self.place = self.size = 0
        self.random = np.random.default_rng(0)

    def add(self, *row: np.ndarray | float) -> None:
        for column, value in zip(self.columns, row):
            column[self.place] = value
        self.place = (self.place + 1) % CAPACITY
        self.size = min(self.size + 1, CAPACITY)

    def sample(self, rows: int) -> list[Tensor]:
        chosen = self.random.integers(0, self.size, rows)
        return [torch.from_numpy(column[chosen]) for column in self.columns]


def follow(slow: nn.Module, fast: nn.Module) -> None:
    for own, other in zip(slow.parameters(), fast.parameters()):
        own.data.copy_(TAU * other.data + (1 - TAU) * own.data)


class SAC:
    def __init__(self, observation: int, action: int) -> None:
        self.actor = layers(observation, 2 * action)
        self.critics = nn.ModuleList([layers(observation + action, 1) for _ in range(2)])
        self.targets = copy.deepcopy(self.critics)
        self.log_alpha = torch.zeros(1, requires_grad=True)
        self.entropy = -float(action)
        self.actor_adam = torch.optim.Adam(self.actor.parameters(), lr=RATE)
        self.critic_adam = torch.optim.Adam(self.critics.parameters(), lr=RATE)
        self.alpha_adam = torch.optim.Adam([self.log_alpha], lr=RATE)

    def draw(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = self.actor(observation).chunk(2, dim=-1)
        normal = torch.distributions.Normal(mean, log_std.clamp(-5, 2).exp())
        raw = normal.rsample()
        action = torch.tanh(raw)
        log_prob = normal.log_prob(raw) - torch.log(1 - action.pow(2) + 1e-6)
        return action, log_prob.sum(1, keepdim=True)

    def act(self, observation: Tensor) -> np.ndarray:
        return self.draw(observation)[0][0].numpy()

    def update(self, batch: list[Tensor]) -> None:
        observation, action, reward, following, ended = batch
        alpha = self.log_alpha.exp().item()
        with torch.no_grad():
            next_action, log_prob = self.draw(following)
            seen = torch.cat([following, next_action], 1)
            value = torch.min(self.targets[0](seen), self.targets[1](seen)) - alpha * log_prob
            wanted = reward + (1 - ended) * GAMMA * value
        seen = torch.cat([observation, action], 1)
        loss = functional.mse_loss(self.critics[0](seen), wanted) + functional.mse_loss(self.critics[1](seen), wanted)
        self.critic_adam.zero_grad()
        loss.backward()
        self.critic_adam.step()
        own, log_prob = self.draw(observation)
        seen = torch.cat([observation, own], 1)
        loss = (alpha * log_prob - torch.min(self.critics[0](seen), self.critics[1](seen))).mean()
        self.actor_adam.zero_grad()
        loss.backward()
        self.actor_adam.step()
        loss = (-self.log_alpha.exp() * (log_prob.detach() + self.entropy)).mean()
        self.alpha_adam.zero_grad()
        loss.backward()
        self.alpha_adam.step()
        follow(self.targets, self.critics)


class TD3:
    def __init__(self, observation: int, action: int) -> None:
        self.actor = layers(observation, action)
        self.critics = nn.ModuleList([layers(observation + action, 1) for _ in range(2)])
        self.slow_actor, self.targets = copy.deepcopy(self.actor), copy.deepcopy(self.critics)
        self.actor_adam = torch.optim.Adam(self.actor.parameters(), lr=RATE)
        self.critic_adam = torch.optim.Adam(self.critics.parameters(), lr=RATE)
        self.made = 0

    def act(self, observation: Tensor) -> np.ndarray:
        action = torch.tanh(self.actor(observation))
        return (action + NOISE * torch.randn_like(action)).clamp(-1, 1)[0].numpy()

    def update(self, batch: list[Tensor]) -> None:
        observation, action, reward, following, ended = batch
        with torch.no_grad():
            noise = (torch.randn_like(action) * TARGET_NOISE).clamp(-NOISE_CLIP, NOISE_CLIP)
            seen = torch.cat([following, (torch.tanh(self.slow_actor(following)) + noise).clamp(-1, 1)], 1)
            wanted = reward + (1 - ended) * GAMMA * torch.min(self.targets[0](seen), self.targets[1](seen))
        seen = torch.cat([observation, action], 1)
        loss = functional.mse_loss(self.critics[0](seen), wanted) + functional.mse_loss(self.critics[1](seen), wanted)
        self.critic_adam.zero_grad()
        loss.backward()
        self.critic_adam.step()
        self.made += 1
        if self.made % DELAY == 0:
            loss = -self.critics[0](torch.cat([observation, torch.tanh(self.actor(observation))], 1)).mean()
            self.actor_adam.zero_grad()
            loss.backward()
            self.actor_adam.step()
            follow(self.slow_actor, self.actor)
            follow(self.targets, self.critics)


def main() -> None:
    options = arguments(__doc__).parse_args()
    torch.set_num_threads(options.threads)
    task = TASKS[options.task]
    rows = task.work(options.method).rows
    env = gymnasium.make(task.env)
    width, actions = env.observation_space.shape[0], env.action_space.shape[0]
    agent = {"sac": SAC, "td3": TD3}[options.method](width, actions)
    replay, clock = Replay(width, actions), Clock(options.seconds)
    observation, _ = env.reset(seed=0)
    env.action_space.seed(0)
    steps = updates = 0
    while not updates or clock.update(env_steps=steps, trained_rows=updates * rows):
        if steps < STARTS:
            action = env.action_space.sample()
        else:
            with torch.no_grad():
                action = agent.act(torch.as_tensor(observation, dtype=torch.float32).unsqueeze(0))
        following, reward, terminated, truncated, _ = env.step(action)
        replay.add(observation, action, float(reward), following, float(terminated))
        observation = env.reset()[0] if terminated or truncated else following
        steps += 1
        if steps > STARTS:
            agent.update(replay.sample(rows))
            updates += 1
    assert math.isfinite(sum(float(parameter.detach().sum()) for parameter in agent.actor.parameters()))
    print(clock.result(("torch", "gymnasium", "numpy")))


if __name__ == "__main__":
    main()
