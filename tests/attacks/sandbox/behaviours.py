"""What hostile code can do as a whole, and how the sandbox must call it: a program, and the endings that it may have.

None of them is the sandbox's failure, whatever it does: a policy could otherwise buy a reply that nobody scores.
"""

from __future__ import annotations

from typing import NamedTuple

EXITED, TIME, EXCESS = ("exited",), ("time",), ("excess",)


class Behaviour(NamedTuple):
    code: str
    endings: tuple[str, ...]
    fetch: tuple[str, ...] = ()
    said: str | None = None
    """What its standard output must be."""


DEEP = "import os\nfor n in range({levels}):\n    os.mkdir({name!r}); os.chdir({name!r})\nprint('made')"

BEHAVIOURS: dict[str, Behaviour] = {
    "folders deeper than a recursion": Behaviour(DEEP.format(levels=450, name="a"), EXITED, said="made\n"),
    "folders deeper than the limit": Behaviour(DEEP.format(levels=2000, name="a"), ("exited", "excess")),
    "folders too deep for a path": Behaviour(DEEP.format(levels=25, name="n" * 200), ("exited", "excess")),
    "folders too deep for a path, for long": Behaviour(
        DEEP.format(levels=25, name="n" * 200) + "\nimport time; time.sleep(0.5)", ("exited", "excess")
    ),
    "deep folders without rights": Behaviour(
        "import os\nfor n in range(100):\n    os.mkdir('a', 0o300); os.chdir('a')\nos.chmod('.', 0)",
        ("exited", "excess"),
    ),
    "a folder without rights": Behaviour("import os; os.mkdir('a'); open('a/b', 'w'); os.chmod('a', 0)", EXITED),
    "names that are no text": Behaviour(
        r"import os; [os.mkdir(b'\xff%d\n\x1b[31m' % n) for n in range(5)]; open(b'\x80', 'w')", EXITED
    ),
    "mapped files with names that are no text": Behaviour(
        "import mmap, os, time\n"
        r"for name in (b'\xff', b'a\rb', b'\x0b \x85', '\u2028 x (deleted)'.encode()):"
        "\n    file = os.open(name, os.O_RDWR | os.O_CREAT)\n    os.ftruncate(file, 4096)\n    globals()[name] = mmap.mmap(file, 4096)\n"
        "time.sleep(0.3)\nprint('slept')",
        EXITED,
        said="slept\n",
    ),
    "its own folder without rights": Behaviour("import os; os.chmod('.', 0)", EXITED),
    "its own program removed": Behaviour("import os; os.unlink('main.py')", EXITED),
    "its own folder removed": Behaviour(
        "import os\ntry: os.unlink('main.py'); os.rmdir(os.getcwd())\nexcept OSError: pass", EXITED
    ),
    "fetched: a pipe": Behaviour("import os; os.mkfifo('x')", EXITED, ("x",)),
    "fetched: a folder": Behaviour("import os; os.mkdir('x')", EXITED, ("x",)),
    "fetched: a device by a link": Behaviour("import os; os.symlink('/dev/zero', 'x')", EXITED, ("x",)),
    "fetched: a link to itself": Behaviour("import os; os.symlink('x', 'x')", EXITED, ("x",)),
    "fetched: a link outside": Behaviour("import os; os.symlink('/etc/shadow', 'x')", EXITED, ("x",)),
    "fetched: without rights": Behaviour("import os; os.close(os.open('x', os.O_CREAT, 0))", EXITED, ("x",)),
    "fetched: a hole of a file": Behaviour("import os; open('x', 'w').truncate(7 << 20)", EXITED, ("x",)),
    "fetched: too deep": Behaviour("print('x')", EXITED, ("a/" * 3000 + "x",)),
    "closed streams": Behaviour("import os; [os.close(n) for n in (0, 1, 2)]", EXITED, said=""),
    "every descriptor closed": Behaviour("import os; os.closerange(0, 4096)", EXITED, said=""),
    "descriptors that it inherited": Behaviour(
        "import os\ndef there(n):\n    try: os.fstat(n)\n    except OSError: return False\n    return True\n"
        "print([n for n in range(3, 1024) if there(n)])",
        EXITED,
        said="[]\n",
    ),
    "output without end": Behaviour("while True: print('x' * 1000)", TIME),
    "errors without end": Behaviour("import sys\nwhile True: sys.stderr.write('x' * 1000)", TIME),
    "output that is no text": Behaviour(r"import os; os.write(1, b'\xff\xfe\xed\xa0\x80\x00\x1b[2J' * 1000)", EXITED),
    "a false verdict": Behaviour(
        'import os; os.write(1, b\'{"ending": "exited", "return_code": 0}\')\n'
        "for n in range(3, 64):\n    try: os.write(n, b'{}')\n    except OSError: pass\nos._exit(3)",
        EXITED,
    ),
    "the supervisor's exit code": Behaviour("import os; os._exit(126)", EXITED),
    "killed by itself": Behaviour("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", EXITED),
    "aborted": Behaviour("import os; os.abort()", EXITED),
    "every signal to all": Behaviour(
        "import os, signal\nfor n in (1, 2, 3, 6, 10, 12, 15, 18):\n    try: os.kill(-1, n)\n    except OSError: pass",
        EXITED,
    ),
    "stopped for ever": Behaviour("import os, signal; os.kill(os.getpid(), signal.SIGSTOP)", TIME),
    "asleep": Behaviour("import time; time.sleep(100)", TIME),
    "a spin": Behaviour("while True: pass", TIME),
    "spins in threads": Behaviour(
        "import threading\ndef spin():\n    while True: pass\n"
        "for _ in range(12):\n    try: threading.Thread(target=spin).start()\n    except RuntimeError: pass",
        TIME,
    ),
    "every signal ignored": Behaviour(
        "import signal\nfor n in range(1, 65):\n    try: signal.signal(n, signal.SIG_IGN)\n    except (OSError, ValueError): pass\n"
        "while True: pass",
        TIME,
    ),
    "a recursion without end": Behaviour(
        "import sys; sys.setrecursionlimit(10**9)\ndef f(): f()\nf()", ("exited", "time")
    ),
    "a daemon": Behaviour(
        "import os, time\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0: time.sleep(60)\n    os._exit(0)\nprint('left')",
        EXITED,
        said="left\n",
    ),
    "a daemon that adopts": Behaviour(
        "import ctypes, os, time\nif os.fork() == 0:\n    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)\n"
        "    if os.fork() == 0:\n        if os.fork() == 0: time.sleep(60)\n        os._exit(0)\n    time.sleep(60)",
        EXITED,
    ),
    "daemons that fork without end": Behaviour(
        "import os, time\nend = time.monotonic() + 5\nfor _ in range(3):\n    if os.fork() == 0:\n        while time.monotonic() < end:\n"
        "            try:\n                if os.fork(): os._exit(0)\n            except OSError: pass\n        os._exit(0)\ntime.sleep(0.3)",
        ("exited", "excess"),
    ),
    "a child that is killed for memory": Behaviour(
        "import os, time\nfor _ in range(6):\n    if os.fork() == 0:\n        kept = bytearray(b'x') * (60 << 20); time.sleep(5); os._exit(0)\n"
        "for _ in range(6): os.wait()",
        EXCESS,
    ),
    "another program": Behaviour("import os; os.execv('/bin/echo', ['echo', 'other'])", EXITED, said="other\n"),
    "no limit of its own left": Behaviour(
        "import resource\nfor kind in range(16):\n    try: resource.setrlimit(kind, (0, 0))\n    except (OSError, ValueError): pass",
        ("exited",),
    ),
    "a program that is a folder": Behaviour("import os; os.unlink('main.py'); os.mkdir('main.py')", EXITED),
    "a module that shadows the library": Behaviour(
        "open('json.py', 'w').write('raise SystemExit(7)'); open('ctypes.py', 'w').write('import os; os.abort()')",
        EXITED,
    ),
    "50,000 mappings": Behaviour(
        "import ctypes, time\nlibc = ctypes.CDLL(None)\nlibc.mmap.restype = ctypes.c_void_p\n"
        "where = libc.mmap(None, ctypes.c_size_t(100 << 20), 3, 0x22, -1, 0)\n"
        "for n in range(0, 100 << 20, 4096):\n    libc.mprotect(ctypes.c_void_p(where + n), 4096, 1 if n % 8192 else 3)\n"
        "time.sleep(0.3)",
        ("exited", "excess"),
    ),
}
