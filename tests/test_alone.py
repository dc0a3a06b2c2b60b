"""Nothing outside the checkout is read: no path that a test or a recipe builds leads out of it."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[1]
BESIDE = re.compile(r"\b(?:ROOT|CHECKOUT)\.parent /|\bROOT / \"\.\.")
CLIMB = re.compile(r"__file__\)(?:\.\w+\(\))?((?:\.parents\[\d+\]|\.parent\b)+)")
STEP = re.compile(r"\.parents\[(\d+)\]|\.parent")


def leading_out(name: str, text: str) -> list[str]:
    """What leads out of the checkout in a file, `name` below its root."""
    climbs = [(one[0], sum(int(up or 0) + 1 for up in STEP.findall(one[1]))) for one in CLIMB.finditer(text)]
    too_high = [climb for climb, steps in climbs if steps > name.count("/") + 1]
    return [*too_high, *(one[0] for one in BESIDE.finditer(text)), *re.findall(r"^#.* (\S+=\.\./)", text, re.MULTILINE)]


def test_no_path_leads_out_of_the_checkout() -> None:
    command = ["git", "ls-files", "tests/*.py", "recipes", "benchmarks/*.py", "docs/*.md"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    texts = {name: (ROOT / name).read_text(encoding="utf-8") for name in listed if (ROOT / name).is_file()}
    del texts["tests/test_alone.py"]
    assert len(texts) > 100
    assert {name: found for name, text in texts.items() if (found := leading_out(name, text))} == {}
