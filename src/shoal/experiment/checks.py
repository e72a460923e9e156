"""Everything that can be refused before a process is started."""

from __future__ import annotations

import dataclasses
import itertools
import os
import subprocess
import sys

from shoal import config
from shoal.acting import Policy
from shoal.envs import EnvSpec
from shoal.envs.pictures import check_drawn
from shoal.envs.trial import ending
from shoal.errors import UserError
from shoal.options import (
    Acting,
    ActorAndCritics,
    DuelingNetwork,
    Experience,
    Learning,
    PolicyAndValue,
    RecurrentDuelingNetwork,
    Rollouts,
    Sequences,
    Unrolls,
    on_gpu,
)
from shoal.runs.options import RunOptions
from shoal.runs.registry import Algorithm

ENVIRONMENT_BYTES = 2_000  # of one environment, at the least
PARAMETER_COPIES = 4  # of a learner: values, gradients and an optimizer's two moments
IN_BFLOAT16 = """
import torch
product = torch.ones(64, 64, dtype=torch.bfloat16) @ torch.ones(64, 64, dtype=torch.bfloat16)
image = torch.ones(2, 4, 36, 36, dtype=torch.bfloat16)
torch.nn.functional.conv2d(image, torch.ones(32, 4, 8, 8, dtype=torch.bfloat16), stride=4)
raise SystemExit(product[0, 0].item() != 64.0)
"""


def prepare(algorithm: Algorithm, cfg: Acting, env: EnvSpec, options: RunOptions) -> Policy:
    """Refuse what cannot work. A policy is built because that is where a network and an action space turn out not to
    fit; it is returned, to be compared with old weights."""
    config.validate(cfg)
    options.check()
    _check_devices(cfg, options)
    if options.runtime != "ray":  # there nodes may be on other machines, and on larger ones
        _check_memory(cfg, env)
        if isinstance(cfg, Learning) and cfg.precision == "bfloat16" and "cpu" in (cfg.device, cfg.acting_device):
            _check_bfloat16()
    if cfg.frame_stack > 1 and not env.stacks:
        raise UserError(
            f"--frame-stack {cfg.frame_stack} has nothing to stack: {env.name} gives no images, which are numbers on "
            "three axes or bytes on two, of at least 5 by 5 pixels. Leave it out."
        )
    if env.outside:
        if options.runtime == "inline":
            raise UserError("--runtime inline has no clock of its own for clients outside: take local or ray.")
        if options.record_every:
            raise UserError("--record-every needs an environment that Shoal draws itself: leave it out.")
    elif not env.at_hand:
        _refuse_playing(options)
        for name, value in (("env_options", cfg.env_options), ("eval_env_options", cfg.eval_env_options)):
            if value:
                raise UserError(f"{config.option(name)} is of an environment, and there is none: add --env.")
    if options.record_every:
        check_drawn(env.for_evaluation())
    here = cfg if options.runtime != "ray" else dataclasses.replace(cfg, acting_device="cpu")  # a GPU may be elsewhere
    return algorithm.make_policy(here, env, options.seed)


def _refuse_playing(options: RunOptions) -> None:
    """Options that ask for an environment where there are data alone."""
    for name, value in (("stop_return", options.stop_return), ("record_every", options.record_every)):
        if value:
            raise UserError(f"{config.option(name)} needs an environment to play in: add --env, or leave it out.")
    if options.stop_steps is not None:
        raise UserError("--stop-steps never comes where nothing acts: give --stop-updates or --stop-seconds.")


def _check_devices(cfg: Acting, options: RunOptions) -> None:
    """On Ray nodes look for their devices themselves: their machines may have what this one has not."""
    from shoal.runtime import devices

    fields = {"acting_device": cfg.acting_device, **({"device": cfg.device} if isinstance(cfg, Learning) else {})}
    for field, device in fields.items():
        if options.runtime != "ray":
            check_device(field, device)
            continue
        name, (kind, _, index) = config.option(field), device.partition(":")
        if (fault := devices.known(device)) is not None:
            raise UserError(f"{name} {device} is no device ({fault}): give cpu or cuda.")
        if kind == "cuda" and index not in ("", "0"):
            raise UserError(
                f"{name} {device}: on Ray a node sees the GPU that Ray has chosen for it; give {name} cuda."
            )
    if cfg.gpu_memory is not None and not any(map(on_gpu, fields.values())):
        raise UserError(
            f"--gpu-memory {cfg.gpu_memory:g} bounds nothing while all compute on a CPU: add --device cuda or "
            "--acting-device cuda, or leave it out."
        )


