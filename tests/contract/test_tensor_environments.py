"""Environments of torch tensors under PPO: no array on the way, it learns, and what is cut is worth its end."""

from __future__ import annotations

from collections import Counter
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np
import pytest
import tensor_cartpole
import torch
from gymnasium import spaces
from starting import start_on
from tensor_cartpole import Config
from torch import Tensor

from shoal import envs
from shoal.algorithms.ppo import PPO, make_policy
from shoal.envs.tensor_vector import Autoreset
from shoal.envs.tensors import TensorEnvs
from shoal.envs.torch_tasks.cartpole import CartPoles, pushed
from shoal.experiment.training import train
from shoal.learning import Learning
from shoal.loops.device import RolloutSource
from shoal.loops.learner import LearnerLoop
from shoal.loops.wiring import Settings
from shoal.nets.weights import import_weights
from shoal.program import Handle
from shoal.services.metrics import Metrics
from shoal.services.weights import WeightStore
from shoal.versions import NONE

MODES: tuple[Autoreset, ...] = ("next_step", "same_step")
CPU = torch.device("cpu")
Final = Literal["final", "own", "next"]  # what a vector gives as the final observation: it, or what it is not


@pytest.mark.parametrize(
    ("runtime", "mode"), [("inline", "next_step"), ("inline", "same_step"), ("local", "same_step")]
)
def test_no_step_converts_a_tensor_and_a_batch_a_stated_few(runtime: str, mode: Autoreset) -> None:
    updates, cfg = 5, Config(env="CartPole-v1", autoreset=mode, unroll=16, limit=20, counted=True)
    program = tensor_cartpole.program(cfg, envs.describe(cfg.env), Settings(max_updates=updates, evaluate=False))
    with start_on(runtime, program) as run:
        while not run.finished(Handle("learner")):
            run.wait(0.05)
        run.client(Handle("learner")).report()
        counts = run.client(Handle("metrics")).snapshot()["counts"]
    assert counts["env_steps"] > updates * 15 * cfg.envs_per_actor, "it has acted for sixteen rows a batch"
    steps = cfg.epochs * cfg.minibatches
    found = {name: count / updates for name, count in counts.items() if ": " in name}
    grows = {} if mode == "next_step" else {"acting: number read": 1}  # SAME_STEP: by how many rows a batch does
    assert found == grows | {
        # The number of transitions.
        "acting: tolist": 1,
        # Loss and norm of the gradient, judged by every step of the optimizer, and how many rows were trained.
        "learning: number read": 2 * steps + 1,
        # What runs back through time does so over two views of a CPU's memory (`backward_recurrence`).
        "learning: numpy": 2,
    }


def test_the_count_finds_whatever_converts() -> None:
    found: Counter[str] = Counter()
    tensor, array = torch.ones(3), np.ones(3, np.float32)
    with tensor_cartpole.counting(found):
        for number in (tensor[0].item, lambda: int(tensor[0]), lambda: bool(tensor[0]), lambda: float(tensor[0])):
            number()
        tensor.numpy(), tensor.cpu(), tensor.tolist(), np.asarray(tensor)
        torch.from_numpy(array), torch.as_tensor(array), torch.tensor(array), torch.asarray(array)
        torch.as_tensor(tensor), torch.tensor([1.0]), tensor.mul_(2.0)  # what is no array is none of these
    ways = ("cpu", "tolist", "__array__", "from_numpy", "as_tensor", "tensor", "asarray")
    assert found == {tensor_cartpole.HOST_READ: 4, "numpy": 2, **dict.fromkeys(ways, 1)}  # __array__ calls numpy
    tensor.numpy()
    assert found["numpy"] == 2, "nothing is counted afterwards"


@pytest.mark.parametrize(("runtime", "mode"), [("inline", "next_step"), ("local", "same_step")])
def test_ppo_learns_in_them_what_gymnasium_judges(runtime: str, mode: Autoreset, tmp_path: Path) -> None:
    """The evaluator plays Gymnasium's own CartPole-v1, greedily."""
    result = train(
        Config(env="CartPole-v1", autoreset=mode),
        run_dir=str(tmp_path / "run"),
        runtime=runtime,
        stop_return=195.0,
        stop_updates=60,
        eval_every=0.01 if runtime == "inline" else 0.5,  # inline an update is a millisecond
        quiet=True,
    )
    assert (result.reached, result.stopped_by) == (True, "return")
    assert result.eval_return is not None
    assert result.eval_return >= 195.0


class Mistaken(CartPoles):
    """Says of an episode's end that it is the row before, or the beginning of the next one."""

    def __init__(self, *given: Any, final: Final, **options: Any) -> None:
        super().__init__(*given, **options)
        self._final = final

    def step(self, actions: Tensor, /) -> Any:
        before = self.see(self._state)
        seen, *rest, info = super().step(actions)
        wrong = {"final": info.get("final_obs"), "own": before, "next": seen}
        return seen, *rest, {"final_obs": wrong[self._final]} if info else {}


