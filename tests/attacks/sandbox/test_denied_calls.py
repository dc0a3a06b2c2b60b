"""Every call of the table is denied on every level, for every user, except those that the table allows."""

from __future__ import annotations

import json
import os
import socket
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from rlhf.sandbox import seccomp
from tests.sandbox.conftest import Jail, jail, shared_jail

LIBRARY = """
import ctypes, errno, fcntl, json, mmap, os, resource, signal, socket, struct, sys, time
DENIED = {errno.EPERM, errno.EACCES, errno.ENOSYS, errno.EROFS, errno.ENOENT, errno.ESRCH, errno.EXDEV, errno.ENOTSUP}
DENIED |= {socket.EAI_AGAIN, socket.EAI_NONAME}
libc = ctypes.CDLL(None, use_errno=True)
UNLIMITED = struct.pack("QQ", 2**64 - 1, 2**64 - 1)
buffer = ctypes.create_string_buffer(4096)
def number(value):
    return ctypes.c_long(value) if isinstance(value, int) else value
def call(name, *arguments):
    code = name if isinstance(name, int) else NUMBERS[name]
    result = libc.syscall(ctypes.c_long(code), *map(number, arguments))
    if result < 0:
        raise OSError(ctypes.get_errno(), name)
    return result
def child(flags):
    if (pid := call("clone", flags | signal.SIGCHLD, 0, 0, 0, 0)) == 0:
        os._exit(0)
    return pid
def pair(kind=socket.SOCK_DGRAM):
    return socket.socketpair(socket.AF_UNIX, kind)
def to_abstract(name):
    text = b"\\0" + name.encode()
    address = struct.pack("H", socket.AF_UNIX) + text
    return ctypes.create_string_buffer(address, len(address)), len(address)
def it_is(true):
    if not true:
        raise OSError(errno.EPERM, "it only pretended")
def gained(what, true):
    try:
        what()
    except OSError:
        pass
    it_is(true())
def prctl(*arguments):
    if libc.prctl(*arguments) < 0:
        raise OSError(errno.EPERM, "prctl")
def opened(path, flags=os.O_RDONLY):
    return os.close(os.open(path, flags))
def fork():
    # Without a map of users of its own the limit of processes counts those of other tests with it.
    for _ in range(100):
        try:
            return os.fork()
        except BlockingIOError:
            time.sleep(0.1)
    return os.fork()
def attempt(name, what):
    receive, send = os.pipe()
    if (process := fork()) == 0:
        signal.alarm(3)
        try:
            outcome = ["done", repr(what())[:60]]
        except OSError as error:
            name_of_error = errno.errorcode.get(error.errno, str(error.errno))
            outcome = ["denied" if error.errno in DENIED else "done", name_of_error]
        except BaseException as error:
            outcome = ["raised", repr(error)[:200]]
        os.write(send, json.dumps([name, *outcome]).encode() + b"\\n")
        os._exit(0)
    os.close(send)
    with open(receive) as pipe:
        said = pipe.read()
    status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    print(said.strip() or json.dumps([name, "denied", f"killed {status}"]), flush=True)
"""

FILES = {
    "read a file": "open(OUTSIDE).read()",
    "read /etc/shadow": "open('/etc/shadow').read()",
    "write a file": "open(OUTSIDE, 'r+').write('x')",
    "create a file": "open(FOLDER + '/new', 'w')",
    "truncate a file": "os.truncate(OUTSIDE, 0)",
    "unlink a file": "os.unlink(OUTSIDE)",
    "rename it in": "os.rename(OUTSIDE, 'mine')",
    "rename one out": "(open('own', 'w').close(), os.rename('own', FOLDER + '/own'))",
    "link it in": "os.link(OUTSIDE, 'mine')",
    "link one out": "(open('own2', 'w').close(), os.link('own2', FOLDER + '/own'))",
    "symlink out": "os.symlink('x', FOLDER + '/new-link')",
    "read through a link": "(os.symlink(OUTSIDE, 'way'), open('way').read())",
    "read through descriptors of folders": "opened('/proc/self/root' + OUTSIDE)",
    "read through ..": "open('../../../../..' + OUTSIDE).read()",
    "list a folder": "os.listdir(FOLDER)",
    "list /root": "os.listdir('/root')",
    "make a folder": "os.mkdir(FOLDER + '/sub')",
    "remove a folder": "os.rmdir(FOLDER + '/empty')",
    "make a pipe": "os.mkfifo(FOLDER + '/fifo')",
    "make a device": "os.mknod('disk', 0o060666, os.makedev(8, 0))",
    "make a socket file": "os.mknod('sock', 0o140666)",
    "run a file": "os.execv(OUTSIDE, ['x'])",
    "write to /usr": "open('/usr/lib/evil', 'w')",
    "write to a program": "open('/usr/bin/env', 'r+')",
    "write to the Python": "open(os.path.realpath(sys.executable), 'r+')",
    "write to its library": "open(os.__file__, 'r+')",
    "write to /": "open('/evil', 'w')",
    "write to /dev": "open('/dev/evil', 'w')",
    "write to /var/tmp": "open('/var/tmp/evil', 'w')",
    "map a file": "mmap.mmap(os.open(OUTSIDE, os.O_RDWR), 1)",
    "watch a file": "call('inotify_add_watch', os.open('.', os.O_RDONLY), OUTSIDE.encode(), 0xfff)",
    "open /dev/mem": "open('/dev/mem', 'rb')",
    "open /dev/tty": "open('/dev/tty', 'r+b')",
    "open the system bus": "open('/run/dbus/system_bus_socket')",
}

