"""What `shoal doctor` finds: every fault by its sentence, and a healthy environment without one."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
import sick_envs
import torch
from torch import nn

import shoal
from shoal.cli import main as cli
from shoal.diagnosis import doctor as doctoring
from shoal.diagnosis import environment, learning
from shoal.diagnosis.doctor import Asked, examine
from shoal.diagnosis.findings import Diagnosis, Finding, Suggestion
from shoal.errors import UserError


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "STEPS", 200)
    monkeypatch.setattr(environment, "SAME_STEPS", 30)
    monkeypatch.setattr(environment, "MEASURED", 0.05)


def examined(env: Any, algorithm: str | None = "impala", **values: Any) -> tuple[list[Finding], Suggestion | None]:
    """Here and not in a process of its own: the same findings, in less time."""
    findings: list[Finding] = []
    asked = Asked(algorithm, {"env": env, **values})
    return findings, examine(asked, lambda *parts: findings.append(Finding(*parts)), lambda text: None, {})


def only(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment alone."""
    monkeypatch.setattr(learning, "examine", lambda *_: True)


def told(findings: list[Finding], level: str) -> list[tuple[str, str]]:
    return [(found.about, found.text) for found in findings if found.level == level]


def test_masks_that_nobody_obeys_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    class Masked(sick_envs.Well):  # type: ignore[misc,name-defined]
        def reset(self, **how: Any) -> Any:
            observation, info = super().reset(**how)
            return observation, {**info, "action_mask": [1, 1]}

    only(monkeypatch)
    findings, _ = examined(Masked)
    assert [about for about, text in told(findings, "warning") if "not obeyed yet" in text] == ["masks"]


def test_nothing_is_found_on_a_healthy_environment_and_its_network_learns() -> None:
    findings, suggestion = examined(sick_envs.Well, network=sick_envs.network)
    assert {found.level for found in findings} == {"ok"}
    abouts = ["spaces", "dtypes", "observations", "episodes", "rewards", "time limit", "seeds", "state", "speed"]
    assert [found.about for found in findings] == [*abouts, "network", "learning"]
    assert "59 parameters" in findings[-2].text
    assert "feed-forward" in findings[-2].text
    assert suggestion is not None
    assert suggestion.command.startswith("shoal train impala --env Well --network network")


@pytest.mark.parametrize(
    ("env", "level", "about", "sentence"),
    [
        ("Stateless", "warning", "state", "cannot give its state"),
        ("Forgetful", "fault", "state", "goes on differently: step 1 differs in 'observation'"),
        ("Unseeded", "warning", "seeds", "differ with the first observation, in 'observation'"),
        ("Wide", "warning", "dtypes", "comes as float64, and its space says float32"),
        ("Wide", "warning", "bounds", "and its space goes from -1 to 1"),
        ("Endless", "warning", "rewards", "all 200 rewards of random actions were 0"),
        ("Endless", "warning", "time limit", "no episode ended in 200 steps"),
        ("Frozen", "warning", "observations", "the same in all"),
        ("Spoiled", "fault", "environment", "is nan at [1]"),
        ("Nested", "warning", "spaces", "no convolutions are built for it"),
        ("FloatCamera", "warning", "spaces", "float32: convolutions are built for it, but it takes several times"),
    ],
)
def test_a_sick_environment_is_found_out(
    env: str, level: str, about: str, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    only(monkeypatch)
    findings, _ = examined(f"sick_envs:{env}", None)
    found = [finding for finding in findings if finding.level == level and finding.about == about]
    assert found
    assert any(sentence in finding.text for finding in found)
    assert all(finding.remedy for finding in found)


def test_an_observation_of_which_one_part_alone_stays_the_same_is_not_warned_of(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    only(monkeypatch)
    findings, _ = examined("sick_envs:Nested", None)  # its mode is always 1, its camera is not
    assert [found.level for found in findings if found.about == "observations"] == ["ok"]


def test_a_vector_is_examined_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch)
    findings, _ = examined("sick_envs:Vector")
    assert [text for about, text in told(findings, "ok") if about == "episodes"]
    findings, suggestion = examined("sick_envs:Vector", env_options={"paid": 2.0})
    assert told(findings, "fault")[0][1].endswith("next episode's first observation and reward 0.")
    assert "after the end of an episode gave reward 2;" in told(findings, "fault")[0][1]
    assert suggestion is None
    findings, _ = examined("sick_envs:Vector", env_options={"twice": True})
    assert "after the end of an episode ended an episode again;" in told(findings, "fault")[0][1]


def test_of_parameters_that_did_not_move_those_are_told_that_should_have() -> None:
    network = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2))
    network[0].requires_grad_(False)
    watched = learning._Watched(lambda: SimpleNamespace(network=network))
    watched()
    with torch.no_grad():
        network[1].weight += 1.0
        network[2].bias += 1.0
    assert watched.unmoved() == ["1.bias", "2.weight"]


