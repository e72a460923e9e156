"""Curves over seeds."""

from __future__ import annotations

import errno
from pathlib import Path

import numpy as np
import pytest

from shoal.analysis import plots
from shoal.analysis.grouping import grouped
from shoal.analysis.pictures import short_number
from shoal.cli.main import main
from shoal.errors import UserError
from shoal.runs import directory


def run(path: Path, returns: list[float], env: str = "CartPole-v1", runtime: str = "local", **config: object) -> Path:
    made = directory.RunDirectory.create(str(path), "impala", env, 0, print)
    options = {"stop_return": 475.0, "runtime": runtime}
    made.write_config({"algorithm": "impala", "config": config, "env": env, "options": options})
    for index, value in enumerate(returns):
        row = {"eval_return": value, "spread": 1.0, "env_steps": index * 100, "seconds": index * 0.5}
        made.write_row("evaluation", row)
    made.close()
    return path


def rows(returns: list[float], every: float) -> list[dict[str, float]]:
    return [{"eval_return": value, "spread": 2.0, "seconds": index * every} for index, value in enumerate(returns)]


def test_runs_that_were_evaluated_at_other_times_meet_on_a_common_grid() -> None:
    x, mean, low, high = plots.over_seeds([rows([0, 10, 20], 1.0), rows([10, 30], 2.0)], "seconds")
    assert (x[0], x[-1]) == (0.0, 2.0)
    np.testing.assert_allclose(mean, 5.0 + 10.0 * x)
    np.testing.assert_allclose(mean - low, 5.0)
    np.testing.assert_allclose(high - mean, 5.0)


def test_a_curve_begins_where_all_of_its_runs_have_values() -> None:
    late = [{**row, "seconds": row["seconds"] + 1.0} for row in rows([10, 30], 2.0)]
    x, mean, *_ = plots.over_seeds([rows([0, 10, 20, 30], 1.0), late], "seconds")
    assert (x[0], x[-1], mean[0], mean[-1]) == (1.0, 3.0, 10.0, 30.0)


def test_a_run_that_ended_keeps_its_last_value_until_the_longest_ends() -> None:
    x, mean, *_ = plots.over_seeds([rows([0, 1, 2, 3], 1.0), rows([0, 1], 1.0)], "seconds")
    assert (x[-1], mean[-1]) == (3.0, 2.0)


def test_one_run_is_drawn_with_the_spread_of_its_episodes() -> None:
    x, mean, low, high = plots.over_seeds([rows([1, 2], 1.0)], "seconds")
    assert (x.tolist(), mean.tolist(), low.tolist(), high.tolist()) == ([0, 1], [1, 2], [-1, 0], [3, 4])


def test_a_band_never_leaves_what_was_seen() -> None:
    ends = {"lowest": 0.5, "highest": 2.5}
    _, _, low, high = plots.over_seeds([[row | ends for row in rows([1, 2], 1.0)]], "seconds")
    assert (low.tolist(), high.tolist()) == ([0.5, 0.5], [2.5, 2.5])
    _, mean, _, high = plots.over_seeds([rows([10, 500], 1.0), rows([20, 500], 1.0), rows([400, 470], 1.0)], "seconds")
    assert high[-1] == 500 < mean[-1] + np.std([500, 500, 470])


def test_ends_that_are_no_numbers_are_passed_over() -> None:
    damaged = [row | {"lowest": "x", "highest": None} for row in rows([1, 2], 1.0)]
    _, _, low, high = plots.over_seeds([damaged], "seconds")
    assert (low.tolist(), high.tolist()) == ([-1, 0], [3, 4])


def test_a_picture_that_cannot_be_written_leaves_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, data: bytes) -> None:
        path.touch()
        raise OSError(errno.ENOSPC, "No space left on device")

    (tmp_path / "curve.png").write_bytes(b"before")
    drawn = run(tmp_path / "run", [1, 2])
    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(UserError, match="No space left on device"):
        plots.draw([drawn], tmp_path / "curve.png")
    assert (tmp_path / "curve.png").read_bytes() == b"before"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["curve.png", "run"]


def test_runs_that_differ_in_their_seed_alone_are_one_curve(tmp_path: Path) -> None:
    paths = [run(tmp_path / str(seed), [10.0 * seed, 20.0, 400.0], batch=64) for seed in range(3)]
    assert plots.draw(paths, tmp_path / "curve.png") == ["impala on CartPole-v1: 3 runs"]
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")