PROCESSES = {
    "read an environment": "open(f'/proc/{BYSTANDER}/environ').read()",
    "open memory": "open(f'/proc/{BYSTANDER}/mem', 'r+b')",
    "list open files": "os.listdir(f'/proc/{BYSTANDER}/fd')",
    "enter a root": "os.listdir(f'/proc/{BYSTANDER}/root')",
    "read the supervisor's environment": "open(f'/proc/{SUPERVISOR}/environ').read()",
    "open the supervisor's memory": "open(f'/proc/{SUPERVISOR}/mem', 'r+b')",
    "open the supervisor's files": "os.listdir(f'/proc/{SUPERVISOR}/fd')",
    "write to the supervisor's output": "open(f'/proc/{SUPERVISOR}/fd/1', 'w').write('{}')",
    "kill": "os.kill(BYSTANDER, signal.SIGKILL)",
    "stop": "os.kill(BYSTANDER, signal.SIGSTOP)",
    "probe by signal 0": "os.kill(BYSTANDER, 0)",
    "tgkill": "call('tgkill', BYSTANDER, BYSTANDER, 9)",
    "tkill": "call('tkill', BYSTANDER, 9)",
    "queue a signal": "call('rt_sigqueueinfo', BYSTANDER, 9, buffer)",
    "signal by descriptor": "call('pidfd_send_signal', os.pidfd_open(BYSTANDER), 9, None, 0)",
    "ptrace attach": "call('ptrace', 16, BYSTANDER, 0, 0)",
    "ptrace the supervisor": "call('ptrace', 16, SUPERVISOR, 0, 0)",
    "be traced": "call('ptrace', 0, 0, 0, 0)",
    "read memory": "call('process_vm_readv', BYSTANDER, None, 0, None, 0, 0)",
    "write memory": "call('process_vm_writev', BYSTANDER, None, 0, None, 0, 0)",
    "take a descriptor": "call('pidfd_getfd', os.pidfd_open(os.getpid()), 0, 0)",
    "limits": "resource.prlimit(BYSTANDER, resource.RLIMIT_NOFILE, (0, 0))",
    "limits of the supervisor": "resource.prlimit(SUPERVISOR, resource.RLIMIT_NOFILE, (0, 0))",
    "priority": "os.setpriority(os.PRIO_PROCESS, BYSTANDER, 19)",
    "priority of all": "os.setpriority(os.PRIO_USER, 0, 19)",
    "affinity": "os.sched_setaffinity(BYSTANDER, [0])",
    "scheduler": "call('sched_setscheduler', BYSTANDER, 0, buffer)",
    "scheduling attributes": "call('sched_setattr', BYSTANDER, buffer, 0)",
    "move pages": "call('move_pages', BYSTANDER, 0, None, None, None, 0)",
    "SIGSEGV to the supervisor": "os.kill(SUPERVISOR, signal.SIGSEGV)",
    "SIGSTOP to the supervisor": "os.kill(SUPERVISOR, signal.SIGSTOP)",
    "SIGTERM to the supervisor": "os.kill(SUPERVISOR, signal.SIGTERM)",
    "owner of a descriptor's signals": "fcntl.fcntl(0, fcntl.F_SETOWN, BYSTANDER) or os.kill(BYSTANDER, 0)",
}

