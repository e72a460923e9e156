"""Your own policy, actor and learner on Shoal's program, services and runtimes: REINFORCE with a baseline on CartPole.

    python examples/own_loops.py [local|inline|ray]

Two actors record rollouts and send them to a replay service; a learner takes them from there, learns and publishes its
weights. Nothing here knows where the nodes run. docs/programs.md goes through it line by line.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import torch
from torch import nn

from shoal import envs
from shoal.acting import Recorder, Sender
from shoal.batches import to_batch
from shoal.functional.returns import backward_recurrence
from shoal.nets.weights import export_weights, import_weights
from shoal.program import Handle, Program, current
from shoal.replay import Replay, Table, rollout
from shoal.runtime import launch
from shoal.services.weights import WeightStore
from shoal.types import Array, Arrays, Columns
from shoal.versions import NONE

ENV, ENVS, ROWS, UPDATES, GAMMA = "CartPole-v1", 16, 64, 150, 0.97


def make_network() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 3))  # two logits and a value


class MyPolicy:
    """Draws actions from the network's logits."""

    def __init__(self, seed: int) -> None:
        self.network = make_network()
        self.random = np.random.default_rng(seed)

    def initial_state(self, count: int) -> Columns:
        return {}  # a recurrent policy has arrays [count, ...] here

    @torch.inference_mode()
    def act(self, observation: Any, state: Columns, first: Array) -> tuple[Array, Columns, Columns]:
        probabilities = torch.softmax(self.network(torch.from_numpy(observation))[:, :2], -1).numpy()
        action = (self.random.random(len(probabilities)) > probabilities[:, 0]).astype(np.int64)
        return action, state, {}  # what is returned last is recorded with the row

    def load(self, weights: Arrays) -> None:
        import_weights(self.network, weights)


class MyActor:
    restart = True  # when it is lost the run goes on with a new one

    def __init__(self, weights: WeightStore, replay: Replay) -> None:
        self.envs = envs.make(ENV, ENVS, seed=current().seed)  # a seed of its own for every node and every life
        policy = MyPolicy(current().seed)
        send = Sender(policy, [replay], {"rollouts": rollout(ROWS)}, name=current().name)
        self.recorder = Recorder(policy, ENVS, ROWS, send)
        self.weights = weights
        self.observation = self.envs.reset()
        self.refresh(weights.wait(NONE))

    def refresh(self, found: tuple[int, Arrays] | None) -> None:
        if found is not None:
            self.recorder.load(*found)

    def step(self) -> None:
        """Called in a loop by the runtime, until it returns False."""
        complete = False
        while not complete:
            outcome = self.envs.step(self.recorder.act(self.observation))
            self.observation = outcome.observation
            complete = self.recorder.result(outcome)
        self.refresh(self.weights.newer(self.recorder.version))


class MyLearner:
    def __init__(self, weights: WeightStore, replay: Replay) -> None:
        torch.manual_seed(current().seed)
        self.network = make_network()
        self.optimizer = torch.optim.Adam(self.network.parameters(), lr=3e-3)
        self.space = envs.describe(ENV).observation_space
        self.weights, self.replay, self.updates, self.length = weights, replay, 0, 0.0
        weights.publish(export_weights(self.network), version=0)

    def step(self) -> bool:
        batch = to_batch(self.replay.sample("rollouts", ENVS).data, self.space)  # time-major: [ROWS + 1, ENVS, ...]
        outputs = self.network(batch["observation"])
        values, valid, terminated = outputs[..., 2], batch["valid"][:-1], batch["terminated"][:-1]
        with torch.no_grad():
            rewards = torch.where(valid, batch["reward"][:-1], values[:-1])  # a row after an end only ends returns
            discounts = torch.where(valid & ~terminated, GAMMA, 0.0)
            rewards[-1] += discounts[-1] * values[-1]
            returns = backward_recurrence(inputs=rewards, decay=discounts)
        log_probs = torch.log_softmax(outputs[:-1, :, :2], -1)
        taken = log_probs.gather(-1, batch["action"][:-1].unsqueeze(-1)).squeeze(-1)
        errors = returns - values[:-1]
        entropy = -(log_probs.exp() * log_probs).sum(-1)
        losses = -taken * errors.detach() + 0.1 * errors.square() - 0.01 * entropy
        self.optimizer.zero_grad()
        losses[valid].mean().backward()
        self.optimizer.step()
        self.updates += 1
        self.weights.publish(export_weights(self.network), version=self.updates)
        length = float(valid.sum() / terminated.sum().clamp(min=1))  # steps between two ends
        self.length += (length - self.length) / min(self.updates, 20)
        return self.updates < UPDATES

    def mean_length(self) -> float:
        """Any public method of a node can be called by others."""
        return self.length


def make_program() -> Program:
    p = Program()
    weights = p.add("weights", WeightStore)
    replay = p.add("replay", Replay, [Table.queue("rollouts", 4 * ENVS)])
    p.add("learner", MyLearner, weights, replay)  # a handle given to a node becomes a client inside it
    for index in range(2):
        p.add(f"actor/{index}", MyActor, weights, replay)
    return p


def main(runtime: str) -> float:
    with launch(make_program(), runtime, seed=1) as run:
        while not run.finished(Handle("learner")):
            run.wait(0.5)
        length: float = run.client(Handle("learner")).mean_length()
    print(f"episodes last {length:.0f} steps after {UPDATES} updates")
    return length


if __name__ == "__main__":
    main(*sys.argv[1:] or ["local"])
