"""Whether a dataset and an environment are of the same spaces."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from shoal import tree
from shoal.data.dataset import Dataset
from shoal.data.episodes import BadData
from shoal.envs import EnvSpec, check


def check_fits(data: Dataset, env: EnvSpec) -> None:
    """BadData unless what was learned from the data can act in the environment."""
    observations = check.stacked_space(data.observation_space, env.stack)
    for what, found, given in (
        ("observations", observations, env.observation_space),
        ("actions", data.action_space, env.action_space),
    ):
        if (noticed := difference(found, given, bounds=what == "actions")) is not None:
            raise BadData(
                f"{data.path} does not fit {env.name}: its {what} are {check.shown(found)} and the environment's "
                f"{check.shown(given)} ({noticed}). Name the environment that the data are of, or leave out --env."
            )


def difference(one: spaces.Space[Any], other: spaces.Space[Any], bounds: bool) -> str | None:
    """What a network or a policy would notice."""
    ours, theirs = tree.leaf_spaces(one, "it"), tree.leaf_spaces(other, "it")
    if ours.keys() != theirs.keys():
        return "other parts"
    for name, leaf in ours.items():
        found = theirs[name]
        if type(leaf) is not type(found):
            return "another kind"
        if leaf.shape != found.shape or leaf.dtype != found.dtype:
            return "another shape or type"
        if isinstance(leaf, spaces.Discrete | spaces.MultiDiscrete) and _choices(leaf) != _choices(found):
            return "another number of choices"
        if bounds and isinstance(leaf, spaces.Box) and not _same_bounds(leaf, found):
            return "other bounds"
    return None


def _choices(space: spaces.Discrete | spaces.MultiDiscrete) -> list[int]:
    return [int(space.n)] if isinstance(space, spaces.Discrete) else space.nvec.ravel().tolist()


def _same_bounds(one: spaces.Box, other: spaces.Box) -> bool:
    return bool(np.allclose(one.low, other.low) and np.allclose(one.high, other.high))
