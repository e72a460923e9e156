"""What the user's own environment gets wrong is said in one sentence before anything is started."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import broken_envs
import pytest

from shoal import envs
from shoal.envs import trial
from shoal.envs.describing import describe_here
from shoal.errors import UserError

SENTENCES = {
    "RaisesWhenMade": "could not be made: ValueError: no such map: 'desert' (broken_envs.py, line 31).",
    "Exits": "could not be made: SystemExit: 3 (broken_envs.py, line 36).",
    "EndsItsProcess": " ended the process in which it was tried, with exit code 0: run it by itself to see why.",
    "Crashes": " was ended by SIGSEGV while it was tried: run it by itself to see why.",
    "NoSpaces": "there is no 'observation_space'; set self.observation_space to one of gymnasium.spaces in __init__.",
    "NoActionSpace": "there is no 'action_space'; set self.action_space to one of gymnasium.spaces in __init__.",
    "ShapeForASpace": "'observation_space' is tuple; set self.observation_space to one of gymnasium.spaces in",
    "NeedsASize": "cannot be called with the options {}: missing a required argument: 'size'; give the environment",
    "forgets_to_return": "returned None; it must return a gymnasium.Env",
    "FourValues": "must return (observation, reward, terminated, truncated, info); that is old gym's API: wrap",
    "OnlyAnObservation": "returned ndarray, but must return (observation, info); that is old gym's API: wrap",
    "NoSeed": "reset() takes no seed; that is old gym's API: wrap",
    "RaisesWhenStepped": "could not be stepped: IndexError: index 7 is out of bounds for axis 0 with size 3 (",
    "NoReward": "'reward' is None, but must be one number.",
    "RewardIsNan": "'reward' of environment number 0 is nan.",
    "EndIsANumber": "'terminated' is 0, but must be True or False.",
    "OtherShape": "'observation' has shape (2,), but its space says (3,).",
    "Ragged": "'observation' cannot be made a numpy array: ValueError",
    "RaisesWhenClosed": "could not be closed: OSError: already gone (broken_envs.py, line",
    "TorchVector": "'observation' is a torch.Tensor, but a vector environment must return numpy arrays: wrap it in",
    "Panics": "could not be stepped: Panic: index out of bounds (broken_envs.py, line",
    "Parallel": "has several agents, as in PettingZoo, and Shoal trains one policy in an environment of one",
    "Turns": "has several agents, as in PettingZoo, and Shoal trains one policy in an environment of one",
    "ManyInOne": "has several agents, as in PettingZoo, and Shoal trains one policy in an environment of one",
    "OldGym": "returned OldGym, an environment of gym; that is old gym's API: wrap it in shimmy.GymV21CompatibilityV0(",
    "torch_rows": "'reward' is a torch.Tensor, but a vector environment must return numpy arrays: wrap it in",
}
MODULES = {
    "def make(:": "the module 'my_env' is not valid Python: invalid syntax (my_env.py, line 1).",
    "\nraise OSError('no disk')": "the module 'my_env' could not be imported: OSError: no disk (my_env.py, line 2).",
    "import sys\nsys.exit('bye')": "the module 'my_env' could not be imported: SystemExit: bye (my_env.py, line 2).",
    "import os\nos._exit(9)": "my_env:make ended the process in which it was tried, with exit code 9",
}


def here(env: str) -> envs.EnvSpec:
    return describe_here(env, None, "auto", None)


@pytest.mark.parametrize("name", SENTENCES)
def test_a_broken_environment_is_told_in_one_sentence(name: str) -> None:
    ends = name in ("EndsItsProcess", "Crashes")
    with pytest.raises(UserError) as caught:  # the same sentences in both, and a process takes time
        (envs.describe if ends else here)(f"broken_envs:{name}")
    said = str(caught.value)
    assert SENTENCES[name] in said
    assert said.startswith(f"broken_envs:{name}")
    assert "\n" not in said


@pytest.mark.parametrize(
    ("name", "where"),
    [
        ("MaskInInfo", "its infos hold 'action_mask', which nobody reads"),
        ("MaskInStep", "its infos hold 'legal_actions', which nobody reads"),
        ("MaskMethod", "it has action_masks(), which nobody reads"),
        ("MaskSeen", "its observation holds 'observation/action_mask', which the policy sees"),
    ],
)
def test_a_mask_of_actions_is_told_not_to_be_obeyed(name: str, where: str) -> None:
    said = here(f"broken_envs:{name}").mask_note
    assert said is not None
    assert said.startswith(f"broken_envs:{name}: {where}, but masks of actions are not obeyed yet")
    assert here("broken_envs:Works").mask_note is None


@pytest.mark.parametrize("text", MODULES)
def test_a_module_that_cannot_be_imported_is_told_in_one_sentence(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_env.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    with pytest.raises(UserError) as caught:
        (envs.describe if "_exit" in text else here)("my_env:make")
    assert MODULES[text] in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_an_environment_raises_in_a_node_costs_the_node_not_the_run() -> None:
    with pytest.raises(envs.EnvFault, match="broken_envs:RaisesWhenMade could not be made: ValueError"):
        envs.make("broken_envs:RaisesWhenMade", 2, seed=0)


def test_functions_and_classes_are_environments_as_their_names_are() -> None:
    for env in (broken_envs.Works, lambda: broken_envs.Works(), broken_envs.Works().__class__):
        found = envs.describe(env)
        assert found.env is env
        assert found.observation_space == broken_envs.BOX
        assert envs.make(found, 2, seed=0).reset().shape == (2, 3)
    with pytest.raises(UserError, match="RaisesWhenMade could not be made: ValueError"):
        envs.describe(broken_envs.RaisesWhenMade)


def test_what_cannot_be_sent_to_another_process_is_tried_in_this_one() -> None:
    made_in = []
    held = threading.Lock()  # cannot be pickled

    def make() -> broken_envs.Works:
        made_in.append((held, os.getpid()))
        return broken_envs.Works()

    assert envs.describe(make).kind == "classic"
    assert [process for _, process in made_in] == [os.getpid()]


@pytest.mark.parametrize("env", [3, None, broken_envs.Works(), ["CartPole-v1"]], ids=lambda env: type(env).__name__)
def test_what_is_no_environment_is_refused(env: Any) -> None:
    with pytest.raises(UserError, match="give a Gymnasium id, a module:factory, or a function or class"):
        envs.describe(env)


def test_only_the_users_own_code_pays_for_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any) -> Any:
        raise AssertionError("a process was asked for")

    monkeypatch.setattr(trial, "describe_apart", refuse)
    envs.describe("CartPole-v1")
    with pytest.raises(AssertionError, match="a process"):
        envs.describe("broken_envs:Works")


def test_an_environment_of_a_script_itself_can_be_described(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(
        "import gymnasium, pickle, cloudpickle\n"
        "from shoal import envs\n"
        "def make_env(power=1):\n"
        "    return gymnasium.make('CartPole-v1', max_episode_steps=7 * power)\n"
        "spec = envs.describe(make_env, {'power': 3})\n"
        "print(spec.name, spec.max_episode_steps, spec.reward_threshold)\n"
        "open('spec', 'wb').write(cloudpickle.dumps(spec))\n"
    )
    told = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert told.stdout.split() == ["make_env", "21", "475.0"]
    code = (
        "import pickle; from shoal import envs; vector = envs.make(pickle.load(open('spec', 'rb')), 2, seed=0);"
        "print(vector.reset().shape)"
    )
    told = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "(2, 4)"


SLEEPY = """
import os, sys, time
def make():
    with open("pid.part", "w") as file:
        file.write(str(os.getpid()))
    os.rename("pid.part", "pid")
    time.sleep(60)
