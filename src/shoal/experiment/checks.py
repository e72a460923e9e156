"""Everything that can be refused before a process is started."""

from __future__ import annotations

import os
from typing import Any

from shoal import config
from shoal.envs import EnvSpec
from shoal.errors import UserError
from shoal.experiment.options import Options
from shoal.experiment.registry import Algorithm


def prepare(algorithm: Algorithm, cfg: Any, env: EnvSpec, options: Options) -> None:
    """Refuse what cannot work. A policy is built because that is where a network and an action space turn out not to
    fit."""
    config.validate(cfg)
    options.check()
    _check_device(getattr(cfg, "device", "cpu"))
    if options.runtime != "ray":  # there the replay may be on a larger machine
        _check_memory(cfg, env)
    algorithm.make_policy(cfg, env, options.seed)


def _check_device(device: str) -> None:
    if device == "cpu":
        return
    import torch

    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).partition("\n")[0]
        raise UserError(f"--device {device} cannot be used here ({reason}): leave it at cpu.") from None


def _check_memory(cfg: Any, env: EnvSpec) -> None:
    """A replay that cannot fit would end the machine's work and not only the run."""
    capacity = getattr(cfg, "capacity", None)
    if capacity is None:
        return
    item = env.observation_bytes * getattr(cfg, "period", 1)  # sequences begin every so many steps
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if capacity * item > there:
        raise UserError(
            f"--capacity {capacity} needs {capacity * item / 1e9:,.0f} GB for observations of "
            f"{env.observation_bytes:,} bytes, and this machine has {there / 1e9:,.0f} GB: "
            f"give --capacity {int(0.5 * there / item)} or less."
        )
