"""This host's name, and log lines that begin with it: the logs of many nodes are read together, in order of time."""

from __future__ import annotations

import os
import socket
from datetime import UTC, datetime

from rlhf.http.untrusted_text import escape_to_line


def node_name() -> str:
    """SLURM's name of this node, because several nodes may be on one machine; else the machine's name."""
    return os.environ.get("SLURMD_NODENAME") or socket.gethostname()


def print_node_line(text: str) -> None:
    """Print one line: time (UTC), host, text."""
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    print(f"{now} {node_name()} {escape_to_line(text)}", flush=True)
