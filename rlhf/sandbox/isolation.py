"""Isolation levels, what bounds a run on each of them, and the Python that runs the programs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from rlhf.errors import SandboxUnavailable
from rlhf.sandbox.groups import GroupParent
from rlhf.sandbox.run_supervisor import LOOK_SECONDS

SYSTEM = ("/usr", "/bin", "/lib", "/lib32", "/lib64", "/sbin")
SETTINGS = ("/etc/ld.so.cache", "/etc/localtime", "/etc/alternatives")
ASK = """
import json, sys
prefixes = [sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix]
packages = [path for path in sys.path if path.startswith(tuple(prefixes))]
print(json.dumps([sys.executable, prefixes, packages]))
"""
"""A path of a `.pth` file is not asked for: that of a project is its whole folder, with data that programs must not
read."""
ASK_SECONDS = 30.0


class IsolationLevel(StrEnum):
    """Isolation levels, strongest first."""

    BUBBLEWRAP = "bubblewrap"
    """Separate namespaces for files, processes and network, with seccomp and resource limits."""
    LANDLOCK = "landlock"
    """Landlock, seccomp and resource limits; needs no namespaces."""
    RLIMITS = "rlimits"
    """Resource limits only: files and network are accessible. Used only if explicitly allowed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interpreter:
    """A Python, and its folders and files outside `SYSTEM`, none of which lies in another."""

    path: str
    folders: tuple[str, ...]

    @property
    def readable(self) -> tuple[str, ...]:
        """The folders that a program must be able to read."""
        return (*SYSTEM, *SETTINGS, *self.folders)


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxIsolation:
    """An isolation level and the Python that runs on it."""

    level: IsolationLevel
    python: Interpreter
    groups: GroupParent | None = None
    """Parent of the runs' control groups. None: resource limits bound each process, and nothing bounds their sum."""
    own_disk: bool = False
    """Whether a run's folder is a tmpfs of limited size that its supervisor mounts."""

    @property
    def sized(self) -> bool:
        """Whether the kernel limits the size of the run's folder."""
        return self.own_disk or self.level is IsolationLevel.BUBBLEWRAP

    @property
    def bounds(self) -> dict[str, str]:
        """The mechanisms that limit memory, processes, disk and processor time of a run, in words."""
        return {
            "memory": "by cgroup v2" if self.groups else "by a resource limit of each process",
            "processes": "by cgroup v2" if self.groups else "by a resource limit of the user",
            "disk": "by a file system of its size" if self.sized else f"measured every {LOOK_SECONDS:g} s",
            "processor": "a share for each run by cgroup v2"
            if self.groups and self.groups.shares
            else "shared per process, so a program with many processes gets more",
        }


def interpreter(path: str) -> Interpreter:
    """Query the Python at `path` for its folders: its prefixes, and what the links among its packages lead to. Raises
    `SandboxUnavailable`."""
    try:
        answer = subprocess.run([path, "-I", "-c", ASK], capture_output=True, timeout=ASK_SECONDS, check=True).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise SandboxUnavailable(f"{path} is not a Python that can be started: {error}") from None
    executable, prefixes, packages = json.loads(answer)
    return Interpreter(path=executable, folders=_outside([*_links(executable), *prefixes, *_linked(packages)]))


def _links(path: str) -> Iterator[str]:
    """Iterate over `path` and the links that it leads through."""
    yield path
    while os.path.islink(path):
        path = os.path.normpath(os.path.join(os.path.dirname(path), os.readlink(path)))
        yield path


def _linked(folders: Iterable[str]) -> Iterator[str]:
    """Iterate over the links in `folders`, such as packages that are developed elsewhere."""
    for folder in filter(os.path.isdir, folders):
        yield from (entry.path for entry in os.scandir(folder) if entry.is_symlink())


def _outside(paths: Iterable[str]) -> tuple[str, ...]:
    """Return the `paths` that exist, as written and without links, except those in `SYSTEM` or in another."""
    existing = [path for path in paths if os.path.exists(path)]
    found: list[Path] = []
    for path in sorted({Path(name) for name in (*existing, *map(os.path.realpath, existing))}):
        if not any(path.is_relative_to(above) for above in (*SYSTEM, *map(str, found))):
            found.append(path)
    return tuple(map(str, found))


def candidates() -> list[str]:
    """Return the Pythons to try if the user names none: that of this process, without its packages, the system's."""
    own = Path(sys.base_prefix) / "bin" / f"python{sys.version_info.major}.{sys.version_info.minor}"
    return [str(path) for path in dict.fromkeys((own, Path("/usr/bin/python3"))) if path.exists()]
