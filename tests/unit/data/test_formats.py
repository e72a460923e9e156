"""Formats of others: what goes out comes back, what is wrong is one sentence, and nothing is written over or run."""

from __future__ import annotations

import json
import os
import pickle
import struct
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from gymnasium import spaces

from shoal.cli.main import main
from shoal.data import BadData, Dataset, DatasetWriter, episode
from shoal.data.checking import check
from shoal.data.exporting import export
from shoal.data.importing import import_dataset, prepare
from shoal.envs import describe

SPACES = {
    "numbers": (spaces.Box(-9.0, 9.0, (3,), np.float32), spaces.Box(-2.0, 2.0, (2,), np.float32)),
    "images": (spaces.Box(0, 255, (40, 40, 3), np.uint8), spaces.Discrete(4, start=2)),
    "nested": (
        spaces.Dict({"a": spaces.Box(-9.0, 9.0, (2,), np.float32), "b": spaces.Discrete(5)}),
        spaces.MultiDiscrete([2, 3]),
    ),
}


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    monkeypatch.setenv("SHOAL_DATA", str(tmp_path / "cache"))


def drawn(space: Any, count: int) -> Any:
    if isinstance(space, spaces.Dict):
        return {key: drawn(part, count) for key, part in space.items()}
    return np.stack([np.asarray(space.sample()) for _ in range(count)])


def write(path: Path, kind: str = "numbers", lengths: tuple[int, ...] = (3, 1, 5)) -> Dataset:
    observation, action = SPACES[kind]
    observation.seed(0)
    action.seed(0)
    start = np.asarray(getattr(action, "start", 0))
    chances = kind == "numbers"
    with DatasetWriter(path, observation, action, log_probs=chances, env="Own-v0") as writer:
        for number, length in enumerate(lengths):
            seen, rewards = drawn(observation, length + 1), np.linspace(0, 1, length)
            ends = {"terminated": number == 0, "truncated": number == 1, "seed": 10 + number}
            log_probs = np.linspace(-1, 0, length).astype(np.float32) if chances else None
            writer.append(episode(seen, drawn(action, length) - start, rewards, log_probs=log_probs, **ends))
    return Dataset(path)


def assert_same(one: Dataset, other: Dataset, seeds: bool = False) -> None:
    assert one.record == other.record
    assert (one.observation_space, one.action_space) == (other.observation_space, other.action_space)
    assert one.manifest.native_action_space == other.manifest.native_action_space
    for name in one.record.names or ():
        np.testing.assert_array_equal(one.rows[name][one.rows["valid"]], other.rows[name][other.rows["valid"]])
        if name.startswith("observation"):
            np.testing.assert_array_equal(one.rows[name], other.rows[name])
    for name in ("first", "length", "total", "terminated", "truncated", *(["seed"] if seeds else [])):
        np.testing.assert_array_equal(one.index[name], other.index[name], err_msg=name)


@pytest.mark.parametrize("kind", SPACES)
@pytest.mark.parametrize("target", ["{}/out.npz", "{}/parquet", "minari:own/test-v0 hdf5", "minari:own/test-v0 arrow"])
def test_what_goes_out_comes_back(tmp_path: Path, kind: str, target: str) -> None:
    data = write(tmp_path / "data", kind)
    name, _, data_format = target.format(tmp_path).partition(" ")
    export(data, name, data_format or "hdf5")
    back = Dataset(import_dataset(name, tmp_path / "back"))
    if data_format == "arrow":  # which does not keep log-probabilities
        assert back.episode(0).log_probs is None
    else:
        assert_same(data, back, seeds=name.startswith("minari:"))
    with pytest.raises(BadData, match="is there already"):
        export(data, name, data_format or "hdf5")
    with pytest.raises(BadData, match="is there already"):
        import_dataset(name, tmp_path / "back")


