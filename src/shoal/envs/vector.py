"""Many environments as one: the only place that knows autoreset, episode ends and what actions look like inside.

Autoreset is Gymnasium's NEXT_STEP: when an episode ends with one step, the next step ignores the action, returns
reward 0 and the first observation of the next episode, and is marked as a `reset`. So the observation returned with
`terminated` or `truncated` is the episode's final one, and a row that is a `reset` is no transition. Vectors of tensors
that reset within a step (SAME_STEP) can be played, too: their rows say so (`Step.final_observation`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import isfinite
from typing import Any

import numpy as np
from gymnasium import Space, spaces
from gymnasium.vector import AutoresetMode

from shoal import tree
from shoal.envs import check
from shoal.envs.episodes import Episode, EpisodeLog
from shoal.envs.faults import EnvFault
from shoal.envs.lives import ENDED_AT_RESET, LIFE_LOST, REPLACED, RESET_REWARD
from shoal.envs.state import load_layers, state_of_layers
from shoal.envs.tensor_vector import FINAL
from shoal.envs.vectorizers import VectorEnvLike
from shoal.step import Step
from shoal.types import Array, Arrays

_FLOAT = np.dtype(np.float32)  # made once: numpy looks a type up at every call


class Envs:
    """A vector of `count` environments of one kind.

    Observations come as the space says, with floating point as float32. Actions go in as the policy stores them:
    discrete ones counted from 0, continuous ones not yet clipped to the bounds. No vector is trusted to return new
    arrays or to keep to autoreset: what it gives is copied and masked, which takes 4 % of the fastest one's time.

    `limit` truncates episodes after so many steps in a vector that does not do so itself. A vector cannot be asked to
    reset one environment only, so all of them are reset, and the other running episodes are truncated, too.
    """

    def __init__(
        self, vector: VectorEnvLike, environment: str, seed: int, limit: int | None = None, stack: int = 1
    ) -> None:
        self.count = vector.num_envs
        self.environment = environment
        self.observation_space = check.observation_space(vector.single_observation_space, environment)
        self.action_space = check.action_space(vector.single_action_space, environment)
        self.stacks = check.image_stacks(self.observation_space, stack)  # columns of which a policy sees stacks
        self._vector = vector
        self._seed: int | None = seed
        self._checked = False
        self._prepare = action_converter(vector.single_action_space)
        leaves = tree.leaf_spaces(self.observation_space, "observation")
        self._only_leaf = np.dtype(leaves["observation"].dtype) if list(leaves) == ["observation"] else None
        self._dtypes = {name: np.dtype(space.dtype) for name, space in leaves.items()}
        self._shapes = {name: (self.count, *check.shape_of(space)) for name, space in leaves.items()}
        self._only_shape = self._shapes.get("observation")
        self._floats = [name for name, dtype in self._dtypes.items() if np.issubdtype(dtype, np.floating)]
        self._done = np.zeros(self.count, np.bool_)  # ended with the last step, so the next one resets
        self._same_step = resets_within_a_step(vector)
        self._log = EpisodeLog(self.count, pause=not self._same_step)
        self._limit = limit
        self._length = np.zeros(self.count, np.int64)  # of the running episodes, where there is a limit
        self._cut = False  # the limit was reached, so the next step resets all

    def reset(self, seed: int | None = None) -> tree.Tree:
        """Start new episodes everywhere. The first reset uses the seed given to `make`, later ones only `seed`."""
        chosen, self._seed = (self._seed if seed is None else seed), None
        number = None if chosen is None else int(np.random.SeedSequence(chosen).generate_state(1)[0]) & 0x7FFFFFFF
        return self._begin(number)

    def step(self, action: Array) -> Step:
        """Act once in every environment."""
        if self._cut:
            nothing, everywhere = np.zeros(self.count, np.bool_), np.ones(self.count, np.bool_)
            return Step(self._begin(None), np.zeros(self.count, _FLOAT), nothing, nothing.copy(), everywhere)
        observation, reward, terminated, truncated, info = self._vector.step(self._prepare(action))
        if not self._checked:
            self._check(observation, reward, terminated, truncated)
        observation = self._take(observation)
        resets = self._done
        if info and REPLACED in info:
            self._log.cut(info[REPLACED])
            resets = resets | info[REPLACED]
        valid = ~resets
        reward = np.array(reward, _FLOAT)
        terminated = terminated & valid  # a reset ends nothing and gives nothing
        truncated = truncated & valid
        if np.count_nonzero(resets):
            reward[resets] = 0.0
        if not isfinite(np.vdot(reward, reward)):
            check.refuse_what_is_not_finite(reward, self.environment, "reward")
        if self._limit is not None:
            truncated = self._truncate(self._limit, terminated, truncated, valid)
        self._done = terminated | truncated
        if info:
            self._add_games(reward, info)
        else:
            self._log.add(reward, self._done)
        if not self._same_step:
            return Step(observation, reward, terminated, truncated, resets)
        self._done = np.zeros(self.count, np.bool_)
        final = info.get(FINAL[0])
        return Step(observation, reward, terminated, truncated, resets, observation if final is None else final)

    def losses(self) -> list[str]:
        """Sentences on the environments that were lost and replaced since this was last asked."""
        told: list[str] = getattr(self._vector, "losses", [])
        found = told[:]
        told.clear()
        return found

    def episodes(self) -> list[Episode]:
        """The episodes that ended since this was last asked."""
        return self._log.finished()

    def state_dict(self) -> dict[str, Any]:
        """Where every episode stands, as plain data; `NoState` names what cannot say it. Not the last observations."""
        if self._seed is not None:  # none has begun
            return {"seed": self._seed}
        return {
            "vector": state_of_layers(self._vector),
            "done": self._done.copy(),
            "length": self._length.copy(),
            "cut": self._cut,
            "episodes": self._log.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where another vector of this kind was."""
        if "seed" in state:
            self._seed = state["seed"]
            return
        if self._seed is not None:
            self.reset()
        if len(state["done"]) != self.count:
            raise EnvFault(
                f"{self.environment}: the state is of {len(state['done'])} environments, and there are {self.count}."
            )
        load_layers(self._vector, state["vector"])
        self._done = np.array(state["done"], np.bool_)
        self._length[:] = state["length"]
        self._cut = bool(state["cut"])
        self._log.load_state_dict(state["episodes"])

    def picture(self) -> Any:
        """What the first environment renders, as it gives it; for one that was made with a `render_mode`."""
        single = getattr(self._vector, "envs", None)
        if single:
            return single[0].render()
        pictures = self._vector.render()  # type: ignore[attr-defined]  # Gymnasium's vectors have it
        return None if pictures is None else pictures[0]

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The environment's own, such as how many pictures it gives per second."""
        single = getattr(self._vector, "envs", None)
        found = getattr(single[0] if single else self._vector, "metadata", None)
        return found if isinstance(found, Mapping) else {}

    def open_episodes(self) -> int:
        """How many environments are in the middle of one."""
        return int(self.count - self._done.sum())

    def close(self) -> None:
        self._vector.close()

    def _add_games(self, reward: Array, info: Mapping[str, Any]) -> None:
        """Where lives are lost: the game's returns and ends are not the learner's."""
        if RESET_REWARD in info:
            reward = reward + info[RESET_REWARD].astype(_FLOAT)
            self._done = self._done | info[ENDED_AT_RESET]
        self._log.add(reward, self._done & ~info[LIFE_LOST] if LIFE_LOST in info else self._done)

    def _begin(self, seed: int | None) -> tree.Tree:
        observation, _ = self._vector.reset(seed=seed)
        check.check_observation(observation, self._vector.single_observation_space, self.environment, self.count)
        self._done = np.zeros(self.count, np.bool_)
        self._length[:] = 0
        self._cut = False
        self._log.restart()
        return self._take(observation)

    def _truncate(self, limit: int, terminated: Array, truncated: Array, valid: Array) -> Array:
        self._length = (self._length + 1) * valid
        running = valid & ~(terminated | truncated)
        self._cut = bool((running & (self._length >= limit)).any())
        return truncated | running if self._cut else truncated

    def _take(self, observation: tree.Tree) -> tree.Tree:
        """Our own copy, since the vector may overwrite what it returned, in the dtype that was promised.

        NaN and infinity are found by the product of the array with itself: the cheapest number that either spoils.
        """
        if self._only_leaf is not None:
            copied = np.array(observation, self._only_leaf, order="C")
            if copied.shape != self._only_shape:
                self._check_shapes({"observation": copied})
            if self._floats and not isfinite(np.vdot(copied, copied)):
                check.refuse_what_is_not_finite(copied, self.environment, "observation")
            return copied
        parts = tree.flatten(observation, "observation")
        copies = {name: np.array(parts[name], dtype, order="C") for name, dtype in self._dtypes.items()}
        self._check_shapes(copies)
        for name in self._floats:
            if not isfinite(np.vdot(copies[name], copies[name])):
                check.refuse_what_is_not_finite(copies[name], self.environment, name)
        return tree.unflatten(copies, "observation")

    def _check_shapes(self, parts: Arrays) -> None:
        for name, shape in self._shapes.items():
            if parts[name].shape != shape:
                raise EnvFault(
                    f"{self.environment}: '{name}' has shape {parts[name].shape}, but its space says {shape}."
                )

    def _check(self, observation: tree.Tree, reward: Any, terminated: Any, truncated: Any) -> None:
        self._checked = True
        check.check_observation(observation, self._vector.single_observation_space, self.environment, self.count)
        check.check_rows(self.environment, self.count, reward=reward, terminated=terminated, truncated=truncated)


def resets_within_a_step(vector: VectorEnvLike) -> bool:
    metadata = getattr(vector, "metadata", None)
    return isinstance(metadata, Mapping) and metadata.get("autoreset_mode") == AutoresetMode.SAME_STEP


def action_converter(space: Space[Any]) -> Callable[[Array], Array]:
    """From the action as the policy stores it to the one the environment wants and may do with what it likes."""
    match space:
        case spaces.Discrete() if space.start == 0:
            return lambda action: action
        case spaces.Discrete() | spaces.MultiDiscrete():
            start = np.asarray(space.start)
            return lambda action: action + start
        case spaces.Box() if np.all(np.isneginf(space.low)) and np.all(np.isposinf(space.high)):
            return lambda action: action.astype(space.dtype)
        case spaces.Box():
            low, high = space.low, space.high
            return lambda action: np.minimum(np.maximum(action, low), high).astype(space.dtype, copy=False)
    raise TypeError(f"no actions in {space}")
