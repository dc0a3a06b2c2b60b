"""One cache of start models for all runs: the first run makes what the others start from."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.getbasetemp()
    # Test processes side by side (xdist) have folders of their own under one parent.
    return (base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base) / "models"
