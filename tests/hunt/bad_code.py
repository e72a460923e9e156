"""What users' modules can get wrong, each as a small file of its own."""

from __future__ import annotations

ENV = """
import gymnasium, numpy as np, os
from gymnasium import spaces

class Env(gymnasium.Env):
    observation_space = spaces.Box(-1, 1, (3,), np.float32)
    action_space = spaces.Discrete(2)
    def reset(self, *, seed=None, options=None):
        return np.zeros(3, np.float32), {}
    def step(self, action):
        return np.zeros(3, np.float32), 0.0, False, False, {}
"""
STEP = "    def step(self, action):\n        return "
RESET = "    def reset(self, seed=None, options=None):\n        return "
NETWORK = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 3)
    def forward(self, observation):
        out = self.linear(observation)
        return out[:, :2], out[:, 2]

def good(observations, actions):
    return Net()
"""

FILES: dict[str, str] = {
    # algorithms
    "syntax.py": "def broken(:\n",
    "needs.py": "import a_package_that_is_not_there\n",
    "raises.py": "raise RuntimeError('not today')\n",
    "leaves.py": "import sys\nsys.exit(0)\n",
    "empty.py": "",
    "no_dataclass.py": "Config = int\nPRESETS = {}\nmake_policy = program = None\n",
    "bad_preset.py": "from shoal.algorithms.impala import *\nfrom shoal.algorithms.impala import Config\n"
    "PRESETS = {'classic': {'bath': 3}}\n",
    "json.py": "x = 1\n",
    # environments
    "envs_syntax.py": "class Env:\n  def\n",
    "envs_init.py": ENV + "    def __init__(self):\n        raise ValueError('no such map')\n",
    "envs_spaces.py": "import gymnasium\nclass Env(gymnasium.Env):\n    pass\n",
    "envs_exit.py": ENV + "    def __init__(self):\n        os._exit(0)\n",
    "envs_exit_by_interrupt.py": ENV + "    def step(self, action):\n        raise KeyboardInterrupt\n",
    "envs_idle.py": ENV + "    action_space = spaces.Box(-1, 1, (0,), np.float32)\n",
    "envs_reset.py": ENV + RESET + "np.zeros(3, np.float32)\n",
    "envs_shape.py": ENV + RESET + "np.zeros(4, np.float32), {}\n",
    "envs_nan.py": ENV + STEP + "np.full(3, np.nan, np.float32), 0.0, False, False, {}\n",
    "envs_four.py": ENV + STEP + "np.zeros(3, np.float32), 0.0, False, {}\n",
    "envs_flag.py": ENV + STEP + "np.zeros(3, np.float32), 0.0, 0, False, {}\n",
    "envs_step.py": ENV + "    def step(self, action):\n        raise KeyError('door')\n",
    "envs_reward.py": ENV + STEP + "np.zeros(3, np.float32), None, False, False, {}\n",
    "envs_none.py": "def make():\n    pass\n",
    "envs_takes.py": ENV + "def make(difficulty):\n    return Env()\n",
    "envs_value.py": ENV + "made = Env()\nnumber = 3\n",
    "envs_torch.py": """
import gymnasium, torch, numpy as np
from gymnasium import spaces
class Env(gymnasium.vector.VectorEnv):
    metadata = {"autoreset_mode": gymnasium.vector.AutoresetMode.NEXT_STEP}
    def __init__(self, count):
        self.num_envs = count
        self.single_observation_space = spaces.Box(-1, 1, (3,), np.float32)
        self.single_action_space = spaces.Discrete(2)
    def reset(self, *, seed=None, options=None):
        return torch.zeros(self.num_envs, 3), {}
    def step(self, actions):
        n = self.num_envs
        no = torch.zeros(n, dtype=torch.bool)
        return torch.zeros(n, 3), torch.zeros(n), no, no, {}
def make(count):
    return Env(count)
""",
    # networks
    "nets.py": NETWORK
    + """
def raises(observations, actions):
    raise ValueError('no width')
def nothing():
    return Net()
def returns_none(observations, actions):
    return None
class Late(Net):
    def forward(self, observation):
        raise IndexError('late')
def late(observations, actions):
    return Late()
def doubles(observations, actions):
    return Net().double()
class Bare(nn.Module):
    def forward(self, observation):
        return observation[:, :2], observation[:, 0]
def bare(observations, actions):
    return Bare()
class Wide(Net):
    def forward(self, observation):
        out = self.linear(observation)
        return out, out[:, 2]
def wide(observations, actions):
    return Wide()
class Cut(Net):
    @torch.no_grad()
    def forward(self, observation):
        return super().forward(observation)
def cut(observations, actions):
    return Cut()
class Alone(Net):
    def forward(self, observation):
        return self.linear(observation)
def alone(observations, actions):
    return Alone()
def pattern_raises(cfg):
    raise RuntimeError('no pattern')
def pattern_none(cfg):
    return None
number = 3
""",
    "bad.toml": 'algorithm = "impala"\nstop_retrun = 400\n',
    "twice.toml": 'algorithm = "impala"\nstop-steps = 1\nstop_steps = 2\n',
    "unnamed.toml": "seed = 1\n",
    "broken.toml": "seed = ,\n",
    "good.toml": 'algorithm = "impala"\nseed = 1\n',
}
