"""Serving a finished policy: requests of many clients in batches, newer checkpoints taken on the way."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from shoal.errors import UserError

if TYPE_CHECKING:
    from shoal.playing.policy import TrainedPolicy
    from shoal.serving.server import Serving

NEEDED = ("aiohttp", "msgpack")


def serve(
    source: TrainedPolicy | str | os.PathLike[str],
    *,
    token: str | None = None,
    tell: Callable[[str], None] | None = None,
    **options: Any,
) -> Serving:
    """Serve a policy, or that of a run's or an export's folder, from a thread of its own; `options` are those of
    `shoal serve`, with `port=0`, any that is free, as the default. `token` is what clients must show, and `tell` is
    told what happens on the way (default: the log `shoal.serving`).

    Raises `UserError` for what cannot be loaded, or where it cannot listen.
    """
    need_gateway()
    from shoal.serving.server import start

    return start(source, options, token=token, tell=tell)


def need_gateway() -> None:
    for package in NEEDED:
        if importlib.util.find_spec(package) is None:
            raise UserError(
                f"Serving needs a package that is not installed ({package}); run: pip install 'shoal[gateway]'"
            )
