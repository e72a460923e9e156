"""A checkpoint from a stranger: it loads as a consistent replay or is refused in one sentence, and runs nothing."""

from __future__ import annotations

import copy
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from replay_model import Single, audit
from replay_streams import make_stream

from shoal.replay import (
    BadCheckpoint,
    Prioritized,
    Queue,
    Quota,
    Replay,
    SamplesPerInsert,
    Table,
    Uniform,
    Writer,
    n_step,
    register_view,
    rollout,
    sequence,
)
from shoal.replay.files import read_whole, write_whole
from shoal.replay.views import VIEWS, Whole

TABLES = [
    Table("steps", 60, sampler=Prioritized(0.6)),
    Table("sequences", 20, sampler=Uniform(), remover=Uniform(), limiter=SamplesPerInsert(2.0, 3, 500.0)),
    Table("rollouts", 90, limiter=Queue(90), max_times_sampled=3),
    Table("round", 20, limiter=Quota(3), max_times_sampled=100),
]
NAMES = [table.name for table in TABLES]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("saved")
    replay = Replay(TABLES, chunk_length=8)
    stream = make_stream(0, 60, 3, 20)
    stream.columns["version"] = np.full((60, 3), 1, np.int32)
    patterns = {
        "steps": n_step(3, 0.9, stack={"frame": 3}),
        "sequences": sequence(7, period=5, burn_in=2),
        "rollouts": rollout(3),
        "round": rollout(30),
    }
    writer = Writer(replay, patterns, name="actor")
    for block in stream.blocks(np.random.default_rng(0), 20):
        writer.append(block)
    for name in NAMES:
        replay.sample(name, 3, minimum=1, timeout=1)
    replay.save(path)
    return path


@contextmanager
def bounded(seconds: float = 20.0, memory: int = 2 << 30) -> Iterator[None]:
    """Fail when something hangs or asks for absurd amounts of memory (what is only reserved does not count)."""

    def stop(*_: object) -> None:
        raise AssertionError("it hangs")

    before = signal.signal(signal.SIGALRM, stop)
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - used < memory >> 10


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place of a nested value."""
    yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in inner:
        yield from places(part, (*path, key))


JUNK = st.one_of(
    st.sampled_from(
        [None, True, -1, 0, 1, 2, 7, 2**31, 2**40, 2**63, 2**200, 1e308, float("nan"), float("inf"), "", "x"]
    ),
    st.sampled_from([[], {}, [[]], "../../x", "/dev/zero", "|O", "f8", "O", ["subprocess", "Popen", {"args": "true"}]]),
    st.integers(-10, 100),
    st.text(max_size=5),
)


def attempt(path: Path, header: dict[str, Any], arrays: dict[str, np.ndarray], logs: Path) -> None:
    """Load it: a consistent replay that can be used, or one sentence that leaves the service as it was."""
    for log in logs.glob("rows-*.log"):
        if not (path / log.name).exists():
            os.link(log, path / log.name)
    write_whole(path / "manifest", header, arrays)
    replay = Replay(TABLES, chunk_length=8)
    with bounded():
        refusal = ""
        try:
            replay.load(path)
        except BadCheckpoint as error:
            refusal = str(error)
        if refusal:
            assert "\n" not in refusal
            assert all(info["size"] == 0 for info in replay.info().values())
            return
        audit(replay)
        for name in NAMES:
            if replay.info()[name]["size"]:
                replay.sample(name, 2, minimum=1, timeout=0)
        Writer(replay, {"steps": n_step(1, 0.9)})
        replay.save(path / "again")


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_a_changed_header_is_refused_or_harmless(
    data: st.DataObject, saved: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    header, arrays = read_whole(saved / "manifest")
    for _ in range(data.draw(st.integers(1, 2))):
        everywhere = [place for place in places(header) if place]
        *way, last = data.draw(st.sampled_from(everywhere))
        holder = header
        for key in way:
            holder = holder[key]
        if data.draw(st.booleans()) or not isinstance(holder, dict):
            holder[last] = data.draw(JUNK)
        elif data.draw(st.booleans()):
            del holder[last]
        else:
            holder[data.draw(st.text(max_size=4))] = copy.deepcopy(holder[last])
    attempt(tmp_path_factory.mktemp("changed"), header, arrays, saved)


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_changed_arrays_are_refused_or_harmless(
    data: st.DataObject, saved: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    header, arrays = read_whole(saved / "manifest")
    name = data.draw(st.sampled_from(sorted(arrays)))
    array = arrays[name].copy()
    change = data.draw(st.sampled_from(["number", "cut", "repeat", "kind", "remove", "axis"]))
    if change == "number" and array.size:
        flat = array.reshape(-1)
        if array.dtype.names:
            flat = flat[data.draw(st.sampled_from(array.dtype.names))]
        where = data.draw(st.integers(0, len(flat) - 1))
        value = data.draw(st.sampled_from([-1, 0, 1, 5, 63, 2**15 - 1, 2**31 - 1, 2**62, float("nan"), 1e300]))
        with np.errstate(all="ignore"):
            flat[where] = np.array(value).astype(flat.dtype)
    elif change == "cut":
        array = array[: len(array) // 2]
    elif change == "repeat":
        array = np.concatenate([array, array])
    elif change == "kind":
        array = np.zeros(array.shape, data.draw(st.sampled_from(["f4", "i1", "u8", "S3", "?"])))
    elif change == "axis":
        array = array[None]
    if change == "remove":
        del arrays[name]
    else:
        arrays[name] = array
    attempt(tmp_path_factory.mktemp("changed"), header, arrays, saved)


def test_a_view_that_names_a_command_is_not_run(saved: Path, tmp_path: Path) -> None:
    header, arrays = read_whole(saved / "manifest")
    proof = tmp_path / "ran"
    for log in saved.glob("rows-*.log"):
        os.link(log, tmp_path / log.name)
    for view in (
        ["subprocess", "Popen", {"args": ["touch", str(proof)]}],
        ["Popen", {"args": ["touch", str(proof)]}],
        ["shoal.replay.views.Whole", {"rows": 3}],
        ["Whole", {"rows": 3, "__class__": "x"}],
    ):
        header["tables"]["rollouts"]["view"] = view
        write_whole(tmp_path / "manifest", header, arrays)
        with pytest.raises(BadCheckpoint, match="does not hold together"):
            Replay(TABLES).load(tmp_path)
    assert not proof.exists()


@dataclass(frozen=True)
class Doubled(Whole):
    """A view of one's own."""


