"""Hostile code ends as the table says: it is never a failure of the sandbox, exceeds no limit, and leaves nothing."""

from __future__ import annotations

import signal
from typing import NamedTuple

import pytest

from rlhf.sandbox.program import Program
from tests.sandbox.conftest import LIMITS, Jail, jail, shared_jail, wait_until

EXITED, TIME, EXCESS = ("exited",), ("time",), ("excess",)
EITHER = ("exited", "excess")


class Hostile(NamedTuple):
    code: str
    endings: tuple[str, ...]
    fetch: tuple[str, ...] = ()
    said: str | None = None
    """Its standard output, if that is certain."""


BEGIN = """
import ctypes, mmap, os, resource, signal, socket, sys, threading, time
MIB = 1 << 20
libc = ctypes.CDLL(None, use_errno=True)
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
held = []
def attempt(what):
    try:
        return what()
    except (OSError, MemoryError, RuntimeError, ValueError):
        return None
def write(path, size=MIB):
    with open(path, "wb", buffering=0) as file:
        return file.write(bytes(size)) == size
def nameless(how):
    held.append(os.open(*how))
    if held[-1] and os.path.exists("x"):
        os.unlink("x")
    return os.write(held[-1], bytes(MIB)) == MIB
def forked(what):
    if (pid := os.fork()) == 0:
        what()
        time.sleep(5)
        os._exit(0)
    return pid
def thread():
    threading.Thread(target=time.sleep, args=(5,), daemon=True).start()
    return True
def count(most, what):
    # Prints a word if all attempts succeed, and stays until the sandbox has looked.
    if sum(bool(attempt(what)) for _ in range(most)) == most:
        print("exceeded")
    time.sleep(0.4)
"""

MEMORY = {
    "one large object": "attempt(lambda: print('exceeded', len(bytearray(256 * MIB))))",
    "a large mapping": "attempt(lambda: print('exceeded', len(mmap.mmap(-1, 256 * MIB, flags=mmap.MAP_PRIVATE))))",
    "a higher limit": "attempt(lambda: (resource.setrlimit(resource.RLIMIT_AS, (-1, -1)), print('exceeded')))",
    "a file in memory": "attempt(lambda: print('exceeded', os.memfd_create('x')))",
}
DISK = {
    "one file": "count(1, lambda: write('big', 16 * MIB))",
    "many files": "names = iter(range(99))\ncount(24, lambda: write(str(next(names))))",
    "empty files": "names = iter(range(9999))\ncount(2000, lambda: write(str(next(names)), 0) is not None)",
    "folders that cannot be listed": (
        "os.mkdir('closed', 0o300)\nnames = iter(range(99))\ncount(24, lambda: write(f'closed/{next(names)}'))"
    ),
    "folders too deep for a path": (
        "for n in range(40):\n    os.mkdir('n' * 200); os.chdir('n' * 200)\n"
        "names = iter(range(99))\ncount(24, lambda: write(str(next(names))))"
    ),
    "space that no size shows": (
        "file = open('x', 'wb')\ncount(1, lambda: libc.fallocate(file.fileno(), 1, ctypes.c_long(0), ctypes.c_long(16 * MIB)) == 0)"
    ),
}
DELETED_FILES = {
    "files without a name": "count(24, lambda: nameless(('x', os.O_RDWR | os.O_CREAT)))",
    "files that never had one": "count(24, lambda: nameless(('.', os.O_RDWR | os.O_TMPFILE)))",
}
"""Only a file system of its own size counts them."""
PROCESSES = {
    "forks": "count(40, lambda: forked(lambda: None))",
    "threads": "count(40, thread)",
    "daemons": "count(40, lambda: forked(lambda: (os.setsid(), attempt(os.fork))))",
    "programs": "count(40, lambda: os.posix_spawn('/bin/sleep', ['sleep', '5'], {}))",
}
OPEN_FILES = {"open files": "count(300, lambda: held.append(os.dup(0)) is None)"}
DEEP = "import os\nfor n in range({levels}):\n    os.mkdir({name!r}); os.chdir({name!r})\nprint('made')"

