"""Files and folders: complete or not there, with the usual permissions, and errors that say what to do."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from nearfield.errors import InputError, RunError
from nearfield.files import atomic_write, read_json, whole_folder, write_json, write_text


@pytest.mark.parametrize("mask", [0o022, 0o077])
def test_permissions_are_the_usual_and_the_umask_is_never_touched(
    mask: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Setting it, even for a moment, would let another thread create files that anybody may write."""
    before = os.umask(mask)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(os, "umask", lambda _: pytest.fail("the umask belongs to the whole process"))
            write_text(tmp_path / "file", "text")
            with whole_folder(tmp_path / "folder"):
                pass
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o666 & ~mask
    assert stat.S_IMODE((tmp_path / "folder").stat().st_mode) == 0o777 & ~mask


def fail_in_a_file(path: Path) -> None:
    with atomic_write(path) as draft:
        draft.write_text("half")
        raise OSError("out of luck")


def fail_in_a_folder(path: Path) -> None:
    with whole_folder(path) as draft:
        (draft / "half").touch()
        raise KeyError


def test_a_failed_write_leaves_what_was_there(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"ä": 1})
    with pytest.raises(RunError, match=r"cannot write .*a.json: out of luck \([\d,.]+ MB free\)"):
        fail_in_a_file(tmp_path / "a.json")
    with pytest.raises(KeyError):
        fail_in_a_folder(tmp_path / "folder")
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]
    assert read_json(tmp_path / "a.json") == {"ä": 1}


def test_a_folder_that_another_process_made_stays(tmp_path: Path) -> None:
    with whole_folder(tmp_path / "folder", flush=True) as folder:
        (folder / "mine").touch()
        (tmp_path / "folder").mkdir()
        (tmp_path / "folder" / "theirs").touch()
    assert [path.name for path in tmp_path.rglob("*")] == ["folder", "theirs"]


@pytest.mark.parametrize("content", [b'{"a": 1', b"[]", b"\xff", b"[" * 100_000])
def test_damaged_json_is_named(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(RunError, match=r"a.json is damaged: .*\. Restore it, or delete its folder\."):
        read_json(tmp_path / "a.json")
    with pytest.raises(InputError, match=r"cannot read .*b.json: No such file or directory\. Is the folder complete\?"):
        read_json(tmp_path / "b.json", InputError)