NETWORK = {
    "connect on loopback": "socket.create_connection(('127.0.0.1', PORT), 1)",
    "connect outward": "socket.create_connection(('192.0.2.1', 80), 1)",
    "datagram": "socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', 9))",
    "packet": "socket.socket(socket.AF_PACKET, socket.SOCK_RAW)",
    "netlink": "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)",
    "kernel ciphers": "socket.socket(socket.AF_ALG, socket.SOCK_SEQPACKET)",
    "listen": "socket.create_server(('127.0.0.1', 0))",
    "names": "socket.getaddrinfo('localhost', PORT) and socket.create_connection(('localhost', PORT), 1)",
    "unix socket": "socket.socket(socket.AF_UNIX)",
    "pair connects": "pair()[0].connect('\\0' + ABSTRACT)",
    "pair sends to an address": "pair()[0].sendto(b'x', '\\0' + ABSTRACT)",
    "pair sends a message to an address": "pair()[0].sendmsg([b'x'], [], 0, '\\0' + ABSTRACT)",
    "pair sends a message": "pair()[0].sendmsg([b'x'])",
    "pair sends descriptors": "socket.send_fds(pair()[0], [b'x'], [0])",
    "pair sends to a socket file": "pair()[0].sendto(b'x', SOCKET)",
    "pair connects to a socket file": "(lambda end: (end.connect(SOCKET), end.send(b'x')))(pair()[0])",
    "pair binds": "pair()[0].bind('\\0rlhf-attack')",
    "pair binds to a file": "pair()[0].bind('bound')",
    "pair sends to a pointer": "call('sendto', pair()[0].detach(), b'x', 1, 0, *to_abstract(ABSTRACT))",
    "pair sends to a high pointer": "call('sendto', pair()[0].detach(), b'x', 1, 0, 1 << 32, 0)",
    "larger buffer by force": "pair()[0].setsockopt(socket.SOL_SOCKET, 32, 1 << 20)",
    "ring": "call('io_uring_setup', 8, buffer)",
}

NAMESPACES = {
    f"{verb} {name}": f"{how}({flag:#x})"
    for verb, how in (("unshare", "os_unshare"), ("clone", "child"))
    for name, flag in {
        "mounts": 0x00020000,
        "groups": 0x02000000,
        "host name": 0x04000000,
        "ipc": 0x08000000,
        "users": 0x10000000,
        "processes": 0x20000000,
        "network": 0x40000000,
    }.items()
}
NAMESPACES = {name: what.replace("os_unshare", "(lambda f: call('unshare', f))") for name, what in NAMESPACES.items()}
NAMESPACES |= {
    "join one": "call('setns', os.open('/proc/self/ns/net', os.O_RDONLY), 0)",
    "clone3": "call('clone3', buffer, 88)",
    "chroot": "os.chroot('.')",
    "pivot_root": "call('pivot_root', b'.', b'.')",
    "mount": "call('mount', b'none', b'.', b'tmpfs', 0, None)",
    "remount": "call('mount', b'none', b'/', None, 32 | 4096, None)",
    "umount": "call('umount2', b'/proc', 2)",
    "move_mount": "call('move_mount', -100, b'.', -100, b'.', 0)",
    "open_tree": "call('open_tree', -100, b'.', 1)",
    "fsopen": "call('fsopen', b'tmpfs', 0)",
}

KERNEL = {
    "bpf": "call('bpf', 0, buffer, 64)",
    "performance events": "call('perf_event_open', buffer, 0, -1, -1, 0)",
    "faults in user space": "call('userfaultfd', 1)",
    "add a key": "call('add_key', b'user', b'x', b'x', 1, -3)",
    "keys": "call('keyctl', 0, -3, 0)",
    "reboot": "call('reboot', 0, 0, 0, None)",
    "kexec": "call('kexec_load', 0, 0, None, 0)",
    "load a module": "call('init_module', buffer, 0, b'')",
    "swap on": "call('swapon', b'x', 0)",
    "fanotify": "call('fanotify_init', 0, 0)",
    "handle of a file": "call('name_to_handle_at', -100, b'.', buffer, buffer, 0)",
    "accounting": "call('acct', None)",
    "set the time": "call('settimeofday', buffer, None)",
    "set a clock": "time.clock_settime(time.CLOCK_REALTIME, 0)",
    "kernel log": "call('syslog', 3, buffer, 4096)",
    "personality": "call('personality', 0x0400000)",
    "ports": "call('ioperm', 0, 8, 1)",
    "segments": "call('modify_ldt', 0, buffer, 64)",
    "hang up": "call('vhangup')",
    "host name": "socket.sethostname('evil')",
    "core pattern": "open('/proc/sys/kernel/core_pattern', 'w').write('|/bin/sh')",
    "sysrq": "open('/proc/sysrq-trigger', 'w').write('h')",
    "kcore": "open('/proc/kcore', 'rb').read(1)",
    "control groups": "os.listdir('/sys/fs/cgroup')",
    "a call of tomorrow": "call(600)",
    "a call of the x32 interface": "call(0x40000000 | 39)",
    "flags of a file": "fcntl.ioctl(os.open('.', os.O_RDONLY), 0x40086602, struct.pack('l', 16))",
    "extended flags of a file": "fcntl.ioctl(os.open('.', os.O_RDONLY), 0x401C5820, bytes(28))",
}