"""


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_trial_ends_with_its_command_and_adds_no_word(how: signal.Signals, tmp_path: Path) -> None:
    (tmp_path / "sleepy.py").write_text(SLEEPY)
    code = "from shoal import envs\ntry: envs.describe('sleepy:make')\nexcept KeyboardInterrupt: print('stopped')"
    command = subprocess.Popen(
        [sys.executable, "-c", code], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    pid = wait_for(lambda: (tmp_path / "pid").exists() and int((tmp_path / "pid").read_text()))
    if how == signal.SIGINT:
        os.killpg(command.pid, how)  # as a terminal does
    else:
        command.send_signal(how)
    told, errors = command.communicate(timeout=30)
    assert wait_for(lambda: not Path(f"/proc/{pid}").exists())
    assert (told.strip(), errors) == ("stopped" if how == signal.SIGINT else "", "")


def test_an_environment_that_does_not_come_back_is_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "slow_env.py").write_text(
        "import time, broken_envs\ndef make():\n    time.sleep(2.0)\n    return broken_envs.Works()\n"
    )
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setattr(trial, "PATIENCE", 0.1)
    assert envs.describe("slow_env:make").kind == "classic"
    assert capsys.readouterr().err.startswith("slow_env:make is being made, reset and stepped once, and has not come")


@pytest.mark.parametrize(
    ("then", "session"), [("return broken_envs.Works()", True), ("os._exit(9)", False), ("os._exit(9)", True)]
)
def test_what_an_environment_starts_ends_with_its_trial(
    then: str, session: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "parent_env.py").write_text(
        "import broken_envs, os, subprocess\ndef make():\n"
        f"    child = subprocess.Popen(['sleep', '60'], start_new_session={session})\n"
        f"    open({str(tmp_path / 'child')!r}, 'w').write(str(child.pid))\n    {then}\n"
    )
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    with contextlib.suppress(UserError):
        envs.describe("parent_env:make")
    pid = int((tmp_path / "child").read_text())
    assert wait_for(lambda: not Path(f"/proc/{pid}").exists(), seconds=10)


def wait_for(condition: Any, seconds: float = 30) -> Any:
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return found