def test_a_minari_folder_or_id_is_known_without_its_prefix(tmp_path: Path) -> None:
    folder = export(write(tmp_path / "data"), "minari:own/test-v0")
    for name in ("own/test-v0", str(folder)):
        assert len(Dataset(prepare(name))) == 3
    assert prepare("own/test-v0") == prepare("own/test-v0"), "converted once"


def d4rl(path: Path, **changes: Any) -> Path:
    rows = np.arange(12, dtype=np.float32)
    columns = {
        "observations": np.stack([rows, rows], 1),
        "actions": np.zeros((12, 1), np.float32),
        "rewards": np.ones(12, np.float32),
        "terminals": rows == 3,
        "timeouts": rows == 8,
    }
    np.savez(path, **{name: array for name, array in (columns | changes).items() if array is not None})
    return path


def test_d4rl_without_next_observations_keeps_what_is_known(tmp_path: Path) -> None:
    """Of a timeout the last step is the final observation; of a terminal what follows does not matter."""
    told: list[str] = []
    data = Dataset(import_dataset(str(d4rl(tmp_path / "x.npz")), tmp_path / "data", tell=told.append))
    assert data.lengths.tolist() == [4, 4, 2]
    assert data.terminated.tolist() == [True, False, False]
    assert data.index["truncated"].tolist() == [False, True, False]
    assert data.episode(1).observations["observation"][:, 0].tolist() == [4, 5, 6, 7, 8]
    assert any("the last step served as the final observation" in text for text in told)


def test_d4rl_with_next_observations_drops_nothing(tmp_path: Path) -> None:
    rows = np.arange(1, 13, dtype=np.float32)
    file = d4rl(tmp_path / "x.npz", next_observations=np.stack([rows, rows], 1))
    data = Dataset(import_dataset(str(file), tmp_path / "data"))
    assert data.lengths.tolist() == [4, 5, 3]
    assert data.episode(1).observations["observation"][-1, 0] == 9


def test_rllibs_columns_are_known(tmp_path: Path) -> None:
    (tmp_path / "rllib").mkdir()
    table = {
        "eps_id": ["a", "a", "b"],
        "obs": [[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]],
        "new_obs": [[2.0, 3.0], [9.0, 9.0], [8.0, 8.0]],
        "actions": [0, 2, 1],
        "rewards": [1.0, 1.0, 0.5],
        "terminateds": [False, True, False],
        "truncateds": [False, False, True],
        "action_logp": [-0.5, -0.5, -0.1],
    }
    pyarrow.parquet.write_table(pyarrow.table(table), tmp_path / "rllib" / "x.parquet")
    data = Dataset(import_dataset(str(tmp_path / "rllib"), tmp_path / "data"))
    assert data.lengths.tolist() == [2, 1]
    assert data.action_space == spaces.Discrete(3)
    assert data.episode(0).observations["observation"].tolist() == [[0, 1], [2, 3], [9, 9]]
    assert data.episode(1).truncated


def episodes() -> Iterator[dict[str, Any]]:
    for length in (2, 3, 4):
        seen, actions = np.zeros((length + 1, 2)), np.zeros((length, 1))
        yield {"observations": seen, "actions": actions, "rewards": np.ones(length), "terminated": True}


def breaks_off() -> Iterator[dict[str, Any]]:
    yield from list(episodes())[:2]
    if os.environ.get("SHOAL_TEST_BREAKS") == "1":
        raise RuntimeError("the link is down")
    yield from list(episodes())[2:]


def nonsense() -> Iterator[Any]:
    yield {"observations": np.zeros((2, 2)), "actions": [0.5], "reward": [1.0], "terminated": True}


