"""The `shoal` command as a user types it: what it prints, leaves behind and exits with."""

from __future__ import annotations

import importlib.abc
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import psutil
import pytest

from shoal import __main__
from shoal.cli.main import main

SMALL = ("--envs-per-actor", "4", "--batch", "4", "--queue", "8", "--unroll", "5")  # starts and stops quickly
PROMISED = {
    "algorithm": str,
    "env": str,
    "runtime": str,
    "seed": int,
    "env_steps": int,
    "learner_steps": int,
    "env_steps_per_second": float,
    "wall_seconds": float,
    "train_seconds": float,
    "eval_return": float | None,
    "reached": bool,
    "seconds_to_target": float | None,
    "restarts": int,
    "run_dir": str,
}
OWN_ENV = """
import gymnasium, numpy as np
from gymnasium import spaces

class Env(gymnasium.Env):
    observation_space = spaces.Box(-1.0, 1.0, (3,), np.float32)
    action_space = spaces.Discrete(2)
    steps = 0
    def __init__(self):
        with open("made", "ab") as made:
            made.write(b".")
            self.number = made.tell()
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(3, np.float32), {}
    def step(self, action):
        self.steps += 1
        if BROKEN and self.number > 1:  # all but the one that is tried before a run
            raise RuntimeError("the simulator fell over")
        return np.zeros(3, np.float32), float(action), False, self.steps % 10 == 0, {}

BROKEN = False
def make():
    return Env()
"""


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "shoal", *words]


def shoal(*words: str, cwd: Path, code: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(command(*words), cwd=cwd, capture_output=True, text=True, timeout=120)
    assert done.returncode == code, done.stderr
    return done


def last_line(text: str) -> dict[str, object]:
    record: dict[str, object] = json.loads(text.splitlines()[-1])
    return record


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, object], str]:
    """A short run: its folder, its result, and what it told on stderr."""
    cwd = tmp_path_factory.mktemp("trained")
    done = shoal(
        "train", "impala", *SMALL, "--stop-updates", "30", "--run-dir", "run", "--seed", "3", "--json", cwd=cwd
    )
    return cwd / "run", last_line(done.stdout), done.stderr


def test_the_last_line_of_stdout_is_one_object_with_every_promised_field(
    trained: tuple[Path, dict[str, object], str],
) -> None:
    _, result, _ = trained
    for name, kind in PROMISED.items():
        assert isinstance(result[name], kind), name
    assert (result["algorithm"], result["env"], result["seed"]) == ("impala", "CartPole-v1", 3)
    assert result["stopped_by"] == "updates"
    assert result["learner_steps"] == 30, "the rule is exact and the learner reports before it finishes"
    assert result["env_steps"] > 0  # type: ignore[operator]
    assert 0 < result["train_seconds"] < result["wall_seconds"]  # type: ignore[operator]


def test_ctrl_c_while_the_command_is_imported_is_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    class CtrlC(importlib.abc.MetaPathFinder):
        def find_spec(self, fullname: str, *_: object) -> None:
            if fullname == "shoal.cli.main":
                raise KeyboardInterrupt

    monkeypatch.delitem(sys.modules, "shoal.cli.main")
    monkeypatch.setattr(sys, "meta_path", [CtrlC(), *sys.meta_path])
    monkeypatch.setattr(sys, "stdout", sys.stdout)  # the command prepares both: what they were comes back
    monkeypatch.setattr(sys, "stderr", sys.stderr)
    assert __main__.main() == 130
    assert capfd.readouterr().err == "interrupted\n"