def targets_of(mode: Autoreset, final: Final) -> tuple[Tensor, Tensor]:
    """What PPO learns values from in episodes that are cut after two steps, and what it should be: a reward and the
    value of what the action led to, whether the episode was cut there or not."""
    cfg = Config(env="", unroll=9, gamma=0.9, lambda_=0.0, reward_scale=1.0)
    spec: Any = SimpleNamespace(
        observation_space=CartPoles.single_observation_space, action_space=CartPoles.single_action_space
    )
    learner = PPO(cfg, spec, 0)
    poles = partial(Mistaken, 8, autoreset=mode, max_episode_steps=2, final=final)
    source = RolloutSource(
        Learning(learner, CPU, seed=0),
        make_envs=lambda seed, device: TensorEnvs(poles(seed, device)),
        make_policy=partial(make_policy, cfg, spec),
        rows=cfg.unroll,
    )
    rows, _ = learner.prepare(source.take().batch)
    assert rows["valid"].all()
    with torch.no_grad():
        _, following, _ = learner.network(
            pushed(rows["observation"][0], rows["action"][0]).unsqueeze(0), {}, rows["first"]
        )
    return rows["target"], 1.0 + cfg.gamma * following


@pytest.mark.parametrize("mode", MODES)
def test_what_follows_a_truncated_step_is_worth_its_final_observation(mode: Autoreset) -> None:
    found, expected = targets_of(mode, "final")
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("final", ["own", "next"])
def test_another_observation_in_its_place_would_be_noticed(final: Final) -> None:
    found, expected = targets_of("same_step", final)
    assert not torch.allclose(found, expected, rtol=1e-3, atol=1e-3)


class Rooms:
    """Out of the first of two rooms one comes to the second, and is cut off there; out of the second one comes to an
    end with 10. Episodes begin in either. With half of what is to come, the first room is worth 5, if it is known
    where the episode was cut; 0 if it is taken for the room itself, 10/3 if for the room where the next one begins."""

    single_observation_space, single_action_space = spaces.Box(0.0, 1.0, (2,)), spaces.Discrete(2)

    def __init__(self, seed: int, autoreset: Autoreset, final: Final, count: int = 64) -> None:
        self.num_envs, self._same, self._final = count, autoreset == "same_step", final
        self.metadata = {"autoreset_mode": autoreset}
        self._random = torch.Generator().manual_seed(seed)

    def reset(self) -> tuple[Tensor, dict[str, Any]]:
        self._room, self._ended = self._begin(), torch.zeros(self.num_envs, dtype=torch.bool)
        return self._see(self._room), {}

    def step(self, actions: Tensor, /) -> tuple[Tensor, Tensor, Tensor, Tensor, dict[str, Any]]:
        before, reward, terminated = self._room, 10.0 * self._room, self._room == 1
        end = torch.ones_like(before)
        if self._same:
            self._room = self._begin()
            final = {"final": end, "own": before, "next": self._room}[self._final]
            return self._see(self._room), reward, terminated, ~terminated, {"final_obs": self._see(final)}
        resets, self._ended = self._ended, ~self._ended
        self._room = torch.where(resets, self._begin(), end)
        reward = reward.masked_fill(resets, 0.0)
        return self._see(self._room), reward, terminated & ~resets, ~terminated & ~resets, {}

    def _begin(self) -> Tensor:
        return torch.randint(2, (self.num_envs,), generator=self._random)

    def _see(self, room: Tensor) -> Tensor:
        return torch.stack([room == 0, room == 1], 1).float()


@pytest.mark.parametrize(
    ("mode", "final", "worth"),
    [
        ("next_step", "final", 5.0),
        ("same_step", "final", 5.0),
        ("same_step", "own", 0.0),
        ("same_step", "next", 10 / 3),
    ],
)
def test_a_learner_finds_out_what_lies_behind_a_cut(mode: Autoreset, final: Final, worth: float) -> None:
    """The last two are what it would learn from another observation: the first two tell them apart."""
    cfg = Config(env="", unroll=8, gamma=0.5, lambda_=0.5, reward_scale=1.0, learning_rate=0.02, hidden=(32,))
    spec: Any = SimpleNamespace(
        observation_space=Rooms.single_observation_space, action_space=Rooms.single_action_space
    )
    source = partial(
        RolloutSource,
        make_envs=lambda seed, device: TensorEnvs(Rooms(seed, mode, final)),
        make_policy=partial(make_policy, cfg, spec),
        rows=cfg.unroll,
    )
    weights = WeightStore()
    loop = LearnerLoop(partial(PPO, cfg, spec), source, weights, Metrics(), max_updates=40)
    while loop.step():
        pass
    published = weights.newer(NONE)
    assert published is not None
    network = PPO(cfg, spec, 1).network
    import_weights(network, published[1])
    with torch.no_grad():
        _, values, _ = network(torch.eye(2).unsqueeze(0), {}, torch.zeros(1, 2, dtype=torch.bool))
    assert values[0].tolist() == pytest.approx([worth, 10.0], abs=0.6)
