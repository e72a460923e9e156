"""Groups of options that algorithms share. A config is composed of them and stays flat: `Config(actors=2)`.

An algorithm's file adds what is its own, and gives another default where the method asks for one.
"""

from __future__ import annotations

from typing import Annotated, Literal

from shoal.config import (
    Amount,
    AtLeast,
    Between,
    Constraint,
    Count,
    Enough,
    Factory,
    GpuShare,
    NamedValues,
    Positive,
    Seconds,
    Share,
    Threads,
    Whole,
    Widths,
    config,
    option,
)
from shoal.errors import UserError
from shoal.types import EXTERNAL, NO_ENV

Activation = Literal["tanh", "relu"]
Images = Literal["nature", "resnet"]
SLOWEST_LEARNING = 1e-6  # samples per insert, below which a learner would wait for days


def on_gpu(device: str) -> bool:
    return device.startswith("cuda")


@config()
class Acting:
    """Who acts, and where."""

    env: Factory = "CartPole-v1"
    """A Gymnasium id, module:factory, or in Python the function or class that makes the environment."""
    env_options: NamedValues | None = None
    """An option of the environment or of your factory; give it again for another one."""
    frame_stack: Annotated[int, Between(0, 64)] = 0
    """Newest frames that a policy sees of each image; 0: 4 for Atari, else 1."""
    eval_env_options: NamedValues | None = None
    """The evaluator's own, on top of those."""
    eval_limit: Count | None = None
    """Steps after which the evaluator cuts an episode; without it the environment's limit, or 27,000."""
    preset: str = "auto"
    """Which settings to begin with; auto: those for the environment's kind, none: the fields' own defaults."""
    actors: Annotated[Count, Enough(1)] = 1
    """Nodes that act."""
    envs_per_actor: Annotated[Count, Enough(4)] = 64
    """Environments that each of them steps together."""
    vectorizer: Literal["auto", "native", "sync", "async"] = "auto"
    """native: the environment's own vector version; sync: one after another; async: a process each; auto: native where
    there is one, else what suits the time that a step of it takes."""
    env_timeout: Seconds = 0.0
    """Seconds for a step, after which an environment in a process of its own is replaced; 0: however long it takes."""
    acting_device: str = "cpu"
    """What policies compute on; with central inference, the servers."""
    actor_gpus: GpuShare | None = None
    """Part of a GPU, and of its memory, for each actor and the evaluator where these compute on one; None: equal parts
    of one, or of the quarter that a learner leaves."""
    gpu_memory: Positive | None = None
    """GB of a GPU's memory that each node may take, in place of its part."""

    @Constraint
    def _who_shares_a_gpu_computes_on_one(self) -> None:
        if self.actor_gpus is not None and not on_gpu(self.acting_device):
            raise UserError(
                f"--actor-gpus {self.actor_gpus:g} is a part of no GPU while policies compute on "
                f"{self.acting_device}: add --acting-device cuda, or leave it out."
            )


@config()
class Outside(Acting):
    """Environments that are outside (--env external): clients bring them to a gateway, which acts for them."""

    listen: str | None = None
    """HOST:PORT for clients; on other hosts than this machine they must show a token."""
    spaces: str | None = None
    """A JSON file with the records of observation and action space; without it the first client says what they are."""
    token_file: str | None = None
    """A file with the token that clients must show."""
    tls_certificate: str | None = None
    """A PEM file, for wss:// and https://."""
    tls_key: str | None = None
    """The PEM file with its key."""
    session_seconds: Seconds = 60.0
    """How long a client that has lost its connection is remembered, with its episode."""
    clients_wait: Seconds = 0.0
    """Seconds a client's message waits for those of others, to share a batch; 0: what came meanwhile is one."""
    largest_message: Count = 16_777_216
    """Bytes of a client's message."""

    @Constraint
    def _somebody_can_come(self) -> None:
        if self.env == EXTERNAL and self.listen is None:
            raise UserError(
                "--env external needs --listen HOST:PORT: where clients find the run, such as 127.0.0.1:8700."
            )
        if self.env != EXTERNAL and self.listen is not None:
            raise UserError("--listen is for environments that are outside: give --env external, or leave it out.")
        of_clients = {"spaces": self.spaces, "token_file": self.token_file}
        of_clients |= {"tls_certificate": self.tls_certificate, "tls_key": self.tls_key}
        for name, value in of_clients.items():
            if self.env != EXTERNAL and value is not None:
                raise UserError(f"{option(name)} is for environments that are outside (--env external): leave it out.")


