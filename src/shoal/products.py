"""Which library multiplies matrices on the CPU.

torch gives products of float32 to MKL, which leaves half of an AMD core's vector units idle: it takes its AVX-512
kernels on Intel's processors only. oneDNN, which is in torch too, takes them on both, and torch hands it the products
when they may be rounded to bfloat16. It rounds where a processor has matrix tiles for that (AMX); where there are none
it computes in float32, at twice MKL's rate (docs/decisions/0045).
"""

from __future__ import annotations

from pathlib import Path

import torch

_CLOSE = 1e-4  # to exact products of ±1…1 over 64 terms: float32 is a hundred times as near, bfloat16 not by far


def choose_library() -> bool:
    """Have oneDNN multiply in this process where it is the faster one and no less exact. Whether it does from now on.

    The choice depends on the processor alone, so that a run computes the same whenever it is repeated here.
    """
    if not _amd_with_avx512():
        return False
    settings = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]  # torch makes it when it is imported
    before = settings.fp32_precision
    settings.fp32_precision = "bf16"
    if _computes_in_float32():
        return True
    settings.fp32_precision = before
    return False


def _amd_with_avx512() -> bool:
    try:
        processor = Path("/proc/cpuinfo").read_text()
    except OSError:  # not Linux
        return False
    return "AuthenticAMD" in processor and torch.backends.cpu.get_cpu_capability() == "AVX512"


def _computes_in_float32() -> bool:
    """Whether a product is as exact as float32 makes it, of matrices that are large enough for oneDNN."""
    a = torch.linspace(-1.0, 1.0, 64 * 64).sin().view(64, 64)
    error = torch.mm(a, a.T).double() - torch.mm(a.double(), a.double().T)
    return float(error.abs().max()) < _CLOSE
