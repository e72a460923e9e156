"""Options in TOML files: every run can be written as one and read again, mistakes are named with the nearest key."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from tests.saved_runs import saved_run

from shoal.arguments import config_files
from shoal.arguments.config_files import ConfigFile, load, run_as_toml, take_config, written
from shoal.config import apply_preset
from shoal.errors import UserError
from shoal.runs import registry
from shoal.runs.directory import in_json

CONTINUOUS = ("apex_dpg", "cql", "d4pg", "iql", "sac", "td3", "td3_bc")
WITHOUT_PRESETS = ("bc", "cql", "discrete_cql", "iql", "td3_bc")


@pytest.mark.parametrize("algorithm", registry.names())
def test_a_runs_config_is_the_same_after_a_file(algorithm: str, tmp_path: Path) -> None:
    env = "Pendulum-v1" if algorithm in CONTINUOUS else "CartPole-v1"
    preset = "classic" if env[0] == "C" else "control"
    preset = "none" if algorithm in WITHOUT_PRESETS else preset
    run = saved_run(tmp_path / "run", algorithm, seed=3, env=env, gamma=0.25, preset=preset)
    file = tmp_path / "run.toml"
    file.write_text(run_as_toml(run))
    cfg, options = load(file, {})
    record = json.loads((run / "config.json").read_text())
    page = registry.load(algorithm)
    again = apply_preset(cfg, page.PRESETS, record["kind"])
    for name, value in record["config"].items():
        found = getattr(again, name)
        assert (list(found) if isinstance(found, tuple) else found) == value, name
    assert options == {"seed": 3}


def test_options_of_the_environment_are_the_same_after_a_file(tmp_path: Path) -> None:
    options = {
        "on": True,
        "size": 3,
        "map": "3",
        "truth": "true",
        "quoted": "it's",
        "list": [1, "x"],
        "part": {"a": 0.5},
    }
    record = saved_run(tmp_path / "run") / "config.json"
    described = json.loads(record.read_text())
    described["config"] |= {"env_options": options, "eval_env_options": {}}
    record.write_text(json.dumps(described))
    file = tmp_path / "run.toml"
    file.write_text(run_as_toml(tmp_path / "run"))
    cfg, _ = load(file, {})
    assert cfg.env_options == options
    assert not cfg.eval_env_options


def test_options_that_toml_has_no_value_for_are_written_as_they_are_typed(tmp_path: Path) -> None:
    options = {"size": (3, 4), "start": None, "text": "it's = 3", "part": {"two words": (1,)}}
    record = saved_run(tmp_path / "run") / "config.json"
    described = json.loads(record.read_text())
    described["config"]["env_options"] = in_json(options)
    record.write_text(json.dumps(described))
    (tmp_path / "run.toml").write_text(run_as_toml(tmp_path / "run"))
    assert load(tmp_path / "run.toml", {})[0].env_options == options
    assert tomllib.loads(f"x = {written({'two words': 3, 'one': 4})}") == {"x": {"two words": 3, "one": 4}}


def test_options_that_differ_are_written_but_not_the_runs_own_folder(tmp_path: Path) -> None:
    run = saved_run(tmp_path / "run")
    record = json.loads((run / "config.json").read_text())
    record["options"] |= {"stop_steps": 500, "run_dir": "somewhere", "resume": "auto", "checkpoint_replay": True}
    record |= {"lost": ["network"], "folders": ["/code"]}
    record["config"]["network"] = "<lambda>"
    (run / "config.json").write_text(json.dumps(record))
    text = run_as_toml(run)
    values = tomllib.loads(text)
    assert (values["stop_steps"], values["checkpoint_replay"]) == (500, True)
    assert not {"run_dir", "resume", "network", "runtime"} & set(values)
    assert "# network was <lambda>, which is in no module" in text
    assert "were found in /code" in text


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("sed = 1", "there is no option sed. Did you mean seed?"),
        ("lr = 1e-3", "there is no option lr. Did you mean learning_rate?"),
        ("total_timesteps = 5", "Did you mean stop_steps?"),
        ("[sweep]\nseeds = 2", "is the file of a sweep: shoal sweep "),
        ("zzz = 1", "there is no option zzz. Names are those of shoal train impala --help."),
        ('seed = "1"', 'seed = "1" is no such value: give a whole number.'),
        ("seed = 1.5", "seed = 1.5 is no such value: give a whole number."),
        ("seed = true", "seed = true is no such value: give a whole number."),
        ("gamma = true", "gamma = true is no such value: give a number."),
        ("env = 3", "env = 3 is no such value: give a name in quotes."),
        ('env = ""', "--env"),
        ("hidden = 64", "hidden = 64 is no such value: give a list of whole numbers"),
        ('hidden = ["64"]', "give a list of whole numbers"),
        ("shared_torso = 1", "give true or false"),
        ('optimizer = "sgd"', "--optimizer sgd is not known: choose one of adam, rmsprop."),
        ("optimizer = 3", 'give one of "adam", "rmsprop"'),
        ("[impala]\nseed = 1", "there is no option impala."),
        ("seed = 1\nseed = 2", "is no TOML"),
        ("stop-steps = 1\nstop_steps = 2", "stop-steps and stop_steps are the same option: give one of them."),
        ('env_options = "gravity"', "is no such value: give a table of plain values, such as {gravity = -9.8}."),
        ("env_options = {since = 2026-01-01}", "give a table of plain values"),
        ("env_options = {gravity = nan}", "give a table of plain values"),
        ('env_options = {"a b" = 1}', "cannot be understood: give key=value"),
        ("seed = ", "is no TOML"),
        ("algorithm = 3", "algorithm must be a name"),
        ("algorithm = 'inpala'", "There is no algorithm inpala"),
    ],
)
def test_mistakes_in_a_file_are_one_sentence(text: str, sentence: str, tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text(text if text.startswith("algorithm") else f"algorithm = 'impala'\n{text}")
    with pytest.raises(UserError) as told:
        load(file, {})
    assert sentence in str(told.value)
    assert "\n" not in str(told.value)


def test_what_is_given_beside_a_file_wins_and_keys_may_have_hyphens(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text('algorithm = "impala"\nseed = 1\nstop-steps = 1e6\ngamma = 1\nhidden = [8, 8]\nenv = "-odd:name"\n')
    cfg, options = load(file, {"seed": 2, "gamma": 0.5})
    assert (cfg.gamma, cfg.hidden, cfg.env, options) == (0.5, (8, 8), "-odd:name", {"seed": 2, "stop_steps": 1_000_000})
    with pytest.raises(UserError, match="names no algorithm"):
        ConfigFile(file, {}).named_algorithm()


@pytest.mark.parametrize(
    ("words", "rest"),
    [
        (["--config", "F", "--seed", "1"], ["--seed", "1"]),
        (["ppo", "--seed=1", "--config=F"], ["ppo", "--seed=1"]),
        (["ppo"], ["ppo"]),
    ],
)
def test_the_file_is_found_among_typed_words(words: list[str], rest: list[str], tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text("seed = 5")
    found, others = take_config([word.replace("F", str(file)) for word in words])
    assert others == rest
    assert (found.words() if found else None) == (["--seed=5"] if len(words) > 1 else None)


@pytest.mark.parametrize("words", [["--config"], ["--config", "--seed", "1"], ["--config", "F", "--config", "F"]])
def test_a_config_without_a_file_is_refused(words: list[str], tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text("")
    with pytest.raises(UserError, match="--config"):
        take_config([word.replace("F", str(tmp_path / "run.toml")) for word in words])


@pytest.mark.parametrize(
    "value",
    [True, 3, -2.5, 1e-12, 1e300, 'quote " and \\', "ünï", [1, 2], [], [0.5], {"a": 1, "b": ["x"]}, float("inf")],
)
def test_values_are_written_as_toml_reads_them(value: Any) -> None:
    assert tomllib.loads(f"x = {written(value)}")["x"] == value


def test_reading_a_file_imports_nothing_heavy() -> None:
    import ast

    tree = ast.parse(Path(config_files.__file__).read_text())
    top = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    assert not [node for node in top if any(alias.name in ("directory", "training") for alias in node.names)]
