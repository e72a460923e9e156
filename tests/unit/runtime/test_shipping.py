"""What of a user's folders is taken to other machines, and which versions fit together."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

pytest.importorskip("ray")

from shoal.errors import UserError
from shoal.runtime.ray import shipping

pytestmark = pytest.mark.ray


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "project"
    for name in (
        "my_env.py",
        "levels/one.txt",
        "package/__init__.py",
        "package/deep/part.py",
        ".git/config",
        "__pycache__/my_env.pyc",
        "runs/old/weights.npz",
        "elsewhere/config.json",
        "elsewhere/metrics.jsonl",
        "venv/pyvenv.cfg",
        "venv/lib/torch.py",
    ):
        (made / name).parent.mkdir(parents=True, exist_ok=True)
        (made / name).write_text(f"# {name}")
    return made


def unpacked(parcel: shipping.Parcel | None, below: Path) -> tuple[list[str], str | None, set[str]]:
    assert parcel is not None
    below.mkdir(exist_ok=True)
    paths, working = parcel.unpack(str(below))
    root = Path(paths[0])
    return paths, working, {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}


def test_sources_and_what_they_read_are_shipped_and_runs_and_environments_are_not(folder: Path, tmp_path: Path) -> None:
    parcel, notes = shipping.pack([str(folder)], str(folder))
    paths, working, files = unpacked(parcel, tmp_path / "there")
    assert files == {"my_env.py", "levels/one.txt", "package/__init__.py", "package/deep/part.py"}
    assert (working, notes) == (paths[0], [])
    assert Path(paths[0], "levels", "one.txt").read_text() == "# levels/one.txt"


def test_the_same_files_are_unpacked_once(folder: Path, tmp_path: Path) -> None:
    first, _ = shipping.pack([str(folder)], str(folder))
    os.utime(folder / "my_env.py", (0, 0))
    second, _ = shipping.pack([str(folder)], str(folder))
    assert unpacked(first, tmp_path / "t")[0] == unpacked(second, tmp_path / "t")[0]
    (folder / "my_env.py").write_text("# changed")
    third, _ = shipping.pack([str(folder)], str(folder))
    assert unpacked(first, tmp_path / "t")[0] != unpacked(third, tmp_path / "t")[0]
    assert len(os.listdir(tmp_path / "t")) == 2, "nothing of the unpacking is left"


def test_a_folder_within_another_is_found_in_it(folder: Path, tmp_path: Path) -> None:
    parcel, _ = shipping.pack([str(folder), str(folder / "package")], str(folder / "package"))
    paths, working, _ = unpacked(parcel, tmp_path / "there")
    assert paths[1] == working == os.path.join(paths[0], "package")
    elsewhere, _ = shipping.pack([str(folder)], str(tmp_path))
    assert elsewhere is not None
    assert elsewhere.working is None, "it is not shipped"


def test_large_files_stay_and_of_large_folders_only_python_goes(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shipping, "LARGEST", 100)
    (folder / "levels" / "data.bin").write_bytes(bytes(101))
    parcel, notes = shipping.pack([str(folder)], str(folder))
    assert "levels/data.bin" not in unpacked(parcel, tmp_path / "a")[2]
    assert notes == ["not taken to other machines: levels/data.bin (files over 0 MB stay where they are)"]
    monkeypatch.setattr(shipping, "MOST_FILES", 3)
    parcel, notes = shipping.pack([str(folder)], str(folder))
    assert unpacked(parcel, tmp_path / "b")[2] == {"my_env.py", "package/__init__.py", "package/deep/part.py"}
    assert notes[0].startswith(f"{folder} is too large to be taken to other machines: only its Python files are")
    monkeypatch.setattr(shipping, "MOST_FILES", 2)
    with pytest.raises(
        UserError, match=r"has too many files to be taken to the other machines \(3\): give the command"
    ):
        shipping.pack([str(folder)], str(folder))
    monkeypatch.setattr(shipping, "MOST_SEEN", 2)
    with pytest.raises(UserError, match="has more than 2 files to look through"):
        shipping.pack([str(folder)], str(folder))


def test_folders_of_what_was_imported_are_known(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "an_own_module.py").write_text("")
    monkeypatch.syspath_prepend(str(folder))
    __import__("an_own_module")
    try:
        found = shipping.own_folders(["/named"])
    finally:
        del sys.modules["an_own_module"]
    assert found[0] == "/named"
    assert str(folder) in found
    assert not any("site-packages" in one for one in found)
    assert os.path.dirname(os.path.dirname(shipping.__file__)) not in found
    assert shipping.pack([], str(folder)) == (None, [])


# ---- versions

HERE = {"python": "3.11.2", "shoal": "0.4.0", "torch": "2.13.0", "numpy": "2.3.1"}


def test_the_same_versions_need_no_word() -> None:
    assert shipping.compare("big", HERE, HERE) is None
    assert set(shipping.installed()) == set(HERE)


@pytest.mark.parametrize(
    ("there", "sentence"),
    [
        ({"shoal": "0.4.1"}, "the machine big has shoal 0.4.1, and here is 0.4.0: install the same on both."),
        ({"torch": "1.13.0"}, "the machine big has torch 1.13.0, and here is 2.13.0: install the same on both."),
        ({"python": "3.12.0"}, "the machine big has python 3.12.0, and here is 3.11.2: install the same on both."),
    ],
)
def test_versions_that_do_not_fit_are_refused_with_the_machine(there: dict[str, str], sentence: str) -> None:
    with pytest.raises(UserError) as told:
        shipping.compare("big", HERE, HERE | there)
    assert str(told.value) == sentence


def test_what_is_missing_is_refused_and_what_differs_a_little_is_noted() -> None:
    with pytest.raises(UserError, match=r"the machine big has no torch, and here is 2\.13\.0: install it there"):
        shipping.compare("big", HERE, {name: HERE[name] for name in ("python", "shoal", "numpy")})
    there = HERE | {"torch": "2.14.0", "numpy": "1.26.4", "python": "3.11.9"}
    noted = "the machine big has python 3.11.9 (here 3.11.2), torch 2.14.0 (here 2.13.0), numpy 1.26.4 (here 2.3.1)"
    assert shipping.compare("big", HERE, there) == noted


def test_a_missing_module_is_named_with_what_brings_it() -> None:
    said = shipping.missing_module("raised ModuleNotFoundError: No module named 'ale_py'")
    assert said == "the module 'ale_py' is missing: install it there (pip install 'shoal[atari]')"
    assert (
        shipping.missing_module("No module named 'a.b'")
        == "the module 'a.b' is missing: install it there (pip install a)"
    )
    assert shipping.missing_module("raised ValueError: no") is None
