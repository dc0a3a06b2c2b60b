"""One cache of start models for all runs: the first run makes what the others start from."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of all processes of pytest-xdist: each has a folder of its own in that of the session."""
    place = tmp_path_factory.getbasetemp()
    models = (place.parent if "PYTEST_XDIST_WORKER" in os.environ else place) / "models"
    models.mkdir(exist_ok=True)
    return models