@dataclass(frozen=True)
class Twice(Single):
    @property
    def view(self) -> Whole:
        return Doubled(self.length)


def test_a_view_of_ones_own_is_saved_once_it_is_registered(tmp_path: Path) -> None:
    replay = Replay([Table("table", 10)])
    Writer(replay, {"table": Twice()}).append({"reward": np.ones((4, 1))})
    with pytest.raises(ValueError, match="make it a dataclass known by"):
        replay.save(tmp_path)
    register_view(Doubled)
    try:
        replay.save(tmp_path)
        other = Replay([Table("table", 10)])
        other.load(tmp_path)
        assert other._tables["table"].view == Doubled(1)
        with pytest.raises(ValueError, match="another view of the name"):
            register_view(type("Doubled", (Doubled,), {}))
    finally:
        del VIEWS["Doubled"]
    with pytest.raises(BadCheckpoint, match="there is no view 'Doubled'"):
        Replay([Table("table", 10)]).load(tmp_path)


# ---- several saves over the same rows, and kills


def grow(replay: Replay, writer: Writer, blocks: int = 20) -> None:
    generator = np.random.default_rng(replay.info()["table"]["inserts"])
    for _ in range(blocks):
        writer.append({"frame": generator.integers(0, 255, (64, 4, 200), dtype=np.uint8)})


def test_saves_of_several_tags_share_rows_and_old_ones_go(tmp_path: Path) -> None:
    replay = Replay([Table("table", 8_000)], chunk_length=64)
    writer = Writer(replay, {"table": Single()})
    written, samples = [], {}
    for number in range(6):
        grow(replay, writer)
        tags = [f"{each}" for each in range(max(0, number - 2), number)]
        written.append(replay.save(tmp_path, tag=f"{number}", keep=tags)["bytes"])
        there = Replay([Table("table", 8_000)], chunk_length=64)
        there.load(tmp_path, tag=f"{number}")
        samples[number] = there.sample("table", 30).data["frame"]
    assert sorted(path.name for path in tmp_path.glob("manifest*")) == ["manifest-3", "manifest-4", "manifest-5"]
    assert max(written[1:]) < 1.5 * written[0], "each wrote what was new"
    for number in (3, 4, 5):
        there = Replay([Table("table", 8_000)], chunk_length=64)
        there.load(tmp_path, tag=f"{number}")
        np.testing.assert_array_equal(there.sample("table", 30).data["frame"], samples[number])
    stored = sum(path.stat().st_size for path in tmp_path.iterdir())
    assert stored < 3 * 8_000 * 200, "at most what three saves may refer to"
    replay.save(tmp_path)
    assert [path.name for path in tmp_path.glob("manifest*")] == ["manifest"]
    with pytest.raises(ValueError, match="must be letters, digits"):
        replay.save(tmp_path, tag="../x")


SAVER = """
import sys
import numpy as np
sys.path.insert(0, sys.argv[2])
from replay_model import Single
from shoal.replay import Replay, Table, Writer
replay = Replay([Table("table", 3000)], chunk_length=16)
writer = Writer(replay, {"table": Single()})
first = 0
while True:
    writer.append({"number": np.arange(first, first + 500.0)[:, None]})
    first += 500
    replay.save(sys.argv[1])
    print(first, flush=True)
"""


def test_a_save_that_is_killed_leaves_the_last_complete_one(tmp_path: Path) -> None:

    for kill in range(6):
        place = tmp_path / f"{kill}"
        saver = subprocess.Popen(
            [sys.executable, "-c", SAVER, str(place), str(Path(__file__).parent)], stdout=subprocess.PIPE, text=True
        )
        assert saver.stdout is not None
        told = int(saver.stdout.readline())
        time.sleep(0.0007 * kill)
        saver.kill()
        told = max([told, *(int(line) for line in saver.stdout.read().split() if line)])
        saver.wait()
        saver.stdout.close()
        replay = Replay([Table("table", 3000)], chunk_length=16)
        replay.load(place)
        audit(replay)
        assert replay.info()["table"]["inserts"] >= told - 500
        newest = replay.info()["table"]["inserts"]
        data = replay.sample("table", 500).data["number"]
        assert data.max() < newest
        assert data.min() >= newest - 3000
        replay.save(place)
        names = {path.name for path in place.iterdir()}
        assert "manifest.new" not in names
        assert len(names) <= 12, "what was killed is cleared away"
