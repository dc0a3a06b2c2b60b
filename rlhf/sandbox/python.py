"""Finds the Python that runs the programs, and the folders that it must be able to read."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from rlhf.sandbox.program import SandboxUnavailable

SYSTEM = ("/usr", "/bin", "/lib", "/lib32", "/lib64", "/sbin")
SETTINGS = ("/etc/ld.so.cache", "/etc/localtime", "/etc/alternatives")
ASK = "import json, sys; print(json.dumps([sys.executable, sys.prefix, sys.base_prefix]))"
ASK_SECONDS = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Interpreter:
    """A Python, and its folders outside `SYSTEM`."""

    path: str
    folders: tuple[str, ...]

    @property
    def readable(self) -> tuple[str, ...]:
        """The folders that a program must be able to read."""
        return (*SYSTEM, *SETTINGS, *self.folders)


def interpreter(path: str) -> Interpreter:
    """Query the Python at `path` for its folders. Raises `SandboxUnavailable`."""
    try:
        told = subprocess.run([path, "-I", "-c", ASK], capture_output=True, timeout=ASK_SECONDS, check=True).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise SandboxUnavailable(f"{path} is no Python that can be started: {error}") from None
    executable, *prefixes = json.loads(told)
    outside = {str(Path(prefix)) for prefix in prefixes if not Path(prefix).is_relative_to("/usr")}
    return Interpreter(path=executable, folders=tuple(sorted(outside)))


def candidates() -> list[str]:
    """Pythons to try if none is given: that of this process without its packages, then the system's."""
    own = Path(sys.base_prefix) / "bin" / f"python{sys.version_info.major}.{sys.version_info.minor}"
    return [str(path) for path in dict.fromkeys((own, Path("/usr/bin/python3"))) if path.exists()]
