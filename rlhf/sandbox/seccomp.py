"""The seccomp filter of a run, installed through ctypes. It lists forbidden calls and not allowed ones, because
interpreters and their extensions use most of the others. Files are left to mounts, namespaces and Landlock, and calls
that need a capability to the kernel, which grants the program none. Source of the numbers: the kernel's tables of
system calls."""

from __future__ import annotations

import ctypes
import errno
import os
import struct

from rlhf.sandbox import landlock
from rlhf.sandbox.run_request import Jail

ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
"""The column in the tables below, and the kernel's AUDIT_ARCH value. A table has the name of each call and its number
on each architecture, "-" if there is no such call."""
REFUSED = (
    # The network and sockets of other processes. `socketpair` is allowed because asyncio uses it to wake itself.
    # `sendmsg` has an address in memory, out of the filter's reach, and can pass open files.
    "socket 41 198, connect 42 203, bind 49 200, sendmsg 46 211, sendmmsg 307 269, io_uring_setup 425 425,"
    # Other processes.
    "ptrace 101 117, process_vm_readv 310 270, process_vm_writev 311 271, pidfd_getfd 438 438, setpriority 141 140,"
    "ioprio_set 251 30,"
    # Parts of the kernel that need no capability, or that watch files which Landlock hides.
    "unshare 272 97, bpf 321 280, perf_event_open 298 241, userfaultfd 323 282, add_key 248 217, request_key 249 218,"
    "keyctl 250 219, syslog 103 116, personality 135 92, modify_ldt 154 -, name_to_handle_at 303 264,"
    "fanotify_init 300 262, inotify_add_watch 254 27,"
    # Memory and objects that outlive the run, or that no limit counts.
    "shmget 29 194, shmat 30 196, shmctl 31 195, msgget 68 186, msgsnd 69 189, msgrcv 70 188, msgctl 71 187,"
    "semget 64 190, semop 65 193, semctl 66 191, semtimedop 220 192, mq_open 240 180, mq_unlink 241 181,"
    "memfd_create 319 279, io_setup 206 0"
)
ATTRIBUTES = (
    "chmod 90 -, fchmod 91 52, fchmodat 268 53, fchmodat2 452 452, chown 92 -, fchown 93 55, lchown 94 -,"
    "fchownat 260 54, utime 132 -, utimes 235 -, futimesat 261 -, utimensat 280 88, setxattr 188 5, lsetxattr 189 6,"
    "fsetxattr 190 7, removexattr 197 14, lremovexattr 198 15, fremovexattr 199 16"
)
"""Landlock does not cover them. They return success without effect, because `shutil.copy` and archivers call them on
their files."""
ONLY_ITSELF = (
    "prlimit64 302 261, sched_setaffinity 203 122, sched_setscheduler 144 119, sched_setparam 142 118,"
    "sched_setattr 314 274"
)
"""Their first argument is a process id, and 0 is the caller."""
SIGNALS = "kill 62 129, tkill 200 130, tgkill 234 131"
OTHER_SIGNALS = "rt_sigqueueinfo 129 138, rt_tgsigqueueinfo 297 240, pidfd_send_signal 424 424"
FIRST_UNKNOWN = 453
"""Calls with this number and higher ones return ENOSYS, as on Linux 6.6; also those of the x32 interface."""

LOAD, AND, EQUAL, AT_LEAST, ANY_BIT, RETURN = 0x20, 0x54, 0x15, 0x35, 0x45, 0x06
ALLOW, KILL, ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
REFUSE, PRETEND, ABSENT = ERRNO | errno.EPERM, ERRNO, ERRNO | errno.ENOSYS
UNSUPPORTED = ERRNO | errno.EOPNOTSUPP
NUMBER_AT, ARCHITECTURE_AT, ARGUMENTS_AT = 0, 4, 16
PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 22, 2
NEW_NAMESPACES = 0x7E020000  # CLONE_NEWNS, CGROUP, UTS, IPC, USER, PID and NET
SHARED_ANONYMOUS = 0x21  # MAP_SHARED and MAP_ANONYMOUS
SET_ATTRIBUTES = (0x40086602, 0x401C5820)  # FS_IOC_SETFLAGS, FS_IOC_FSSETXATTR
SIGNAL_OWNERS_AND_LEASES = (8, 15, 1024)  # F_SETOWN, F_SETOWN_EX, F_SETLEASE


