"""Run directories that are damaged, foreign, or hold weights of something else: `eval` and `plot` say so."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.hunt.conftest import Told

import shoal
from shoal import envs
from shoal.algorithms import impala
from shoal.errors import UserError
from shoal.runs import records
from shoal.runs.directory import RunDirectory
from shoal.runs.options import RunOptions

Damage = Callable[[Path], object]
FIRST = "torso.0.weight"
NPY = (
    b"\x93NUMPY\x01\x00v\x00" + b"{'descr': '<f8', 'fortran_order': False, 'shape': (), }".ljust(117) + b"\n" + bytes(8)
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run directory as a short run leaves it."""
    path = tmp_path_factory.mktemp("runs") / "run"
    cfg = impala.Config(hidden=(8,), preset="none")
    made = RunDirectory.create(str(path), "impala", "CartPole-v1", 0, print)
    made.write_config(records.record_of("impala", cfg, envs.describe("CartPole-v1"), RunOptions()))
    made.write_weights(impala.make_policy(cfg, envs.describe("CartPole-v1"), 0).state_dict()["weights"])
    for index in range(3):
        row = {"eval_return": 9.0, "spread": 1.0, "env_steps": index * 100, "seconds": index * 0.5}
        made.write_row("evaluation", row)
    made.write_summary({"env_steps": 200})
    made.close()
    return path


@pytest.fixture
def run(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "run"))


def text(name: str, content: str | bytes) -> Damage:
    return lambda run: (run / name).write_bytes(content.encode() if isinstance(content, str) else content)


def cut(name: str, to: int) -> Damage:
    return lambda run: (run / name).write_bytes((run / name).read_bytes()[:to])


def config(**changes: Any) -> Damage:
    """Changes to the record, and with `config={…}` to the algorithm's config in it."""

    def change(run: Path) -> None:
        record = json.loads((run / "config.json").read_text())
        inner = changes.get("config")
        whole = record | changes | ({"config": record["config"] | inner} if isinstance(inner, dict) else {})
        (run / "config.json").write_text(json.dumps(whole))

    return change


def weights(change: Callable[[dict[str, Any]], object]) -> Damage:
    def rewrite(run: Path) -> None:
        with np.load(run / "weights.npz") as archive:
            arrays = dict(archive)
        change(arrays)
        np.savez(run / "weights.npz", **arrays)

    return rewrite


def with_nan(arrays: dict[str, Any]) -> None:
    arrays[FIRST][0, 0] = np.nan