@config()
class CentralInference(Outside):
    """Networks beside the actors, or in servers of their own."""

    inference: Literal["local", "central"] = "local"
    """central: actors own no network and ask an inference server."""
    inference_servers: Count = 1
    """How many, among which actors are divided."""
    inference_batch: Annotated[Whole, Enough(0)] = 0
    """Environments answered at once; 0: all of a server's actors."""

    @Constraint
    def _a_request_fits(self) -> None:
        limit, environments = self.inference_batch, self.envs_per_actor
        if self.inference == "central" and 0 < limit < environments:
            raise UserError(
                f"--inference-batch {limit} cannot hold one request of --envs-per-actor {environments} environments: "
                f"give {environments} or more, or 0 for all environments of a server's actors."
            )

    inference_wait: Seconds = 0.002
    """Seconds a request waits for others to share its batch."""
    inference_gpus: GpuShare | None = None
    """Part of a GPU, and of its memory, for each server; None: equal parts of one, or of the quarter that a learner
    leaves."""

    @Constraint
    def _who_answers_shares_a_gpu(self) -> None:
        if self.inference_gpus is not None and not (self.inference == "central" and on_gpu(self.acting_device)):
            raise UserError(
                f"--inference-gpus {self.inference_gpus:g} is for servers that compute on a GPU: add --inference "
                "central and --acting-device cuda, or leave it out."
            )


@config()
class Rewards:
    """What learners make of the environment's rewards. What is stored stays raw."""

    reward_scale: Positive = 1.0
    """Rewards are multiplied by this."""
    reward_clip: Amount = 0.0
    """Rewards are clipped to ± this before scaling; 0: not at all."""


@config()
class Learning:
    """Who learns, and how fast."""

    learners: Annotated[Count, Enough(1)] = 1
    """Each takes its share of a batch; gradients are summed over all of them."""
    learner_threads: Threads | Literal["auto"] = "auto"
    """Threads that each learner computes with on a CPU; auto: one, and more while other cores are idle."""
    device: str = "cpu"
    """What learners compute on."""
    learner_gpus: GpuShare | None = None
    """Part of a GPU, and of its memory, for each learner that computes on one; None: all of it, or three quarters where
    others act on one."""

    @Constraint
    def _who_learns_on_a_gpu_shares_it(self) -> None:
        if self.learner_gpus is not None and not on_gpu(self.device):
            raise UserError(
                f"--learner-gpus {self.learner_gpus:g} is a part of no GPU while learners compute on {self.device}: "
                "add --device cuda, or leave it out."
            )

    precision: Literal["float32", "bfloat16"] = "float32"
    """In which learners compute convolutions of images."""
    gamma: Share = 0.99
    """Discount of each step."""
    epsilon: Amount = 1e-8
    """The optimizer's small number."""
    grad_clip: Amount = 0.5
    """Largest norm of a gradient; 0: not clipped."""


@config()
class Unrolls:
    """On-policy data: rollouts, each trained on once."""

    unroll: Annotated[Count, Enough(5)] = 20
    """Transitions per item; one more observation is kept to bootstrap."""


@config()
class Rollouts(Unrolls):
    """A queue of them, which lets actors go on while learners learn."""

    queue: Count = 128
    """Items that may wait for the learner; actors block when it is full."""
    batch: Annotated[Count, Enough(8)] = 64
    """Items per update."""

    @Constraint
    def _a_batch_fits(self) -> None:
        if self.queue < self.batch:
            raise UserError(
                f"--queue {self.queue} can never hold a batch of {self.batch} items and the run would wait forever: "
                f"give --queue {self.batch} or more, or a smaller --batch."
            )

    publish_every: Annotated[Count, Enough(1)] = 1
    """Updates between versions of the weights."""


