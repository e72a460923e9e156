"""What is known of an environment before training, and how another process makes the same one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from gymnasium import spaces
from gymnasium.envs import registration

from shoal import tree
from shoal.envs import check
from shoal.envs.names import Environment
from shoal.errors import name_of
from shoal.types import EXTERNAL, NO_ENV

EnvOptions = Mapping[str, Any]  # of an environment, by name
Vectorizer = Literal["auto", "native", "sync", "async"]
TaskKind = Literal["classic", "control", "atari", "pixels", "other"]
EVALUATION_LIMIT = 27_000  # steps, where nothing else ends an episode: half an hour of Atari, the longest usual episode


@dataclass(frozen=True)
class EnvSpec:
    """Enough to build networks, to choose a preset, and for every node to make the environment with its options."""

    env: Environment
    observation_space: spaces.Space[Any]
    action_space: spaces.Space[Any]
    kind: TaskKind
    max_episode_steps: int | None  # the environment's own time limit, as far as it says
    reward_threshold: float | None
    options: EnvOptions = field(default_factory=dict)  # given to the environment or its factory
    vectorizer: Vectorizer = "auto"
    stack: int = 1  # frames that make up what a policy sees of an image; environments give one at a time
    timeout: float = 0.0  # seconds for a step, after which an environment in a process of its own is replaced; 0: none
    step_time: tuple[float, bool] = (0.0, False)  # `StepTime` of the user's environment, as it was tried
    vectorizer_note: str | None = None  # why it was chosen, where it was left to us
    mask_note: str | None = None  # that it says which actions are allowed, and that nobody obeys it
    limit: int | None = None  # episodes are truncated after so many steps, whatever the environment does
    evaluation_cap: int | None = None  # the evaluator's own, in place of the environment's limit
    evaluation: EnvSpec | None = None  # the evaluator's own version, where it has other options
    native_action_space: spaces.Space[Any] | None = None  # as the environment has it: counted from its own start
    on_device: bool = False  # a vector of tensors, which is stepped where the learner is
    device: str = "cpu"  # where such a vector is made that others step, the evaluator's say
    registered: registration.EnvSpec | None = None  # what Gymnasium knows of the id only where the user registered it

    told: str | None = None  # a name for a person, where there is no environment

    @property
    def at_hand(self) -> bool:
        """Whether there is an environment at all, and not only the spaces of data."""
        return self.env not in (NO_ENV, EXTERNAL)

    @property
    def outside(self) -> bool:
        """Whether clients of a gateway bring it."""
        return self.env == EXTERNAL

    @property
    def frame_space(self) -> spaces.Space[Any]:
        """The space of what the environment gives: single frames, where a policy sees stacks."""
        return check.frame_space(self.observation_space, self.stacks)

    @property
    def spec(self) -> Environment:
        """What the user named or gave."""
        return self.env

    @property
    def name(self) -> str:
        return name_of(self.env) if self.told is None else self.told

    @property
    def observation_bytes(self) -> int:
        """Of one observation, as it is stored: one frame of a stack."""
        stacks, leaves = self.stacks, tree.leaf_spaces(self.observation_space, "observation")
        sizes = {name: int(np.prod(check.shape_of(s), dtype=np.int64)) for name, s in leaves.items()}
        return sum(size // stacks.get(name, 1) * np.dtype(leaves[name].dtype).itemsize for name, size in sizes.items())

    @property
    def stacks(self) -> dict[str, int]:
        """The columns whose frames are stacked, and of how many frames: `observation_space` is that of the stacks."""
        return check.image_stacks(self.observation_space, self.stack, stacked=True)

    @property
    def evaluation_limit(self) -> int:
        """Steps after which the evaluator cuts an episode: it counts with its return so far. A greedy policy may never
        end an episode by itself."""
        own = self.evaluation or self
        return self.evaluation_cap or own.limit or own.max_episode_steps or EVALUATION_LIMIT

    @property
    def evaluation_note(self) -> str | None:
        """A sentence for the user where the evaluator cuts episodes that the environment does not."""
        own = self.evaluation or self
        limit = own.limit or own.max_episode_steps
        if limit and self.evaluation_limit >= limit:
            return None
        why = f"--eval-limit {self.evaluation_cap}" if self.evaluation_cap else f"{self.name} states no time limit"
        return (
            f"{why}: evaluation ends its episodes after {self.evaluation_limit:,} steps and counts their return so far."
        )

    def for_evaluation(self) -> EnvSpec:
        """The environment as the evaluator plays it: with its own options, and with episodes that always end."""
        return replace(self.evaluation or self, limit=self.evaluation_limit, evaluation=None)