def fill(run: Path) -> None:
    data = bytearray((run / "weights.npz").read_bytes())
    data[len(data) // 2 : len(data) // 2 + 64] = b"\xff" * 64
    (run / "weights.npz").write_bytes(bytes(data))


EVAL: dict[str, tuple[Damage, str]] = {
    "no config": (lambda run: (run / "config.json").unlink(), "is not a run directory: it has no config.json."),
    "config cut short": (cut("config.json", 40), "config.json cannot be read"),
    "config empty": (text("config.json", ""), "config.json cannot be read"),
    "config no object": (text("config.json", "[1, 2]"), "config.json is damaged: it holds no run's config."),
    "config a number": (text("config.json", "3"), "config.json is damaged: it holds no run's config."),
    "config null": (text("config.json", "null"), "config.json is damaged: it holds no run's config."),
    "config lacks": (text("config.json", "{}"), "config.json lacks algorithm, config, env"),
    "config no text": (text("config.json", b"\xff\xfe\x00"), "config.json cannot be read"),
    "config deep": (text("config.json", "[" * 100_000), "config.json cannot be read"),
    "config a folder": (
        lambda run: ((run / "config.json").unlink(), (run / "config.json").mkdir()),
        "config.json cannot be read",
    ),
    "config a pipe": (
        lambda run: ((run / "config.json").unlink(), os.mkfifo(run / "config.json")),
        "config.json cannot be read ([Errno 22] It is no regular file",
    ),
    "weights without end": (
        lambda run: ((run / "weights.npz").unlink(), (run / "weights.npz").symlink_to("/dev/zero")),
        "weights.npz is damaged",
    ),
    "algorithm unknown": (config(algorithm="inpala"), "There is no algorithm inpala"),
    "algorithm a number": (config(algorithm=3), "is damaged: algorithm and env must be names"),
    "algorithm gone": (config(algorithm="/nowhere/mine.py"), "There is no file /nowhere/mine.py"),
    "env a list": (config(env=[1]), "is damaged: algorithm and env must be names"),
    "config of fields a list": (config(config=[]), "is damaged: algorithm and env must be names"),
    "env unknown": (config(config={"env": "CartPol-v1"}), "There is no environment CartPol-v1."),
    "env null": (config(config={"env": None}), "--env None is no such value: give a name or a function or class."),
    "env a module that is gone": (config(config={"env": "gone:make"}), "gone:make: there is no module 'gone'"),
    "width a string": (config(config={"hidden": "64"}), "--hidden '64' is no such value: give whole numbers."),
    "width negative": (config(config={"hidden": [-1]}), "--hidden -1 has a layer without a unit"),
    "actors a string": (config(config={"actors": "two"}), "--actors 'two' is no such value: give a whole number."),
    "truth a number": (config(config={"shared_torso": 3}), "--shared-torso 3 is no such value: give True or False."),
    "choice unknown": (config(config={"optimizer": "sgd"}), "--optimizer sgd is not known"),
    "network gone": (config(config={"network": "gone:make"}), "The network 'gone:make': there is no module 'gone'"),
    "network lost": (config(config={"network": "f"}, lost=["network"]), "put it into one and give --network"),
    "folders nonsense": (config(folders=[3, None], env="x", config={"env": "gone:x"}), "there is no module 'gone'"),
    "no weights": (lambda run: (run / "weights.npz").unlink(), "has no weights.npz"),
    "weights cut short": (cut("weights.npz", 700), "weights.npz is damaged"),
    "weights empty": (text("weights.npz", ""), "weights.npz is damaged"),
    "weights text": (text("weights.npz", "hello"), "weights.npz is damaged"),
    "weights overwritten": (fill, "weights.npz is damaged"),
    "weights a pickle": (
        lambda run: (run / "weights.npz").write_bytes(np.array([{}], object).dumps()),
        "weights.npz is damaged",
    ),
    "weights one array": (
        lambda run: (run / "weights.npz").write_bytes(NPY),
        "weights.npz is damaged",
    ),
    "weights objects": (
        weights(lambda arrays: arrays.update({FIRST: np.array([None])})),
        "weights.npz is damaged",
    ),
    "weights of another width": (
        config(config={"hidden": [16]}),
        "torso.0.weight is [8, 4] and must be [16, 4]",
    ),
    "weights of another depth": (config(config={"hidden": [8, 8]}), "it lacks torso.1.weight [8, 8]"),
    "weights of another task": (
        config(config={"env": "Acrobot-v1"}),
        "Acrobot-v1 has the observations float32 [6]",
    ),
    "weights with more": (
        weights(lambda arrays: arrays.update(extra=np.zeros(2, np.float32))),
        "it has extra [2], which the network has not",
    ),
    "weights with less": (weights(lambda arrays: arrays.pop(FIRST)), "it lacks torso.0.weight [8, 4]"),
    "weights transposed": (
        weights(lambda arrays: arrays.update({FIRST: arrays[FIRST].T})),
        "torso.0.weight is [4, 8] and must be [8, 4]",
    ),
    "weights of float64": (
        weights(lambda arrays: arrays.update({FIRST: arrays[FIRST].astype(np.float64)})),
        "torso.0.weight is float64 and must be float32",
    ),
    "weights of integers": (
        weights(lambda arrays: arrays.update({FIRST: arrays[FIRST].astype(np.int32)})),
        "torso.0.weight is int32 and must be float32",
    ),
    "seed a word": (config(seed="x"), "config.json is damaged: seed must be a whole number."),
    "lost a number": (config(lost=3), "config.json is damaged: lost must be a list of options."),
    "env moves the cursor": (config(env="\x1b[2J"), "is damaged: env holds characters that no name has."),
    "weights not finite": (weights(with_nan), "holds numbers that are not finite, in torso.0.weight"),
}


@pytest.mark.parametrize(("damage", "sentence"), EVAL.values(), ids=EVAL)
def test_eval_refuses_what_is_not_that_runs_policy(damage: Damage, sentence: str, run: Path, told: Told) -> None:
    damage(run)
    (line,) = told("eval", str(run), "--episodes", "1", "--trust")
    assert sentence in line


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--env", "Nowhere-v0"), "There is no environment Nowhere-v0."),
        (("--env", "envs_init:Env"), "envs_init:Env could not be made: ValueError: no such map"),
        (("--network", "nets:good"), "does not fit the network that the run's config builds"),
        (("--core", "nets:good"), "impala has no option --core: leave it out."),
    ],
)
def test_eval_refuses_replacements_that_do_not_fit(
    words: tuple[str, str], sentence: str, run: Path, told: Told
) -> None:
    assert sentence in told("eval", str(run), *words)[-1]


ROWS = '{"kind": "evaluation", "eval_return": "high", "spread": 1, "env_steps": 1, "seconds": 1}\n'
PLOT: dict[str, tuple[Damage, str]] = {
    "no config": (lambda run: (run / "config.json").unlink(), "is not a run directory"),
    "config no object": (text("config.json", "[]"), "config.json is damaged"),
    "no metrics": (lambda run: (run / "metrics.jsonl").unlink(), "metrics.jsonl cannot be read"),
    "metrics empty": (text("metrics.jsonl", ""), "There is nothing to plot"),
    "metrics no text": (text("metrics.jsonl", b"\xff\xfe\x00"), "metrics.jsonl is damaged: it is no text."),
    "metrics of other things": (text("metrics.jsonl", "3\nnull\n[]\n{}\n"), "There is nothing to plot"),
    "rows without numbers": (text("metrics.jsonl", ROWS), "metrics.jsonl is damaged: no evaluation in it has"),
    "rows without fields": (text("metrics.jsonl", '{"kind": "evaluation"}\n'), "metrics.jsonl is damaged"),
}


