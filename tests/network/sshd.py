"""A private sshd on loopback, with hosts of several kinds behind its keys."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

SSHD = "/usr/sbin/sshd"
START_SECONDS = 20
FORCED = {
    "good": "",
    "bare": 'command="exec env -u PYTHONPATH /usr/bin/python3 -m rlhf.deploy.ssh.remote /"',
    "empty": 'command="exec /no/such/python"',
}
"""Keys that the server takes, and what each is made to run: hosts without rlhf, and without Python."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sshd:
    """`config` is a client's: `first` and `second` are hosts with all they need; the others are not."""

    config: Path
    pid: int


@contextmanager
def private_sshd(folder: Path) -> Iterator[Sshd]:
    """The server, from its first answer to its end. Its keys are its own, in `folder`; none of the machine is used."""
    for key in ("server", *FORCED, "stranger"):
        _run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / key))
    keys = [f"{forced} {(folder / f'{name}.pub').read_text()}".lstrip() for name, forced in FORCED.items()]
    (folder / "authorized_keys").write_text("".join(keys))
    port = _free_port()
    (folder / "sshd_config").write_text(_server(folder, port))
    Path("/run/sshd").mkdir(exist_ok=True)  # where Debian's sshd confines its unprivileged half
    with (folder / "sshd.log").open("w") as log, socket.create_server(("127.0.0.1", 0)) as mute:
        command = [SSHD, "-D", "-e", "-f", str(folder / "sshd_config")]
        server = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            _until_it_listens(port, server)
            config = folder / "ssh_config"
            config.write_text(_client(folder, port, mute.getsockname()[1]))
            yield Sshd(config=config, pid=server.pid)
        finally:
            server.terminate()
            server.wait(START_SECONDS)


def _server(folder: Path, port: int) -> str:
    return f"""
ListenAddress 127.0.0.1:{port}
HostKey {folder / "server"}
AuthorizedKeysFile {folder / "authorized_keys"}
PidFile none
PermitRootLogin yes
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
StrictModes no
"""


def _client(folder: Path, port: int, mute: int) -> str:
    (folder / "known_hosts").write_text(f"[127.0.0.1]:{port} {(folder / 'server.pub').read_text()}")
    (folder / "known_to_nobody").write_text("")
    hosts = {
        "first second third": ("good", "known_hosts"), "stranger": ("stranger", "known_hosts"),
        "bare": ("bare", "known_hosts"), "empty": ("empty", "known_hosts"), "impostor": ("good", "known_to_nobody"),
    }  # fmt: skip
    at = f"HostName 127.0.0.1\nPort {port}"
    blocks = "\n".join(
        f"Host {names}\n{at}\nUserKnownHostsFile {folder / known}\nIdentityFile {folder / key}"
        for names, (key, known) in hosts.items()
    )
    return f"""
{blocks}
Host mute
HostName 127.0.0.1
Port {mute}
Host closed
HostName 127.0.0.1
Port 1
Host *
User {os.environ.get("USER", "root")}
IdentitiesOnly yes
IdentityAgent none
StrictHostKeyChecking yes
GlobalKnownHostsFile none
"""


def _until_it_listens(port: int, server: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        assert server.poll() is None, "sshd ended"
        with socket.socket() as client:
            if client.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise TimeoutError(f"sshd does not listen after {START_SECONDS} s")


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


def _run(*words: str) -> None:
    subprocess.run(words, check=True, stdout=sys.stderr, timeout=START_SECONDS)