def test_a_reader_that_goes_away_is_no_traceback() -> None:
    shoal = [sys.executable, "-m", "shoal", "train", "impala", "--help"]
    with subprocess.Popen(shoal, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        running.stdout.close()
        assert running.stderr.read() == b""
    assert running.returncode == 1


def test_the_start_says_which_preset_was_chosen_and_what_it_sets(trained: tuple[Path, dict[str, object], str]) -> None:
    assert "preset classic (a classic environment): reward_scale=0.1" in trained[2]


def test_a_run_directory_holds_everything_that_makes_the_run(trained: tuple[Path, dict[str, object], str]) -> None:
    path, result, _ = trained
    record = json.loads((path / "config.json").read_text())
    assert record["config"]["batch"] == 4
    assert record["config"]["reward_scale"] == 0.1, "set by the preset"
    assert record["seed"] == 3
    assert set(record["versions"]) >= {"python", "torch", "numpy", "gymnasium", "shoal"}
    assert record["command"][1:3] == ["train", "impala"]
    rows = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    assert "progress" in {row["kind"] for row in rows}
    assert json.loads((path / "summary.json").read_text())["env_steps"] == result["env_steps"]
    assert (path / "weights.npz").stat().st_size > 0


def test_eval_plays_the_policy_from_nothing_but_the_run_directory(
    trained: tuple[Path, dict[str, object], str], tmp_path: Path
) -> None:
    found = last_line(shoal("eval", str(trained[0]), "--episodes", "7", "--json", cwd=tmp_path).stdout)
    assert found["episodes"] == 7
    assert 1 <= found["lowest"] <= found["eval_return"] <= found["highest"] <= 500  # type: ignore[operator]


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda run: (run / "weights.npz").unlink(), "has no weights.npz"),
        (lambda run: (run / "weights.npz").write_bytes((run / "weights.npz").read_bytes()[:1000]), "is damaged"),
        (lambda run: (run / "config.json").write_text("{"), "cannot be read"),
        (lambda run: (run / "config.json").write_text("{}"), "lacks algorithm, config, env"),
        (lambda run: (run / "config.json").unlink(), "is not a run directory"),
    ],
    ids=["weights missing", "weights cut short", "config cut short", "config empty", "config missing"],
)
def test_eval_of_a_damaged_run_is_one_sentence(
    trained: tuple[Path, dict[str, object], str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    damage: Callable[[Path], object],
    sentence: str,
) -> None:
    copy = tmp_path / "run"
    copy.mkdir()
    for name in ("config.json", "weights.npz"):
        (copy / name).write_bytes((trained[0] / name).read_bytes())
    damage(copy)
    assert main(["eval", str(copy)]) == 2
    told = capsys.readouterr().err
    assert sentence in told
    assert len(told.strip().splitlines()) == 1


def test_time_that_runs_out_before_the_return_is_exit_code_3(tmp_path: Path) -> None:
    words = ("--stop-return", "1e9", "--stop-seconds", "1", "--json")
    result = last_line(shoal("train", "impala", *SMALL, *words, cwd=tmp_path, code=3).stdout)
    assert result["reached"] is False
    assert result["stopped_by"] == "seconds"


def test_a_return_that_is_reached_was_confirmed_by_the_evaluator(tmp_path: Path) -> None:
    words = ("--stop-return", "5", "--stop-seconds", "60", "--json")  # any policy balances the pole for 5 steps
    result = last_line(shoal("train", "impala", *SMALL, *words, cwd=tmp_path).stdout)
    assert result["reached"] is True
    assert result["stopped_by"] == "return"
    assert result["eval_return"] >= 5  # type: ignore[operator]
    assert 0 < result["seconds_to_target"] <= result["train_seconds"]  # type: ignore[operator]
    rows = [
        json.loads(line) for line in Path(tmp_path, str(result["run_dir"]), "metrics.jsonl").read_text().splitlines()
    ]
    confirmed = [row for row in rows if row["kind"] == "evaluation" and row["reached"]]
    assert confirmed[0]["episodes"] >= 50


@pytest.fixture
def running(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A run that would never end by itself, with updates in its metrics, as the head of a process group."""
    words = command("train", "impala", *SMALL, "--stop-return", "1e9", "--run-dir", "run", "--json")
    process = subprocess.Popen(
        words, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    metrics = tmp_path / "run" / "metrics.jsonl"
    deadline = time.monotonic() + 120.0
    try:
        while not (metrics.exists() and "learner_steps" in metrics.read_text()):
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("whole_group", [False, True], ids=["the command", "the whole group"])
def test_a_signal_ends_everything_and_leaves_a_complete_run(
    number: int, whole_group: bool, running: subprocess.Popen[str], tmp_path: Path
) -> None:
    children = psutil.Process(running.pid).children(recursive=True)
    assert len(children) >= 5
    if whole_group:
        os.killpg(running.pid, number)
    else:
        running.send_signal(number)
    out, err = running.communicate(timeout=60)
    assert running.returncode == 130, err
    assert "Traceback" not in err
    assert last_line(out)["stopped_by"] == "interrupt"
    assert last_line(out)["restarts"] == 0, "nobody but the command is meant"
    assert {"config.json", "metrics.jsonl", "summary.json", "weights.npz"} <= set(os.listdir(tmp_path / "run"))
    assert psutil.wait_procs(children, timeout=5)[1] == []


def test_an_environment_that_keeps_raising_ends_the_run_with_its_traceback(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN_ENV.replace("BROKEN = False", "BROKEN = True"))
    words = ("--env", "own:make", "--max-failures", "1", "--stop-updates", "100000", "--json", "--run-dir", "run")
    done = shoal("train", "impala", *SMALL, *words, cwd=tmp_path, code=1)
    assert "the simulator fell over" in done.stderr
    assert "own.py" in done.stderr
    assert "giving up" in done.stderr
    result = last_line(done.stdout)
    assert result["stopped_by"] == "failure"
    assert result["restarts"] >= 1  # type: ignore[operator]
    assert "config.json" in os.listdir(tmp_path / "run")
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert any(row["kind"] == "loss" for row in rows)


def test_the_users_own_environment_trains_on_the_inline_runtime(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN_ENV)
    words = ("--env", "own:make", "--runtime", "inline", "--stop-updates", "10", "--json")
    result = last_line(shoal("train", "impala", *SMALL, *words, cwd=tmp_path).stdout)
    assert result["runtime"] == "inline"
    assert result["env"] == "own:make"


def test_the_environment_and_the_network_of_the_readme_train(tmp_path: Path) -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    for name in ("corridor.py", "networks.py"):
        (tmp_path / name).write_text(readme.split(f"`{name}`:")[1].split("```python\n")[1].split("```")[0])
    words = readme.split("shoal train impala --env corridor:Corridor")[1].splitlines()[0].split()
    limits = ("--env", "corridor:Corridor", "--runtime", "inline", "--stop-updates", "3", "--json")
    result = last_line(shoal("train", "impala", *SMALL, *words, *limits, cwd=tmp_path).stdout)
    assert result["env"] == "corridor:Corridor"


def test_a_copied_algorithm_is_trained_and_evaluated_by_its_file(tmp_path: Path) -> None:
    import shoal.algorithms.impala as original

    assert original.__file__
    text = Path(original.__file__).read_text().replace("IMPALA", "MINE", 1)
    (tmp_path / "mine.py").write_text(text)
    words = ("--runtime", "inline", "--stop-updates", "5", "--json", "--run-dir", "run")
    result = last_line(shoal("train", "mine.py", *SMALL, *words, cwd=tmp_path).stdout)
    assert result["algorithm"] == "mine"
    assert "mine on CartPole-v1" in shoal("eval", "run", "--episodes", "2", cwd=tmp_path).stdout


def test_throughput_is_measured_on_the_same_config(tmp_path: Path) -> None:
    words = ("bench", "throughput", "impala", *SMALL, "--seconds", "2", "--json")
    report = last_line(shoal(*words, cwd=tmp_path).stdout)
    assert report["env_steps_per_second"] > 0  # type: ignore[operator]
    assert report["trained_steps_per_second"] > 0  # type: ignore[operator]
    assert report["config"]["reward_scale"] == 0.1  # type: ignore[index]
    assert len(report["runs"]) == 1  # type: ignore[arg-type]
    assert os.listdir(tmp_path) == []


def python(text: str, cwd: Path) -> Sequence[str]:
    done = subprocess.run([sys.executable, "-c", text], cwd=cwd, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_importing_shoal_imports_nothing_heavy(tmp_path: Path) -> None:
    lines = python("import shoal, sys; print([m for m in ('torch', 'numpy', 'rich') if m in sys.modules])", tmp_path)
    assert lines == ["[]"]


def test_training_from_python_gives_the_same_result_and_applies_the_preset(tmp_path: Path) -> None:
    text = """
import json, shoal
from shoal.algorithms import impala
cfg = impala.Config(env="CartPole-v1", envs_per_actor=4, batch=4, queue=8, unroll=5)
result = shoal.train(cfg, stop_updates=5, runtime="inline", seed=1, run_dir="run", quiet=True)
print(type(result) is shoal.Result, result.stopped_by, result.preset, result.run_dir)
print(json.load(open("run/config.json"))["config"]["reward_scale"])
try:
    shoal.train(cfg, stop_retrun=3)
except shoal.UserError as error:
    print(error)
"""
    assert python(text, tmp_path) == [
        "True updates classic run",
        "0.1",
        "train() has no option 'stop_retrun'. Did you mean stop_return?",
    ]