def install(jail: Jail) -> None:
    """Install the filter on this thread and its children, for good. Needs `no_new_privs`. Raises `OSError`."""
    architecture = ARCHITECTURES[os.uname().machine][1]
    rules: list[bytes] = []

    def add(table: str, *then: bytes) -> None:
        """Let `then` decide the calls of the table. It must end in a return."""
        for number in syscall_numbers(table).values():
            rules.extend([] if number is None else [_instruction(EQUAL, number, 0, len(then)), *then])

    refuse, allow, abi = _return(REFUSE), _return(ALLOW), landlock.version() if jail.landlock else 0
    add(REFUSED, refuse)
    add(ONLY_ITSELF, _low_half(0), _instruction(EQUAL, 0, 1, 0), refuse, allow)
    add("clone3 435 435", _return(ABSENT))  # its flags are in memory; libc falls back to clone
    add("clone 56 220", _low_half(0), _instruction(ANY_BIT, NEW_NAMESPACES, 0, 1), refuse, allow)
    add("ioctl 16 29", _low_half(1), *_refuse_values(SET_ATTRIBUTES), allow)
    add("fcntl 72 25", _low_half(1), *_refuse_values(SIGNAL_OWNERS_AND_LEASES), allow)
    is_null = [_high_half(4), _instruction(EQUAL, 0, 1, 0), refuse, _low_half(4), _instruction(EQUAL, 0, 1, 0), refuse]
    add("sendto 44 206", *is_null, allow)  # an address reaches sockets of other processes
    if not jail.alone:
        add(ATTRIBUTES, _return(PRETEND))
        if abi < landlock.TRUNCATE_SINCE:
            add("truncate 76 45", refuse)
        if jail.uid is None and abi < landlock.SCOPES_SINCE:  # nothing else stops a signal to processes of this user
            add(SIGNALS, _low_half(0), _instruction(EQUAL, os.getpid(), 1, 0), refuse, allow)
            add(OTHER_SIGNALS, refuse)
    if jail.entrance is None:  # without a group nothing counts shared memory that is no longer mapped
        has_all = [_instruction(AND, SHARED_ANONYMOUS), _instruction(EQUAL, SHARED_ANONYMOUS, 0, 1)]
        add("mmap 9 222", _low_half(3), *has_all, refuse, allow)
    if not jail.sized:  # it reserves space beyond the limit on the size of files; libc writes zeros instead
        add("fallocate 285 47", _return(UNSUPPORTED))
    start = [
        _instruction(LOAD, ARCHITECTURE_AT),
        _instruction(EQUAL, architecture, 1, 0),
        _return(KILL),
        _instruction(LOAD, NUMBER_AT),
        _instruction(AT_LEAST, FIRST_UNKNOWN, 0, 1),
        _return(ABSENT),
    ]
    _load(b"".join([*start, *rules, allow]))


def syscall_numbers(table: str) -> dict[str, int | None]:
    """Return name → number on this machine; None for a call that it lacks."""
    column = ARCHITECTURES[os.uname().machine][0]
    rows = ((name, numbers[column]) for name, *numbers in map(str.split, table.split(",")))
    return {name: None if number == "-" else int(number) for name, number in rows}


def _load(program: bytes) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    buffer = ctypes.create_string_buffer(program)
    header = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(buffer))
    if libc.prctl(PR_SET_SECCOMP, ctypes.c_ulong(SECCOMP_MODE_FILTER), header):
        raise OSError(ctypes.get_errno(), "the seccomp filter was refused")


def _instruction(code: int, value: int, then: int = 0, otherwise: int = 0) -> bytes:
    """Return a BPF instruction. A test skips `then` instructions if it is true, and `otherwise` if not."""
    return struct.pack("HBBI", code, then, otherwise, value)


def _return(verdict: int) -> bytes:
    return _instruction(RETURN, verdict)


def _low_half(argument: int) -> bytes:
    return _instruction(LOAD, ARGUMENTS_AT + 8 * argument)


def _high_half(argument: int) -> bytes:
    return _instruction(LOAD, ARGUMENTS_AT + 8 * argument + 4)


def _refuse_values(values: tuple[int, ...]) -> list[bytes]:
    return [rule for value in values for rule in (_instruction(EQUAL, value, 0, 1), _return(REFUSE))]
