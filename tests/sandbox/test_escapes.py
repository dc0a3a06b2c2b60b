"""What code tries in order to get out is denied: on every level, as root and as nobody, and nothing stays behind.

Every attack is bounded in count and in time. The fixture `jail` checks after each one that no process and no file of
it is left.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.sandbox.conftest import LIMITS, ROOT, Jail, readable_python

pytestmark = pytest.mark.engine

TRY = """
import ctypes, os, sys
def attempt(name, what):
    try:
        print(name, "DONE", what())
    except (OSError, MemoryError) as error:
        print(name, "denied")
def syscall(number, *arguments):
    libc = ctypes.CDLL(None, use_errno=True)
    result = libc.syscall(number, *[ctypes.c_long(a) if isinstance(a, int) else a for a in arguments])
    if result < 0:
        raise OSError(ctypes.get_errno(), "refused")
    return result
"""


def outcomes(jail: Jail, attempts: dict[str, str], setup: str = "", **limits: float) -> dict[str, str]:
    """What became of each attempt, an expression of Python."""
    lines = [f"attempt({name!r}, lambda: {expression})" for name, expression in attempts.items()]
    seen = jail.run("\n".join([TRY, setup, *lines]), **limits)
    told = dict(line.split(" ", 1) for line in seen["stdout"].splitlines())
    assert told.keys() == attempts.keys(), seen
    return told


def all_denied(attempts: dict[str, str]) -> dict[str, str]:
    return dict.fromkeys(attempts, "denied")


@pytest.fixture
def outside() -> Iterator[Path]:
    """A file that every user of the machine may read and write, in a folder where everyone may."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        os.chmod(folder, 0o777)
        path = Path(folder) / "file"
        path.write_text("untouched")
        path.chmod(0o666)
        yield path


@pytest.fixture
def bystander(jail: Jail) -> Iterator[int]:
    """A process that the jail's user owns, and that must not notice anything."""
    process = jail.bystander()
    yield process.pid
    noticed = process.poll()
    process.kill()
    process.wait(10)
    assert noticed is None


def test_files_outside_are_neither_read_nor_written(jail: Jail, outside: Path) -> None:
    attempts = {
        "shadow": "open('/etc/shadow').read()",
        "passwd": "open('/etc/passwd').read()",
        "read": f"open({str(outside)!r}).read()",
        "write": f"open({str(outside)!r}, 'r+').write('changed')",
        "create": f"open({str(outside.parent / 'new')!r}, 'w')",
        "truncate": f"os.truncate({str(outside)!r}, 0)",
        "unlink": f"os.unlink({str(outside)!r})",
        "rename": f"os.rename({str(outside)!r}, 'mine')",
        "link": f"os.link({str(outside)!r}, 'mine')",
        "symlink": f"(os.symlink({str(outside)!r}, 'way'), open('way').read())",
        "list": f"os.listdir({str(outside.parent)!r})",
        "list /": "[os.listdir(p) for p in ('/root', '/home', '/var')]",
        "source": f"open({str(ROOT / 'README.md')!r}).read()",
    }
    assert outcomes(jail, {name.replace(" ", "_"): what for name, what in attempts.items()}) == {
        name.replace(" ", "_"): "denied" for name in attempts
    }
    assert outside.read_text() == "untouched"
    assert [path.name for path in outside.parent.iterdir()] == ["file"]


def test_attributes_of_files_outside_stay_as_they_are(jail: Jail, outside: Path) -> None:
    if jail.user == "nobody":
        os.chown(outside, 65534, 65534)
    before = outside.stat()
    jail.run(
        TRY + f"attempt('mode', lambda: os.chmod({str(outside)!r}, 0))\n"
        f"attempt('time', lambda: os.utime({str(outside)!r}, (0, 0)))\n"
        f"attempt('extra', lambda: os.setxattr({str(outside)!r}, 'user.x', b'1'))\n"
        f"attempt('touch', lambda: os.utime({str(outside)!r}))"
    )
    assert outside.stat() == before
    assert os.listxattr(outside) == []


