"""Your own loops on the three push-pull services, weights, gradients and replay: double DQN on CartPole.

    python examples/push_pull.py [local|inline|ray]

Samplers pull weights and push transitions; trainers pull batches, push gradients and publish the parameters that come
back. The services know nothing of DQN, and the loops know nothing of processes.
"""

from __future__ import annotations

import copy
import sys
from collections import deque
from typing import Any

import numpy as np
import torch
from torch import nn

from shoal import envs, optim
from shoal.program import Handle, Program, current
from shoal.replay import Prioritized, Replay, SamplesPerInsert, Table, Writer, n_step
from shoal.runtime import launch
from shoal.services.gradients import GradientServer
from shoal.services.modules import SharedModule
from shoal.services.weights import WeightStore

SAMPLERS, TRAINERS, ENVS, ROWS, BATCH, STEPS = 2, 2, 8, 10, 256, 2_000
TARGET_EVERY, PUBLISH_EVERY = 20, 5  # of a trainer's own updates


def make_network() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 2))


class Sampler:
    restart = True

    def __init__(self, weights: WeightStore, replay: Replay) -> None:
        self.random = np.random.default_rng(current().seed)
        self.envs = envs.make("CartPole-v1", ENVS, seed=current().seed)
        self.observation = self.envs.reset()
        self.policy = SharedModule(weights, make_network())
        self.policy.refresh(timeout=None)  # waits until there are weights
        self.writer = Writer(replay, {"transitions": n_step(3, 0.95)}, name=current().name)
        self.returns: deque[float] = deque(maxlen=50)

    def step(self) -> None:
        rows = [self.play() for _ in range(ROWS)]
        self.writer.append({name: np.stack([row[name] for row in rows]) for name in rows[0]})  # push
        self.policy.refresh()  # pull, if there is something newer

    @torch.no_grad()
    def play(self) -> dict[str, Any]:
        greedy = self.policy.module(torch.from_numpy(self.observation)).argmax(-1).numpy()
        action = np.where(self.random.random(ENVS) < 0.1, self.random.integers(0, 2, ENVS), greedy)
        row, outcome = {"observation": self.observation, "action": action}, self.envs.step(action)
        self.returns.extend(episode.return_ for episode in self.envs.episodes())
        self.observation = outcome.observation
        return row | {"reward": outcome.reward, "terminated": outcome.terminated, "valid": outcome.valid}

    def mean_return(self) -> float:
        return float(np.mean(self.returns))


class Trainer:
    restart = True

    def __init__(self, weights: WeightStore, gradients: GradientServer, replay: Replay) -> None:
        torch.manual_seed(current().seed)
        self.network, self.replay, self.updates = make_network(), replay, 0
        first = current().name == "trainer/0"
        self.optimizer = optim.Remote(self.network.parameters(), [gradients], clip_norm=10.0, initialise=first)
        self.target = copy.deepcopy(self.network)
        self.shared = SharedModule(weights, self.network)
        self.publish()

    def step(self) -> bool:
        sample = self.replay.sample("transitions", BATCH)  # pull
        batch = {name: torch.from_numpy(column) for name, column in sample.data.items()}
        with torch.no_grad():
            best = self.network(batch["next_observation"]).argmax(-1, keepdim=True)
            following = self.target(batch["next_observation"]).gather(-1, best).squeeze(-1)
            wanted = batch["reward"] + batch["discount"] * following
        error = wanted - self.network(batch["observation"]).gather(-1, batch["action"].long().unsqueeze(-1)).squeeze(-1)
        importance = torch.from_numpy(sample.importance_weights(0.4)).float()
        self.optimizer.step(
            (importance * nn.functional.huber_loss(error, torch.zeros_like(error), reduction="none")).mean()
        )
        self.replay.update_priorities("transitions", sample.keys, error.detach().abs().numpy() + 1e-3)
        self.updates += 1
        if self.updates % TARGET_EVERY == 0:
            self.target.load_state_dict(self.network.state_dict())
        if self.updates % PUBLISH_EVERY == 0:
            self.publish()
        return not self.optimizer.finished

    def publish(self) -> None:
        """Compare and set: when the other trainer was faster, its weights, which are as good, stay."""
        if not self.shared.publish_if_newest():
            self.shared.look()


def main(runtime: str) -> float:
    program = Program()
    weights = program.add("weights", WeightStore)
    gradients = program.add("gradients", GradientServer, rate=2e-3, optimizer="adam", max_staleness=10, max_steps=STEPS)
    limiter = SamplesPerInsert(16.0, min_size=500, error_buffer=8_000)
    table = Table("transitions", 20_000, sampler=Prioritized(0.6), limiter=limiter)
    replay = program.add("replay", Replay, [table])
    samplers = [program.add(f"sampler/{index}", Sampler, weights, replay) for index in range(SAMPLERS)]
    for index in range(TRAINERS):
        program.add(f"trainer/{index}", Trainer, weights, gradients, replay)
    with launch(program, runtime, seed=1) as run:
        while not all(run.finished(Handle(f"trainer/{index}")) for index in range(TRAINERS)):
            run.wait(0.1)
        found = float(np.mean([run.client(sampler).mean_return() for sampler in samplers]))
        table_info = run.client(replay).info()["transitions"]
    print(f"return {found:.0f} after {STEPS} gradients, from {table_info['inserts']} transitions")
    return found


if __name__ == "__main__":
    main(*sys.argv[1:] or ["local"])
