"""Runs `-c program …` or `file.py …` as the interpreter does, in a fork that can only run a file, this one, or a
module."""

from __future__ import annotations

import os
import runpy
import sys

if __name__ == "__main__":
    form, *words = sys.argv[1:]
    del sys.path[0]
    if form == "-c":
        sys.path.insert(0, "")
        sys.argv = ["-c", *words[1:]]
        exec(compile(words[0], "<string>", "exec"), {"__name__": "__main__"})
    else:
        sys.path.insert(0, os.path.dirname(form))
        sys.argv = [form, *words]
        runpy.run_path(form, run_name="__main__")
