"""The slow imports of all runs of a sweep, made once: each run, with its workers, is forked from one fork server."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rlhf.cluster import fork_client
from rlhf.cluster.fork_server import ForkServer, forked_environment
from rlhf.cluster.supervisor import socket_folder
from rlhf.recipe.schema import Recipe
from rlhf.recipe.workers import roles_of


@dataclass(frozen=True, slots=True)
class Forks:
    """A fork server's socket, and the variables under which it made its imports."""

    socket: str
    environment: Mapping[str, str]


@contextmanager
def forks_for(recipe: Recipe, log: Path) -> Iterator[Forks | None]:
    """Serve forks for runs of a recipe; None if its workers cannot be forked, as with GPUs."""
    roles = roles_of(recipe)
    environment = forked_environment(roles)
    if environment is None:
        yield None
        return
    imports = [*(role.imports for role in roles if role.imports), "rlhf.apps.sweeps.forks:import_command"]
    server = ForkServer(socket_folder("forks-"), dict.fromkeys(imports), environment, log)
    try:
        yield Forks(str(server.socket), environment)
    finally:
        server.stop()


def import_command() -> None:
    """Import what `rlhf train` imports, apart from its workers."""
    for module in ("rlhf.apps.cli.main", "rlhf.api", "rlhf.controller.rl"):
        importlib.import_module(module)


def python_for(recipe: Recipe, forks: Forks | None) -> tuple[list[str], dict[str, str]]:
    """Return the words that run Python, and the variables that they need: in a fork, unless the recipe's workers make
    their imports under other variables."""
    if forks is None or forked_environment(roles_of(recipe)) != forks.environment:
        return [sys.executable], {}
    return [sys.executable, "-S", "-E", fork_client.__file__], {fork_client.SOCKET: forks.socket}
