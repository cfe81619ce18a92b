"""Shared by all tests: one thread, for speed on small tensors, and where the real data is."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from hypothesis import settings

settings.register_profile("nearfield", deadline=None)  # how long a case takes says more of the machine than of the code
settings.load_profile("nearfield")

torch.set_num_threads(1)
os.environ.setdefault("GOMP_SPINCOUNT", "0")


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder with real datasets that NEARFIELD_DATA names; tests that need it are skipped without it."""
    folder = os.environ.get("NEARFIELD_DATA")
    if not folder or not Path(folder).is_dir():
        pytest.skip("NEARFIELD_DATA does not name a folder with the real datasets")
    return Path(folder)
