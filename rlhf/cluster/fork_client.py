"""Runs Python by a request to the fork server; it takes the interpreter's place where Ray or a sweep starts a process.

It imports only the standard library, because every process waits for these imports. It exits with the process's status
and passes SIGTERM on to it. It waits for a server that is still importing, and without one it runs Python itself.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys

SOCKET = "RLHF_FORK_SERVER"
"""The environment variable with the path of the server's socket."""


def fork_client_main() -> None:
    """Ask the fork server for a process, wait until it ends, and exit with its status."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    request = {"arguments": sys.argv[1:], "environment": dict(os.environ), "folder": os.getcwd()}
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])  # until there is a process to pass it on to
    try:
        connection.connect(os.environ[SOCKET])
        socket.send_fds(connection, [json.dumps(request).encode()], [0, 1, 2])
        started = connection.recv(4096)
    except OSError:
        started = b""
    if started:
        process = json.loads(started)["pid"]
        signal.signal(signal.SIGTERM, lambda number, frame: os.kill(process, number))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
    if not started:
        os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
    ended = connection.recv(4096)
    os._exit(os.waitstatus_to_exitcode(json.loads(ended)["status"]) & 0xFF if ended else 1)


if __name__ == "__main__":
    fork_client_main()
