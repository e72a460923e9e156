"""Batches for a learner, asked for ahead of time and turned into tensors on its device."""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Any

import torch

from shoal import tree
from shoal.batches import Batch, to_batch
from shoal.program import Future, NodeDied
from shoal.replay import ReplayTimeout, Sample, ShardsLost
from shoal.retry import retry


class Prefetch:
    """Keeps `ahead` + 1 requests under way. `ask` makes those that are not, `take` gives the oldest answer.

    With `ahead` None there is none but that of `take`, which changes nothing until its answer is there. On CUDA the
    next batch is copied, through pinned memory and on a stream of its own, while one is trained.
    """

    def __init__(
        self,
        request: Callable[[], Future],
        observation_space: Any,
        device: torch.device,
        *,
        ahead: int | None = 1,
        idle: Callable[[], None] = lambda: None,  # called now and then while there is no answer
    ) -> None:
        self._request, self._space, self._device, self._idle = request, observation_space, device, idle
        self.lost_items = 0  # that were there to be sampled when a service was lost
        self.there = 0  # items, when somebody looked last
        self._asked: collections.deque[Future] = collections.deque()
        self._stream: Any = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self._copied: tuple[Sample, Batch] | None = None
        self._wanted = 0 if ahead is None else ahead + 1

    def ask(self) -> None:
        while len(self._asked) + (self._copied is not None) < self._wanted:
            self._asked.append(self._request())

    def take(self) -> tuple[Sample, Batch]:
        """The next sample and its batch, which may share memory until the next request."""
        if self._copied is not None:
            (sample, batch), self._copied = self._copied, None
        else:
            sample = self._next()
            batch = self._to_device(sample)
        if self._stream is not None:
            reader = torch.cuda.current_stream(self._device)
            reader.wait_stream(self._stream)
            tree.map(lambda tensor: tensor.record_stream(reader), batch)  # or the copies' stream reuses what is read
            if self._asked and self._asked[0].done():
                following = self._next()
                self._copied = following, self._to_device(following)
        return sample, batch

    def _to_device(self, sample: Sample) -> Batch:
        if self._stream is None:
            return to_batch(sample.data, self._space, self._device)
        with torch.cuda.stream(self._stream):
            return to_batch(sample.data, self._space, self._device)

    def _next(self) -> Sample:
        """The oldest answer; a request that timed out, or whose service was lost and is starting again, is repeated."""
        while True:
            try:
                return retry(self._answer, lost=(NodeDied, ShardsLost), before_retry=self._ask_again)
            except ReplayTimeout:
                self._idle()
                self.ask()

    def _answer(self) -> Sample:
        asked = self._asked.popleft() if self._asked else self._request()
        sample: Sample = asked.result()
        self.there = sample.table_size - len(sample)
        return sample

    def _ask_again(self) -> None:
        """The service was lost, with what it held."""
        self.lost_items, self.there = self.lost_items + self.there, 0
        self._idle()
        self.ask()
