"""The Dockerfile and the Apptainer definition name what is there, and say the same. No machine of CI can build them."""

from __future__ import annotations

import fnmatch
import re
import shlex
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
HOST_NAME = re.compile(r"\b[a-z0-9-]+(\.[a-z0-9-]+)*\.(com|io|org|net|dev)\b")
DOCKERFILES = ("Dockerfile", "Dockerfile.cpu")


def dockerfile(name: str = "Dockerfile") -> dict[str, list[list[str]]]:
    """The words of every instruction, by its name, comments and line ends within it removed."""
    lines = [line for line in (ROOT / name).read_text().splitlines() if line and not line.startswith("#")]
    found: dict[str, list[list[str]]] = {}
    for line in re.sub(r"\\\n", " ", "\n".join(lines)).splitlines():
        name, *words = shlex.split(line)
        found.setdefault(name, []).append(words)
    return found


def apptainer() -> dict[str, list[list[str]]]:
    """The words of every line, by its section; those before the first section under an empty name."""
    found: dict[str, list[list[str]]] = {"": []}
    section = ""
    for line in re.sub(r"\\\n", " ", (ROOT / "rlhf.def").read_text()).splitlines():
        if line.startswith("%"):
            section = line[1:]
            found[section] = []
        elif line.strip() and not line.startswith("#"):
            found[section].append(shlex.split(line))
    return found


def packages(words: list[str]) -> list[str]:
    """What an `apt-get install` names."""
    return [word for word in words if re.fullmatch(r"[a-z][a-z0-9+.-]*", word) and word not in ("apt-get", "install")]


def copied_by_docker(*names: str) -> set[str]:
    return {source for name in names for words in dockerfile(name)["COPY"] for source in words[:-1]}


def test_everything_that_is_copied_is_in_the_checkout() -> None:
    copied = copied_by_docker(*DOCKERFILES)
    assert {"rlhf", "requirements/cpu.txt", "requirements/gpu.txt", "pyproject.toml"} <= copied
    assert [source for source in copied if not (ROOT / source).exists()] == []


def test_both_copy_the_same_and_install_the_same_upon_the_same_base() -> None:
    definition, docker = apptainer(), dockerfile()
    assert {source for source, _ in definition["files"]} == copied_by_docker("Dockerfile")
    assert ["From:", docker["FROM"][0][0]] in definition[""]
    chained = next(words for words in docker["RUN"] if "apt-get" in words)
    start = chained.index("install") + 1
    asked = packages(chained[start : chained.index("&&", start)])
    assert asked == packages(next(words for words in definition["post"] if words[:2] == ["apt-get", "install"]))
    assert "wget" in asked, "KubeRay's probes"
    installs = [words for words in docker["RUN"] if words[:2] == ["pip", "install"]]
    assert installs == [words for words in definition["post"] if words[:2] == ["pip", "install"]]
    assert all("--no-deps" in words for words in installs), "the pins are whole, and nothing beside them is wanted"


def test_what_docker_ignores_spares_what_it_copies() -> None:
    patterns = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line[:1] not in ("#", "")]
    kept = {pattern[1:] for pattern in patterns if pattern.startswith("!")}
    assert copied_by_docker(*DOCKERFILES) == kept
    assert "*" in patterns, "everything else stays out: .venv, runs"
    assert not any(fnmatch.fnmatch(".venv", pattern) for pattern in kept)


@pytest.mark.parametrize("name", [*DOCKERFILES, "rlhf.def", "requirements/gpu.txt", "scripts/kubernetes/rayjob.yaml"])
def test_no_host_is_named(name: str) -> None:
    text = (ROOT / name).read_text()
    for known in ("ray.io/v1", "nvidia.com/gpu", "download.pytorch.org"):
        text = text.replace(known, "")
    assert HOST_NAME.findall(text) == []
