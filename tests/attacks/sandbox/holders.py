"""Ways to hold more memory, disk or processes than a run may: programs that grow as fast as they can, and stay.

Each grows to about three times the limits of `tests/sandbox/conftest.py` and no further, so that a sandbox that does
not hold harms nobody.
"""

from __future__ import annotations

BEGIN = """
import array, ctypes, fcntl, mmap, os, signal, socket, struct, sys, threading, time
MIB = 1 << 20
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
kept = []
def stay(seconds=1.0):
    time.sleep(seconds)
def forked(count, what):
    for number in range(count):
        try:
            if os.fork() == 0:
                try:
                    what(number)
                except (OSError, MemoryError):
                    pass
                stay()
                os._exit(0)
        except OSError:
            time.sleep(0.01)
    stay()
def tried(what):
    try:
        return what()
    except (OSError, MemoryError, ValueError):
        return None
def full(pair):
    for end in pair:
        end.setblocking(False)
        try:
            while True:
                end.send(bytes(8192))
        except OSError:
            pass
    return pair
def mapped(megabytes, fd=-1, flags=0x21):
    where = libc.mmap(None, megabytes * MIB, 3, flags, fd, 0)
    if where in (None, 2**64 - 1):
        raise MemoryError
    ctypes.memset(where, 1, megabytes * MIB)
    return where
"""

MEMORY = {
    "private pages of many processes": "forked(12, lambda n: kept.append(bytearray(b'x') * (60 * MIB)))",
    "copies after a fork": "kept.append(bytearray(b'x') * (40 * MIB))\nforked(12, lambda n: kept.append(bytes(kept[0])))",
    "shared pages given back": (
        "def hold(n):\n    where = mapped(32)\n    libc.madvise(ctypes.c_void_p(where), 32 * MIB, 4)\nforked(12, hold)"
    ),
    "shared pages nearly unmapped": (
        "for n in range(12):\n    where = mapped(32)\n    libc.munmap(where + 4096, 32 * MIB - 4096)\nstay()"
    ),
    "pages of /dev/zero nearly unmapped": (
        "zero = os.open('/dev/zero', os.O_RDWR)\nfor n in range(12):\n    where = mapped(32, zero, 1)\n"
        "    libc.munmap(where + 4096, 32 * MIB - 4096)\nstay()"
    ),
    "full pairs of streams": ("forked(12, lambda n: [kept.append(full(socket.socketpair())) for _ in range(110)])"),
    "full pairs of streams, hidden": (
        "libc.prctl(4, 0)\nforked(12, lambda n: [kept.append(full(socket.socketpair())) for _ in range(110)])"
    ),
    "full pairs of datagrams": (
        "forked(12, lambda n: [kept.append(full(socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM))) for _ in range(110)])"
    ),
    "full pipes": (
        "def fill(n):\n    for _ in range(110):\n        kept.append(os.pipe())\n        tried(lambda: fcntl.fcntl(kept[-1][1], 1031, MIB))\n"
        "        os.set_blocking(kept[-1][1], False)\n        while tried(lambda: os.write(kept[-1][1], bytes(65536))): pass\nforked(12, fill)"
    ),
    "sockets in flight": (
        "def fly(n):\n    for _ in range(100):\n        carrier = socket.socketpair()\n        for _ in range(20):\n            pair = full(socket.socketpair())\n"
        "            tried(lambda: socket.send_fds(carrier[0], [b'x'], [pair[0].fileno(), pair[1].fileno()]))\n            [end.close() for end in pair]\n"
        "        kept.append(carrier)\nforked(12, fly)"
    ),
    "pages gifted to pipes": (
        "class Vector(ctypes.Structure): _fields_ = [('where', ctypes.c_void_p), ('size', ctypes.c_size_t)]\n"
        "def gift(n):\n    for _ in range(110):\n        kept.append(os.pipe())\n        where = mapped(1, -1, 0x22)\n"
        "        libc.vmsplice(kept[-1][1], ctypes.byref(Vector(where, 65536)), ctypes.c_size_t(1), 8)\n        libc.munmap(where, MIB)\n"
        "    [kept.append(bytearray(b'x') * MIB) for _ in range(60)]\nforked(12, gift)"
    ),
    "a process whose first thread has left": (
        "def leave(n):\n    def hoard():\n        kept.append(bytearray(b'x') * (60 * MIB)); stay(); os._exit(0)\n"
        "    threading.Thread(target=hoard, daemon=True).start()\n    time.sleep(0.01)\n    libc.syscall(60, 0)\nforked(7, leave)"
    ),
    "many small mappings": (
        "def split(n):\n    for _ in range(3):\n        where = tried(lambda: mapped(32, -1, 0x22)) or 0\n"
        "        for page in range(0, 32 * MIB, 8192):\n            libc.mprotect(ctypes.c_void_p(where + page), 4096, 1)\nforked(12, split)"
    ),
    "stacks of threads": (
        "threading.stack_size(4 * MIB)\ndef deep(depth=0):\n    return stay() if depth > 900 else deep(depth + 1)\n"
        "def grow(n):\n    kept.append(bytearray(b'x') * (30 * MIB)); threading.Thread(target=deep).start()\nforked(7, grow)"
    ),
    "files, in memory or not": ("[tried(lambda: open(f'{n}', 'wb').write(bytes(7 * MIB))) for n in range(60)]\nstay()"),
    "locks of ranges": (
        "file = open('locked', 'w')\nfor n in range(6000):\n    fcntl.lockf(file, fcntl.LOCK_EX, 1, 2 * n)\nstay()"
    ),
}

