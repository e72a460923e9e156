"""A3C in your own loop: separate actor and critic modules, a gradient service for each.

    python examples/a3c_actor_critic.py [local|inline|ray]

Three workers play CartPole, each with its own copies of both networks, push gradients as they come and go on with the
newest parameters. docs/coming-from-machin.md puts it beside machin's own example.
"""

from __future__ import annotations

import sys
from collections import deque

import numpy as np
import torch
from torch import Tensor, nn

from shoal import envs, optim
from shoal.functional.returns import backward_recurrence
from shoal.program import Handle, Program, current
from shoal.runtime import launch
from shoal.services.gradients import GradientServer

WORKERS, ENVS, ROWS, STEPS, GAMMA = 3, 16, 20, 600, 0.97


class Actor(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 2))

    def forward(self, observation: Tensor) -> torch.distributions.Categorical:
        return torch.distributions.Categorical(logits=self.layers(observation))


class Critic(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 1))

    def forward(self, observation: Tensor) -> Tensor:
        return self.layers(observation).squeeze(-1)


class Starter:
    """Gives both services the parameters that everybody starts from."""

    def __init__(self, actor_gradients: GradientServer, critic_gradients: GradientServer) -> None:
        torch.manual_seed(current().seed)
        optim.Remote(Actor().parameters(), [actor_gradients], initialise=True)
        optim.Remote(Critic().parameters(), [critic_gradients], initialise=True)


class Worker:
    """One step is a rollout of every environment, and a gradient of each network."""

    restart = True  # should it be killed, it is started again, and only the gradients it was working on are lost

    def __init__(self, actor_gradients: GradientServer, critic_gradients: GradientServer) -> None:
        torch.manual_seed(current().seed)  # a seed of its own for every node and every life
        self.envs = envs.make("CartPole-v1", ENVS, seed=current().seed)
        self.observation = torch.from_numpy(self.envs.reset())
        self.actor, self.critic = Actor(), Critic()
        self.actor_optimizer = optim.Remote(self.actor.parameters(), [actor_gradients], clip_norm=1.0)
        self.critic_optimizer = optim.Remote(self.critic.parameters(), [critic_gradients], clip_norm=1.0)
        self.returns: deque[float] = deque(maxlen=50)

    def step(self) -> bool:
        rows = [self.play() for _ in range(ROWS)]
        observation, action, reward, terminated, valid = (torch.stack(column) for column in zip(*rows))
        values = self.critic(torch.cat([observation, self.observation.unsqueeze(0)]))
        advantage, target = self.advantages(values.detach(), reward, terminated, valid)
        actions = self.actor(observation)
        policy_loss = -actions.log_prob(action) * advantage - 0.01 * actions.entropy()
        self.actor_optimizer.step(policy_loss[valid].mean())  # push the gradient, load the newest parameters
        self.critic_optimizer.step((values[:-1] - target)[valid].square().mean())
        return not (self.actor_optimizer.finished or self.critic_optimizer.finished)

    @torch.no_grad()
    def play(self) -> tuple[Tensor, ...]:
        """A step of all environments. Where an episode has just ended the row is no transition: valid is False."""
        seen, action = self.observation, self.actor(self.observation).sample()
        outcome = self.envs.step(action.numpy())
        self.returns.extend(episode.return_ for episode in self.envs.episodes())
        self.observation = torch.from_numpy(outcome.observation)
        reward, terminated, valid = map(torch.from_numpy, (outcome.reward, outcome.terminated, outcome.valid))
        return seen, action, 0.1 * reward, terminated, valid

    def advantages(self, values: Tensor, reward: Tensor, terminated: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
        """How much better the rest of a rollout was than the critic thought; a row after an end only ends returns."""
        discount = torch.where(terminated, 0.0, GAMMA)
        error = torch.where(valid, reward + discount * values[1:] - values[:-1], 0.0)
        advantage = backward_recurrence(inputs=error, decay=torch.where(valid, discount, 0.0))
        return advantage, advantage + values[:-1]

    def mean_return(self) -> float:
        return float(np.mean(self.returns))


def main(runtime: str) -> float:
    program = Program()
    options = {"rate": 3e-3, "optimizer": "rmsprop", "max_staleness": 10, "max_steps": STEPS}
    actor = program.add("actor gradients", GradientServer, **options)
    critic = program.add("critic gradients", GradientServer, **options)
    program.add("starter", Starter, actor, critic)
    workers = [program.add(f"worker/{index}", Worker, actor, critic) for index in range(WORKERS)]
    with launch(program, runtime, seed=1) as run:
        while not all(run.finished(Handle(f"worker/{index}")) for index in range(WORKERS)):
            run.wait(0.1)
        found = float(np.mean([run.client(worker).mean_return() for worker in workers]))
        counts = run.client(actor).statistics()
    print(
        f"return {found:.0f} after {counts['version']} steps of the actor, {counts.get('stale', 0)} gradients too stale"
    )
    return found


if __name__ == "__main__":
    main(*sys.argv[1:] or ["local"])
