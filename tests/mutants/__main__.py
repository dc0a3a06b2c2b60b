"""`python -m tests.mutants`: plants every fault and says which the suite sees. The last line is `RESULT {…}`."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path

from tests.mutants.heart import heart
from tests.mutants.planted import Fault, Rotten, check, read_faults
from tests.mutants.trees import ROOT, plant_all


def main() -> int:
    """0 when every fault of ours is caught, and every mutant of the heart but those that are listed."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--only", metavar="NAME", help="faults whose name has this in it, or modules of the heart")
    parser.add_argument("--part", choices=("own", "heart"), help="faults of ours alone, or the heart's mutants alone")
    parser.add_argument("--quick", action="store_true", help="no fault whose tests start an engine")
    parser.add_argument("--jobs", type=int, default=max(1, len(os.sched_getaffinity(0))), help="faults at once")
    options = parser.parse_args()
    try:
        counts = [
            own(options.only, options.quick, options.jobs) if options.part != "heart" else (0, 0, 0),
            heart(options.only, options.jobs) if options.part != "own" else (0, 0, 0),
        ]
    except Rotten as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    caught, survived, unexplained = (sum(column) for column in zip(*counts, strict=True))
    print(f"RESULT {json.dumps({'caught': caught, 'survived': survived})}")
    return int(unexplained > 0 or caught + survived == 0)


def own(only: str | None, quick: bool, jobs: int) -> tuple[int, int, int]:
    """Faults of ours: caught, survived, and the latter once more: none is explained away."""
    faults = read_faults()
    check(faults, ROOT)
    chosen = [fault for fault in faults if _is_asked_for(fault, only) and not (quick and fault.engine)]
    if not chosen:
        return 0, 0, 0
    survived = 0
    with tempfile.TemporaryDirectory(prefix="mutants-") as place:
        for number, (fault, outcome) in enumerate(plant_all(chosen, jobs, Path(place)), start=1):
            survived += not outcome.failed
            verdict = f"caught by {outcome.failed}" if outcome.failed else "SURVIVED"
            print(f"{number:3}/{len(chosen)}  {fault.name}: {verdict} ({outcome.seconds:.1f} s)", flush=True)
    print(f"faults of ours: {len(chosen) - survived} caught, {survived} survived", flush=True)
    return len(chosen) - survived, survived, survived


def _is_asked_for(fault: Fault, only: str | None) -> bool:
    return only is None or only.lower() in fault.name.lower()


if __name__ == "__main__":
    sys.exit(main())
