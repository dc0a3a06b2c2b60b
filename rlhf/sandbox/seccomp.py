"""The seccomp filter of a run: which system calls are forbidden; assembled here and installed through ctypes.

It is a list of forbidden calls and not of allowed ones, because interpreters and their extensions use most of the
others. File access is left to mounts, namespaces and Landlock; the filter covers what these leave open.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct

from rlhf.sandbox.syscalls import SYSCALLS

ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
"""The column in the table of system calls, and the kernel's AUDIT_ARCH value."""
LOAD, AND, EQUAL, AT_LEAST, ANY_BIT, RETURN = 0x20, 0x54, 0x15, 0x35, 0x45, 0x06
ALLOW, KILL, ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
REFUSE, PRETEND, ABSENT = ERRNO | errno.EPERM, ERRNO, ERRNO | errno.ENOSYS
UNSUPPORTED = ERRNO | errno.EOPNOTSUPP
NUMBER_AT, ARCHITECTURE_AT, ARGUMENTS_AT = 0, 4, 16
PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2

NETWORK = "socket connect bind sendmsg sendmmsg io_uring_setup io_uring_enter io_uring_register"
"""`socketpair` is allowed because asyncio uses it to wake itself; so are `send` and `sendto` without an address. A call
with an address reaches sockets of other processes. `sendmsg` has its address in memory, out of the filter's reach, and
can also pass open files to where they are not counted."""
OTHER_PROCESSES = (
    "ptrace process_vm_readv process_vm_writev process_madvise process_mrelease kcmp pidfd_getfd "
    "setpriority ioprio_set migrate_pages move_pages"
)
KERNEL = (
    "bpf perf_event_open userfaultfd add_key request_key keyctl mount umount2 pivot_root move_mount open_tree fsopen "
    "fsconfig fsmount fspick mount_setattr unshare setns chroot reboot kexec_load kexec_file_load init_module "
    "finit_module delete_module swapon swapoff fanotify_init name_to_handle_at open_by_handle_at quotactl acct "
    "settimeofday adjtimex clock_settime clock_adjtime syslog personality ioperm iopl modify_ldt vhangup sethostname "
    "setdomainname nfsservctl lookup_dcookie quotactl_fd open_tree_attr statmount listmount listns lsm_get_self_attr "
    "lsm_set_self_attr lsm_list_modules landlock_create_ruleset landlock_add_rule landlock_restrict_self"
)
OUTLIVES_OR_ESCAPES_COUNTING = (
    "shmget shmat shmctl msgget msgsnd msgrcv msgctl semget semop semctl semtimedop mq_open mq_unlink "
    "memfd_create memfd_secret io_setup vmsplice inotify_init inotify_init1 inotify_add_watch"
)
ONLY_ITSELF = "prlimit64 sched_setaffinity sched_setscheduler sched_setparam sched_setattr"
"""Their first argument is a process id, and 0 is the caller."""
ATTRIBUTES = (
    "chmod fchmodat fchmodat2 chown lchown fchownat utime utimes utimensat futimesat setxattr lsetxattr removexattr "
    "lremovexattr fchmod fchown fsetxattr fremovexattr setxattrat removexattrat file_setattr"
)
"""Not covered by Landlock. They return success without effect, because `shutil.copy` and archivers call them on their
files."""
SHARED_ANONYMOUS = 0x21  # MAP_SHARED and MAP_ANONYMOUS
THREAD_AND_FILES, THREAD = 0x10400, 0x10000  # CLONE_THREAD and CLONE_FILES
SO_BUFFERS = (7, 8, 32, 33)  # send buffer, receive buffer, and the FORCE variants of both
PR_SET_DUMPABLE, PR_SET_MM = 4, 35
SIGNALS = "kill tkill tgkill"
OTHER_SIGNALS = "rt_sigqueueinfo rt_tgsigqueueinfo pidfd_send_signal"
NEW_NAMESPACES = 0x7E020000  # CLONE_NEWNS, CGROUP, UTS, IPC, USER, PID and NET
TERMINALS_AND_ATTRIBUTES = (0x5412, 0x541C, 0x40086602, 0x401C5820)  # TIOCSTI, TIOCLINUX, FS_IOC_SETFLAGS, FSSETXATTR
F_SETOWN, F_SETOWN_EX = 8, 15
F_SETLEASE, F_NOTIFY, F_SETPIPE_SZ = 1024, 1026, 1031
KNOWN = 1 + max(number for numbers in SYSCALLS.values() for number in numbers if number is not None)
"""Calls with higher numbers are newer than this file and not reviewed: they return ENOSYS."""


