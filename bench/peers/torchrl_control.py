"""TorchRL's SAC or TD3 losses with its replay buffer, one environment and an update a step.

    python bench/peers/torchrl_control.py halfcheetah --method sac [--seconds 30] [--threads 2]

Run by `python -m bench.peers` in an environment that has torchrl. The loop is that of its examples, written out: a
`GymEnv` is stepped, a `ReplayBuffer` in memory is sampled, a loss module gives the losses, `SoftUpdate` the targets.
"""

from __future__ import annotations

from typing import Any

import torch
from tasks import TASKS, Clock, arguments
from tensordict import TensorDict
from tensordict.nn import NormalParamExtractor, TensorDictModule, TensorDictSequential
from torch import nn
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.envs import DoubleToFloat, EnvBase, GymEnv, TransformedEnv
from torchrl.envs.utils import ExplorationType, set_exploration_type, step_mdp
from torchrl.modules import MLP, ProbabilisticActor, TanhModule, TanhNormal, ValueOperator
from torchrl.objectives import SACLoss, SoftUpdate, TD3Loss

RATE, STARTS, CAPACITY, DELAY, NOISE = 3e-4, 1_000, 1_000_000, 2, 0.1


def mlp(inputs: int, outputs: int) -> MLP:
    return MLP(in_features=inputs, out_features=outputs, num_cells=[256, 256], activation_class=nn.ReLU)


class Sides:
    """Networks, losses and optimizers of a method."""

    def __init__(self, method: str, env: EnvBase) -> None:
        width, actions, spec = env.observation_spec["observation"].shape[-1], env.action_spec.shape[-1], env.action_spec
        self.method, self.made = method, 0
        value = ValueOperator(mlp(width + actions, 1), in_keys=["observation", "action"])
        if method == "sac":
            body = nn.Sequential(mlp(width, 2 * actions), NormalParamExtractor())
            module = TensorDictModule(body, in_keys=["observation"], out_keys=["loc", "scale"])
            bounds = {"low": spec.space.low, "high": spec.space.high, "tanh_loc": False}
            self.actor: Any = ProbabilisticActor(
                module,
                in_keys=["loc", "scale"],
                spec=spec,
                distribution_class=TanhNormal,
                distribution_kwargs=bounds,
                default_interaction_type=ExplorationType.RANDOM,
            )
            self.loss: Any = SACLoss(self.actor, value, num_qvalue_nets=2, action_spec=spec, delay_qvalue=True)
        else:
            module = TensorDictModule(mlp(width, actions), in_keys=["observation"], out_keys=["action_raw"])
            tanh = TanhModule(in_keys=["action_raw"], out_keys=["action"], spec=spec)
            self.actor = TensorDictSequential(module, tanh)
            self.loss = TD3Loss(self.actor, value, num_qvalue_nets=2, action_spec=spec, delay_actor=True)
        self.loss.make_value_estimator(gamma=0.99)
        self.target = SoftUpdate(self.loss, tau=0.005)
        self.actor_adam = torch.optim.Adam(list(self.loss.actor_network_params.flatten_keys().values()), lr=RATE)
        self.critic_adam = torch.optim.Adam(list(self.loss.qvalue_network_params.flatten_keys().values()), lr=RATE)
        self.alpha_adam = torch.optim.Adam([self.loss.log_alpha], lr=RATE) if method == "sac" else None

    def act(self, rows: TensorDict) -> TensorDict:
        found = self.actor(rows)
        if self.method == "td3":
            action = found["action"]
            found["action"] = (action + NOISE * torch.randn_like(action)).clamp(-1, 1)
        return found

    def update(self, batch: TensorDict) -> None:
        if self.method == "sac":
            losses = self.loss(batch)
            adams = self.critic_adam, self.actor_adam, self.alpha_adam
            for adam in adams:
                adam.zero_grad()
            (losses["loss_qvalue"] + losses["loss_actor"] + losses["loss_alpha"]).backward()
            for adam in adams:
                adam.step()
            self.target.step()
            return
        value, _ = self.loss.value_loss(batch)
        self.critic_adam.zero_grad()
        value.backward()
        self.critic_adam.step()
        self.made += 1
        if self.made % DELAY == 0:
            actor, _ = self.loss.actor_loss(batch)
            self.actor_adam.zero_grad()
            actor.backward()
            self.actor_adam.step()
            self.target.step()


def main() -> None:
    options = arguments(__doc__).parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    task = TASKS[options.task]
    rows = task.work(options.method).rows
    env = TransformedEnv(GymEnv(task.env), DoubleToFloat())
    env.set_seed(0)
    agent = Sides(options.method, env)
    replay = TensorDictReplayBuffer(storage=LazyTensorStorage(CAPACITY), batch_size=rows)
    clock, steps, updates = Clock(options.seconds), 0, 0
    seen = env.reset()
    while not updates or clock.update(env_steps=steps, trained_rows=updates * rows):
        with torch.no_grad(), set_exploration_type(ExplorationType.RANDOM):
            acted = env.rand_action(seen) if steps < STARTS else agent.act(seen)
        stepped = env.step(acted)
        replay.add(stepped.select("observation", "action", "next"))
        following = step_mdp(stepped)
        seen = env.reset() if bool(following["done"].any()) else following.select("observation", "done", "terminated")
        steps += 1
        if steps > STARTS:
            agent.update(replay.sample())
            updates += 1
    print(clock.result(("torchrl", "tensordict", "torch", "gymnasium", "numpy")))


if __name__ == "__main__":
    main()