def test_the_system_is_read_only(jail: Jail) -> None:
    attempts = {
        "usr": "open('/usr/lib/evil', 'w')",
        "bin": "open('/usr/bin/env', 'r+')",
        "root": "open('/evil', 'w')",
        "dev": "open('/dev/evil', 'w')",
        "mkdir": "os.mkdir('/evil')",
        "python": "open(os.path.realpath(sys.executable), 'r+')",
        "package": "open(os.__file__, 'r+')",
        "remount": "syscall(165, b'none', b'/', None, 32 | 4096, None)",
        "device": "os.mknod('disk', 0o060666, os.makedev(8, 0))",
    }
    assert outcomes(jail, attempts) == all_denied(attempts)


def test_links_that_are_fetched_lead_nowhere(jail: Jail, outside: Path) -> None:
    code = (
        f"import os; os.symlink({str(outside)!r}, 'a'); os.symlink('/etc/shadow', 'b'); os.mkfifo('c'); os.mkdir('d')"
    )
    assert jail.run(code, fetch=("a", "b", "c", "d"))["fetched"] == []


def test_other_processes_are_not_seen(jail: Jail, bystander: int) -> None:
    attempts = {
        "environ": f"open('/proc/{bystander}/environ').read()",
        "cmdline": f"open('/proc/{bystander}/cmdline').read()",
        "memory": f"open('/proc/{bystander}/mem', 'r+b')",
        "root": f"os.listdir('/proc/{bystander}/root')",
        "parent_environ": "open(f'/proc/{os.getppid()}/environ').read()",
        "parent_memory": "open(f'/proc/{os.getppid()}/mem', 'r+b')",
        "parent_files": "os.listdir(f'/proc/{os.getppid()}/fd')",
        "kernel": "open('/proc/sys/kernel/core_pattern', 'w')",
        "sysrq": "open('/proc/sysrq-trigger', 'w').write('h')",
    }
    assert outcomes(jail, attempts) == all_denied(attempts)


def test_other_processes_are_not_touched(jail: Jail, bystander: int) -> None:
    attempts = {
        "kill": f"os.kill({bystander}, {signal.SIGKILL:d})",
        "probe": f"os.kill({bystander}, 0)",
        "group": f"os.killpg({bystander}, {signal.SIGTERM:d})",
        "queue": f"syscall(129, {bystander}, 9, ctypes.create_string_buffer(128))",
        "ptrace": f"syscall(101, 16, {bystander}, 0, 0)",
        "read_memory": f"syscall(310, {bystander}, None, 0, None, 0, 0)",
        "limits": f"__import__('resource').prlimit({bystander}, 7, (0, 0))",
        "priority": f"os.setpriority(os.PRIO_PROCESS, {bystander}, 19)",
        "affinity": f"os.sched_setaffinity({bystander}, [0])",
        "steal_file": f"syscall(438, os.pidfd_open({bystander}), 0, 0)",
    }
    assert outcomes(jail, attempts) == all_denied(attempts)


def test_signals_to_everyone_reach_the_run_alone(jail: Jail, bystander: int) -> None:
    seen = jail.run("import os, signal\nos.kill(-1, signal.SIGKILL)\nprint('still here')")
    assert seen["ending"] == "exited"


def test_the_supervisor_is_not_touched(jail: Jail) -> None:
    attempts = {
        "ptrace": "syscall(101, 16, os.getppid(), 0, 0)",
        "limits": "__import__('resource').prlimit(os.getppid(), 7, (0, 0))",
        "output": "open(f'/proc/{os.getppid()}/fd/1', 'w').write('{}')",
    }
    setup = "import signal\nfor name in ('SIGKILL', 'SIGSTOP', 'SIGSEGV', 'SIGINT', 'SIGTERM'):\n"
    setup += "    try: os.kill(os.getppid(), getattr(signal, name))\n    except PermissionError: pass\n"
    assert outcomes(jail, attempts, setup) == all_denied(attempts)


