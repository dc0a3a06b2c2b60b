"""Honest programs work in every jail: closing more than attacks need would cost replies their reward."""

from __future__ import annotations

import json

import pytest

from tests.sandbox.conftest import Jail

pytestmark = pytest.mark.engine
BEGIN = """
import asyncio, concurrent.futures, json, mmap, multiprocessing, os, shutil, signal, socket, sqlite3, subprocess
import sys, tempfile, threading, time
seen = {}
def attempt(name, what):
    try:
        seen[name] = what()
    except BaseException as error:
        seen[name] = repr(error)
def wakes():
    async def both():
        read, write = await asyncio.open_connection(sock=ends[0])
        other_read, other_write = await asyncio.open_connection(sock=ends[1])
        write.write(b'x' * 300000)
        return len(await other_read.readexactly(300000))
    ends = socket.socketpair()
    return asyncio.run(both())
def children():
    async def run():
        process = await asyncio.create_subprocess_exec(sys.executable, '-c', 'print(7)', stdout=subprocess.PIPE)
        return (await process.communicate())[0].decode()
    return asyncio.run(run())
def workers():
    receive, send = multiprocessing.Pipe()
    worker = multiprocessing.get_context('fork').Process(target=send.send, args=([1, 2],))
    worker.start()
    worker.join()
    return receive.recv()
def database():
    with sqlite3.connect('data.db') as connection:
        connection.execute('create table t (x)')
        connection.execute('insert into t values (5)')
        return connection.execute('select x from t').fetchone()[0]
def mapped():
    with open('mapped', 'w+b') as file:
        file.truncate(8192)
        with mmap.mmap(file.fileno(), 8192) as view:
            view[:2] = b'ok'
        return file.read(2).decode()
def alarmed():
    signal.signal(signal.SIGALRM, lambda *_: seen.update(level=True))
    signal.setitimer(signal.ITIMER_REAL, 0.01)
    time.sleep(0.1)
    return seen.pop('level')
def archived():
    os.makedirs('folder/sub', exist_ok=True)
    open('folder/sub/file', 'w').write('x')
    shutil.copytree('folder', 'copy')
    return os.path.exists(shutil.make_archive('archive', 'zip', 'folder'))
"""
HONEST = {
    "asyncio over a pair of sockets": ("wakes()", 300000),
    "asyncio with a child": ("children()", "7\n"),
    "a child": ("subprocess.run(['/bin/echo', 'x'], capture_output=True, text=True).stdout", "x\n"),
    "a process of multiprocessing": ("workers()", [1, 2]),
    "threads": ("sum(concurrent.futures.ThreadPoolExecutor(4).map(abs, range(-5, 0)))", 15),
    "a database": ("database()", 5),
    "a mapped file": ("mapped()", "ok"),
    "private memory": ("len(mmap.mmap(-1, 8192, flags=mmap.MAP_PRIVATE))", 8192),
    "a temporary file": ("tempfile.TemporaryFile().write(b'xx')", 2),
    "an alarm": ("alarmed()", True),
    "archives and copies": ("archived()", True),
    "space of a file": ("os.posix_fallocate(os.open('space', os.O_CREAT | os.O_RDWR), 0, 65536)", None),
    "a pair of datagrams": ("(lambda a, b: (a.send(b'x'), b.recv(1).decode()))(*socket.socketpair(1, 2))[1]", "x"),
    "its name": ("threading.current_thread().name", "MainThread"),
    "a child in a session of its own": (
        "subprocess.run(['/bin/echo', 'x'], capture_output=True, text=True, start_new_session=True).stdout",
        "x\n",
    ),
    "affinity": ("len(os.sched_getaffinity(0)) > 0", True),
    "random numbers": ("len(os.urandom(4)) + len(open('/dev/urandom', 'rb').read(4))", 8),
}


def test_honest_programs_work(jail: Jail) -> None:
    lines = [f"attempt({name!r}, lambda: {what})" for name, (what, _) in HONEST.items()]
    run = jail.try_out("\n".join([BEGIN, *lines, "print(json.dumps(seen))"]), wall_seconds=30.0)
    assert run.ending == "exited", run
    assert json.loads(run.stdout) == {name: expected for name, (_, expected) in HONEST.items()}
