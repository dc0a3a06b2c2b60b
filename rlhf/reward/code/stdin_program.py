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
import types
import zlib

MOST_BYTES = 1 << 20


def stdin_main() -> None:
    """Read the code and the inputs; write a line for each input: why the program failed, and its output."""
    with open(0, "rb", closefd=False) as file:
        request = json.load(file)
    for text in request["inputs"]:
        source, sink = _nameless_file(text.encode(errors="replace")), _nameless_file(b"")
        if (child := os.fork()) == 0:
            for standard, descriptor in enumerate((source, sink, os.open(os.devnull, os.O_WRONLY))):
                os.dup2(descriptor, standard)
            os.closerange(3, 64)
            os.setsid()
            sys.modules["__main__"] = main = types.ModuleType("__main__")
            exec(compile(request["code"], "main.py", "exec", dont_inherit=True), main.__dict__)
            return  # and this process ends as a program does
        over = os.pidfd_open(child)
        ended, _, _ = select.select([over], [], [], request["seconds"])
        try:
            os.killpg(child, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):  # it has no group yet
            os.kill(child, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        output = os.pread(sink, MOST_BYTES + 1, 0)
        why = (f"the program ended with code {code}" if code else "") if ended else "its time was over"
        why = f"it prints more than {MOST_BYTES} bytes" if len(output) > MOST_BYTES else why
        print(json.dumps([why, base64.b64encode(zlib.compress(output, 1)).decode()]), flush=True)
        for descriptor in (source, sink, over):
            os.close(descriptor)


def _nameless_file(content: bytes) -> int:
    """The descriptor of a file that is in no folder, at its beginning."""
    descriptor = os.open("pair", os.O_RDWR | os.O_CREAT | os.O_EXCL)
    os.unlink("pair")
    while content:
        content = content[os.write(descriptor, content) :]
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor
