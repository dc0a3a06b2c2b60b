"""Environments of verifiers, which it plays in a virtual environment of its own, from a package to updates."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from rlhf.env.adapters.verifiers import tasks
from rlhf.errors import ConfigError, DataError
from tests.ecosystem.venvs import python
from tests.end_to_end.running import QUICKSTART, Run, train
from tests.pace import scaled

pytestmark = [pytest.mark.ecosystem, pytest.mark.timeout(600)]

ADAPTER = "rlhf.env.adapters.verifiers"
PACKAGES = Path(__file__).parent / "vf_environments"
LOCAL = {"harness": {"id": "null"}, "runtime": {"type": "subprocess"}}


@pytest.fixture(scope="module")
def interpreter(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A Python that has verifiers and the environments of `vf_environments`, as after `pip install --editable`."""
    folder = tmp_path_factory.mktemp("venv")
    subprocess.run([python("verifiers"), "-m", "venv", "--without-pip", folder], check=True, timeout=scaled(60))
    (site,) = (folder / "lib").glob("python*/site-packages")
    (theirs,) = (python("verifiers").parents[1] / "lib").glob("python*/site-packages")
    (site / "environments.pth").write_text(f"{theirs}\n{PACKAGES}\n")
    return str(folder / "bin" / "python")


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


def trained(name: str, interpreter: str, folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    binaries = python("verifiers").parent  # the null harness is a script that uv gives packages, kept between runs
    monkeypatch.setenv("PATH", str(binaries), prepend=":")
    monkeypatch.setenv("UV_CACHE_DIR", str(binaries.parent / "uv-cache"))
    played = {"python": interpreter, "environment": {"taskset": {"id": name}, "agent": LOCAL}}
    recipe = yaml.safe_load(QUICKSTART.read_text()) | {
        "data": {"train": {"tasks": f"{ADAPTER}:tasks", "arguments": played | {"select": {"limit": 8}}}},
        "agent": {"program": f"{ADAPTER}:play_episode", "arguments": played},
        "reward": {"kind": "environment"},
        "cluster": {"kind": "local"},
    }
    folder.mkdir()
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    few = ("trainer.updates=2", "trainer.groups_per_update=2", "trainer.group_size=2", "model.warmup.updates=60")
    return train(folder / "run", cache, *few, recipe=folder / "recipe.yaml")


@pytest.mark.parametrize(("name", "replies"), [("vf_digits", 1), ("vf_talk", 2), ("vf_desk", 1)])
def test_two_updates_are_trained(
    name: str, replies: int, interpreter: str, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = trained(name, interpreter, tmp_path / name, cache, monkeypatch)
    episodes = [one for one in run.episodes if one.outcome == "trained"]
    assert len(episodes) == 8
    for one in episodes:
        said = [message["content"] for message in one.conversation or [] if message["role"] == "assistant"]
        parts = one.reward_parts or {}
        assert len(said) == replies
        if name == "vf_digits":
            assert one.reward == parts["ordered"] + 0.25 * parts["same_digits"]
            assert parts["length"] == len(said[0])
        elif name == "vf_talk":
            assert one.reward == 0.5 * parts["right"]
        else:
            assert (one.reward, parts["offered"]) == (parts["tools_told"], 1)


def test_what_cannot_be_listed_is_refused(interpreter: str) -> None:
    def refusal(error: type[Exception], interpreter: str, environment: dict[str, Any]) -> str:
        with pytest.raises(error) as refused:
            tasks(interpreter, environment)
        return str(refused.value)

    assert "the taskset never ends; give select: {limit: N}" in refusal(
        DataError, interpreter, {"taskset": {"id": "vf_talk"}}
    )
    assert "taskset 'vf_none' not found" in refusal(DataError, interpreter, {"taskset": {"id": "vf_none"}})
    assert "make it by `python -m venv FOLDER`" in refusal(ConfigError, "no/python", {})