PROGRAMS: dict[str, Hostile] = {
    "folders deeper than a recursion": Hostile(DEEP.format(levels=450, name="a"), EXITED, said="made\n"),
    "folders deeper than the limit": Hostile(DEEP.format(levels=2000, name="a"), EITHER),
    "folders too deep for a path": Hostile(DEEP.format(levels=25, name="n" * 200), EITHER),
    "deep folders without rights": Hostile(
        "import os\nfor n in range(100):\n    os.mkdir('a', 0o300); os.chdir('a')\nos.chmod('.', 0)", EITHER
    ),
    "a folder without rights": Hostile("import os; os.mkdir('a'); open('a/b', 'w'); os.chmod('a', 0)", EXITED),
    "names that are no text": Hostile(
        r"import os; [os.mkdir(b'\xff%d\n\x1b[31m' % n) for n in range(5)]; open(b'\x80', 'w')", EXITED
    ),
    "its own folder without rights": Hostile("import os; os.chmod('.', 0)", EXITED),
    "its own program removed": Hostile("import os; os.unlink('main.py')", EXITED),
    "its own folder removed": Hostile(
        "import os\ntry: os.unlink('main.py'); os.rmdir(os.getcwd())\nexcept OSError: pass", EXITED
    ),
    "fetched: a pipe": Hostile("import os; os.mkfifo('x')", EXITED, ("x",)),
    "fetched: a folder": Hostile("import os; os.mkdir('x')", EXITED, ("x",)),
    "fetched: a device by a link": Hostile("import os; os.symlink('/dev/zero', 'x')", EXITED, ("x",)),
    "fetched: a link to itself": Hostile("import os; os.symlink('x', 'x')", EXITED, ("x",)),
    "fetched: a link outside": Hostile("import os; os.symlink('/etc/shadow', 'x')", EXITED, ("x",)),
    "fetched: without rights": Hostile("import os; os.close(os.open('x', os.O_CREAT, 0))", EXITED, ("x",)),
    "fetched: a hole of a file": Hostile("import os; open('x', 'w').truncate(7 << 20)", EXITED, ("x",)),
    "fetched: too deep": Hostile("print('x')", EXITED, ("a/" * 3000 + "x",)),
    "closed streams": Hostile("import os; [os.close(n) for n in (0, 1, 2)]", EXITED, said=""),
    "every descriptor closed": Hostile("import os; os.closerange(0, 4096)", EXITED, said=""),
    "descriptors that it inherited": Hostile(
        "import os\ndef there(n):\n    try: os.fstat(n)\n    except OSError: return False\n    return True\n"
        "print([n for n in range(3, 1024) if there(n)])",
        EXITED,
        said="[]\n",
    ),
    "output without end": Hostile("while True: print('x' * 1000)", TIME),
    "errors without end": Hostile("import sys\nwhile True: sys.stderr.write('x' * 1000)", TIME),
    "output that is no text": Hostile(r"import os; os.write(1, b'\xff\xfe\xed\xa0\x80\x00\x1b[2J' * 1000)", EXITED),
    "a false verdict": Hostile(
        'import os; os.write(1, b\'{"ending": "exited", "return_code": 0}\')\n'
        "for n in range(3, 64):\n    try: os.write(n, b'{}')\n    except OSError: pass\nos._exit(3)",
        EXITED,
    ),
    "the supervisor's exit code": Hostile("import os; os._exit(126)", EXITED),
    "killed by itself": Hostile("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", EXITED),
    "aborted": Hostile("import os; os.abort()", EXITED),
    "stopped for ever": Hostile("import os, signal; os.kill(os.getpid(), signal.SIGSTOP)", TIME),
    "a spin": Hostile("while True: pass", TIME),
    "every signal ignored": Hostile(
        "import signal\nfor n in range(1, 65):\n    try: signal.signal(n, signal.SIG_IGN)\n    except (OSError, ValueError): pass\n"
        "while True: pass",
        TIME,
    ),
    "a recursion without end": Hostile(
        "import sys; sys.setrecursionlimit(10**9)\ndef f(): f()\nf()", ("exited", "time")
    ),
    "a daemon": Hostile(
        "import os, time\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0: time.sleep(60)\n    os._exit(0)\nprint('left')",
        EXITED,
        said="left\n",
    ),
    "a daemon that adopts": Hostile(
        "import ctypes, os, time\nif os.fork() == 0:\n    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)\n"
        "    if os.fork() == 0:\n        if os.fork() == 0: time.sleep(60)\n        os._exit(0)\n    time.sleep(60)",
        EXITED,
    ),
    "daemons that fork without end": Hostile(
        "import os, time\nend = time.monotonic() + 5\nfor _ in range(3):\n    if os.fork() == 0:\n        while time.monotonic() < end:\n"
        "            try:\n                if os.fork(): os._exit(0)\n            except OSError: pass\n        os._exit(0)\ntime.sleep(0.3)",
        EITHER,
    ),
    "another program": Hostile("import os; os.execv('/bin/echo', ['echo', 'other'])", EXITED, said="other\n"),
    "no limit of its own left": Hostile(
        "import resource\nfor kind in range(16):\n    try: resource.setrlimit(kind, (0, 0))\n    except (OSError, ValueError): pass",
        ("exited",),
    ),
    "a program that is a folder": Hostile("import os; os.unlink('main.py'); os.mkdir('main.py')", EXITED),
    "a module that shadows the library": Hostile(
        "open('json.py', 'w').write('raise SystemExit(7)'); open('ctypes.py', 'w').write('import os; os.abort()')",
        EXITED,
    ),
}
PROGRAMS |= {
    f"too much: {way}": Hostile(BEGIN + code, EITHER)
    for ways in (MEMORY, DISK, DELETED_FILES, PROCESSES, OPEN_FILES)
    for way, code in ways.items()
}


