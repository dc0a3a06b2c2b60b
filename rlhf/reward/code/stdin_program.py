"""Run a program on several inputs, each in a process of its own. Shipped into the sandbox: standard library only.

It knows no expected output: it writes what the program printed.
"""

from __future__ import annotations

import base64
import json
import os
import select
import signal
import sys
import time
import types
import zlib

MOST_BYTES = 1 << 20


def stdin_main() -> None:
    """Read the code and the inputs; write a line for each input: why the program failed, and its output."""
    with open(0, "rb", closefd=False) as file:
        request = json.load(file)
    for text in request["inputs"]:
        (source, feed), (collect, sink) = os.pipe(), os.pipe()
        if (child := os.fork()) == 0:
            for standard, descriptor in enumerate((source, sink, os.open(os.devnull, os.O_WRONLY))):
                os.dup2(descriptor, standard)
            os.closerange(3, 64)
            os.setsid()
            sys.modules["__main__"] = main = types.ModuleType("__main__")
            exec(compile(request["code"], "main.py", "exec", dont_inherit=True), main.__dict__)
            return  # and this process ends as a program does
        os.close(source)
        os.close(sink)
        ended, output = exchange(
            feed, collect, child, memoryview(text.encode(errors="replace")), time.monotonic() + request["seconds"]
        )
        packed = base64.b64encode(zlib.compress(output, 1)).decode()
        print(json.dumps([ended, packed]), flush=True)


def exchange(feed: int, collect: int, child: int, text: memoryview, deadline: float) -> tuple[str, bytes]:
    """Write the input and read the output until the program has ended. Returns why it failed, and the output."""
    over, output = os.pidfd_open(child), bytearray()
    waiting = {over: select.POLLIN, collect: select.POLLIN, feed: select.POLLOUT}
    os.set_blocking(feed, False)
    os.set_blocking(collect, False)
    why = ""
    while over in waiting and not why:
        poll = select.poll()
        for descriptor, events in waiting.items():
            poll.register(descriptor, events)
        ready = {descriptor for descriptor, _ in poll.poll(1000 * max(deadline - time.monotonic(), 0.0))}
        if feed in ready and not (text := text[_written(feed, text) :]):
            os.close(feed)
            del waiting[feed]
        if collect in ready and not _collected(collect, output):
            del waiting[collect]
        if over in ready:
            del waiting[over]
        if not ready or len(output) > MOST_BYTES:
            why = "its time was over" if not ready else f"it prints more than {MOST_BYTES} bytes"
    while len(output) <= MOST_BYTES and _collected(collect, output):
        pass
    for descriptor in {over, collect, *waiting}:
        os.close(descriptor)
    try:
        os.killpg(child, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):  # it has no group yet
        os.kill(child, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return why or (f"the program ended with code {code}" if code else ""), bytes(output)


def _written(feed: int, text: memoryview) -> int:
    """How much of the input needs no more writing: all of it, where the program reads no more."""
    try:
        return os.write(feed, text[: 1 << 16])
    except BlockingIOError:
        return 0
    except BrokenPipeError:
        return len(text)


def _collected(collect: int, output: bytearray) -> bool:
    """Read once. False at the end of the output, and where there is nothing to read now."""
    try:
        output += (part := os.read(collect, 1 << 16))
    except BlockingIOError:
        return False
    return bool(part)