@pytest.mark.parametrize(("damage", "sentence"), PLOT.values(), ids=PLOT)
def test_plot_refuses_a_damaged_run(damage: Damage, sentence: str, run: Path, told: Told) -> None:
    damage(run)
    (line,) = told("plot", str(run), "--output", str(run / "curve.png"))
    assert sentence in line


def test_plot_draws_what_is_whole_among_rows_that_are_not(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from shoal.cli import main as cli

    with (run / "metrics.jsonl").open("a") as file:
        file.write(ROWS + '{"kind": "evaluation", "eval')
    assert cli.main(["plot", str(run), "--output", str(run / "curve.png")]) == 0
    found = capsys.readouterr()
    assert "impala on CartPole-v1" in found.out
    assert not found.err  # a last line that was cut short is how a killed run ends


def test_plot_tells_of_rows_that_it_cannot_read(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from shoal.cli import main as cli

    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"kind": 5,\n[]\n' + ROWS)
    assert cli.main(["plot", str(run), "--output", str(run / "curve.png")]) == 0
    told = capsys.readouterr().err
    assert told == f"shoal: {run}/metrics.jsonl is damaged: rows left out that cannot be read: 2.\n"


@pytest.mark.parametrize(
    ("output", "sentence"),
    [
        ("x.zzz", "--output x.zzz: there is no picture format 'zzz': give one of "),
        ("x", "--output x: its ending says the format, and there is none: give one of "),
        ("nowhere/x.png", "nowhere/x.png cannot be written (No such file or directory): give another --output."),
        ("/proc/x.png", "/proc/x.png cannot be written"),
    ],
)
def test_plot_refuses_an_output_that_cannot_be(output: str, sentence: str, run: Path, told: Told) -> None:
    assert told("plot", str(run), "--output", output)[-1].startswith(f"shoal: {sentence}")


DEEP = '{"kind": "evaluation", "a": ' + "[" * 100_000 + "\n"
JUDGED = '{"kind": "evaluation", "eval_return": %s, "env_steps": 1e999, "spread": "wide"}\n'
STRANGE: dict[str, Damage] = {
    "pipes": lambda run: [
        ((run / name).unlink(missing_ok=True), os.mkfifo(run / name))
        for name in ("metrics.jsonl", "summary.json", "run.lock")
    ],
    "rows deep": text("metrics.jsonl", DEEP),
    "a return that was not finite": text("metrics.jsonl", JUDGED % "null"),
    "a return beyond floats": text("metrics.jsonl", JUDGED % ("1" + "0" * 400)),
    "counts no object": text(
        "metrics.jsonl", '{"kind": "progress", "counts": "x", "times": {"a": 1}, "restarts": "x"}\n'
    ),
    "summary deep": text("summary.json", "[" * 100_000),
    "summary of words": text("summary.json", '{"env_steps": "x", "train_seconds": {}, "eval_return": []}'),
    "summary endless": text("summary.json", '{"env_steps": 1e999, "train_seconds": 1e999, "eval_return": NaN}'),
    "a reason that moves the cursor": text("summary.json", '{"stopped_by": "\\u001b[2J"}'),
    "a life without end": text("summary.json", '{"life": 1e999}'),
    "a target beyond floats": config(options={"stop_return": 10**400, "stop_steps": "x"}),
}


@pytest.mark.parametrize("damage", STRANGE.values(), ids=STRANGE)
def test_status_runs_and_diff_tell_of_a_damaged_run_what_is_known(
    damage: Damage, run: Path, whole: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from shoal.cli import main as cli

    damage(run)
    for words in (["status", str(run)], ["runs", str(run)], ["diff", str(run), str(whole)]):
        assert cli.main(words) == 0
    told = capsys.readouterr().out
    assert "impala on CartPole-v1" in told
    assert "nan" not in told
    assert "\x1b" not in told
    assert "inf" not in told


def test_runs_leaves_out_a_damaged_run_and_lists_the_others(
    run: Path, whole: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from shoal.cli import main as cli

    config(seed=None)(run)
    assert cli.main(["runs", str(run), str(whole)]) == 0
    heard = capsys.readouterr()
    assert "seed must be a whole number" in heard.err
    assert str(whole) in heard.out


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda run: shoal.load(run, device="xpu7"), "--device xpu7 cannot be used here ("),
        (lambda run: shoal.load(run, device=3), "--device 3 is no such value"),
        (lambda run: shoal.resume(run, stop_steps="x"), "--stop-steps 'x' is no such value"),
    ],
)
def test_a_run_is_not_loaded_or_resumed_with_wrong_values(
    call: Callable[[Path], object], sentence: str, run: Path
) -> None:
    with pytest.raises(UserError) as raised:
        call(run)
    assert sentence in str(raised.value)