def test_runs_of_different_settings_are_curves_of_their_own_that_say_what_differs(tmp_path: Path) -> None:
    settings = [{"batch": 64, "hidden": [64, 64]}, {"batch": 64, "hidden": [8]}, {"batch": 64, "hidden": [8]}]
    paths = [run(tmp_path / str(index), [1.0, 2.0], **each) for index, each in enumerate(settings)]
    (curves,) = grouped(plots.read_runs(paths, print)).values()
    assert [(curve.label, len(curve.runs)) for curve in curves] == [
        ("impala: hidden 64 64", 1),
        ("impala: hidden 8", 2),
    ]


def test_curves_are_those_of_the_fields_that_are_named_and_what_they_put_together_is_told(tmp_path: Path) -> None:
    for index, (rate, unroll) in enumerate([(1e-2, 5), (1e-3, 5), (1e-3, 20), (1e-4, 5)]):
        run(tmp_path / "runs" / str(index), [1.0, 2.0], learning_rate=rate, unroll=unroll)
    said: list[str] = []
    drawn = plots.draw([tmp_path / "runs"], tmp_path / "curve.svg", said.append, by="learning-rate")
    assert drawn == [
        f"impala: learning_rate {rate} on CartPole-v1: {count}"
        for rate, count in (("0.0001", "1 run"), ("0.001", "2 runs"), ("0.01", "1 run"))
    ]
    assert said == ["runs of one curve differ in unroll: --by learning_rate,unroll tells them apart"]
    assert b"<svg" in (tmp_path / "curve.svg").read_bytes()
    kept = plots.draw([tmp_path / "runs"], tmp_path / "curve.svg", where="unroll=5,learning_rate=1e-3")
    assert kept == ["impala on CartPole-v1: 1 run"]
    with pytest.raises(
        UserError, match=r"--by unrol is no field of these runs: see shoal config RUN\. Did you mean unroll"
    ):
        plots.draw([tmp_path / "runs"], tmp_path / "curve.svg", by="unrol")
    with pytest.raises(UserError, match="nothing to plot: no run among these has --where unroll=7"):
        plots.draw([tmp_path / "runs"], tmp_path / "curve.svg", where="unroll=7")


def test_the_band_over_many_seeds_leaves_out_the_odd_one(tmp_path: Path) -> None:
    runs = [rows([value, value], 1.0) for value in (99.0, 100.0, 100.0, 100.0, 101.0, 0.0, 1000.0, 100.0)]
    _, middle, low, high = plots.over_seeds(runs, "seconds")
    assert middle[0] == 100.0, "a quarter at each end, 0 and 1000 among them, is left out"
    assert 0.0 < low[0] <= middle[0] <= high[0] < 1000.0


def test_what_learned_without_a_step_is_drawn_over_updates(tmp_path: Path) -> None:
    for name, steps in (("acting", 100), ("data", 0)):
        made = directory.RunDirectory.create(str(tmp_path / name), "sac", "Pendulum-v1", 0, print)
        made.write_config({"algorithm": "sac", "config": {"name": name}, "env": "Pendulum-v1"})
        for version in (0, 50):
            row = {"eval_return": 1.0, "spread": 1.0, "env_steps": steps * version, "seconds": 1.0, "version": version}
            made.write_row("evaluation", row)
        made.close()
    acting, data = (
        next(iter(grouped(plots.read_runs([tmp_path / name], print)).values())) for name in ("acting", "data")
    )
    assert [name for _, name in plots.axes_of(acting)] == ["environment steps", "seconds of training"]
    assert [name for _, name in plots.axes_of(data)] == ["updates", "seconds of training"]
    assert [name for _, name in plots.axes_of([*acting, *data])] == ["updates", "seconds of training"], (
        "as all have them"
    )
    assert plots.draw([tmp_path / "data"], tmp_path / "curve.png") == ["sac on Pendulum-v1: 1 run"]


def test_virtual_seconds_are_not_drawn_among_real_ones(tmp_path: Path) -> None:
    paths = [run(tmp_path / runtime, [1.0, 2.0], runtime=runtime) for runtime in ("local", "inline", "ray")]
    (curves,) = grouped(plots.read_runs(paths, print)).values()
    assert [curve.label for curve in curves] == [f"impala: runtime {name}" for name in ("inline", "local", "ray")]
    assert plots.on_axis(curves, "env_steps", "steps") == (curves, "steps")
    assert plots.on_axis(curves, "seconds", "seconds") == (curves[1:], "seconds")
    assert plots.on_axis(curves[:1], "seconds", "seconds") == (curves[:1], "virtual seconds")
    assert len(plots.draw(paths, tmp_path / "curve.png")) == 3


