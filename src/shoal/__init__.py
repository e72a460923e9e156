"""Shoal: distributed deep reinforcement learning, from one laptop to a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shoal.diagnosis.doctor import doctor
    from shoal.diagnosis.findings import Diagnosis
    from shoal.errors import UserError
    from shoal.experiment.training import resume, train
    from shoal.playing import Evaluation, TrainedPolicy, collect, evaluate, load, record
    from shoal.playing.exporting import export
    from shoal.playing.judging import judge
    from shoal.runs.options import Result
    from shoal.runtime.restarts import RunFailed
    from shoal.serving import serve
    from shoal.sweeps.running import sweep

__version__ = "0.1.0"
__all__ = [
    "Diagnosis",
    "Evaluation",
    "Result",
    "RunFailed",
    "TrainedPolicy",
    "UserError",
    "__version__",
    "collect",
    "doctor",
    "evaluate",
    "export",
    "judge",
    "load",
    "record",
    "resume",
    "serve",
    "sweep",
    "train",
]

_WHERE = {
    "doctor": "shoal.diagnosis.doctor",
    "Diagnosis": "shoal.diagnosis.findings",
    "train": "shoal.experiment.training",
    "resume": "shoal.experiment.training",
    "load": "shoal.playing.policy",
    "TrainedPolicy": "shoal.playing.policy",
    "record": "shoal.playing.recording",
    "collect": "shoal.playing.collecting",
    "export": "shoal.playing.exporting",
    "judge": "shoal.playing.judging",
    "evaluate": "shoal.playing.evaluation",
    "Evaluation": "shoal.playing.evaluation",
    "serve": "shoal.serving",
    "sweep": "shoal.sweeps.running",
    "Result": "shoal.runs.options",
    "UserError": "shoal.errors",
    "RunFailed": "shoal.runtime.restarts",
}


def __dir__() -> list[str]:
    return sorted({*(name for name in globals() if name.startswith("__")), *__all__})


def __getattr__(name: str) -> Any:
    """Imported on first use: `import shoal` itself costs nothing, which every process of a run pays."""
    if name not in _WHERE:
        raise AttributeError(f"module 'shoal' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_WHERE[name]), name)
