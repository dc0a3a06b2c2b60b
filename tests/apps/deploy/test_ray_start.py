"""The command line of `ray start`."""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

import pytest

from rlhf.apps.deploy.ray_start import linked_interpreter


def test_ray_gets_no_path_with_a_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "a home"
    venv.create(home, symlinks=True)
    monkeypatch.setattr(sys, "executable", str(home / "bin" / "python"))
    monkeypatch.setattr(sys, "prefix", str(home))
    linked = linked_interpreter(tmp_path)
    assert " " not in linked.removeprefix(str(tmp_path))
    said = subprocess.run([linked, "-c", "import sys; print(sys.prefix)"], capture_output=True, text=True, check=True)
    assert Path(said.stdout.strip()).resolve() == home
