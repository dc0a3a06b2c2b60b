"""`python -m tests.goldens DIR [--verbose]`: every array of a folder of golden vectors through the library.

The last line is `RESULT {"agree": …, "declined": …, "differ": …, "families": {…}}`; the exit code is 1 when something
differs. `--verbose` also lists what is declined.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from tests.goldens.verdicts import Verdict, judge, result


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.goldens")
    parser.add_argument("folder", type=Path, help="a folder of <family>.npz files and their manifest.json")
    parser.add_argument("--verbose", action="store_true", help="list what is declined too")
    arguments = parser.parse_args()
    if not any(arguments.folder.glob("*.npz")):
        parser.error(f"no .npz files in {arguments.folder}")
    verdicts = judge(arguments.folder)
    report(verdicts, verbose=arguments.verbose)
    return int(any(verdict.outcome == "differ" for verdict in verdicts))


def report(verdicts: list[Verdict], *, verbose: bool) -> None:
    """What differs (and what is declined), then a line a family, then the result."""
    shown = {"differ", "declined"} if verbose else {"differ"}
    for verdict in verdicts:
        if verdict.outcome in shown:
            print(f"{verdict.outcome:8} {verdict.family}: {verdict.array}: {verdict.detail}")
    total = result(verdicts)
    for family, outcome in total["families"].items():
        print(f"{family:24}" + "".join(f"{count:6d} {name}" for name, count in outcome.items()))
    print("RESULT " + json.dumps(total))


raise SystemExit(main())
