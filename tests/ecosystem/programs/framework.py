"""Play one episode by the `play` of a program, and print what it returns."""

from __future__ import annotations

import asyncio
import inspect
import json
import runpy
import sys
from types import SimpleNamespace

program = runpy.run_path(sys.argv[1])
task = SimpleNamespace(messages=[SimpleNamespace(content="What is 1 + 2?")], answer="3")
reward = program["play"](task, sys.argv[2], "none")
print(json.dumps({"reward": asyncio.run(reward) if inspect.isawaitable(reward) else reward}))