COUNTING = {
    "shared memory": "call('shmget', 4242, 4096, 0o1666)",
    "attach shared memory": "call('shmat', 0, None, 0)",
    "message queue": "call('msgget', 4242, 0o1666)",
    "send a message": "call('msgsnd', 0, buffer, 1, 0)",
    "semaphores": "call('semget', 4242, 1, 0o1666)",
    "semaphore operation": "call('semop', 0, buffer, 1)",
    "posix queue": "call('mq_open', b'q', 0o102, 0o666, None)",
    "file in memory": "os.memfd_create('x')",
    "asynchronous contexts": "call('io_setup', 60000, buffer)",
    "lease": "fcntl.fcntl(os.open(sys.executable, os.O_RDONLY), 1024, 0)",
    "lock memory": "it_is(libc.mlock(buffer, 4096) == 0)",
    "spare itself when memory is short": "open('/proc/self/oom_score_adj', 'w').write('0')",
    "raise a limit": "call('prlimit64', 0, resource.RLIMIT_NPROC, UNLIMITED, None)",
    "raise the limit of memory": "call('prlimit64', 0, resource.RLIMIT_AS, UNLIMITED, None)",
    "be a real-time process": "os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(50))",
    "be more important": "os.nice(-5)",
}

RIGHTS = {
    "become root": "gained(lambda: os.setresuid(0, 0, 0), lambda: 0 in os.getresuid())",
    "become the group root": "gained(lambda: os.setresgid(0, 0, 0), lambda: 0 in os.getresgid())",
    "groups": "gained(lambda: os.setgroups([0]), lambda: 0 in os.getgroups())",
    "change its rights": "(os.chmod(OUTSIDE, 0o600), it_is(os.stat(OUTSIDE).st_mode & 0o777 == 0o600))",
    "change its dates": "(os.utime(OUTSIDE, (0, 0)), it_is(os.stat(OUTSIDE).st_mtime == 0))",
    "leave no_new_privs": "prctl(38, 0, 0, 0, 0)",
    "raise an ambient capability": "prctl(47, 2, 21, 0, 0)",
    "write its map of users": "open('/proc/self/uid_map', 'w').write('0 0 1')",
    "allow its map of groups": "open('/proc/self/setgroups', 'w').write('allow')",
    "write its security label": "open('/proc/self/attr/current', 'w').write('x')",
}

LOOKING = {
    "see that a file exists": "os.stat(OUTSIDE).st_size",
    "read where a link leads": "os.readlink(LINK)",
    "size of a file system": "os.statvfs(FOLDER)",
    "read /proc": "open('/proc/self/status').read()",
    "list the sandbox's own processes": "os.listdir('/proc')",
}

MAPPING = {
    "share memory without a file": "mmap.mmap(-1, 4096)",
    "share memory by /dev/zero": "mmap.mmap(os.open('/dev/zero', os.O_RDWR), 4096)",
}

GROUPS: Mapping[str, Mapping[str, str]] = {
    "files outside": FILES,
    "other processes, the supervisor": PROCESSES,
    "network and sockets": NETWORK,
    "namespaces and mounts": NAMESPACES,
    "the kernel": KERNEL,
    "what no limit counts": COUNTING,
    "rights": RIGHTS,
    "looking": LOOKING,
    "memory that is shared": MAPPING,
}

ALLOWED: Mapping[str, Mapping[str, str]] = {
    "see that a file exists": {"landlock": "Landlock does not cover it"},
    "read where a link leads": {"landlock": "Landlock does not cover it"},
    "size of a file system": {"landlock": "Landlock does not cover it"},
    "read /proc": {"bubblewrap": "of the run alone"},
    "list the sandbox's own processes": {"bubblewrap": "of the run alone"},
    "share memory without a file": {"control groups": "they count it"},
    "share memory by /dev/zero": {"control groups": "they count it"},
}
"""Call → where it may be done, and why: on a level, or where there are control groups."""


