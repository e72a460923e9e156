"""`shoal verify` in words: what two checkpoints differ in, likely causes first."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from shoal.checkpoints import Checkpoint, Checkpoints
from shoal.cli.main import main
from shoal.experiment import verifying
from shoal.experiment.bitwise import _same, _unequal, cannot_be_saved, checkpoints_by_updates, differences
from shoal.experiment.verifying import Life, Verdict, _judge, verify
from shoal.program import Program
from shoal.types import Role

ENVS = {
    "vector": [{"class": "CartPoleEnv", "plain": {"state": np.zeros(4)}, "generators": {"_np_random": {"state": 1}}}]
}
STATES: dict[str, Any] = {
    "actor-0": {"environments": {"envs": ENVS}, "policy": {"random": {"state": 3}, "weights": {"torso": np.ones(2)}}},
    "learner": {
        "learner": {"network": {"torso.weight": torch.ones(2)}, "optimizer": {"mean": torch.zeros(2)}},
        "exact": {"reporter": {"values": {"loss": 1.0}}},
    },
    "run": {"clock": 0.5, "generators": {"torch": torch.zeros(3, dtype=torch.uint8)}},
}
CHANGES = {
    "the environment's random generator (actor/0)": (
        "actor-0",
        "environments.envs.vector.0.generators._np_random.state",
        2,
    ),
    "the environment's state (actor/0: state)": ("actor-0", "environments.envs.vector.0.plain.state", np.ones(4)),
    "the policy's random generator (actor/0)": ("actor-0", "policy.random.state", 4),
    "network: layer torso (as actor/0 has it)": ("actor-0", "policy.weights.torso", np.zeros(2)),
    "network: layer torso.weight": ("learner", "learner.network.torso%weight", torch.tensor([1.0, 1.0000001])),
    "the optimizer: mean": ("learner", "learner.optimizer.mean", torch.tensor([0.0, -0.0])),
    "the global random generator of torch": ("run", "generators.torch", torch.ones(3, dtype=torch.uint8)),
    "run: clock": ("run", "clock", 0.6),
}


def program() -> Program:
    made = Program()
    for name, role in (("actor/0", Role.ACTOR), ("learner", Role.LEARNER), ("metrics", Role.METRICS)):
        made.group(name, role).add(name, object)
    return made


def copied(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: copied(part) for name, part in value.items()}
    return [copied(part) for part in value] if isinstance(value, list) else value


def changed(*changes: tuple[str, str, Any]) -> dict[str, Any]:
    states = copied(STATES)
    for part, place, value in changes:
        *way, last = (name.replace("%", ".") for name in place.split("."))
        at = states[part]
        for name in way:
            at = at[int(name)] if isinstance(at, list) else at[name]
        at[last] = value
    return states


def saved(folder: Path, states: dict[str, Any]) -> Checkpoint:
    return Checkpoints(folder / "checkpoints").save(states, {"updates": 1})


def words(tmp_path: Path, other: dict[str, Any]) -> list[str]:
    one, two = saved(tmp_path / "a", STATES), saved(tmp_path / "b", other)
    return [difference.words for difference in differences(one, two, (tmp_path / "a", tmp_path / "b"), program())]


@pytest.mark.parametrize("said", CHANGES)
def test_a_difference_of_one_bit_is_found_and_said_in_words(said: str, tmp_path: Path) -> None:
    assert words(tmp_path, changed(CHANGES[said])) == [said]


def test_what_is_alike_is_not_told_and_neither_are_measurements(tmp_path: Path) -> None:
    assert words(tmp_path, changed(("learner", "exact.reporter.values.loss", 2.0))) == []


def test_causes_come_before_what_follows_from_them(tmp_path: Path) -> None:
    told = words(tmp_path, changed(*CHANGES.values()))
    assert told[0] == "the environment's random generator (actor/0)"
    assert told.index("the policy's random generator (actor/0)") < told.index("network: layer torso.weight")


def test_environments_that_cannot_give_their_state_are_named(tmp_path: Path) -> None:
    states = changed(("actor-0", "environments", {"why": "Mine cannot give its state."}))
    assert cannot_be_saved(saved(tmp_path, states)) == "Mine cannot give its state."
    assert cannot_be_saved(saved(tmp_path / "other", STATES)) is None


def test_values_are_alike_to_the_last_bit_and_of_one_kind() -> None:
    assert _same(float("nan"), float("nan"))
    assert _same(np.float32(1.0), np.float32(1.0))
    assert not _same(np.zeros(2, np.int32), np.zeros(2, np.float32)), "the same bytes"
    assert not _same(np.zeros((2, 1)), np.zeros((1, 2)))
    assert not _same(1, 1.0)
    assert not _same(1, True)
    assert list(_unequal({"a": [1, 2]}, {"a": [1, 2, 3]}, "")) == [".a"], "one has more"
    assert list(_unequal({"a": [1, 2]}, {"a": (1, 3)}, "")) == [".a.1"]


def test_a_part_that_one_run_alone_has_is_a_difference(tmp_path: Path) -> None:
    more = {**STATES, "mine": {"count": 1}}
    assert words(tmp_path, more) == ["mine: "]
    assert [
        one.words
        for one in differences(saved(tmp_path / "c", more), saved(tmp_path / "d", STATES), (tmp_path,) * 2, program())
    ] == ["mine: "]


def test_of_several_checkpoints_of_the_same_updates_the_first_is_compared(tmp_path: Path) -> None:
    for _ in range(2):
        saved(tmp_path, STATES)
    assert [found.path.name for found in checkpoints_by_updates(tmp_path).values()] == ["000001"]


def judged(tmp_path: Path, others: dict[int, dict[str, Any]], returns: float = 5.0) -> Verdict:
    """A straight run with checkpoints at 10, 20 and 30 updates, and another one."""
    for name, runs, value in (("straight", dict.fromkeys((10, 20, 30), STATES), 5.0), ("resumed", others, returns)):
        for updates, states in runs.items():
            Checkpoints(tmp_path / name / "checkpoints", 9).save(states, {"updates": updates})
        (tmp_path / name / "metrics.jsonl").write_text(json.dumps({"kind": "evaluation", "eval_return": value}) + "\n")
    verdict = Verdict("impala", "CartPole-v1", 0, 30, 8, True, {})
    return _judge(verdict, (tmp_path / "straight", tmp_path / "resumed"), program())


def test_two_runs_that_are_alike_are_said_to_be(tmp_path: Path) -> None:
    verdict = judged(tmp_path, dict.fromkeys((10, 20, 30), STATES))
    assert (verdict.identical, verdict.first, all(verdict.kinds.values())) == (True, None, True)
    assert verdict.lines[-2].startswith("bit-identical")


def test_the_first_difference_is_told_with_where_it_was_seen(tmp_path: Path) -> None:
    random = changed(CHANGES["the policy's random generator (actor/0)"])
    network = changed(CHANGES["network: layer torso.weight"])
    verdict = judged(tmp_path, {10: STATES, 20: random, 30: network})
    assert (verdict.identical, verdict.first, verdict.first_at) == (
        False,
        "the policy's random generator (actor/0)",
        20,
    )
    assert [kind for kind, same in verdict.kinds.items() if not same] == ["parameters"], "at the end"
    assert verdict.lines[-1].endswith("(actor/0), seen at 20 updates (killed at 10)")


def test_other_evaluations_alone_are_a_difference(tmp_path: Path) -> None:
    verdict = judged(tmp_path, dict.fromkeys((10, 20, 30), STATES), returns=5.000001)
    assert (verdict.identical, verdict.first) == (False, "the evaluations")
    assert [kind for kind, same in verdict.kinds.items() if not same] == ["evaluations"]


def test_a_checkpoint_that_one_run_has_not_is_told(tmp_path: Path) -> None:
    verdict = judged(tmp_path, {10: STATES, 30: STATES})
    assert (verdict.identical, verdict.first_at) == (False, 20)
    assert verdict.first == "the checkpoint of 20 updates, which one run has not"


def test_what_differs_before_the_kill_is_said_to_be_of_the_process(tmp_path: Path) -> None:
    random = changed(CHANGES["the policy's random generator (actor/0)"])
    verdict = judged(tmp_path, {10: random, 20: random, 30: random})
    assert verdict.lines[-1].startswith("It differs before the kill")


def test_what_cannot_be_seen_is_said_with_the_verdict(tmp_path: Path) -> None:
    verdict = judged(tmp_path, dict.fromkeys((10, 20, 30), STATES))
    assert "not seen: what would show later" in verdict.lines[-1]
    assert "bit-identical over 30 updates, killed at 10" in verdict.lines[-2]


def test_every_life_has_a_hash_seed_of_its_own_and_the_second_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    lives: list[Life] = []
    monkeypatch.setattr(verifying, "live", lives.append)
    monkeypatch.setattr(verifying, "_judge", lambda verdict, runs, program: verdict)
    page: Any = type("Page", (), {"program": staticmethod(lambda cfg, env, settings: Program())})
    env: Any = type("Env", (), {"name": "CartPole-v1"})
    verdict = verify("impala", page, None, env, updates=10, seed=0)
    assert [life.dies_at for life in lives] == [None, 10, None]
    assert len({life.hash_seed for life in lives}) == 3
    assert lives[1].options.run_dir == lives[2].options.run_dir
    assert lives[2].name is None, "it goes on with what the run directory says"
    assert (verdict.updates, verdict.killed_at) == (20, 10)


@pytest.mark.parametrize(("identical", "code"), [(True, 0), (False, 1)])
def test_the_command_compares_what_was_typed_and_its_exit_code_is_the_verdict(
    identical: bool, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[Any] = []

    def pretended(name: str, page: Any, cfg: Any, env: Any, *, updates: int, seed: int, say: Any) -> Verdict:
        asked.append((name, env.name, cfg.unroll, updates, seed))
        return Verdict(name, env.name, seed, 2 * updates, updates, identical, {}, lines=["the verdict"])

    monkeypatch.setattr(verifying, "verify", pretended)
    typed = ["--env", "CartPole-v1", "--unroll", "7", "--updates", "3", "--seed", "5"]
    assert main(["verify", "impala", *typed]) == code
    assert asked == [("impala", "CartPole-v1", 7, 3, 5)]
    assert capsys.readouterr().out.splitlines() == ["the verdict"]