__all__ = ["jail", "shared_jail"]
pytestmark = pytest.mark.engine
QUICK = (
    "folders too deep for a path",
    "descriptors that it inherited",
    "fetched: a link outside",
    "daemons that fork without end",
    "too much: one large object",
    "too much: many files",
    "too much: files without a name",
    "too much: forks",
)
MANY = [name for name in PROGRAMS if name not in QUICK]


def check(jail: Jail, name: str) -> None:
    program = PROGRAMS[name]
    if name.removeprefix("too much: ") in DELETED_FILES and not (jail.user == "root" or jail.level == "bubblewrap"):
        return  # only a file system of its own size counts them
    run = jail.try_out(program.code, fetch=program.fetch, wall_seconds=2.0 if "time" in program.endings else 10.0)
    assert run.ending in program.endings, (name, run)
    assert program.said in (None, run.stdout), (name, run)
    assert "exceeded" not in run.stdout or run.ending == "excess", (name, run)
    if name.startswith("fetched: ") and name not in ("fetched: a hole of a file", "fetched: without rights"):
        assert run.files == {}, (name, run)


def test_a_few_hostile_programs_end_as_they_must(jail: Jail) -> None:
    for name in QUICK:
        check(jail, name)


@pytest.mark.attack
@pytest.mark.parametrize("name", MANY)
def test_every_hostile_program_ends_as_it_must(jail: Jail, name: str) -> None:
    check(jail, name)


DAEMON = """
import os, signal, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        os.execv(sys.executable, [sys.executable, "-c", "import time; time.sleep(60)  # MARKER"])
    os._exit(0)
os.wait()
time.sleep({seconds})
"""


def test_a_deaf_daemon_does_not_outlive_its_run(jail: Jail) -> None:
    code = DAEMON.format(seconds=0).replace("MARKER", jail.marker)
    assert jail.try_out(code).return_code == 0
    assert jail.left_behind() == []


def test_nothing_outlives_a_service_that_is_killed(shared_jail: Jail) -> None:
    service = Jail(shared_jail.level, shared_jail.user)
    code = DAEMON.format(seconds=8).replace("MARKER", service.marker)
    service.send(Program(code=code), LIMITS)
    wait_until(lambda: any(service.marker in line for line in service.left_behind()), "the daemon")
    service.process.send_signal(signal.SIGKILL)
    service.process.wait(10)
    wait_until(lambda: service.left_behind() == [], "the end of all")
    service.end()


HOARD = """
import os, time
for _ in range(4):
    if os.fork() == 0:
        hoard = bytearray(b"x") * (60 << 20)
        time.sleep(1)
        os._exit(0)
for _ in range(4):
    os.wait()
"""


@pytest.mark.attack
def test_memory_of_all_processes_together_is_bounded_where_there_are_groups(jail: Jail) -> None:
    run = jail.try_out(HOARD)
    if jail.grouped:
        assert (run.ending, run.detail) == ("excess", "killed for using more than 128 MiB of memory")
    else:
        assert (run.ending, run.return_code) == ("exited", 0)
