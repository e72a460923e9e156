"""PPO in one file, one process and one loop, as CleanRL writes it: gymnasium's vector of environments, torch, no more.

    python bench/peers/cleanrl_side.py pong [--seconds 30] [--threads 2] [--vector sync]

Run by `python -m bench.peers` in an environment that has torch, gymnasium and ale-py. Written for this comparison, with
the choices CleanRL is known for: separate tensors [T, B, ...] filled step by step, GAE, advantages normalised in every
minibatch, clipped values, one Adam. `--vector native` takes the environments' own vector versions instead, which
gymnasium and ale-py have and CleanRL's examples do not use: what a single loop can do at its best.

Steps are actions of environments, those that only reset one among them: at most one in an episode. What is trained is
counted by the optimizer's steps.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, VectorEnv
from tasks import CLIP, LEARNING_RATE, TASKS, Clock, Work, arguments
from torch import Tensor, nn
from torch.distributions import Categorical

GAMMA, LAMBDA = 0.99, 0.95
ENTROPY_COST, VALUE_COST, GRADIENT_NORM = 0.01, 0.5, 0.5


def one_pong() -> gymnasium.Env:
    import ale_py  # noqa: F401 (registers the games)

    game = gymnasium.make(TASKS["pong"].env)
    seen = gymnasium.wrappers.AtariPreprocessing(game, noop_max=30, terminal_on_life_loss=True)
    clipped = gymnasium.wrappers.TransformReward(seen, np.sign)
    return gymnasium.wrappers.FrameStackObservation(gymnasium.wrappers.RecordEpisodeStatistics(clipped), 4)


def one_cartpole() -> gymnasium.Env:
    return gymnasium.wrappers.RecordEpisodeStatistics(gymnasium.make(TASKS["cartpole"].env))


def make_vector(task: str, count: int, kind: str, threads: int) -> VectorEnv:
    if kind == "sync":
        one = one_pong if task == "pong" else one_cartpole
        return gymnasium.vector.SyncVectorEnv([one] * count, autoreset_mode=AutoresetMode.NEXT_STEP)
    if task == "pong":
        from ale_py.vector_env import AtariVectorEnv

        sticky: dict[str, Any] = {"repeat_action_probability": 0.0, "reward_clipping": True}
        return AtariVectorEnv("pong", num_envs=count, num_threads=threads, **sticky)
    return gymnasium.make_vec(TASKS[task].env, num_envs=count, vectorization_mode="vector_entry_point")


def layer(module: Any, gain: float = 2**0.5) -> Any:
    nn.init.orthogonal_(module.weight, gain)
    nn.init.zeros_(module.bias)
    return module


class Nature(nn.Module):
    """The convolutions of Mnih 2015 and 512 units, for policy and value."""

    def __init__(self, actions: int) -> None:
        super().__init__()
        self.torso = nn.Sequential(
            layer(nn.Conv2d(4, 32, 8, 4)),
            nn.ReLU(),
            layer(nn.Conv2d(32, 64, 4, 2)),
            nn.ReLU(),
            layer(nn.Conv2d(64, 64, 3, 1)),
            nn.ReLU(),
            nn.Flatten(),
            layer(nn.Linear(64 * 7 * 7, 512)),
            nn.ReLU(),
        )
        self.policy = layer(nn.Linear(512, actions), 0.01)
        self.value = layer(nn.Linear(512, 1), 1.0)

    def forward(self, frames: Tensor) -> tuple[Tensor, Tensor]:
        seen = self.torso(frames / 255.0)
        return self.policy(seen), self.value(seen).squeeze(-1)


class Small(nn.Module):
    """Two layers of 64 units for the policy, and two for the value."""

    def __init__(self, inputs: int, actions: int) -> None:
        super().__init__()

        def stack(outputs: int, gain: float) -> nn.Sequential:
            hidden = layer(nn.Linear(inputs, 64)), nn.Tanh(), layer(nn.Linear(64, 64)), nn.Tanh()
            return nn.Sequential(*hidden, layer(nn.Linear(64, outputs), gain))

        self.policy, self.value = stack(actions, 0.01), stack(1, 1.0)

    def forward(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        return self.policy(observation), self.value(observation).squeeze(-1)


class Trainer:
    """The whole algorithm: `rollout` fills the tensors, `learn` goes over them."""

    def __init__(self, envs: VectorEnv, network: nn.Module, work: Work) -> None:
        self.envs, self.network, self.work = envs, network, work
        self.optimizer = torch.optim.Adam(network.parameters(), lr=LEARNING_RATE, eps=1e-5)
        self.steps, self.updates = 0, 0
        shape = work.unroll, work.environments
        first, _ = envs.reset(seed=0)
        self.observation = torch.as_tensor(np.asarray(first))
        self.done = torch.zeros(work.environments)
        self.observations = torch.zeros(*shape, *self.observation.shape[1:], dtype=self.observation.dtype)
        self.actions = torch.zeros(shape, dtype=torch.int64)
        self.log_probs, self.rewards, self.dones, self.values = (torch.zeros(shape) for _ in range(4))

    @torch.no_grad()
    def rollout(self) -> None:
        for step in range(self.work.unroll):
            self.observations[step], self.dones[step] = self.observation, self.done
            logits, self.values[step] = self.network(self.observation)
            policy = Categorical(logits=logits)
            action = policy.sample()
            self.actions[step], self.log_probs[step] = action, policy.log_prob(action)
            seen, reward, terminated, truncated, _ = self.envs.step(action.numpy())
            self.rewards[step] = torch.as_tensor(reward)
            self.observation = torch.as_tensor(np.array(seen))  # a copy: vectors write over theirs
            self.done = torch.as_tensor(terminated | truncated).float()
            self.steps += self.work.environments

    @torch.no_grad()
    def advantages(self) -> Tensor:
        _, next_value = self.network(self.observation)
        next_done, found, last = self.done, torch.zeros_like(self.rewards), torch.zeros(self.work.environments)
        for step in reversed(range(self.work.unroll)):
            error = self.rewards[step] + GAMMA * next_value * (1 - next_done) - self.values[step]
            last = error + GAMMA * LAMBDA * (1 - next_done) * last
            found[step], next_value, next_done = last, self.values[step], self.dones[step]
        return found

    def learn(self) -> None:
        advantages = self.advantages()
        returns = (advantages + self.values).flatten()
        columns = (self.actions, self.log_probs, self.values, advantages)
        actions, log_probs, values, advantages = (column.flatten() for column in columns)
        observations = self.observations.flatten(0, 1)
        for _ in range(self.work.epochs):
            for rows in torch.randperm(self.work.rows).split(self.work.minibatch):
                logits, value = self.network(observations[rows])
                policy = Categorical(logits=logits)
                ratio = (policy.log_prob(actions[rows]) - log_probs[rows]).exp()
                gain = advantages[rows]
                gain = (gain - gain.mean()) / (gain.std() + 1e-8)
                policy_loss = torch.max(-gain * ratio, -gain * ratio.clamp(1 - CLIP, 1 + CLIP)).mean()
                near = values[rows] + (value - values[rows]).clamp(-CLIP, CLIP)
                squares = torch.max((value - returns[rows]).square(), (near - returns[rows]).square())
                loss = policy_loss + VALUE_COST * 0.5 * squares.mean() - ENTROPY_COST * policy.entropy().mean()
                self.optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(self.network.parameters(), GRADIENT_NORM)
                self.optimizer.step()
                self.updates += 1


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--vector", choices=("sync", "native"), default="sync")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    work = TASKS[options.task].work("ppo")
    envs = make_vector(options.task, work.environments, options.vector, options.threads)
    actions = int(envs.single_action_space.n)
    network = Nature(actions) if options.task == "pong" else Small(4, actions)
    trainer = Trainer(envs, network, work)
    clock, goes_on = Clock(options.seconds), True
    while goes_on:
        trainer.rollout()
        trainer.learn()
        goes_on = clock.update(env_steps=trainer.steps, trained_rows=trainer.updates * work.minibatch)
    envs.close()
    print(clock.result(("torch", "gymnasium", "ale-py", "numpy")))


if __name__ == "__main__":
    main()
