"""Starts a Ray worker by a request to the fork server; Ray runs this file instead of the Python interpreter.

It imports only the standard library, because every worker waits for these imports. It runs until the worker ends and
exits with the worker's status; Ray monitors the worker itself, which reports its own process id. Without a server it
executes Python in its own process. It waits for a server that is still importing: the process that asked Ray for the
worker has a deadline for its start.
"""

from __future__ import annotations

import json
import os
import socket
import sys

SOCKET = "RLHF_FORK_SERVER"
"""The environment variable with the path of the server's socket."""


def ray_worker_main() -> None:
    """Ask the fork server for a worker, wait until it ends, and exit with its status."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    request = {
        "arguments": sys.argv[1:],
        "environment": dict(os.environ),
        "folder": os.getcwd(),
        "new_session": False,
        "ignored_signals": [],
        "inherited": [],
    }
    try:
        connection.connect(os.environ[SOCKET])
        socket.send_fds(connection, [json.dumps(request).encode()], [0, 1, 2])
        asked = connection.recv(4096)
    except OSError:
        asked = b""
    if not asked:
        os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
    ended = connection.recv(4096)
    os._exit(os.waitstatus_to_exitcode(json.loads(ended)["status"]) & 0xFF if ended else 1)


if __name__ == "__main__":
    ray_worker_main()
