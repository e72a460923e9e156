"""What is seen of the package and of a result in a notebook or an interpreter."""

from __future__ import annotations

import shoal
from shoal.cli.commands.looking import _rounded
from shoal.runs.options import Result


def test_the_package_shows_its_own_names_only() -> None:
    assert {name for name in dir(shoal) if not name.startswith("__")} == {*shoal.__all__} - {"__version__"}


def test_a_result_is_a_table_in_a_notebook() -> None:
    result = Result(
        algorithm="ppo",
        env="<lambda>",
        runtime="local",
        seed=1,
        env_steps=123_456,
        learner_steps=10,
        env_steps_per_second=10.0,
        wall_seconds=31.74568433,
        train_seconds=2.0,
        eval_return=None,
        eval_version=None,
        saved_version=None,
        reached=False,
        seconds_to_target=None,
        restarts=0,
        run_dir="runs/x",
        stopped_by="steps",
        preset="none",
        trained_steps=1,
        refused_updates=0,
        first_update_seconds=None,
        target=None,
        bottleneck="none",
    )
    shown = result._repr_html_()
    assert "<tr><th>env_steps</th><td>123,456</td></tr>" in shown
    assert "<td>31.7457</td>" in shown
    assert "&lt;lambda&gt;" in shown
    assert "eval_return" not in shown


def test_a_status_tells_seconds_with_one_digit() -> None:
    assert [_rounded(value) for value in (31.74568433, 5.0, 1_200)] == ["31.7", "5", "1,200"]
