"""Parses the hosts file: one host per line, the head first, with the cores and GPUs that each host provides."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from rlhf.errors import ConfigError

NAME = re.compile(r"([\w.-]+@)?[A-Za-z0-9_][\w.:%-]*")
"""Valid host name. It has no leading hyphen, which ssh would parse as an option."""
LOCAL = "localhost"


@dataclass(frozen=True, slots=True, kw_only=True)
class SshHost:
    """A host's ssh name, and its cores and GPUs for the run; None means all that it has."""

    name: str
    cpus: int | None = None
    gpus: int | None = None

    @property
    def is_here(self) -> bool:
        """Whether this is `localhost`: this machine, which needs no ssh."""
        return self.name == LOCAL


def read_hosts(path: Path, cpus: int | None = None, gpus: int | None = None) -> tuple[SshHost, ...]:
    """Return the hosts in a file; `cpus` and `gpus` apply to lines that do not set them. Raises `ConfigError`."""
    try:
        lines = path.read_text().splitlines()
    except OSError as error:
        raise ConfigError(f"cannot read the hosts file {path}: {error.strerror}") from None
    stripped = [(number, line.partition("#")[0].split()) for number, line in enumerate(lines, start=1)]
    hosts = tuple(_host(words, f"{path}:{number}", cpus, gpus) for number, words in stripped if words)
    if not hosts:
        raise ConfigError(f"{path} names no host; write one a line, such as `node1 cpus=16 gpus=8`")
    names = [host.name for host in hosts]
    if repeated := next((name for name in names if names.count(name) > 1), None):
        raise ConfigError(f"{path} names {repeated} twice; one line a host, with all that it gives")
    return hosts


def _host(words: list[str], where: str, cpus: int | None, gpus: int | None) -> SshHost:
    name, *given = words
    if not NAME.fullmatch(name):
        raise ConfigError(f"{where}: {name!r} is no host; write node1 or user@node1, then cpus=N gpus=N if need be")
    amounts = {"cpus": cpus, "gpus": gpus}
    for word in given:
        key, _, value = word.partition("=")
        if key not in amounts or not value.isdecimal() or (key == "cpus" and int(value) < 1):
            raise ConfigError(f"{where}: {word!r} is not understood; after the host come cpus=N and gpus=N")
        amounts[key] = int(value)
    return SshHost(name=name, cpus=amounts["cpus"], gpus=amounts["gpus"])
