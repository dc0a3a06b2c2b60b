"""`rlhf …`, forked from a process that has imported what its commands read recipes with, and nothing heavier."""

from __future__ import annotations

import atexit
import importlib
import os
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from rlhf.cluster.fork_server import ForkServer
from tests.pace import scaled
from tests.warm.client import ROOT, Ended, run

SECONDS = scaled(60)
MODULES = ("rlhf.apps.cli.main", "rlhf.apps.cli.check", "rlhf.apps.cli.score")


def rlhf(*words: object, folder: Path = ROOT, environment: Mapping[str, str] = os.environ) -> Ended:
    """Run a command to its end."""
    return run(["-m", "rlhf", *words], environment=environment, folder=folder, timeout=SECONDS, server=_server())


@cache
def _server() -> Path:
    """This process's own server, which ends with it."""
    folder = tempfile.TemporaryDirectory(prefix="w", dir="/tmp")
    server = ForkServer(Path(folder.name), [f"{__name__}:import_commands"], {}, Path(folder.name) / "log")
    atexit.register(folder.cleanup)
    atexit.register(server.stop)
    return server.socket


def import_commands() -> None:
    for module in MODULES:
        importlib.import_module(module)
