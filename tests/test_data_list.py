"""`nearfield data list` reads what is known of every dataset, and loads none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nearfield import data
from nearfield.cli.main import main
from nearfield.data import catalog
from nearfield.data.builtin import digits, summaries
from nearfield.data.builtin.glyphs import cache as glyphs


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("NEARFIELD_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("NEARFIELD_DATA", raising=False)
    return tmp_path / "cache"


def listed(capsys: pytest.CaptureFixture[str]) -> dict[str, dict[str, object]]:
    assert main(["data", "list", "--json"]) == 0
    return {row["name"]: row for row in json.loads(capsys.readouterr().out)}


def test_nothing_is_loaded(cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(glyphs, "_draw", lambda: pytest.fail("drawn"))
    monkeypatch.setattr(digits, "load", lambda: pytest.fail("loaded"))
    monkeypatch.setattr(catalog, "load", lambda name: pytest.fail("loaded"))
    monkeypatch.setattr(data, "load", lambda name: pytest.fail("loaded"))
    assert main(["data", "list"]) == 0
    assert "1797" in capsys.readouterr().out
    assert not cache.exists()


@pytest.mark.parametrize("name", ["digits", "glyphs"])
def test_what_is_listed_is_what_is_loaded(name: str) -> None:
    assert catalog.summary(name) == data.load(name).summary()


def test_the_real_omniglot_is_listed(real_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEARFIELD_DATA", str(real_data))
    if "omniglot" not in data.names():
        pytest.skip("NEARFIELD_DATA has no omniglot.npz")
    assert catalog.summary("omniglot") == data.load("omniglot").summary()


def test_counts_that_are_not_known_are_not_claimed(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(glyphs, "PINNED", ("0", "0", "0"))  # other versions draw other glyphs
    monkeypatch.setenv("NEARFIELD_DATA", str(tmp_path))
    contents: list[dict[str, Any]] = [{"class_alphabet": np.zeros(3)}, {}]
    for content in contents:
        np.savez(tmp_path / "omniglot.npz", **content)
        assert listed(capsys)["omniglot"] == {"name": "omniglot"}
    assert listed(capsys)["glyphs"] == {"name": "glyphs"}
    assert main(["data", "list"]) == 0
    assert capsys.readouterr().out.count("not loaded yet") == 2


def test_data_of_ones_own_is_listed_as_it_was_added(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "x.npz"
    np.savez(path, features=np.zeros((24, 5), dtype=np.float32), labels=np.repeat(np.arange(8), 3))
    added = data.add("mine", path).summary()
    path.write_bytes(b"not read")
    assert listed(capsys)["mine"] == added
    path.unlink()
    assert "are no longer in" in str(listed(capsys)["mine"]["error"])


def test_data_added_before_counts_were_recorded(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "x.npz"
    np.savez(path, features=np.zeros((24, 5), dtype=np.float32), labels=np.repeat(np.arange(8), 3))
    data.add("mine", path)
    record = cache / "datasets" / "mine.npz"
    with np.load(record) as archive:
        facts = json.loads(archive["facts"].tobytes())
    del facts["summary"]
    np.savez(record, facts=np.frombuffer(json.dumps(facts).encode(), dtype=np.uint8))
    assert listed(capsys)["mine"] == {"name": "mine"}
    assert len(data.load("mine").labels) == 24


def test_every_built_in_dataset_is_known(cache: Path) -> None:
    assert all(summaries.known(name) for name in catalog.BUILT_IN)
