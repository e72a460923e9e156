"""Environments of gymnax (`--env gymnax:CartPole-v1`) and brax (`--env brax:inverted_pendulum`) as vectors of tensors.

Arrays go to torch and back through DLPack, on the device that both have. What comes from JAX is waited for and copied:
it computes asynchronously, and may use a buffer again that torch still reads. JAX is imported where an environment is
made, and nowhere else: who has imported it must not fork.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from gymnasium.envs import registration
from gymnasium.vector import AutoresetMode
from torch import Tensor
from torch.utils.dlpack import from_dlpack

from shoal.envs.tensor_vector import FINAL
from shoal.errors import UserError, did_you_mean


class JaxVector:
    """A function of keys that begins episodes, and one that steps all environments and begins episodes where they end:
    both of JAX, compiled. A state is whatever tree of arrays they give."""

    metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012 - as Gymnasium has it

    def __init__(
        self,
        count: int,
        seed: int,
        device: str,
        *,
        begin: Callable[[Any], tuple[Any, Any]],  # keys [B] → observation, state
        step: Callable[[Any, Any, Any], tuple[Any, ...]],  # keys [B], state, action → observation, state, reward,
        # terminated, truncated, final observation
        spaces_of: tuple[spaces.Space[Any], spaces.Space[Any]],
        name: str,
        limit: int | None,
    ) -> None:
        import jax

        self._jax = jax
        self.num_envs, self.device = count, torch.device(device)
        self._place = jax.devices("cpu" if self.device.type == "cpu" else None)[self.device.index or 0]
        self.single_observation_space, self.single_action_space = spaces_of
        self.spec = registration.EnvSpec(name, max_episode_steps=limit)
        self._begin, self._step = jax.jit(begin), jax.jit(step)
        self._key = jax.device_put(jax.random.key(seed), self._place)
        self._state: Any = None

    def reset(self, seed: int | None = None) -> tuple[Any, dict[str, Any]]:
        if seed is not None:
            self._key = self._jax.device_put(self._jax.random.key(seed), self._place)
        observation, self._state = self._begin(self._keys())
        return self._to_torch(observation), {}

    def step(self, actions: Tensor, /) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        action = self._jax.dlpack.from_dlpack(actions.contiguous())
        observation, self._state, *rest, final = self._step(self._keys(), self._state, action)
        reward, terminated, truncated = (self._to_torch(part) for part in rest)
        return self._to_torch(observation), reward, terminated, truncated, {FINAL[0]: self._to_torch(final)}

    def state_dict(self) -> dict[str, Any]:
        """The leaves of the state, and the key."""
        leaves = self._jax.tree.leaves(self._state)
        key = np.array(self._jax.random.key_data(self._key))
        return {"key": key, "leaves": {str(place): np.array(leaf) for place, leaf in enumerate(leaves)}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        jax = self._jax
        self._key = jax.device_put(jax.random.wrap_key_data(np.asarray(state["key"])), self._place)
        structure = jax.tree.structure(self._state)
        leaves = [np.asarray(state["leaves"][str(place)]) for place in range(structure.num_leaves)]
        self._state = jax.tree.unflatten(structure, jax.device_put(leaves, self._place))

    def close(self) -> None:
        self._state = None

    def _keys(self) -> Any:
        self._key, following = self._jax.random.split(self._key)
        return self._jax.random.split(following, self.num_envs)

    def _to_torch(self, values: Any) -> Any:
        return self._jax.tree.map(lambda part: from_dlpack(part.block_until_ready()).clone(), values)


def gymnax_factory(name: str) -> Callable[..., JaxVector]:
    return partial(_make_gymnax, name)


def _make_gymnax(name: str, *, count: int, seed: int = 0, device: str = "cpu", **options: Any) -> JaxVector:
    """An environment of gymnax 1.0; `options` are its parameters."""
    import gymnax
    import jax

    if name not in gymnax.registered_envs:
        raise UserError(f"gymnax has no environment {name}.{did_you_mean(name, gymnax.registered_envs)}")
    env, parameters = gymnax.make(name)
    for option in options:
        if not hasattr(parameters, option):
            raise UserError(f"gymnax:{name} has no option {option!r}.")
    parameters = parameters.replace(**options) if options else parameters

    def step(keys: Any, state: Any, action: Any) -> tuple[Any, ...]:
        found = jax.vmap(env.step, in_axes=(0, 0, 0, None))(keys, state, action, parameters)
        observation, state, reward, terminated, truncated, info = found
        return observation, state, reward, terminated, truncated, info["final_observation"]

    return JaxVector(
        count,
        seed,
        device,
        begin=lambda keys: jax.vmap(env.reset, in_axes=(0, None))(keys, parameters),
        step=step,
        spaces_of=(_space(env.observation_space(parameters)), _space(env.action_space(parameters))),
        name=name,
        limit=getattr(parameters, "max_steps_in_episode", None),
    )


def _space(space: Any) -> spaces.Space[Any]:
    if hasattr(space, "n"):
        return spaces.Discrete(int(space.n))
    if hasattr(space, "low"):
        dtype = np.dtype(space.dtype)
        low, high = (np.broadcast_to(np.asarray(bound, dtype), space.shape) for bound in (space.low, space.high))
        return spaces.Box(low, high, dtype=dtype.type)
    if hasattr(space, "spaces"):
        return spaces.Dict({key: _space(part) for key, part in dict(space.spaces).items()})
    raise UserError(
        f"The space {type(space).__name__} of gymnax is not supported: use Box, Discrete or a Dict of these."
    )


def brax_factory(name: str) -> Callable[..., JaxVector]:
    return partial(_make_brax, name)


def _make_brax(
    name: str, *, count: int, seed: int = 0, device: str = "cpu", episode_length: int = 1_000, **options: Any
) -> JaxVector:
    """An environment of brax, without its wrappers, which lose final observations. As with them, an environment begins
    again in the first state that it was given: making a new one takes as long as many steps."""
    import jax
    from brax import envs
    from jax import numpy as jnp

    if name not in envs._envs:
        raise UserError(f"brax has no environment {name}.{did_you_mean(name, list(envs._envs))}")
    env = envs.get_environment(name, **options)

    def begin(keys: Any) -> tuple[Any, Any]:
        first = jax.vmap(env.reset)(keys)
        return first.obs, (first, first, jnp.zeros(keys.shape[0], jnp.int32))

    def step(keys: Any, state: Any, action: Any) -> tuple[Any, ...]:
        before, first, age = state
        after = jax.vmap(env.step)(before, action)
        age = age + 1
        terminated = after.done > 0.5
        truncated = age >= episode_length
        ended = terminated | truncated

        def again(one: Any, other: Any) -> Any:
            return jnp.where(ended.reshape(-1, *[1] * (one.ndim - 1)), one, other)

        now = jax.tree.map(again, first, after)
        return now.obs, (now, first, age * ~ended), after.reward, terminated, truncated, after.obs

    size, actions = env.observation_size, env.action_size
    if not isinstance(size, int):
        raise UserError(
            f"brax:{name} has several observations, which is not supported: wrap it as a vector of tensors."
        )
    return JaxVector(
        count,
        seed,
        device,
        begin=begin,
        step=step,
        spaces_of=(spaces.Box(-np.inf, np.inf, (size,)), spaces.Box(-1.0, 1.0, (actions,))),
        name=name,
        limit=episode_length,
    )
