"""Action distributions as pure functions of their parameters: torch for learning, numpy for acting.

A distribution says how many parameters an action space needs (`size`), what a stored action looks like (`shape`), and
maps parameters [..., size] to log-probabilities, entropies and actions for any leading dimensions. Acting draws with
numpy: one call costs about 10 µs where torch.distributions takes 150.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from shoal.types import Array

_HALF_LOG_TWO_PI = 0.5 * math.log(2.0 * math.pi)
_SMALLEST = np.float32(1e-37)  # a draw of exactly 0 must not divide


class Distribution(Protocol):
    @property
    def size(self) -> int: ...  # parameters per action
    @property
    def shape(self) -> tuple[int, ...]: ...  # of one stored action
    def log_prob(self, parameters: Tensor, action: Tensor) -> Tensor: ...  # [..., size], [..., *shape] → [...]
    def entropy(self, parameters: Tensor) -> Tensor: ...  # [..., size] → [...]
    def log_prob_and_entropy(self, parameters: Tensor, action: Tensor) -> tuple[Tensor, Tensor]: ...  # cheaper together
    def sample(self, parameters: Array, random: np.random.Generator) -> tuple[Array, Array]: ...  # action, log-prob
    def mode(self, parameters: Array) -> Array: ...  # the most probable action


@dataclass(frozen=True)
class Categorical:
    """One of `count` actions, numbered from 0; the parameters are logits."""

    count: int

    @property
    def size(self) -> int:
        return self.count

    @property
    def shape(self) -> tuple[int, ...]:
        return ()

    def log_prob(self, parameters: Tensor, action: Tensor) -> Tensor:
        return _chosen(_log_probs(parameters), action.long())

    def entropy(self, parameters: Tensor) -> Tensor:
        return _entropy(_log_probs(parameters))

    def log_prob_and_entropy(self, parameters: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        log_probs = _log_probs(parameters)
        return _chosen(log_probs, action.long()), _entropy(log_probs)

    def sample(self, parameters: Array, random: np.random.Generator) -> tuple[Array, Array]:
        return _sample_categorical(parameters, random)

    def mode(self, parameters: Array) -> Array:
        return np.asarray(parameters.argmax(-1))


@dataclass(frozen=True)
class MultiCategorical:
    """Independent choices, one among `counts[i]` each, numbered from 0; the parameters are all their logits in turn."""

    counts: tuple[int, ...]
    shape: tuple[int, ...]  # of one action; its elements in C order are the choices

    @property
    def size(self) -> int:
        return sum(self.counts)

    def log_prob(self, parameters: Tensor, action: Tensor) -> Tensor:
        return self.log_prob_and_entropy(parameters, action)[0]

    def entropy(self, parameters: Tensor) -> Tensor:
        parts = torch.split(parameters, list(self.counts), dim=-1)
        return torch.stack([_entropy(_log_probs(part)) for part in parts]).sum(0)

    def log_prob_and_entropy(self, parameters: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        leading = parameters.shape[:-1]
        index = action.reshape(*leading, len(self.counts)).long()
        chosen, entropy = [], []
        for i, part in enumerate(torch.split(parameters, list(self.counts), dim=-1)):
            log_probs = _log_probs(part)
            chosen.append(_chosen(log_probs, index[..., i]))
            entropy.append(_entropy(log_probs))
        return torch.stack(chosen).sum(0), torch.stack(entropy).sum(0)

    def sample(self, parameters: Array, random: np.random.Generator) -> tuple[Array, Array]:
        draws = [_sample_categorical(part, random) for part in self._split(parameters)]
        log_prob = np.sum([log_prob for _, log_prob in draws], axis=0, dtype=np.float32)
        return self._action([index for index, _ in draws]), np.asarray(log_prob)

    def mode(self, parameters: Array) -> Array:
        return self._action([part.argmax(-1) for part in self._split(parameters)])

    def _split(self, parameters: Array) -> list[Array]:
        return np.split(parameters, np.cumsum(self.counts)[:-1], axis=-1)

    def _action(self, choices: list[Array]) -> Array:
        action = np.stack(choices, axis=-1)
        return action.reshape(*action.shape[:-1], *self.shape)


@dataclass(frozen=True)
class DiagonalGaussian:
    """Independent normal components; the parameters are means, then log standard deviations.

    Both are in units in which the bounds of a bounded component are −1 and 1 (`centre` ± `half_width`). Actions are
    stored as drawn, so they may lie outside of the bounds: the environment clips what it executes, and
    log-probabilities stay those of the draw.
    """

    centre: tuple[float, ...]
    half_width: tuple[float, ...]
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        return 2 * len(self.centre)

    def log_prob(self, parameters: Tensor, action: Tensor) -> Tensor:
        mean, log_std = parameters.chunk(2, dim=-1)
        units = parameters.new_tensor((self.centre, self.half_width))
        drawn = (action.reshape(*mean.shape).to(mean.dtype) - units[0]) / units[1]
        error = (drawn - mean) * torch.exp(-log_std)
        return (-0.5 * error.square() - log_std).sum(-1) - self._constant()

    def entropy(self, parameters: Tensor) -> Tensor:
        _, log_std = parameters.chunk(2, dim=-1)
        return log_std.sum(-1) + (self._constant() + 0.5 * len(self.centre))

    def log_prob_and_entropy(self, parameters: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        return self.log_prob(parameters, action), self.entropy(parameters)

    def sample(self, parameters: Array, random: np.random.Generator) -> tuple[Array, Array]:
        mean, log_std = np.split(parameters, 2, axis=-1)
        noise = random.standard_normal(mean.shape, dtype=np.float32)
        log_prob = np.sum(-0.5 * noise * noise - log_std, axis=-1) - np.float32(self._constant())
        return self._action(mean + noise * np.exp(log_std)), np.asarray(log_prob)

    def mode(self, parameters: Array) -> Array:
        return self._action(parameters[..., : len(self.centre)])

    def _action(self, drawn: Array) -> Array:
        action = np.asarray(self.centre, np.float32) + np.asarray(self.half_width, np.float32) * drawn
        return action.reshape(*action.shape[:-1], *self.shape).astype(np.float32, copy=False)

    def _constant(self) -> float:
        return len(self.centre) * _HALF_LOG_TWO_PI + sum(math.log(width) for width in self.half_width)


def _log_probs(logits: Tensor) -> Tensor:
    """[..., n] → [n, ...]: with few choices torch normalises over the leading axis five times as fast."""
    return torch.log_softmax(logits.movedim(-1, 0).contiguous(), dim=0)


def _chosen(log_probs: Tensor, index: Tensor) -> Tensor:
    """[n, ...], [...] → [...]"""
    return log_probs.gather(0, index.unsqueeze(0)).squeeze(0)


def _entropy(log_probs: Tensor) -> Tensor:
    """[n, ...] → [...]"""
    return -(log_probs.exp() * log_probs).sum(0)


def _sample_categorical(logits: Array, random: np.random.Generator) -> tuple[Array, Array]:
    """Indices and their log-probabilities. A race: the largest p / E wins, E a standard exponential (a Gumbel draw)."""
    columns = logits.reshape(-1, logits.shape[-1]).T  # [n, rows]: numpy reduces over the leading axis fastest
    shifted = columns - columns.max(0)
    weights = np.exp(shifted)
    noise = random.standard_exponential(columns.shape, dtype=np.float32)
    np.maximum(noise, _SMALLEST, out=noise)
    index = (weights / noise).argmax(0)
    log_prob = shifted[index, np.arange(len(index))] - np.log(weights.sum(0))
    leading = logits.shape[:-1]
    return index.reshape(leading), log_prob.reshape(leading)
