"""Starts a Ray worker by a request to the fork server; Ray runs this file instead of the Python interpreter.

It imports only the standard library, because every worker waits for these imports. It exits with the worker's status;
Ray monitors the worker itself. It waits for a server that is still importing, and without one it runs Python itself.
"""

from __future__ import annotations

import json
import os
import socket
import sys

SOCKET = "RLHF_FORK_SERVER"
"""The environment variable with the path of the server's socket."""


def fork_client_main() -> None:
    """Ask the fork server for a worker, wait until it ends, and exit with its status."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    request = {"arguments": sys.argv[1:], "environment": dict(os.environ), "folder": os.getcwd()}
    try:
        connection.connect(os.environ[SOCKET])
        socket.send_fds(connection, [json.dumps(request).encode()], [0, 1, 2])
        started = connection.recv(4096)
    except OSError:
        started = b""
    if not started:
        os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
    ended = connection.recv(4096)
    os._exit(os.waitstatus_to_exitcode(json.loads(ended)["status"]) & 0xFF if ended else 1)


if __name__ == "__main__":
    fork_client_main()
