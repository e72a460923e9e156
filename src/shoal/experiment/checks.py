"""Everything that can be refused before a process is started."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from typing import Any

from shoal import config
from shoal.envs import EnvSpec
from shoal.envs.pictures import check_drawn
from shoal.envs.trial import ending
from shoal.errors import UserError
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


def prepare(algorithm: Algorithm, cfg: Any, env: EnvSpec, options: RunOptions) -> Any:
    """Refuse what cannot work. A policy is built because that is where a network and an action space turn out not to
    fit; it is returned, to be compared with old weights."""
    config.validate(cfg)
    options.check()
    for field in ("device", "acting_device"):
        check_device(field, getattr(cfg, field, "cpu"))
    if options.runtime != "ray":  # there nodes may be on other machines, and on larger ones
        _check_memory(cfg, env, options)
        _check_precision(cfg)
    if getattr(cfg, "frame_stack", 0) > 1 and not env.stacks:
        raise UserError(
            f"--frame-stack {cfg.frame_stack} has nothing to stack: {env.name} gives no images, which are numbers on "
            "three axes or bytes on two, of at least 5 by 5 pixels. Leave it out."
        )
    if options.record_every:
        check_drawn(env.for_evaluation())
    return algorithm.make_policy(cfg, env, options.seed)


def check_device(field: str, device: str) -> None:
    if device == "cpu":
        return
    import torch

    option = f"--{field.replace('_', '-')}"
    try:
        stored = torch.zeros(1, device=device).item()  # reading it shows that there is a memory behind
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).partition("\n")[0].rstrip(".")
        raise UserError(f"{option} {device} cannot be used here ({reason}): leave it at cpu.") from None
    assert stored == 0.0


def _check_precision(cfg: Any) -> None:
    """Tried in a process of its own: virtual machines were seen whose processor says that it multiplies matrices in
    bfloat16 (AMX), and which end who does it."""
    if getattr(cfg, "precision", "float32") != "bfloat16" or "cpu" not in (cfg.device, cfg.acting_device):
        return
    tried = subprocess.run([sys.executable, "-c", IN_BFLOAT16], stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    if tried.returncode:
        raise UserError(
            f"--precision bfloat16 {ending(tried.returncode)}, so this processor does not compute in it: leave it at "
            "float32, or set ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 in the environment."
        )


def _check_memory(cfg: Any, env: EnvSpec, options: RunOptions) -> None:
    """What cannot fit would end the machine's work and not only the run. Estimated from below, and without what the
    libraries take."""
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    needs = memory_needs(cfg, env, options)
    if sum(needs.values()) <= there:
        return
    field = max(needs, key=lambda name: needs[name])
    value, has = getattr(cfg, field), f"this machine has {there / 1e9:,.0f} GB"
    option = f"--{field.replace('_', '-')} {' '.join(map(str, value)) if isinstance(value, tuple) else value}"
    if field == "capacity":
        item = needs[field] / value
        raise UserError(
            f"{option} needs {needs[field] / 1e9:,.0f} GB for observations of {env.observation_bytes:,} bytes, and "
            f"{has}: give --capacity {int(0.5 * there / item)} or less."
        )
    raise UserError(f"{option} needs at least {needs[field] / 1e9:,.0f} GB of memory, and {has}: give less.")


def memory_needs(cfg: Any, env: EnvSpec, options: RunOptions) -> dict[str, float]:
    """Bytes, by the option that decides most about them."""

    def given(field: str, default: int = 0) -> int:
        return int(getattr(cfg, field, default) or default)

    row = env.observation_bytes + 8 * given("lstm")
    rows = given("unroll") or given("rows", 1)
    environments = given("actors", 1) * given("envs_per_actor", 1)
    item = given("burn_in") + given("length", given("unroll", 1)) + 1
    copies = PARAMETER_COPIES * given("learners", 1) + given("actors", 1)
    stepped = "unroll" if hasattr(cfg, "unroll") else "rows"
    many = "actors" if given("actors", 1) > given("envs_per_actor", 1) else "envs_per_actor"
    needs = {
        many: environments * (ENVIRONMENT_BYTES + row),
        stepped: environments * (rows + 1.0) * row,
        "capacity": given("capacity") * env.observation_bytes * float(given("period", 1)),
        "burn_in": given("batch", 1) * float(item) * row,
        "lstm": 4.0 * copies * 4 * given("lstm") ** 2,
    }
    longer = "queue" if given("queue") >= given("unroll") else stepped
    needs[longer] = needs.get(longer, 0.0) + given("queue") * (given("unroll") + 1.0) * row
    for field in ("hidden", "actor_hidden", "critic_hidden"):
        widths = (1, *(getattr(cfg, field, None) or ()))
        needs[field] = 4.0 * copies * sum(one * other for one, other in itertools.pairwise(widths))
    return {field: amount for field, amount in needs.items() if hasattr(cfg, field)}