@pytest.mark.parametrize(
    ("network", "level", "sentence"),
    [
        ("idle", "warning", "module.spare.weight, module.spare.bias did not change in 4 updates"),
        ("infinite", "fault", "updates were refused: loss or gradient were not finite"),
        ("no_value", "fault", "must return (parameters, value), not Tensor"),
    ],
)
def test_a_network_that_does_not_learn_is_found_out(network: str, level: str, sentence: str) -> None:
    findings, _ = examined("sick_envs:Well", network=f"sick_envs:{network}")
    assert any(sentence in text for _, text in told(findings, level))


@pytest.mark.parametrize("name", ["a3c", "apex_dqn", "appo", "impala", "ppo", "r2d2"])
def test_every_algorithm_for_such_actions_is_tried(name: str) -> None:
    findings, suggestion = examined("sick_envs:Well", name)
    assert not told(findings, "fault")
    assert ("learning", "ok") in [(found.about, found.level) for found in findings]
    assert suggestion is not None


@pytest.mark.parametrize("name", ["apex_dpg", "d4pg", "ppo", "sac", "td3"])
def test_every_algorithm_for_continuous_actions_is_tried(name: str) -> None:
    findings, _ = examined("Pendulum-v1", name)
    assert not told(findings, "fault")
    assert ("learning", "ok") in [(found.about, found.level) for found in findings]


def test_an_algorithm_for_other_actions_is_a_fault_with_one_that_fits() -> None:
    findings, _ = examined("CartPole-v1", "sac")
    fault = next(found for found in findings if found.level == "fault")
    assert "Box" in fault.text
    assert fault.remedy == "for this environment: --algorithm impala"


@pytest.mark.parametrize(
    ("env", "timeout", "about", "sentence"),
    [
        ("Exits", 60.0, "crash", "with exit code 7, when it was asked to make it, reset it and step it with random"),
        ("Hangs", 15.0, "hang", "nothing came back for 15 s when it was asked to make it"),
    ],
)
def test_what_ends_or_hangs_its_process_is_a_sentence_after_what_was_found(
    env: str, timeout: float, about: str, sentence: str
) -> None:
    """The time includes the start of a process, which on a busy machine takes seconds."""
    heard: list[Finding] = []
    found = shoal.doctor(f"sick_envs:{env}", timeout=timeout, on_finding=heard.append)
    assert [finding.about for finding in found.findings] == ["spaces", about]
    assert sentence in found.faults[0].text
    assert heard == found.findings


def test_the_command_prints_80_columns_and_its_exit_code_says_whether_there_is_a_fault(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    said = Diagnosis("x", [Finding("warning", "state", "word " * 40, "do " * 40)])
    said.suggestion = Suggestion("ppo", "none", {}, ("because " * 20,), "shoal train ppo " + "--env some:thing " * 9)
    monkeypatch.setattr(doctoring, "doctor", lambda env, on_finding, **_: (*map(on_finding, said.findings), said)[-1])
    assert cli.main(["doctor", "--env", "x"]) == 0
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines())) <= 80
    assert printed.splitlines()[-1] == "no faults, 1 warning"
    assert "--env some:thing \\\n" in printed
    said.findings.append(Finding("fault", "state", "it is ill"))
    assert cli.main(["doctor", "--env", "x", "--json"]) == 1
    record = json.loads(capsys.readouterr().out)
    assert (record["faults"], record["warnings"], record["suggestion"]["algorithm"]) == (1, 1, "ppo")


def test_the_command_examines_what_was_typed(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []

    def pretended(on_finding: Any, **given: Any) -> Diagnosis:
        asked.append(given)
        return Diagnosis("x", [])

    monkeypatch.setattr(doctoring, "doctor", pretended)
    own = ["--algorithm", "impala", "--timeout", "7.5", "--unroll", "5"]
    assert cli.main(["doctor", "--env", "a:b", "--env-option", "length=3", "--network", "a:Net", *own]) == 0
    assert cli.main(["doctor", "--env", "a:b", "--vectorizer", "sync"]) == 0
    typed = {"env": "a:b", "env_options": {"length": 3}, "network": "a:Net", "unroll": 5}
    assert asked == [
        typed | {"algorithm": "impala", "timeout": 7.5},
        {"env": "a:b", "vectorizer": "sync", "algorithm": None, "timeout": 60.0},
    ]


def test_from_python_a_wrong_field_is_refused_before_anything_is_tried() -> None:
    with pytest.raises(UserError, match="has no 'hiden'"):
        shoal.doctor("CartPole-v1", algorithm="impala", hiden=3)


def test_an_option_that_fits_with_the_preset_is_not_refused_before_the_preset_is_known() -> None:
    """Impala's preset for control has batches of 8, its default is more than such a queue can hold."""
    found = shoal.doctor("Pendulum-v1", algorithm="impala", queue=32)
    assert not [finding for finding in found.findings if finding.level == "fault"]