@config()
class Experience(Acting):
    """Off-policy data: a replay of items that are sampled again and again."""

    rows: Annotated[Count, Enough(8)] = 16
    """Steps of every environment between two messages to the replay, and two looks for new weights."""
    replay: Literal["prioritized", "uniform"] = "prioritized"
    """How items are drawn."""
    shards: Annotated[Count, Enough(1)] = 1
    """Replay services."""

    @Constraint
    def _every_shard_is_filled(self) -> None:
        if self.shards > self.actors:
            raise UserError(
                f"--shards {self.shards} cannot be filled by --actors {self.actors}: each actor writes to one shard."
            )

    capacity: Count = 100_000
    """Items; a soft limit: what is over it goes every 100 updates, the oldest first."""
    learning_starts: Annotated[Count, Enough(16)] = 1_000
    """Items (transitions; of r2d2 sequences) that are there before the first update."""
    samples_per_insert: Annotated[Amount, Enough(0.0)] = 0.0
    """How often an item is sampled on average, which holds acting and learning to a ratio; 0: each at its own pace."""

    @Constraint
    def _somebody_samples(self) -> None:
        if 0.0 < (ratio := self.samples_per_insert) < SLOWEST_LEARNING:
            raise UserError(
                f"--samples-per-insert {ratio:g} would let the learner sample once in {1 / ratio:.0e} steps: give "
                f"{SLOWEST_LEARNING:g} or more, or 0 for acting and learning at their own pace."
            )

    priority_exponent: Amount = 0.6
    """Items are drawn with probabilities that go as their priority to this power; 0: uniformly."""
    importance_exponent: Amount = 0.4
    """How far the bias of drawing by priority is taken back; 1: wholly."""
    prefill: str | None = None
    """A dataset, as for --data, whose episodes are put into the replay before those of the actors."""
    pattern: Factory | None = None
    """module:factory of a pattern in place of the usual one, called with this config."""
    n: Annotated[Count, Enough(2)] = 3
    """Steps of a return."""
    batch: Annotated[Count, Enough(8)] = 512
    """Items per update."""

    @Constraint
    def _capacity_suffices(self) -> None:
        for name, items in (("--batch", self.batch), ("--learning-starts", self.learning_starts)):
            if self.capacity < items:
                raise UserError(
                    f"--capacity {self.capacity} can never hold {name} {items} items and the run would wait forever: "
                    "give a larger capacity, or less of the other."
                )

    publish_every: Annotated[Count, Enough(1)] = 1
    """Updates between versions of the weights."""
    target_every: Count = 200
    """Updates after which the target network follows."""


@config()
class Data(Acting):
    """Logged data: a dataset that is read again and again."""

    env: Factory = NO_ENV
    """Where actors act and the policy is evaluated: a Gymnasium id, module:factory, or in Python the function or class
    that makes the environment; none: there are data alone, and nothing is evaluated."""
    data: str | None = None
    """A dataset: a folder that `shoal data import` or `shoal collect` made, a Minari id or folder, a folder of Parquet
    files, an .npz file, or module:function of yours that yields episodes."""
    batch: Annotated[Count, Enough(8)] = 256
    """Items per update."""
    publish_every: Annotated[Count, Enough(1)] = 1
    """Updates between versions of the weights."""


@config()
class DataShare(Data):
    """Logged data beside what actors do."""

    data_share: Annotated[float, Between(0, 0.99)] = 0.5
    """Of each batch that is the data's, where there are data and actors."""


@config()
class Sequences:
    """Items that are stretches of an episode, for networks with a memory."""

    burn_in: Annotated[Whole, Enough(4)] = 10
    """Steps before a sequence that only bring its recurrent state up to date."""
    length: Annotated[Count, Enough(4)] = 30
    """Steps of a sequence that are trained."""
    period: Annotated[Count, Enough(2)] = 15
    """Steps from the beginning of one sequence to that of the next."""

    @Constraint
    def _every_step_is_trained(self) -> None:
        if self.period > self.length:
            raise UserError(
                f"--period {self.period} leaves gaps between sequences: give at most --length {self.length}."
            )