def test_a_run_that_is_named_twice_is_one_run(tmp_path: Path) -> None:
    path = run(tmp_path / "run", [1.0, 2.0])
    assert len(plots.read_runs([path, tmp_path / "." / "run", path], print)) == 1


def test_every_task_has_a_panel(tmp_path: Path) -> None:
    paths = [run(tmp_path / env, [1.0, 2.0], env) for env in ("A-v0", "B-v0")]
    panels = grouped(plots.read_runs(paths, print))
    assert {task: [curve.label for curve in curves] for task, curves in panels.items()} == {
        "A-v0": ["impala"],
        "B-v0": ["impala"],
    }


def test_a_folder_of_runs_is_drawn_and_what_is_no_run_in_it_is_passed_over(tmp_path: Path) -> None:
    run(tmp_path / "runs" / "a", [1.0, 2.0])
    (tmp_path / "runs" / "strange").mkdir()
    said: list[str] = []
    assert len(plots.read_runs([tmp_path / "runs"], said.append)) == 1
    assert len(plots.read_runs([tmp_path], said.append)) == 1, (
        "also of a sweep, which has its runs in a folder of its own"
    )
    assert len(plots.read_runs(sorted((tmp_path / "runs").iterdir()), said.append)) == 1
    assert said == [f"left out: {tmp_path}/runs/strange is not a run directory: it has no config.json."]


@pytest.mark.parametrize(
    ("value", "text"), [(0.5, "0.5"), (0, "0"), (20, "20"), (1500, "1.5k"), (3e6, "3M"), (-2e3, "-2k"), (2e9, "2G")]
)
def test_numbers_on_an_axis_are_shortened_from_thousands_up(value: float, text: str) -> None:
    assert short_number(value) == text


def test_numbers_without_room_for_an_axis_are_taken_for_damage(tmp_path: Path) -> None:
    path = run(tmp_path / "run", [1.0, 1e308, -1e308, 2.0])
    assert [row["eval_return"] for row in plots.read_evaluations(path)] == [1.0, 2.0]
    plots.draw([run(tmp_path / "large", [1e300, -1e300])], tmp_path / "curve.png")


def test_runs_without_evaluations_cannot_be_drawn(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nothing to plot"):
        plots.draw([run(tmp_path / "run", [])], tmp_path / "curve.png")


def test_the_command_draws_the_runs_and_settings_that_were_typed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    for index, (unroll, rate) in enumerate([(5, 1.0), (5, 2.0), (10, 1.0)]):
        run(tmp_path / str(index), [1.0, 2.0], unroll=unroll, rate=rate)
    typed = ["plot", str(tmp_path), "--output", str(tmp_path / "out.svg")]
    labels = []
    for more in ([], ["--where", "unroll=5"], ["--by", "unroll"]):
        assert main([*typed, *more]) == 0
        *said, last = capsys.readouterr().out.splitlines()
        labels.append(len(said))
        assert last == f"→ {tmp_path / 'out.svg'}"
    assert labels == [3, 2, 2]
    assert "<svg" in (tmp_path / "out.svg").read_text()


def test_curves_of_very_different_lengths_get_a_logarithmic_axis(tmp_path: Path) -> None:
    def lasting(name: str, every: int) -> Path:
        made = directory.RunDirectory.create(str(tmp_path / name), "impala", "CartPole-v1", 0, print)
        config = {"gamma": every}
        made.write_config({"algorithm": "impala", "config": config, "env": "CartPole-v1", "options": {}})
        for index in range(4):
            row = {"eval_return": 1.0, "spread": 1.0, "env_steps": index * every, "seconds": index * 1.0}
            made.write_row("evaluation", row)
        made.close()
        return made.path

    paths = [lasting("short", 12_000), lasting("long", 1_700_000)]
    (groups,) = grouped(plots.read_runs(paths, print), []).values()
    assert plots.log_from(groups, "env_steps") == 12_000, "the first that is not 0"
    assert plots.log_from(groups, "seconds") is None
    assert plots.log_from(groups[:1], "env_steps") is None
    assert main(["plot", *map(str, paths), "--output", str(tmp_path / "both.png")]) == 0
