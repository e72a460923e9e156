"""The live view: what users of each method look for, how far the stop rules are, in 60 columns as in 120."""

from __future__ import annotations

import io
import re
import sys
from typing import Any

import pytest
from rich.console import Console

from shoal.analysis.measures import key_measures, measures, number, packed
from shoal.experiment import view
from shoal.experiment.progress import Progress

ACTOR_CRITIC = {"loss": 0.227, "policy_loss": -0.02, "value_loss": 0.067, "entropy": 0.61, "grad_norm": 0.31}
Q = {"td_error": 1.2, "q_min": -1543.3, "q_mean": -13.1, "q_max": 9.8}
VALUES: dict[str, dict[str, float]] = {  # as the learner of each algorithm reports them
    "impala": ACTOR_CRITIC | {"explained_variance": 0.83, "rho": 1.02},
    "a3c": ACTOR_CRITIC | {"explained_variance": 0.83},
    "ppo": ACTOR_CRITIC | {"kl": 0.0123, "clipped": 0.084, "explained_variance": 0.93},
    "appo": ACTOR_CRITIC | {"kl": 0.0123, "clipped": 0.084},
    "apex_dqn": Q | {"loss": 0.0227, "grad_norm": 0.31},
    "r2d2": Q | {"loss": 0.0227, "grad_norm": 0.31},
    "apex_dpg": Q | {"critic_loss": 3.2, "actor_loss": -41.0, "critic_grad_norm": 0.3, "slope": 0.4},
    "d4pg": Q | {"critic_loss": 3.2, "actor_loss": -41.0, "slope": 0.4, "outside_support": 0.02},
    "td3": Q | {"critic_loss": 3.2, "actor_loss": -41.0},
    "sac": Q | {"critic_loss": 3.2, "actor_loss": -41.0, "entropy": 1.2, "temperature": 0.04},
}


def progress_of(name: str) -> Progress:
    progress = Progress(target=475.0, stops={"return": 475.0, "steps": 5e6, "seconds": 600.0})
    nodes = {
        "actor/0": {"times": {"environment": 0.55, "inference": 0.2, "waiting to insert": 0.25}, "values": {}},
        "learner": {"times": {"learning": 0.87, "publishing": 0.05, "waiting for data": 0.08}, "values": {}},
    }
    evaluations = [{"eval_return": 6.0 * n, "spread": 12.0, "reached": False} for n in range(50)]
    counts = {"env_steps": 1_250_000, "learner_steps": 910}
    values = VALUES[name] | {"staleness": 1.5, "actor_return": 211.3, "episode_length": 198.0}
    taken: dict[str, Any] = {"nodes": {}, "evaluations": [], "train_seconds": 60.0, "first_update": None}
    progress.take(taken | {"counts": {"env_steps": 0, "learner_steps": 0}, "values": {}}, 0.0, 0)
    progress.take(taken | {"counts": counts, "values": values, "nodes": nodes, "evaluations": evaluations}, 60.0, 0)
    return progress


def drawn(progress: Progress, width: int) -> str:
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(view.panel("a run", progress))
    return console.export_text()


@pytest.mark.parametrize("name", VALUES)
def test_a_narrow_view_breaks_lines_between_items_or_at_their_commas(name: str) -> None:
    text = drawn(progress_of(name), 45)
    assert max(map(len, text.splitlines())) == 45
    rows = [line[14:-2].strip() for line in text.splitlines()[1:-1]]
    whole = [*_shares(text), "return 294.0 of 475", "3:00 left", "environment 55%"]
    assert all(any(item in row for row in rows) for item in whole)
    assert not {"left", "35%", "55%", "updates"} & {*rows}, "a word by itself"


def _shares(text: str) -> list[str]:
    """What nodes do, with how much of their time: never in two lines."""
    return re.findall(r"(?:waiting for data|learning) \d+%", text)


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize("name", VALUES)
def test_the_view_fits_its_terminal_and_splits_nothing(name: str, width: int) -> None:
    text = drawn(progress_of(name), width)
    assert max(map(len, text.splitlines())) == width
    assert len(text.splitlines()) <= 24, "a terminal's height"
    for items in measures(VALUES[name]).values():
        assert all(item in text for item in items)
    for item in ("294.0 ± 12.0", "return 294.0 of 475", "25% of 5,000,000 steps, 3:00 left", "environment 55%"):
        assert item in text


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("ppo", {"losses": "loss 0.227", "learning": "KL 0.0123"}),
        ("appo", {"learning": "clipped 8%"}),
        ("impala", {"learning": "ratio 1.02"}),
        ("a3c", {"learning": "explained 83%"}),
        ("apex_dqn", {"Q": "-1,543 to 9.8", "learning": "TD error 1.2"}),
        ("d4pg", {"losses": "actor loss -41", "learning": "outside support 2%"}),
        ("sac", {"learning": "temperature 0.04", "Q": "mean -13.1"}),
    ],
)
def test_a_method_shows_what_its_users_look_for(name: str, wanted: dict[str, str]) -> None:
    rows = measures(VALUES[name])
    for row, item in wanted.items():
        assert item in rows[row]


