"""The tasks that R2D2 solves need memory: a network without it, trained as long, does not come near.

That R2D2 solves them is among the tasks of bench.learning.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.algorithms import apex_dqn
from shoal.experiment.training import train


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(("env", "bound"), [("shoal/CartPoleHidden-v0", 200.0), ("shoal/Recall-v0", 0.5)])
def test_without_memory_the_return_is_out_of_reach(env: str, bound: float, tmp_path: Path) -> None:
    result = train(
        apex_dqn.Config(env=env), quiet=True, seed=1, stop_return=bound, stop_seconds=360.0, run_dir=str(tmp_path)
    )
    assert not result.reached
    assert result.eval_return is not None