@config()
class GradientService:
    """Who applies the gradients of workers."""

    synchronous: bool = False
    """A2C: every step waits for one gradient of each worker."""
    reduce: Count = 1
    """Gradients per step, when asynchronous."""

    @Constraint
    def _one_rule_says_when_to_step(self) -> None:
        if self.synchronous and self.reduce > 1:
            raise UserError("--synchronous makes each step of one gradient per worker: leave out --reduce.")

    max_staleness: Whole = 0
    """Gradients older than so many steps are refused; 0: eight steps per worker."""
    shards: Annotated[Count, Enough(1)] = 1
    """Servers among which the parameters are divided."""
    publish_every: Annotated[Count, Enough(1)] = 10
    """Steps between versions of the weights for the evaluator."""


@config()
class EpsilonLadder:
    """Exploration by ε-greedy actions, each environment with its own ε."""

    ladder_base: Share = 0.4
    """Environment i of N explores with ε = base^(1 + exponent · i/(N−1))."""
    ladder_exponent: Amount = 7.0
    """How far the environments' ε differ."""


@config()
class DuelingNetwork:
    """A value for each action."""

    network: Factory | None = None
    """module:factory, see shoal.nets.user_q."""
    encoder: Images = "nature"
    """Of images: the convolutions of Mnih 2015, or IMPALA's residual network."""
    hidden: Widths = (256, 256)
    """Widths of the hidden layers."""
    activation: Activation = "relu"
    """Between layers."""
    stream: Whole = 0
    """Width of the hidden layers of value and advantage; 0: none."""
    learning_rate: Amount = 1e-3
    """Of the optimizer."""


@config()
class RecurrentDuelingNetwork(DuelingNetwork):
    """The same over a recurrent core."""

    core: Factory | None = None
    """module:factory of a recurrent core in place of the LSTM, see shoal.nets.user_q."""
    lstm: Whole = 64
    """Its width."""

    @Constraint
    def _there_is_a_memory(self) -> None:
        if not (self.lstm or self.core or self.network):
            raise UserError("--lstm 0 leaves r2d2 without a memory: give the LSTM's width, a --core or a --network.")


@config()
class PolicyAndValue:
    """A policy and a value, over one torso or one each."""

    network: Factory | None = None
    """module:factory, see shoal.nets.user."""
    encoder: Images = "nature"
    """Of images: the convolutions of Mnih 2015, or IMPALA's residual network."""
    hidden: Widths = (64, 64)
    """Widths of the hidden layers."""
    activation: Activation = "tanh"
    """Between layers."""
    shared_torso: bool = True
    """Policy and value share their hidden layers."""
    state_dependent_std: bool = False
    """Box actions: the network gives the standard deviation too."""
    lstm: Whole = 0
    """Width of the recurrent core; 0: feed-forward."""


@config()
class PolicyGradient:
    """What policy gradients weigh against each other."""

    lambda_: Share = 1.0
    """How far returns look before they trust values."""
    entropy_cost: float = 0.01
    """How much entropy counts in the loss."""
    value_cost: float = 0.5
    """How much the value's error counts in the loss."""
    learning_rate: Amount = 1e-3
    """Of the optimizer."""


@config()
class ImportanceClips:
    """How far V-trace lets ratios of probabilities count."""

    clip_rho: Amount = 1.0
    """Largest ratio in the targets of values."""
    clip_c: Amount = 1.0
    """Largest ratio in how far errors reach back."""


@config()
class Proximal:
    """Several passes over the same rollouts, held near the policy that acted."""

    epochs: Annotated[Count, Enough(2)] = 4
    """Passes over a batch."""
    minibatches: Annotated[Count, Enough(2)] = 4
    """Updates per pass."""

    def check_minibatches(self, rollouts: int, rows: int) -> None:
        """One with nothing in it is an update that learns nothing. A learner has so many `rollouts` at a time, each of
        so many `rows` that can be learned from apart: 1 where a state runs through them."""
        if self.minibatches > (most := rollouts * rows):
            raise UserError(
                f"--minibatches {self.minibatches} leaves some without anything to learn from, as there are {most} "
                f"{'rows' if rows > 1 else 'rollouts'} for each learner at a time: give at most {most}."
            )

    clip: Amount = 0.2
    """How far the ratio of probabilities may move before it gains no more."""
    anneal_steps: Whole = 0
    """The learning rate falls linearly to 0 over so many environment steps; 0: constant."""
    normalize_advantages: bool = True
    """To mean 0 and deviation 1 in every minibatch."""