def test_nothing_is_shown_of_what_was_not_measured() -> None:
    assert measures({"staleness": 1.0}) == {}
    assert key_measures({}) == []
    assert "losses" not in drawn(Progress(), 60)
    assert "troubles" not in drawn(Progress(), 60)


def test_a_line_has_the_few_measures_that_say_most_and_how_far_the_run_is() -> None:
    assert key_measures(VALUES["ppo"]) == ["loss 0.227", "entropy 0.61", "KL 0.0123"]
    assert key_measures(VALUES["td3"]) == ["critic loss 3.2", "Q -1,543 to 9.8"]
    assert "25% of 5,000,000 steps, 3:00 left" in view.line(progress_of("ppo"))


def test_who_learns_without_a_step_is_told_of_by_updates() -> None:
    progress = Progress()
    taken: dict[str, Any] = {"nodes": {}, "evaluations": [], "train_seconds": 60.0, "first_update": None, "values": {}}
    progress.take(taken | {"counts": {"learner_steps": 1}}, 0.0, 0)
    progress.take(taken | {"counts": {"learner_steps": 601}}, 60.0, 0)
    assert view.line(progress).strip() == "60.0 s · 601 updates · 10 updates/s"
    assert "601 updates" in drawn(progress, 80)
    assert " 0 steps" not in drawn(progress, 80)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stdout", "quiet", "json", "chosen"),
    [
        (Terminal, False, False, view.Live),
        (Terminal, False, True, view.Lines),
        (Terminal, True, False, view.Quiet),
        (Terminal, True, True, view.Quiet),
        (io.StringIO, False, False, view.Lines),
        (io.StringIO, False, True, view.Lines),
    ],
)
def test_the_view_is_live_in_a_terminal_unless_stdout_is_kept_for_the_result(
    monkeypatch: pytest.MonkeyPatch, stdout: type[io.StringIO], quiet: bool, json: bool, chosen: type
) -> None:
    out, err = stdout(), io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    display = view.choose(quiet, json)
    assert type(display) is chosen
    display.note("a node was lost")
    assert (out.getvalue(), err.getvalue()) == (
        ("a node was lost\n", "") if chosen is view.Live else ("", "a node was lost\n")
    )


def test_items_are_packed_without_splitting_any() -> None:
    assert packed(["aaa", "bbb", "c"], 9) == ["aaa · bbb", "c"]
    assert packed(["a" * 12, "b"], 9) == ["a" * 12, "b"]
    assert packed([], 9) == []


@pytest.mark.parametrize(
    ("value", "told"), [(0.001234, "0.00123"), (12.34, "12.3"), (-1543.3, "-1,543"), (2e6, "2e+06")]
)
def test_numbers_have_three_digits_that_count(value: float, told: str) -> None:
    assert number(value) == told


def test_what_is_left_is_told_as_people_read_times() -> None:
    progress = Progress(stops={"updates": 1000.0, "seconds": 1e6})
    taken: dict[str, Any] = {"values": {}, "nodes": {}, "evaluations": [], "train_seconds": 1.0, "first_update": None}
    progress.take(taken | {"counts": {"env_steps": 1, "learner_steps": 0}}, 0.0, 0)
    progress.take(taken | {"counts": {"env_steps": 2, "learner_steps": 1}}, 10.0, 0)
    text = drawn(progress, 80)
    assert "0% of 1,000 updates, 2 h 46 left" in text
    assert "12 days left" in text


def test_a_stop_rule_that_cannot_be_reckoned_says_how_far_it_is_alone() -> None:
    progress = Progress(stops={"return": 10.0, "steps": 100.0})
    assert progress.towards() == {"return": (None, 10.0, None), "steps": (0.0, 100.0, None)}
    assert "return – of 10" in drawn(progress, 60)


def test_a_terminal_of_another_width_is_drawn_anew() -> None:
    """A frame is drawn over the last one by going up as many lines; a narrower terminal has broken those."""
    out = io.StringIO()
    console = Console(width=100, file=out, force_terminal=True)
    display = view.Live(console)
    display.begin(["a run", "stops at return 475"])
    display.note("a node was lost")
    display.update(progress_of("ppo"))
    console.width = 60
    out.truncate(0)
    display.update(progress_of("ppo"))
    display.end()
    _, cleared, after = out.getvalue().rpartition("\x1b[2J")
    assert cleared
    assert "stops at return 475" in after
    assert "a node was lost" in after
    assert "\u2500" * 60 not in after
