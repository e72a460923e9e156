"""RLlib's PPO, IMPALA or APPO on one of the tasks, on its present API.

    python bench/peers/rllib_side.py pong [--method ppo] [--seconds 30] [--threads 2] [--runners 2] [--wrappers own]

Run by `python -m bench.peers` in an environment that has ray[rllib]. PPO learns in the driver's process, with
`--threads` of torch, and acts there too with `--runners 0`; IMPALA and APPO have a learner of their own. Steps are its
`num_env_steps_sampled_lifetime`, what is trained its `num_module_steps_trained_lifetime`, the rows of all minibatches.
That may be more than the steps and less: an artificial row stands at the end of each piece of an episode, and of what
waits too long for its learner RLlib drops the oldest.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import ray
import torch
from ray.rllib.algorithms.appo import APPOConfig
from ray.rllib.algorithms.impala import IMPALAConfig
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.rllib.env.wrappers.atari_wrappers import wrap_atari_for_new_api_stack
from ray.tune.registry import register_env
from tasks import CLIP, LEARNING_RATE, TASKS, Clock, Work, arguments

# The layer of 512 units over 7 × 7 × 64 is written as one more convolution: RLlib has it only for each head by itself.
NATURE = [[32, 8, 4, "valid"], [64, 4, 2, "valid"], [64, 3, 1, "valid"], [512, 7, 1, "valid"]]


def pong(settings: dict[str, Any]) -> gymnasium.Env:
    """RLlib's networks want [84, 84, 4] floats."""
    import ale_py  # noqa: F401 (registers the games)

    game = gymnasium.make(TASKS["pong"].env)
    if settings["wrappers"] == "own":
        seen = wrap_atari_for_new_api_stack(game, dim=84, framestack=4)
    else:
        grey = gymnasium.wrappers.AtariPreprocessing(game, noop_max=30, terminal_on_life_loss=True)
        stacked = gymnasium.wrappers.FrameStackObservation(grey, 4)
        space = gymnasium.spaces.Box(0.0, 1.0, (84, 84, 4), np.float32)
        seen = gymnasium.wrappers.TransformObservation(stacked, unit_interval, space)
    return gymnasium.wrappers.TransformReward(seen, np.sign)


def unit_interval(frames: np.ndarray) -> np.ndarray:
    return np.moveaxis(frames, 0, -1).astype(np.float32) / np.float32(255)


def configured(method: str, task: str, work: Work, options: Any) -> Any:
    runners: int = options.runners
    config: Any = {"ppo": PPOConfig, "impala": IMPALAConfig, "appo": APPOConfig}[method]()
    if task == "pong":
        config.environment("shoal-pong", env_config={"wrappers": options.wrappers})
    else:
        config.environment(TASKS[task].env)
    config.env_runners(
        num_env_runners=runners,
        num_envs_per_env_runner=work.environments // max(1, runners),
        rollout_fragment_length=work.unroll,
        num_cpus_per_env_runner=1,
    )
    # Every batch of `rows` is gone over `epochs` times in minibatches; with one of each it is one update, as RLlib
    # does when it is given no size of minibatches.
    batches = {"train_batch_size_per_learner": work.rows, "num_epochs": work.epochs, "lr": LEARNING_RATE}
    if method == "ppo":
        config.training(
            **batches, minibatch_size=work.minibatch, clip_param=CLIP, entropy_coeff=0.01, use_kl_loss=False
        )
        config.learners(num_learners=0)
    else:
        config.training(**batches, **({"use_circular_buffer": False} if method == "appo" else {}))
        config.learners(num_learners=1, num_cpus_per_learner=1)
    if task == "pong":
        network = DefaultModelConfig(conv_filters=NATURE, conv_activation="relu", vf_share_layers=True)
    else:
        network = DefaultModelConfig(fcnet_hiddens=[64, 64], fcnet_activation="tanh", vf_share_layers=False)
    config.rl_module(model_config=network)
    config.reporting(min_time_s_per_iteration=0 if method == "ppo" else 1, min_sample_timesteps_per_iteration=0)
    config.debugging(log_level="ERROR", seed=0)
    return config


def counts(result: dict[str, Any]) -> dict[str, float]:
    learners = result.get("learners", {}).get("__all_modules__", {})
    return {
        "env_steps": float(result["num_env_steps_sampled_lifetime"]),
        "trained_rows": float(learners.get("num_module_steps_trained_lifetime", 0.0)),
    }


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--runners", type=int, default=2, help="processes that act; 0: the driver")
    parser.add_argument("--wrappers", choices=("own", "gymnasium"), default="own", help="of Atari")
    options = parser.parse_args()
    here = str(Path(__file__).resolve().parent)  # where workers find `tasks`
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    torch.set_num_threads(options.threads)
    clock = Clock(options.seconds)
    with tempfile.TemporaryDirectory(prefix="r", ignore_cleanup_errors=True) as folder:
        settings = {"env_vars": {"PYTHONPATH": here}}
        ray.init(
            num_cpus=4,  # logical ones: whoever wants to run may, the machine has as many cores as it has
            include_dashboard=False,
            log_to_driver=False,
            logging_level="ERROR",
            runtime_env=settings,
            _temp_dir=folder,
        )
        try:
            register_env("shoal-pong", pong)
            work = TASKS[options.task].work(options.method)
            algorithm = configured(options.method, options.task, work, options).build_algo()
            while True:
                seen = counts(algorithm.train())
                if seen["trained_rows"] and not clock.update(**seen):
                    break
            algorithm.stop()
        finally:
            ray.shutdown()
    print(clock.result(("ray", "torch", "gymnasium", "numpy")))


if __name__ == "__main__":
    main()