def attempts() -> dict[str, str]:
    """All calls, `group: name` → expression."""
    return {f"{group}: {name}": what for group, calls in GROUPS.items() for name, what in calls.items()}


def program(numbers: Mapping[str, int], values: Mapping[str, object]) -> str:
    """Python that tries every call and prints a line of JSON for each: name, outcome, and what was seen."""
    known = [f"NUMBERS = {dict(numbers)!r}", *(f"{name} = {value!r}" for name, value in values.items())]
    tries = [f"attempt({name!r}, lambda: {what})" for name, what in attempts().items()]
    return "\n".join([LIBRARY, *known, "SUPERVISOR = os.getppid()", *tries])


def allowed(name: str, level: str, *, grouped: bool) -> bool:
    places = ALLOWED.get(name.partition(": ")[2], {})
    return level in places or (grouped and "control groups" in places)


__all__ = ["jail", "shared_jail"]
pytestmark = pytest.mark.engine
OTHERS = (
    "move_pages 279 239, mount 165 40, umount2 166 39, pivot_root 155 41, move_mount 429 429, open_tree 428 428, "
    "fsopen 430 430, setns 308 268, reboot 169 142, kexec_load 246 104, init_module 175 105, swapon 167 224, acct "
    "163 89, settimeofday 164 170, ioperm 173 -, vhangup 153 58, clone 56 220, clone3 435 435, sendto 44 206"
)
"""Calls that the kernel denies without the filter, or that the filter denies by their arguments."""


def numbers() -> dict[str, int]:
    """Numbers of this machine's system calls; one that it does not have gets a number that no call has."""
    tables = (seccomp.REFUSED, seccomp.ONLY_ITSELF, seccomp.SIGNALS, seccomp.OTHER_SIGNALS, OTHERS)
    rows = {name: number for table in tables for name, number in seccomp.syscall_numbers(table).items()}
    return {name: 9999 if number is None else number for name, number in rows.items()}


@pytest.fixture
def outside() -> Iterator[Path]:
    """A folder where everybody may do everything, with a file, a link and an empty folder."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        os.chmod(folder, 0o777)
        (Path(folder) / "file").write_text("untouched")
        (Path(folder) / "file").chmod(0o777)
        (Path(folder) / "link").symlink_to("/secret/place")
        (Path(folder) / "empty").mkdir()
        yield Path(folder)


def outcomes(jail: Jail, outside: Path) -> dict[str, tuple[str, str]]:
    """Call → outcome and what was seen, all tried in one run."""
    bystander = jail.bystander()
    name = f"rlhf-attack-{os.getpid()}"
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as abstract,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as at_a_path,
    ):
        abstract.bind(f"\0{name}")
        at_a_path.bind(str(outside / "socket"))
        (outside / "socket").chmod(0o777)
        values = {
            "OUTSIDE": str(outside / "file"),
            "LINK": str(outside / "link"),
            "FOLDER": str(outside),
            "BYSTANDER": bystander.pid,
            "PORT": server.getsockname()[1],
            "ABSTRACT": name,
            "SOCKET": str(outside / "socket"),
        }
        try:
            run = jail.try_out(program(numbers(), values), wall_seconds=60.0)
            assert bystander.poll() is None
        finally:
            bystander.kill()
            bystander.wait(10)
        for listener in (abstract, at_a_path):
            listener.setblocking(False)
            with pytest.raises(BlockingIOError):
                listener.recv(1)
    lines = [json.loads(line) for line in run.stdout.splitlines()]
    assert [line[0] for line in lines] == list(attempts()), run.stderr + run.detail
    return {name: (outcome, what) for name, outcome, what in lines}


def test_every_call_is_denied_except_those_that_are_allowed(jail: Jail, outside: Path) -> None:
    if jail.user == "nobody":
        os.chown(outside / "file", 65534, 65534)
    before = (outside / "file").stat()
    wrong = {
        name: seen
        for name, seen in outcomes(jail, outside).items()
        if seen[0] != ("done" if allowed(name, jail.level, grouped=jail.grouped) else "denied")
    }
    assert not wrong, "\n".join(map(str, wrong.items()))
    assert (outside / "file").stat() == before
    assert os.listxattr(outside / "file") == []
    assert sorted(path.name for path in outside.iterdir()) == ["empty", "file", "link", "socket"]
