"""What replay raises: bad input is a ValueError; waiting too long and a closed service have their own kinds."""

from __future__ import annotations


class ReplayTimeout(TimeoutError):
    """A limiter did not let a call through in time; the message says who waits for what and the limiter's state."""


class ReplayClosed(RuntimeError):
    """The service was closed; whoever waited is woken with this."""


class ShardsLost(ReplayClosed):
    """None of several services answers at this moment; they are asked again in a while."""


class BadCheckpoint(ValueError):
    """A checkpoint is missing, cut short or damaged; nothing was loaded."""
