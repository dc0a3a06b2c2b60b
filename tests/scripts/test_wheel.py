"""The wheel: it has every file that the package needs, and trains where no file of the clone may be read."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from rlhf.cluster.fork_client import SOCKET
from tests.pace import scaled

ROOT = Path(__file__).parents[2]
GUARD = """
import os, sys
def refuse(event, arguments, clone={clone!r}, kept={kept!r}):
    if event in ("open", "os.listdir", "os.scandir") and isinstance(arguments[0], (str, bytes)):
        path = os.path.abspath(os.fsdecode(arguments[0]))
        if path.startswith(clone) and not path.startswith(kept):
            raise PermissionError(f"{{path}} is a file of the clone")
sys.addaudithook(refuse)
"""
"""Read by every Python process that has the folder on its path."""

pytestmark = pytest.mark.engine


def tracked(*folders: str) -> list[str]:
    listed = subprocess.run(["git", "ls-files", *folders], cwd=ROOT, capture_output=True, text=True, check=True)
    return [name for name in listed.stdout.splitlines() if (ROOT / name).exists()]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy: setuptools writes beside what it packs."""
    source = tmp_path_factory.mktemp("source")
    for name in tracked("rlhf", "recipes", "pyproject.toml", "README.md"):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, source / name)
    command = ["pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "--no-index", "-w", str(source / "dist"), "."]
    subprocess.run([sys.executable, "-m", *command], cwd=source, check=True, timeout=scaled(120))
    (built,) = (source / "dist").glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("installed")
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(folder)
    kept = (sys.prefix + os.sep, str(folder))
    (folder / "sitecustomize.py").write_text(GUARD.format(clone=str(ROOT) + os.sep, kept=kept))
    return folder


def run(installed: Path, folder: Path, *words: str) -> str:
    """What a command prints, started in an empty folder."""
    variables = {name: value for name, value in os.environ.items() if name != SOCKET} | {"PYTHONPATH": str(installed)}
    done = subprocess.run(
        [sys.executable, "-m", "rlhf", *words],
        cwd=folder, env=variables, capture_output=True, text=True, timeout=scaled(240),
    )  # fmt: skip
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done.stdout


def test_every_file_of_the_package_is_in_the_wheel(wheel: Path) -> None:
    assert set(tracked("rlhf", "recipes")) <= set(zipfile.ZipFile(wheel).namelist())


def test_the_quickstart_trains_without_the_clone(installed: Path, tmp_path: Path) -> None:
    small = ("trainer.updates=1", "trainer.groups_per_update=8", "model.warmup.updates=2", "model.cache_dir=cache")
    told = run(installed, tmp_path, "train", "quickstart", *small)
    assert "1 updates" in told
    assert (tmp_path / "runs" / "quickstart" / "summary.json").exists()


def test_a_recipe_is_listed_and_copied_and_found_again(installed: Path, tmp_path: Path) -> None:
    assert "lora_one_gpu " in run(installed, tmp_path, "recipes", "list")
    run(installed, tmp_path, "recipes", "copy", "lora_one_gpu", "mine.yaml")
    told = run(installed, tmp_path, "plan", "mine.yaml", "--gpus", "1xH100")  # its base is a shipped recipe
    assert "it fits" in told


def test_a_project_is_made_without_the_clone(installed: Path, tmp_path: Path) -> None:
    run(installed, tmp_path, "init", "first")
    assert "run            first, kind rl, in runs/first" in run(installed, tmp_path, "check", "first")