def test_there_is_no_network_not_even_loopback(jail: Jail) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_UNIX) as local:
        local.bind("\0rlhf-escape-test")
        local.listen()
        port = server.getsockname()[1]
        attempts = {
            "loopback": f"socket.create_connection(('127.0.0.1', {port}), 1)",
            "address": "socket.create_connection(('192.0.2.1', 80), 1)",
            "datagram": "socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', 9))",
            "raw": "socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)",
            "packet": "socket.socket(socket.AF_PACKET, socket.SOCK_RAW)",
            "netlink": "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)",
            "abstract": "socket.socket(socket.AF_UNIX).connect('\\0rlhf-escape-test')",
            "listen": "socket.create_server(('127.0.0.1', 0))",
            "names": "socket.getaddrinfo('example.org', 80)",
            "ring": "syscall(425, 8, ctypes.create_string_buffer(120))",
        }
        assert outcomes(jail, attempts, "import socket") == all_denied(attempts)


def test_no_new_powers_are_gained(jail: Jail) -> None:
    attempts = {
        "root": "os.setresuid(0, 0, 0) or (os.getuid() == 0 and jail_is_root())",
        "namespace": "syscall(272, 0x10000000)",
        "clone_namespace": "syscall(56, 0x10000000 | 17, 0, 0, 0, 0)",
        "mount": "syscall(165, b'none', b'/tmp', b'tmpfs', 0, None)",
        "chroot": "os.chroot('.')",
        "bpf": "syscall(321, 0, 0, 0)",
        "keys": "syscall(250, 0, -3, 0)",
        "perf": "syscall(298, ctypes.create_string_buffer(128), 0, -1, -1, 0)",
        "shared_memory": "syscall(29, 4242, 4096, 0o1666)",
        "queue": "syscall(240, b'/q', 0o102, 0o666, None)",
        "memory_file": "os.memfd_create('x')",
        "clock": "__import__('time').clock_settime(0, 0)",
        "hostname": "__import__('socket').sethostname('evil')",
    }
    assert outcomes(jail, attempts) == all_denied(attempts)
    assert jail.run("import os; print(os.getuid(), os.getgid(), os.getgroups())")["stdout"].split()[0] != "0"


FORK_BOMB = """
import os, sys, time
count = 0
end = time.monotonic() + 5
while count < 40 and time.monotonic() < end:
    try:
        if os.fork() == 0:
            time.sleep(8)
            os._exit(0)
        count += 1
    except OSError:
        print("refused after", count)
        sys.exit(0)
print("forked", count)
"""


def test_a_fork_bomb_stops_at_its_limit(jail: Jail) -> None:
    seen = jail.run(FORK_BOMB)
    assert seen["stdout"].startswith("refused after") or "processes" in seen["detail"], seen
    assert "forked" not in seen["stdout"]


def test_a_tree_that_forks_without_end_is_gone_with_the_run(jail: Jail) -> None:
    code = f"""
import os, sys, time
if len(sys.argv) == 1:
    os.execv(sys.executable, [sys.executable, __file__, {jail.marker!r}])
end = time.monotonic() + 15  # were it not killed
def hop():
    while time.monotonic() < end:
        try:
            if os.fork():
                os._exit(0)
        except OSError:
            time.sleep(0.001)
for _ in range(3):
    if os.fork() == 0:
        os.setsid()
        hop()
        os._exit(0)
time.sleep(1)
"""
    assert jail.run(code)["ending"] in ("exited", "excess")
    assert jail.left_behind() == []


def daemon(jail: Jail) -> str:
    """Code that leaves a process behind: in a session of its own, without a parent, deaf to polite signals."""
    sleeper = f"import time; time.sleep(60)  # {jail.marker}"
    return f"""
import os, signal, sys
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        os.execv(sys.executable, [sys.executable, "-c", {sleeper!r}])
    os._exit(0)
os.wait()
print("left")
"""


