"""A check's process that ends as the check is called: `is well`, `is ill`, `raises`, `dies` or `hangs`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

request, answer = map(Path, sys.argv[1:])
name = json.loads(request.read_text())["check"]["name"]
if name == "raises":
    raise ValueError("of the test")
if name == "dies":
    os.abort()
if name == "hangs":
    child = subprocess.Popen(["sleep", "600"])
    (request.parent / "pid").write_text(str(child.pid))
    time.sleep(600)
told = {"good": name == "is well", "expected": "3", "found": "3" if name == "is well" else "4"}
answer.write_text(json.dumps(told | {"figures": {"speed": 3.0}}))
