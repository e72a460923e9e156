"""Groups of options that algorithms share. A config is composed of them and stays flat: `Config(actors=2)`.

An algorithm's file adds what is its own, and gives another default where the method asks for one.
"""

from __future__ import annotations

from typing import Any, Literal

from shoal.config import Amount, Count, Positive, Share, Whole, Widths, config


@config()
class Acting:
    """Who acts, and where."""

    env: str = "CartPole-v1"
    preset: str = "auto"  # auto: by the environment's kind
    actors: Count = 1
    envs_per_actor: Count = 64
    vectorizer: str = "auto"  # native where the environment has one, else sync
    acting_device: str = "cpu"  # what policies compute on; with central inference, the servers


@config()
class CentralInference:
    """Networks beside the actors, or in servers of their own."""

    inference: Literal["local", "central"] = "local"  # central: actors own no network and ask an inference server
    inference_servers: Count = 1
    inference_batch: Whole = 0  # environments answered at once; 0: all of a server's actors
    inference_wait: Amount = 0.002  # seconds a request waits for others to share its batch


@config()
class Rewards:
    """What learners make of the environment's rewards. What is stored stays raw."""

    reward_scale: Positive = 1.0
    reward_clip: Amount = 0.0  # rewards are clipped to ± this before scaling; 0: not at all


@config()
class Learning:
    """Who learns, and how fast."""

    learners: Count = 1  # each takes its share of a batch; gradients are summed over all of them
    learner_threads: Count = 1  # that each learner computes with on a CPU
    device: str = "cpu"  # what learners compute on
    gamma: Share = 0.99
    epsilon: Amount = 1e-8  # of the optimizer
    grad_clip: Amount = 0.5  # norm; 0: not at all


@config()
class Rollouts:
    """On-policy data: a queue of rollouts, each trained on once."""

    unroll: Count = 20  # transitions per item; one more observation is kept to bootstrap
    queue: Count = 128  # items that may wait for the learner; actors block when it is full
    batch: Count = 64  # items per update
    publish_every: Count = 1  # updates between versions of the weights


@config()
class Experience:
    """Off-policy data: a replay of items that are sampled again and again."""

    rows: Count = 16  # steps of every environment between two messages to the replay, and two looks for new weights
    replay: Literal["prioritized", "uniform"] = "prioritized"
    shards: Count = 1  # replay services
    capacity: Count = 100_000  # items; a soft limit: what is over it goes every 100 updates, the oldest first
    learning_starts: Count = 1_000  # items that are there before the first update
    samples_per_insert: Amount = 0.0  # 0: acting and learning go at their own pace
    priority_exponent: Amount = 0.6
    importance_exponent: Amount = 0.4
    pattern: str | None = None  # module:factory of a pattern in place of the usual one; called with this config
    n: Count = 3  # steps of a return
    batch: Count = 512  # items per update
    publish_every: Count = 1  # updates between versions of the weights
    target_every: Count = 200  # updates after which the target network follows


@config()
class EpsilonLadder:
    """Exploration by ε-greedy actions, each environment with its own ε."""

    ladder_base: Share = 0.4  # environment i of N explores with ε = base^(1 + exponent · i/(N−1))
    ladder_exponent: Amount = 7.0


@config()
class DuelingNetwork:
    """A value for each action."""

    network: str | None = None  # module:factory, see shoal.nets.user_q
    hidden: Widths = (256, 256)
    activation: str = "relu"
    stream: Whole = 0  # width of the hidden layers of value and advantage; 0: none
    learning_rate: Amount = 1e-3


@config()
class PolicyAndValue:
    """A policy and a value, over one torso or one each."""

    network: str | None = None  # module:factory, see shoal.nets.user
    hidden: Widths = (64, 64)
    activation: str = "tanh"
    shared_torso: bool = True
    state_dependent_std: bool = False  # Box actions: the network gives the standard deviation too
    lstm: Whole = 0  # width of the recurrent core; 0: feed-forward


@config()
class PolicyGradient:
    """What policy gradients weigh against each other."""

    lambda_: Share = 1.0  # how far returns look before they trust values
    entropy_cost: float = 0.01
    value_cost: float = 0.5
    learning_rate: Amount = 1e-3


@config()
class ImportanceClips:
    """How far V-trace lets ratios of probabilities count."""

    clip_rho: Amount = 1.0  # in targets
    clip_c: Amount = 1.0  # in how far errors reach back


@config()
class Proximal:
    """Several passes over the same rollouts, held near the policy that acted."""

    epochs: Count = 4  # passes over a batch
    minibatches: Count = 4  # updates per pass
    clip: Amount = 0.2  # how far the ratio of probabilities may move before it gains no more
    anneal_steps: Whole = 0  # the learning rate falls linearly to 0 over so many environment steps; 0: constant
    normalize_advantages: bool = True
    normalize_observations: bool = False
    normalize_rewards: bool = False  # by the spread of discounted returns


@config()
class ActorAndCritics:
    """An actor and critics of observation and action."""

    network: str | None = None  # module:factory, see shoal.nets.control
    actor_hidden: Widths = (256, 256)
    critic_hidden: Widths = (256, 256)
    activation: str = "relu"
    layer_norm: bool = False  # layer normalisation and tanh after the first layer, as in D4PG
    actor_rate: Amount = 1e-3
    critic_rate: Amount = 1e-3
    target_rate: Share = 1.0  # how much of the way to the networks the target networks go: 1 copies


@config()
class SlopeFollowing:
    """How an actor follows the slope of its critic."""

    slope_clip: Amount = 1.0  # dQ/da of each part of an action is clipped to ± this; 0: not at all
    saturation_cost: Amount = 0.0  # on squares of what tanh makes actions of: keeps them from sticking to their bounds


@config()
class Noise:
    """Exploration by Gaussian noise on actions, in units of half their range."""

    noise: Amount = 0.3  # deviation; the largest, where environments differ
    noise_smallest: Amount = 0.0  # deviations go down to this one over all environments; 0: the same for all


@config(env="Pendulum-v1", envs_per_actor=8, rows=8, capacity=1_000_000, batch=256)
class ContinuousControl(ActorAndCritics, Learning, Experience, Rewards, CentralInference, Acting):
    """What algorithms of an actor and critics share, with the sizes that their papers have."""


# ---- parts of presets that several algorithms share

ATARI: dict[str, Any] = {"reward_clip": 1.0, "hidden": (512,), "activation": "relu"}  # with the encoder's convolutions
SMALL_CONTROL: dict[str, Any] = {  # tasks that a thousand updates solve: many samples of each step, targets that follow
    "reward_scale": 0.1,
    "capacity": 300_000,
    "samples_per_insert": 64.0,
    "publish_every": 4,
    "target_rate": 0.01,
    "actor_rate": 1e-3,
    "critic_rate": 1e-3,
    "actor_hidden": (128, 128),
    "critic_hidden": (128, 128),
    "layer_norm": True,
    "n": 5,
}
SMALL_SLOPES: dict[str, Any] = SMALL_CONTROL | {
    "target_every": 1,
    "saturation_cost": 0.01,
}
