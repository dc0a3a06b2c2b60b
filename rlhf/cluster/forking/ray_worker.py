"""A Ray worker out of the fork server: Ray runs this file where it would run Python, and it asks for a fork instead.

Nothing but the standard library is imported, for every worker waits for it. It stays until the worker ends, and hands
on how it did; Ray watches the worker itself, which tells its own process id. Without a server it becomes Python. It
waits for one that is still importing: whoever asked Ray for the worker has a deadline for its start.
"""

from __future__ import annotations

import json
import os
import socket
import sys

SOCKET = "RLHF_FORK_SERVER"
"""The environment variable with the path of the server's socket."""


def ray_worker_main() -> None:
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