def install(
    *,
    files_outside: bool,
    others_outside: bool,
    truncate_covered: bool,
    counted: bool = True,
    sized: bool = True,
    hidden: bool = False,
) -> None:
    """Install the filter on this thread and its children; it cannot be removed. Raises `OSError`.

    `files_outside`: the machine's files are there, and only Landlock is before them; `truncate_covered`: it knows that
    call. `others_outside`: processes of the same user are there, and nothing but this filter stops a signal to them.
    `counted`: the kernel counts the memory of the run; `sized`: its folder cannot outgrow its size. `hidden`: the first
    process may hide, and whoever else does is ended for it.
    """
    column, architecture = ARCHITECTURES[os.uname().machine]
    forbidden = (NETWORK, OTHER_PROCESSES, KERNEL, OUTLIVES_OR_ESCAPES_COUNTING)
    rules = [rule for names in forbidden for rule in refused(names, column)]
    rules += calls("clone3", column, [_return(ABSENT)])  # its flags are in memory; libc falls back to clone
    rules += calls("clone", column, [*_unless_files_are_shared(), *forbidden_bits(0, NEW_NAMESPACES)])
    rules += calls("ioctl", column, forbidden_values(1, TERMINALS_AND_ATTRIBUTES))
    # Out of sight, a process could hold files that only the supervisor sees. In a namespace the folder has its size.
    hiding = (PR_SET_DUMPABLE,) if files_outside and not hidden else ()
    rules += calls("prctl", column, forbidden_values(0, (PR_SET_MM, *hiding)))
    rules += calls("setsockopt", column, forbidden_values(2, SO_BUFFERS))
    rules += calls("sendto", column, no_pointer(4))
    for name in ONLY_ITSELF.split():
        rules += calls(name, column, only_value(0, 0))
    if files_outside:
        rules += [rule for name in ATTRIBUTES.split() for rule in calls(name, column, [_return(PRETEND)])]
        rules += [] if truncate_covered else refused("truncate", column)
    rules += own_signals_only(column) if others_outside else []
    owners = (F_SETOWN, F_SETOWN_EX) if others_outside else ()
    rules += calls("fcntl", column, forbidden_values(1, (F_SETLEASE, F_NOTIFY, F_SETPIPE_SZ, *owners)))
    rules += [] if counted else calls("mmap", column, forbidden_together(3, SHARED_ANONYMOUS))
    rules += [] if sized else calls("fallocate", column, [_return(UNSUPPORTED)])  # libc writes zeros instead
    _load(_program(architecture, rules))


def own_signals_only(column: int) -> list[bytes]:
    """A process may send signals only to itself: enough for `abort` and threads."""
    own = [rule for name in SIGNALS.split() for rule in calls(name, column, only_value(0, os.getpid()))]
    return [*own, *refused(OTHER_SIGNALS, column)]


def refused(names: str, column: int) -> list[bytes]:
    """Rules that refuse these calls."""
    return [rule for name in names.split() for rule in calls(name, column, [_return(REFUSE)])]


def calls(name: str, column: int, then: list[bytes]) -> list[bytes]:
    """Rules that run `then` for that system call; `then` must end in a return. Empty if the machine has no such
    call."""
    number = SYSCALLS[name][column]
    return [] if number is None else [_jump(EQUAL, number, 0, len(then)), *then]


def forbidden_bits(argument: int, bits: int) -> list[bytes]:
    """Refuse the call if the argument has any of the bits."""
    return [_load_argument(argument), _jump(ANY_BIT, bits, 0, 1), _return(REFUSE), _return(ALLOW)]


def forbidden_values(argument: int, values: tuple[int, ...]) -> list[bytes]:
    """Refuse the call if the argument is one of the values."""
    tests = [rule for value in values for rule in (_jump(EQUAL, value, 0, 1), _return(REFUSE))]
    return [_load_argument(argument), *tests, _return(ALLOW)]


def forbidden_together(argument: int, bits: int) -> list[bytes]:
    """Refuse the call if the argument has all of the bits."""
    tests = [_instruction(AND, bits), _jump(EQUAL, bits, 0, 1), _return(REFUSE), _return(ALLOW)]
    return [_load_argument(argument), *tests]


def no_pointer(argument: int) -> list[bytes]:
    """Refuse the call unless the argument is a null pointer (both halves are 0)."""
    high = [_instruction(LOAD, ARGUMENTS_AT + 8 * argument + 4), _jump(EQUAL, 0, 1, 0), _return(REFUSE)]
    return [*high, *only_value(argument, 0)]


def _unless_files_are_shared() -> list[bytes]:
    """Refuse threads that do not share open files: they could hide open files."""
    load = [_load_argument(0), _instruction(AND, THREAD_AND_FILES)]
    return [*load, _jump(EQUAL, THREAD, 0, 1), _return(REFUSE)]


def only_value(argument: int, value: int) -> list[bytes]:
    """Refuse the call unless the argument has this value."""
    return [_load_argument(argument), _jump(EQUAL, value, 1, 0), _return(REFUSE), _return(ALLOW)]


def _program(architecture: int, rules: list[bytes]) -> bytes:
    start = [
        _instruction(LOAD, ARCHITECTURE_AT),
        _jump(EQUAL, architecture, 1, 0),
        _return(KILL),
        _instruction(LOAD, NUMBER_AT),
        _jump(AT_LEAST, KNOWN, 0, 1),  # also above: the x32 interface
        _return(ABSENT),
    ]
    return b"".join([*start, *rules, _return(ALLOW)])


def _load(program: bytes) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    buffer = ctypes.create_string_buffer(program)
    header = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(buffer))
    nothing = ctypes.c_ulong(0)
    if libc.prctl(PR_SET_NO_NEW_PRIVS, ctypes.c_ulong(1), nothing, nothing, nothing):
        raise OSError(ctypes.get_errno(), "no_new_privs was refused")
    if libc.prctl(PR_SET_SECCOMP, ctypes.c_ulong(SECCOMP_MODE_FILTER), header):
        raise OSError(ctypes.get_errno(), "the seccomp filter was refused")


def _instruction(code: int, value: int, then: int = 0, otherwise: int = 0) -> bytes:
    return struct.pack("HBBI", code, then, otherwise, value)


def _jump(code: int, value: int, then: int, otherwise: int) -> bytes:
    return _instruction(code, value, then, otherwise)


def _return(verdict: int) -> bytes:
    return _instruction(RETURN, verdict)


def _load_argument(index: int) -> bytes:
    return _instruction(LOAD, ARGUMENTS_AT + 8 * index)
