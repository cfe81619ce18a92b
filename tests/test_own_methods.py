"""NEARFIELD_METHODS: methods registered by modules of anybody's own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.programs

OWN = """
from nearfield.losses.registry import register
from nearfield.pairs import PairLoss, Weighted

@register("mean_gap", "a test")
class MeanGap(PairLoss):
    "L = 0."
    def weigh(self, block):
        return Weighted(block.num_pos * 0, block.pos * 0, block.neg * 0)
"""
NAMES = "import nearfield as nf; print('mean_gap' in nf.losses.names(), nf.losses.method('mean_gap').source)"


def run(folder: Path, modules: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "NEARFIELD_METHODS": modules}
    command = [sys.executable, "-P", "-c", NAMES] if sys.version_info >= (3, 11) else [sys.executable, "-c", NAMES]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def test_a_file_in_the_current_folder_registers_its_methods(tmp_path: Path) -> None:
    (tmp_path / "own_gap.py").write_text(OWN, encoding="utf-8")
    done = run(tmp_path, "own_gap")
    assert done.stdout == "True a test\n", done.stderr


def test_a_module_that_cannot_be_imported_is_named(tmp_path: Path) -> None:
    done = run(tmp_path, "json, no_such_module")
    assert done.returncode
    assert "NEARFIELD_METHODS must name modules that register methods; got 'no_such_module'" in done.stderr