def test_a_function_of_the_users_yields_episodes(tmp_path: Path) -> None:
    data = Dataset(import_dataset(f"{__name__}:episodes", tmp_path / "data"))
    assert data.lengths.tolist() == [2, 3, 4]
    with pytest.raises(BadData, match="episode 0 lacks 'rewards'"):
        import_dataset(f"{__name__}:nonsense", tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_an_import_that_broke_off_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_TEST_BREAKS", "1")
    with pytest.raises(BadData, match="raised RuntimeError at episode 2: the link is down"):
        import_dataset(f"{__name__}:breaks_off", tmp_path / "data")
    assert Dataset(tmp_path / "data").lengths.tolist() == [2, 3]
    monkeypatch.setenv("SHOAL_TEST_BREAKS", "0")
    told: list[str] = []
    import_dataset(f"{__name__}:breaks_off", tmp_path / "data", tell=told.append)
    assert Dataset(tmp_path / "data").lengths.tolist() == [2, 3, 4]
    assert told[0] == "going on after 2 episodes that were imported before"


# ---- bad input


class Trap:
    """What would run if a pickle were read."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("ran",)


def _npz_of_pickles(path: Path) -> str:
    objects = np.empty(1, object)
    objects[0] = Trap()
    np.savez(path / "x.npz", observations=objects, actions=objects, rewards=objects, terminals=objects)
    return str(path / "x.npz")


def _bare_pickle(path: Path) -> str:
    (path / "x.npz").write_bytes(pickle.dumps(Trap()))
    return str(path / "x.npz")


def _half(path: Path) -> str:
    whole = d4rl(path / "x.npz").read_bytes()
    (path / "x.npz").write_bytes(whole[: len(whole) // 2])
    return str(path / "x.npz")


def _half_parquet(path: Path) -> str:
    export(write(path / "d"), str(path / "p"))
    file = path / "p" / "part-00000.parquet"
    file.write_bytes(file.read_bytes()[:200])
    return str(path / "p")


def _minari_changed(**changes: Any) -> Any:
    def make(path: Path) -> str:
        folder = export(write(path / "d"), "minari:own/test-v0") / "data"
        metadata = json.loads((folder / "metadata.json").read_text())
        metadata = {key: value for key, value in (metadata | changes).items() if value is not None}
        (folder / "metadata.json").write_text(json.dumps(metadata))
        return "own/test-v0"

    return make


def _half_minari(path: Path) -> str:
    folder = export(write(path / "d"), "minari:own/test-v0") / "data"
    file = folder / "main_data.hdf5"
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    return "own/test-v0"


def _zip(path: Path, name: str, data: bytes, method: int = zipfile.ZIP_STORED) -> str:
    """D4RL's layout, with these bytes in the place of one array."""
    whole = d4rl(path / "whole.npz")
    with zipfile.ZipFile(whole) as old, zipfile.ZipFile(path / "x.npz", "w", method) as new:
        for each in old.namelist():
            new.writestr(each, data if each == f"{name}.npy" else old.read(each))
        if f"{name}.npy" not in old.namelist():
            new.writestr(f"{name}.npy", data)
    return str(path / "x.npz")


def _header(text: str) -> bytes:
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text.encode()


def _changed(path: Path, mark: bytes, place: int, value: int, below: bytes, below_place: int) -> str:
    """A byte of every entry of the file's directory, and of what stands before each array."""
    data = bytearray(d4rl(path / "x.npz").read_bytes())
    for found, offset in ((mark, place), (below, below_place)):
        at = data.find(found)
        while at >= 0:
            data[at + offset] = value
            at = data.find(found, at + 4)
    (path / "x.npz").write_bytes(data)
    return str(path / "x.npz")


def _squeezed(path: Path) -> str:
    """Compressed, and then damaged in the middle."""
    name = _zip(path, "rewards", np.zeros(2_000).tobytes(), zipfile.ZIP_DEFLATED)
    data = bytearray(Path(name).read_bytes())
    with zipfile.ZipFile(name) as file:
        at = file.getinfo("rewards.npy").header_offset + 30 + len("rewards.npy")
    data[at : at + 8] = b"\xff" * 8
    Path(name).write_bytes(data)
    return name


def _pipe(path: Path, name: str) -> str:
    os.mkfifo(path / name)
    return str(path / name if name.endswith("npz") else path)


def _columns(**changes: Any) -> Any:
    def make(path: Path) -> str:
        steps: dict[str, Any] = {"episode": [0] * 4 + [1] * 4, "observation": [[0.0, 1.0]] * 8, "action": [0, 1] * 4}
        steps |= {"reward": [1.0] * 8, "terminated": [False, False, False, True] * 2} | changes
        (path / "p").mkdir()
        table = pyarrow.table({name: column for name, column in steps.items() if name != "metadata"})
        if "metadata" in steps:
            table = table.replace_schema_metadata({b"shoal": steps["metadata"]})
        pyarrow.parquet.write_table(table, path / "p" / "a.parquet")
        return str(path / "p")

    return make


def _another_file(path: Path) -> str:
    _columns()(path)
    pyarrow.parquet.write_table(pyarrow.table({"x": [1]}), path / "p" / "b.parquet")
    return str(path / "p")


def _bit_lost(path: Path) -> str:
    """One of our own files of Parquet, with another number in it."""
    export(write(path / "d"), str(path / "p"))
    file = path / "p" / "part-00000.parquet"
    data = bytearray(file.read_bytes())
    column = pyarrow.parquet.read_metadata(file).row_group(0).column(0)
    data[column.data_page_offset + column.total_compressed_size - 1] ^= 1
    file.write_bytes(data)
    return str(path / "p")


def _minari_pipe(path: Path) -> str:
    folder = export(write(path / "d"), "minari:own/test-v0") / "data"
    (folder / "main_data.hdf5").unlink()
    os.mkfifo(folder / "main_data.hdf5")
    return "own/test-v0"


def _minari_deep(path: Path) -> str:
    folder = export(write(path / "d"), "minari:own/test-v0") / "data"
    (folder / "metadata.json").write_text("[" * 100_000)
    return "own/test-v0"


HUGE = "{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000, 3), }\n"
ENDLESS = {"kind": "box", "shape": [10**11], "dtype": "float32", "low": -1.0, "high": 1.0}
WIDE = json.dumps({"observation": ENDLESS, "action": ENDLESS, "shapes": {}}).encode()
BAD = {
    "more than memory": (lambda p: _zip(p, "observations", _header(HUGE)), "larger than the memory that there is"),
    "a header without end": (lambda p: _zip(p, "rewards", _header("{'descr': " + "(" * 900 + ", }\n")), "'rewards' cannot be read"),  # noqa: E501
    "encrypted": (lambda p: _changed(p, b"PK\x01\x02", 8, 1, b"PK\x03\x04", 6), "cannot be read, or holds pickled"),
    "another compression": (lambda p: _changed(p, b"PK\x01\x02", 10, 99, b"PK\x03\x04", 8), "cannot be read, or holds"),
    "damaged and compressed": (_squeezed, "'rewards' cannot be read"),
    "a pipe": (lambda p: _pipe(p, "x.npz"), "x.npz is no regular file"),
    "a pipe of columns": (lambda p: _pipe(p, "x.parquet"), "x.parquet is no regular file"),
    "a pipe of Minari's": (_minari_pipe, "main_data.hdf5 is no regular file"),
    "deep metadata": (_minari_deep, "metadata.json is damaged: it is no JSON"),
    "two flags for each step": (lambda p: str(d4rl(p / "x.npz", terminals=np.zeros((12, 2)))), "'terminals' must be true or"),  # noqa: E501
    "NaN for a flag": (lambda p: str(d4rl(p / "x.npz", terminals=np.full(12, np.nan))), "'terminals' must be true or"),
    "what follows of another shape": (lambda p: str(d4rl(p / "x.npz", next_observations=np.zeros((12, 7)))), "and following ones of the shape [7]"),  # noqa: E501
    "too few log-probabilities": (lambda p: str(d4rl(p / "x.npz", log_probs=np.zeros(3))), "12 rewards and 3 of 'log_probs'"),  # noqa: E501
    "an endless log-probability": (lambda p: str(d4rl(p / "x.npz", log_probs=np.full(12, -np.inf))), "has a log_prob at step 0 that is not finite"),  # noqa: E501
    "beyond float32": (lambda p: str(d4rl(p / "x.npz", rewards=np.full(12, 1e300))), "has a reward at step 0 that is not finite"),  # noqa: E501
    "spaces beyond memory": (lambda p: str(d4rl(p / "x.npz", shoal_spaces=np.frombuffer(WIDE, np.uint8))), "its spaces cannot be read"),  # noqa: E501
    "deep spaces": (lambda p: str(d4rl(p / "x.npz", shoal_spaces=np.frombuffer(b"[" * 100_000, np.uint8))), "its spaces cannot be read"),  # noqa: E501
    "no name": (lambda p: "", "There is no dataset without a name"),
    "actions of words": (_columns(action=["left"] * 8), "actions of the type object"),
    "an action beyond belief": (_columns(action=[2**62] * 8), "give --env, if there are so many"),
    "episodes of lists": (_columns(episode=[[1]] * 8), "'episode' must be a number or a name"),
    "episodes of NaN": (_columns(episode=[float("nan")] * 8), "'episode' must be a number or a name"),
    "columns that follow of another shape": (_columns(next_observation=[[1.0]] * 8), "and following ones of the shape [1]"),  # noqa: E501
    "a column twice": (_columns(obs=[[1.0]] * 8), "has the column 'observation' twice"),
    "another shape than is said": (_columns(metadata=json.dumps({"observation": {"kind": "discrete", "n": 3, "start": 0, "dtype": "int64"}, "action": {"kind": "discrete", "n": 2, "start": 0, "dtype": "int64"}, "shapes": {"observation": [99]}}).encode()), "is damaged"),  # noqa: E501
    "deep columns": (_columns(metadata=b"[" * 50_000), "its spaces cannot be read"),
    "another file": (_another_file, "b.parquet lacks the column 'action'"),
    "a bit lost": (_bit_lost, "could not verify page integrity"),
    "empty": (lambda p: str(d4rl(p / "x.npz", **dict.fromkeys(("observations", "actions"), np.zeros((0, 1))), rewards=np.zeros(0), terminals=np.zeros(0), timeouts=None)), "has no step"),  # noqa: E501
    "no ends": (lambda p: str(d4rl(p / "x.npz", terminals=np.zeros(12), timeouts=None)), "has no end"),
    "NaN": (lambda p: str(d4rl(p / "x.npz", rewards=np.full(12, np.nan))), "has a reward at step 0 that is not finite"),
    "lengths": (lambda p: str(d4rl(p / "x.npz", actions=np.zeros((11, 1)))), "has 12 rewards and 11 of 'actions'"),
    "lacks": (lambda p: str(d4rl(p / "x.npz", actions=None)), "lacks 'actions'"),
    "pickles inside": (_npz_of_pickles, "pickled objects"),
    "a pickle": (_bare_pickle, "pickled objects"),
    "half": (_half, "is no .npz file, or is cut short"),
    "half of a Parquet file": (_half_parquet, "is no Parquet file, or is cut short"),
    "half of Minari's": (_half_minari, "is damaged, or half written"),
    "another Minari": (_minari_changed(minari_version="0.3.1"), "was written by Minari 0.3.1"),
    "no spaces": (_minari_changed(action_space=None), "does not tell its spaces"),
    "nowhere": (lambda p: str(p / "nowhere"), "There is no dataset"),
    "an empty folder": (lambda p: str(p), "is no dataset"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_data_are_one_sentence_and_leave_nothing(
    tmp_path: Path, case: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make, sentence = BAD[case]
    (tmp_path / "in").mkdir()
    monkeypatch.chdir(tmp_path)
    name = make(tmp_path / "in")  # type: ignore[operator]
    assert main(["data", "import", name, "--output", str(tmp_path / "data")]) == 2
    told = capsys.readouterr().err
    assert sentence in " ".join(told.split()), told
    assert not (tmp_path / "data").exists()
    assert not (tmp_path / "ran").exists(), "nothing in a dataset runs"


def test_a_folder_without_rights_is_told(tmp_path: Path) -> None:
    """By a file in the place of a folder where the tests run as root, whom rights do not hold back."""
    (tmp_path / "file").write_text("")
    with pytest.raises(BadData, match="cannot be written: Not a directory"):
        DatasetWriter(tmp_path / "file" / "data", *SPACES["numbers"])
    if os.geteuid():
        (tmp_path / "closed").mkdir(mode=0o500)
        with pytest.raises(BadData, match="cannot be written: Permission denied"):
            DatasetWriter(tmp_path / "closed" / "data", *SPACES["numbers"])


def test_actions_out_of_bounds_are_told(tmp_path: Path) -> None:
    file = d4rl(tmp_path / "x.npz", observations=np.zeros((12, 3), np.float32), actions=np.full((12, 1), 5.0))
    assert main(["data", "import", str(file), "--output", str(tmp_path / "data"), "--env", "Pendulum-v1"]) == 2
    assert not (tmp_path / "data").exists()


def test_a_trap_of_zips_is_no_npz(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as file:
        for name in ("observations", "actions", "rewards", "terminals"):
            file.writestr(f"{name}.npy", pickle.dumps(Trap()))
    with pytest.raises(BadData, match="pickled objects"):
        import_dataset(str(tmp_path / "x.npz"), tmp_path / "data")


# ---- checking and showing


def pendulum(path: Path, shift: int = 0) -> Dataset:
    """Three episodes; with `shift`, actions that belong to other steps."""
    env = gymnasium.make("Pendulum-v1", max_episode_steps=20)
    env.action_space.seed(1)
    with DatasetWriter(path, env.observation_space, env.action_space, env="Pendulum-v1") as writer:
        for seed in range(3):
            seen = [env.reset(seed=seed)[0]]
            actions, rewards = [], []
            for _ in range(20):
                action = env.action_space.sample()
                observation, reward, *_ = env.step(action)
                seen.append(observation)
                actions.append(action)
                rewards.append(reward)
            moved = np.roll(np.stack(actions), shift, axis=0)
            writer.append(
                episode(np.stack(seen), moved, np.array(rewards), terminated=False, truncated=True, seed=seed)
            )
    env.close()
    return Dataset(path)


def test_check_proves_alignment(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = describe("Pendulum-v1", {"max_episode_steps": 20})
    good, bad = check(pendulum(tmp_path / "good"), spec), check(pendulum(tmp_path / "bad", shift=1), spec)
    assert (good.replayed, good.reproduced, good.complaints) == (3, 3, [])
    assert (bad.replayed, bad.reproduced) == (3, 0)
    assert bad.first_difference.startswith("episode 0: ")
    words = ["data", "check", str(tmp_path / "good"), "--env", "Pendulum-v1", "--env-option", "max_episode_steps=20"]
    assert main(words) == 0
    assert "3 of 3 episodes came out the same" in capsys.readouterr().out
    words[2] = str(tmp_path / "bad")
    assert main(words) == 1


def test_check_finds_what_is_there_twice(tmp_path: Path) -> None:
    with DatasetWriter(tmp_path / "data", *SPACES["numbers"]) as writer:
        for _ in range(3):
            writer.append(episode(np.zeros((3, 3)), np.zeros((2, 2)), np.ones(2), terminated=False))
    notes = check(Dataset(tmp_path / "data")).notes
    assert "2 episodes are there twice, to the last bit" in notes
    assert "3 episodes break off: they neither came to an end nor were cut" in notes
    assert "every reward is 1" in notes


@pytest.mark.parametrize("kind", SPACES)
def test_show_is_a_page_for_a_person(tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "data", kind)
    assert main(["data", "show", str(tmp_path / "data")]) == 0
    page = capsys.readouterr().out
    assert "3 (1 came to an end, 1 were cut, 1 break off)" in page
    assert "returns of episodes" in page
    assert main(["data", "show", str(tmp_path / "data"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["steps"] == 9