def test_a_daemon_does_not_outlive_its_parent(jail: Jail) -> None:
    assert jail.run(daemon(jail))["stdout"] == "left\n"
    assert jail.left_behind() == []


def test_nothing_outlives_a_sandbox_that_is_killed(jail: Jail) -> None:
    runner = jail.begin()
    assert runner.stdin
    asked = {"level": jail.level, "python": readable_python(), "limits": LIMITS, "fetch": [], "bounded": True}
    runner.stdin.write(json.dumps(asked | {"code": daemon(jail) + "\nimport time; time.sleep(8)"}))
    runner.stdin.close()
    wait_until(lambda: any(jail.marker in line for line in jail.left_behind()), "the daemon")
    runner.kill()
    runner.wait(10)
    wait_until(lambda: jail.left_behind() == [], "the end of all")


def wait_until(true: Callable[[], bool], awaited: str) -> None:
    deadline = time.monotonic() + 20
    while not true():
        assert time.monotonic() < deadline, f"{awaited} did not come"
        time.sleep(0.05)


def test_memory_is_bounded_for_one_process(jail: Jail) -> None:
    attempts = {"ask": "len(bytearray(256 << 20))", "map": "len(__import__('mmap').mmap(-1, 256 << 20))"}
    assert outcomes(jail, attempts) == all_denied(attempts)


def test_memory_is_bounded_for_all_processes_together(jail: Jail) -> None:
    code = """
import os, time
for _ in range(4):
    if os.fork() == 0:
        hoard = bytearray(b"x") * (60 << 20)
        time.sleep(8)
        os._exit(0)
time.sleep(8)
"""
    seen = jail.run(code)
    assert (seen["ending"], seen["detail"]) == ("excess", "killed for using more than 128 MiB of memory")


DISK = {
    "one_file": "open('big', 'wb').write(bytes(16 << 20)); time.sleep(3)",
    "many_files": "[open(str(n), 'wb').write(bytes(1 << 20)) for n in range(24)]; time.sleep(3)",
    "without_a_name": (
        "held = []\n"
        "for n in range(24):\n"
        "    held.append(open('x', 'wb')); os.unlink('x'); held[-1].write(bytes(1 << 20)); held[-1].flush()\n"
        "time.sleep(3)"
    ),
    "empty_files": "[open(str(n), 'wb').close() for n in range(2000)]; time.sleep(3)",
}


@pytest.mark.parametrize("way", DISK)
def test_the_disk_cannot_be_filled(jail: Jail, way: str) -> None:
    seen = jail.run(
        f"import os, signal, time\nsignal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n{DISK[way]}\nprint('filled')"
    )
    assert "filled" not in seen["stdout"]
    assert seen["ending"] == "excess" or "OSError" in seen["stderr"], seen


def test_folders_without_rights_are_removed_all_the_same(jail: Jail) -> None:
    assert (
        jail.run("import os; os.makedirs('a/b'); open('a/b/c', 'w'); os.chmod('a/b', 0); os.chmod('a', 0)")[
            "return_code"
        ]
        == 0
    )


def test_endless_output_is_cut_and_ends_with_the_run(jail: Jail) -> None:
    seen = jail.run("while True: print('x' * 1000)", wall_seconds=1.0, output_bytes=10_000)
    assert seen["ending"] == "time"
    assert len(seen["stdout"]) < 10_200
    assert seen["stdout"].endswith("bytes after the first 10000]\n")


def test_the_environment_is_empty_of_secrets(jail: Jail) -> None:
    told = set(jail.run("import os; print(' '.join(os.environ))")["stdout"].split())
    settings = {"PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE", "MALLOC_ARENA_MAX"}
    assert told <= {"PATH", "LANG", "LC_CTYPE", "HOME", "TMPDIR", "PWD"} | settings