def check_device(field: str, device: str) -> None:
    """Refuse a device that this process cannot use."""
    if device == "cpu":
        return
    from shoal.runtime import devices  # who plays a trained policy needs no runtime

    if (reason := devices.missing(device)) is not None:
        raise UserError(f"{config.option(field)} {device} cannot be used here ({reason}): leave it at cpu.")


def _check_bfloat16() -> None:
    """Tried in a process of its own: virtual machines were seen whose processor says that it multiplies matrices in
    bfloat16 (AMX), and which end who does it."""
    tried = subprocess.run([sys.executable, "-c", IN_BFLOAT16], stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    if tried.returncode:
        raise UserError(
            f"--precision bfloat16 {ending(tried.returncode)}, so this processor does not compute in it: leave it at "
            "float32, or set ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 in the environment."
        )


def _check_memory(cfg: Acting, env: EnvSpec) -> None:
    """What cannot fit would end the machine's work and not only the run. Estimated from below, and without what the
    libraries take."""
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    needs = memory_needs(cfg, env)
    if sum(needs.values()) <= there:
        return
    field = max(needs, key=lambda name: needs[name])
    value, has = config.values(cfg)[field], f"this machine has {there / 1e9:,.0f} GB"
    option = f"--{field.replace('_', '-')} {' '.join(map(str, value)) if isinstance(value, tuple) else value}"
    if field == "capacity":
        item = needs[field] / value
        raise UserError(
            f"{option} needs {needs[field] / 1e9:,.0f} GB for observations of {env.observation_bytes:,} bytes, and "
            f"{has}: give --capacity {int(0.5 * there / item)} or less."
        )
    raise UserError(f"{option} needs at least {needs[field] / 1e9:,.0f} GB of memory, and {has}: give less.")


def memory_needs(cfg: Acting, env: EnvSpec) -> dict[str, float]:
    """Bytes, by the option that decides most about them."""
    environments = cfg.actors * cfg.envs_per_actor
    copies = PARAMETER_COPIES * (cfg.learners if isinstance(cfg, Learning) else 1) + cfg.actors
    lstm = cfg.lstm if isinstance(cfg, PolicyAndValue | RecurrentDuelingNetwork) else 0
    row = env.observation_bytes + 8.0 * lstm
    many = "actors" if cfg.actors > cfg.envs_per_actor else "envs_per_actor"
    needs = {many: environments * (ENVIRONMENT_BYTES + row), "lstm": 4.0 * copies * 4 * lstm**2}
    if isinstance(cfg, Unrolls):
        needs["unroll"] = environments * (cfg.unroll + 1.0) * row
    if isinstance(cfg, Rollouts):
        longer = "queue" if cfg.queue >= cfg.unroll else "unroll"
        needs[longer] = needs.get(longer, 0.0) + cfg.queue * (cfg.unroll + 1.0) * row
    if isinstance(cfg, Experience):
        period = cfg.period if isinstance(cfg, Sequences) else 1
        needs["rows"] = environments * (cfg.rows + 1.0) * row
        needs["capacity"] = cfg.capacity * float(period) * env.observation_bytes
        if isinstance(cfg, Sequences):
            needs["burn_in"] = cfg.batch * (cfg.burn_in + cfg.length + 1.0) * row
    if isinstance(cfg, PolicyAndValue | DuelingNetwork):
        needs["hidden"] = 4.0 * copies * _weights(cfg.hidden)
    elif isinstance(cfg, ActorAndCritics):
        needs["actor_hidden"] = 4.0 * copies * _weights(cfg.actor_hidden)
        needs["critic_hidden"] = 4.0 * copies * _weights(cfg.critic_hidden)
    return needs


def _weights(widths: tuple[int, ...]) -> int:
    return sum(one * other for one, other in itertools.pairwise((1, *widths)))
