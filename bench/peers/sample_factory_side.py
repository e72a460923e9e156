"""Sample Factory's APPO on one of the tasks; where PPO is asked for, in its synchronous mode (`async_rl=False`).

    python bench/peers/sample_factory_side.py pong [--method appo] [--seconds 30] [--threads 2] [--workers 2]

Run by `python -m bench.peers` in an environment that has sample-factory. Workers step environments, a policy worker
answers them and a learner learns, each a process of its own with one thread; with `--workers 0` all of it happens in
one, with `--threads` of torch. Steps are the learner's own count of those it has trained on, which all of them are, and
each of them counts once for each epoch as trained. Advantages are GAE's, as its settings for Atari have it, without
V-trace.

Its Atari extra brings an ale-py that has no games and fetches them from elsewhere; here it has ale-py 0.12, which
carries them, and its own wrappers.
"""

from __future__ import annotations

import os
import tempfile
from typing import Any

import gymnasium
import torch
from gymnasium.envs.registration import register
from sample_factory.algo.runners.runner import AlgoObserver
from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args
from sample_factory.envs.env_utils import register_env
from sample_factory.train import make_runner
from tasks import CLIP, LEARNING_RATE, TASKS, Clock, Work, arguments

COMMON = {
    "algo": "APPO",
    "experiment": "peer",
    "device": "cpu",
    "seed": 0,
    "use_rnn": False,
    "recurrence": 1,
    "with_vtrace": False,
    "normalize_input": False,  # the task's network has none
    "normalize_returns": False,
    "learning_rate": LEARNING_RATE,
    "ppo_clip_ratio": CLIP,
    "exploration_loss": "entropy",
    "exploration_loss_coeff": 0.01,
    "max_grad_norm": 0.5,
    "summaries_use_frameskip": False,  # agent steps, not frames
    "save_every_sec": 100_000,
    "experiment_summaries_interval": 100_000,
    "save_best_every_sec": 100_000,
    "decorrelate_experience_max_seconds": 0,
    "with_wandb": False,
}
NETWORKS: dict[str, dict[str, Any]] = {
    "pong": {"encoder_conv_architecture": "convnet_atari", "nonlinearity": "relu", "obs_scale": 255.0}
    | {"env_frameskip": 4, "env_framestack": 4},
    "cartpole": {"nonlinearity": "tanh", "actor_critic_share_weights": False},
}
LAYERS = {"pong": ["--encoder_conv_mlp_layers", "512"], "cartpole": ["--encoder_mlp_layers", "64", "64"]}


def make_pong(name: str, cfg: Any, env_config: Any = None, render_mode: str | None = None) -> gymnasium.Env:
    import ale_py  # noqa: F401 (its registration wants a newer gymnasium, its games do not)
    from sample_factory.envs.env_wrappers import ClipRewardEnv, NumpyObsWrapper
    from sf_examples.atari.atari_utils import make_atari_env

    game = {"game": "pong", "frameskip": 1, "repeat_action_probability": 0.0}
    if TASKS["pong"].env not in gymnasium.registry:
        register(TASKS["pong"].env, entry_point="ale_py.env:AtariEnv", kwargs=game)
    if os.environ["PEER_WRAPPERS"] == "own":
        return make_atari_env("atari_pong", cfg, env_config, render_mode)
    env = gymnasium.wrappers.AtariPreprocessing(gymnasium.make(TASKS["pong"].env), terminal_on_life_loss=True)
    return NumpyObsWrapper(gymnasium.wrappers.FrameStack(ClipRewardEnv(env), 4))


def make_cartpole(name: str, cfg: Any, env_config: Any = None, render_mode: str | None = None) -> gymnasium.Env:
    return gymnasium.make(TASKS["cartpole"].env, render_mode=render_mode)


class Watch(AlgoObserver):
    """Asks the clock after each turn of the learner."""

    def __init__(self, clock: Clock, epochs: int) -> None:
        self.clock, self.epochs = clock, epochs

    def on_training_step(self, runner: Any, training_iteration_since_resume: int) -> None:
        steps = runner.env_steps.get(0, 0)
        if steps and not self.clock.update(env_steps=steps, trained_rows=steps * self.epochs):
            runner.cfg.train_for_env_steps = 0  # asked right after this


def configured(options: Any, work: Work, folder: str) -> Any:
    workers, asynchronous = max(1, options.workers), options.method != "ppo"
    named: dict[str, Any] = COMMON | NETWORKS[options.task]
    named |= {
        "env": f"peer_{options.task}",
        "train_dir": folder,
        "async_rl": asynchronous,
        "serial_mode": options.workers == 0,
        "num_workers": workers,
        "num_envs_per_worker": work.environments // workers,
        "worker_num_splits": 2 if asynchronous and options.workers else 1,  # one half acts while the other waits
        "rollout": work.unroll,
        # A turn of the learner takes `num_batches_per_epoch` of `batch_size` samples: `rows` of them, `epochs` times.
        "batch_size": work.minibatch,
        "num_batches_per_epoch": work.minibatches,
        "num_epochs": work.epochs,
    }
    words = [f"--{name}={value}" for name, value in named.items()] + LAYERS[options.task]
    parser, _ = parse_sf_args(words)
    return parse_full_cfg(parser, words)


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--workers", type=int, default=2, help="processes that step environments; 0: one does it all")
    parser.add_argument("--wrappers", choices=("own", "gymnasium"), default="own", help="of Atari")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    os.environ["PEER_WRAPPERS"] = options.wrappers  # for its processes, which are started later
    work = TASKS[options.task].work(options.method)
    register_env("peer_pong", make_pong)
    register_env("peer_cartpole", make_cartpole)
    clock = Clock(options.seconds)
    with tempfile.TemporaryDirectory(prefix="sample-factory-") as folder:
        _, runner = make_runner(configured(options, work, folder))
        runner.register_observer(Watch(clock, work.epochs))
        runner.init()
        runner.run()
    print(clock.result(("sample-factory", "torch", "gymnasium", "numpy")))


if __name__ == "__main__":
    main()