@config()
class NormalizedObservations:
    """Observations of one size, whatever their units; what is stored stays raw."""

    normalize_observations: bool = False
    """By mean and deviation (running ones; of logged data the data's), which are saved with the weights."""


@config()
class Normalization(NormalizedObservations):
    """Statistics that are gathered while learning."""

    normalize_rewards: bool = False
    """By the spread of discounted returns."""


@config()
class ActorAndCritics:
    """An actor and critics of observation and action."""

    network: Factory | None = None
    """module:factory, see shoal.nets.control."""
    encoder: Images = "nature"
    """Of images: the convolutions of Mnih 2015, or IMPALA's residual network."""
    actor_hidden: Widths = (256, 256)
    """Widths of the actor's hidden layers."""
    critic_hidden: Widths = (256, 256)
    """Widths of a critic's hidden layers."""
    activation: Activation = "relu"
    """Between layers."""
    layer_norm: bool = False
    """Layer normalisation and tanh after the first layer, as in D4PG."""
    actor_rate: Amount = 1e-3
    """The actor's learning rate."""
    critic_rate: Amount = 1e-3
    """The critics' learning rate."""
    target_rate: Share = 1.0
    """How much of the way to the networks the target networks go: 1 copies."""


@config()
class ReturnDistribution:
    """What a critic learns of the distribution of returns."""

    critic: Literal["categorical", "quantile"] = "categorical"
    """As a histogram on a fixed support, or by quantiles, which need none."""
    atoms: Annotated[int, AtLeast(2)] = 51
    """Of the categorical critic."""
    support_low: float = -150.0
    """Lowest return on the categorical critic's support, after reward_scale."""
    support_high: float = 150.0
    """Highest return on it."""

    @Constraint
    def _the_support_has_an_order(self) -> None:
        if self.critic == "categorical" and self.support_low >= self.support_high:
            raise UserError(
                f"--support-low {self.support_low:g} must lie below --support-high {self.support_high:g}: give them in "
                "this order."
            )

    quantiles: Count = 32
    """Of the quantile critic."""
    kappa: Positive = 1.0
    """Quantile errors beyond it count linearly."""


Network = PolicyAndValue | DuelingNetwork | ActorAndCritics  # groups that say what a network is


@config()
class SlopeFollowing:
    """How an actor follows the slope of its critic."""

    slope_clip: Amount = 1.0
    """dQ/da of each part of an action is clipped to ± this; 0: not at all."""
    saturation_cost: Amount = 0.0
    """On squares of what tanh makes actions of: keeps them from sticking to their bounds."""


@config()
class Noise:
    """Exploration by Gaussian noise on actions, in units of half their range."""

    noise: Amount = 0.3
    """Deviation; the largest, where environments differ."""
    noise_smallest: Amount = 0.0
    """Deviations go down to this one over all environments; 0: the same for all."""


@config()
class RandomStart:
    """A look around before the first policy acts."""

    random_steps: Annotated[Whole, Enough(16)] = 1_000
    """Of all environments together, with uniform actions, before the actor acts."""


@config()
class OnPolicy(PolicyAndValue, PolicyGradient, Normalization, Unrolls, Learning, Rewards, Acting):
    """What learners of policy gradients share."""


@config()
class OffPolicy(Learning, Experience, CentralInference):
    """What learners that sample a replay share."""


@config()
class Online(OffPolicy, DataShare):
    """What learners share that read logged data, and can go on with actors."""

    online: bool = False
    """Actors go on in --env: begin with --restore RUN."""

    @Constraint
    def _actors_have_an_environment(self) -> None:
        if self.online and self.env == NO_ENV:
            raise UserError("--online needs --env: name the environment in which actors go on.")
        if not self.online and self.prefill is not None:
            raise UserError("--prefill fills a replay, which is there with --online alone: leave it out, or add that.")
        if not self.online and self.inference == "central":
            raise UserError("--inference central serves actors, which are there with --online alone: leave it out.")


@config()
class ContinuousControl(ActorAndCritics, OffPolicy, Rewards):
    """What algorithms of an actor and critics share."""