DISK = {
    "one file": "tried(lambda: open('big', 'wb').write(bytes(24 * MIB)))\nstay()",
    "many files": "[tried(lambda: open(f'{n}', 'wb').write(bytes(MIB))) for n in range(24)]\nstay()",
    "files without a name": (
        "for n in range(24):\n    kept.append(open('x', 'wb')); os.unlink('x'); tried(lambda: (kept[-1].write(bytes(MIB)), kept[-1].flush()))\nstay()"
    ),
    "files that never had one": (
        "for n in range(24):\n    kept.append(os.open('.', os.O_TMPFILE | os.O_RDWR)); tried(lambda: os.write(kept[-1], bytes(MIB)))\nstay()"
    ),
    "mapped files without a name": (
        "for n in range(24):\n    fd = os.open('x', os.O_RDWR | os.O_CREAT)\n    tried(lambda: os.write(fd, bytes(MIB)))\n"
        "    libc.mmap(None, 4096, 1, 1, fd, 0)\n    os.close(fd); os.unlink('x')\nstay()"
    ),
    "files in flight": (
        "carrier = socket.socketpair()\nfor n in range(24):\n    fd = os.open('x', os.O_RDWR | os.O_CREAT)\n    tried(lambda: os.write(fd, bytes(MIB)))\n"
        "    sent = tried(lambda: socket.send_fds(carrier[0], [b'x'], [fd]))\n    os.unlink('x')\n    if sent: os.close(fd)\nstay()"
    ),
    "folders that cannot be listed": (
        "os.mkdir('closed', 0o300)\n[tried(lambda: open(f'closed/{n}', 'wb').write(bytes(MIB))) for n in range(24)]\nstay()"
    ),
    "folders too deep for a path": (
        "for n in range(40):\n    os.mkdir('n' * 200); os.chdir('n' * 200)\n"
        "[tried(lambda: open(f'{n}', 'wb').write(bytes(MIB))) for n in range(24)]\nstay()"
    ),
    "a process that hides": (
        "libc.prctl(4, 0, 0, 0, 0)\n"
        "for n in range(24):\n    kept.append(open('x', 'wb')); os.unlink('x'); tried(lambda: (kept[-1].write(bytes(MIB)), kept[-1].flush()))\nstay()"
    ),
    "a program that cannot be read": (
        "if len(sys.argv) == 1:\n    held = [os.open('.', os.O_TMPFILE | os.O_RDWR) for n in range(24)]\n"
        "    [tried(lambda: os.write(fd, bytes(MIB))) for fd in held]\n    [os.set_inheritable(fd, True) for fd in held]\n"
        "    fd = os.open('sleep', os.O_WRONLY | os.O_CREAT, 0o100)\n    os.write(fd, open('/bin/sleep', 'rb').read()); os.close(fd)\n"
        "    os.execv('./sleep', ['sleep', '1'])"
    ),
    "space that no size shows": (
        "for n in range(24):\n    kept.append(open(f'{n}', 'wb'))\n    libc.fallocate(kept[-1].fileno(), 1, ctypes.c_long(0), ctypes.c_long(MIB))\nstay()"
    ),
    "a process whose first thread has left": (
        "def hoard():\n    for n in range(24):\n        kept.append(open('x', 'wb')); os.unlink('x'); tried(lambda: (kept[-1].write(bytes(MIB)), kept[-1].flush()))\n"
        "    stay(); os._exit(0)\nthreading.Thread(target=hoard, daemon=True).start()\ntime.sleep(0.01)\nlibc.syscall(60, 0)"
    ),
}

PROCESSES = {
    "forks": "forked(48, lambda n: None)",
    "threads": "[thread() for n in range(48)]\nstay()",
    "daemons": (
        "for n in range(48):\n    pid = tried(os.fork)\n    if pid == 0:\n        os.setsid()\n        if tried(os.fork) == 0: stay(); os._exit(0)\n"
        "        os._exit(0)\n    if pid: os.waitpid(pid, 0)\nstay()"
    ),
    "the dead whom nobody buries": "[os._exit(0) if tried(os.fork) == 0 else 0 for n in range(48)]\nstay()",
    "programs": "[tried(lambda: os.posix_spawn('/bin/sleep', ['sleep', '1'], {})) for n in range(48)]\nstay()",
    "a chain": (
        "def chain(n):\n    pid = tried(os.fork)\n    if pid == 0:\n        if n < 48: chain(n + 1)\n        stay(); os._exit(0)\nchain(0)\nstay()"
    ),
    "children of the parent": (
        "for n in range(48):\n    if libc.syscall(56, 0x8000 | 17, 0, 0, 0, 0) == 0:\n        time.sleep(1); os._exit(0)\nstay()"
    ),
    "threads of many processes": ("def many(n):\n    [thread() for _ in range(12)]\nforked(8, many)"),
}
THREAD = """
def thread():
    try:
        threading.Thread(target=stay, daemon=True).start()
    except RuntimeError:
        pass
"""

KINDS = {"memory": MEMORY, "disk": DISK, "processes": PROCESSES}


def program(kind: str, way: str) -> str:
    return f"{BEGIN}{THREAD}{KINDS[kind][way]}\nprint('held')\n"
