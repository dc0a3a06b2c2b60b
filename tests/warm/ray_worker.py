"""Ray's workers out of the warm server: Ray runs this file where it would run Python, and it asks for a fork instead.

Imports nothing but the standard library, for every worker of every run waits for it. It stays until the worker ends, and
hands on its exit code; Ray watches the worker itself, which tells its own process id.
"""

from __future__ import annotations

import json
import os
import socket
import sys


def runtime_environment(runtime_env: dict[str, object] | None) -> dict[str, object]:
    """Ray's hook (RAY_RUNTIME_ENV_HOOK): every worker of the job is started by this file."""
    return {**(runtime_env or {}), "py_executable": f"{sys.executable} -S -E {__file__}"}


def main() -> None:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.connect(os.path.join(os.environ["RLHF_TEST_WARM"], "socket"))
    request = {
        "arguments": sys.argv[1:],
        "environment": dict(os.environ),
        "folder": os.getcwd(),
        "new_session": False,
        "ignored_signals": [],
        "inherited": [],
    }
    socket.send_fds(connection, [json.dumps(request).encode()], [0, 1, 2])
    connection.recv(4096)
    ended = connection.recv(4096)
    status = json.loads(ended)["status"] if ended else 1
    os._exit(os.waitstatus_to_exitcode(status) & 0xFF)


if __name__ == "__main__":
    main()
