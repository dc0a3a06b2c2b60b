"""`python -m benchmarks canary`: limits of the canary in bfloat16, what healthy engines use of them, what is caught."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict

LAYERS, LOGITS = (2, 8, 24, 48), (4.0, 12.0, 30.0, 60.0)


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks canary", description=__doc__)
    parser.add_argument("--layers", type=int, nargs="+", default=LAYERS)
    parser.add_argument("--logits", type=float, nargs="+", default=LOGITS)
    options = parser.parse_args(arguments)
    os.environ |= {"OMP_NUM_THREADS": "1"}
    from benchmarks.canary.sweep import measure

    columns = "".join(f"{name:>8}" for name in ("layers", "logits", "mean", "high", "used", "beyond", "of few"))
    print(f"{'weights':<10}{columns}  worst engine; least fault")
    cells = []
    for start_check in (False, True):
        for layers in options.layers:
            for logits in options.logits:
                cell = measure(layers, logits, start_check=start_check)
                cells.append(cell)
                missed = ", ".join(f"{share:.0%} {name}" for name, share in cell.missed_by_few.items() if share)
                told = f"{cell.worst}; {cell.least}" + (f"; few miss {missed}" if missed else "")
                stale = f"; stale after {cell.stale_after} steps" if cell.stale_after else ""
                print(
                    f"{'perturbed' if start_check else 'start':<10}{layers:>8}{logits:>8g}{cell.limits.mean:>8.3g}"
                    f"{cell.limits.high:>8.3g}{cell.used:>8.2f}{cell.beyond:>8.2f}{cell.used_of_few:>8.2f}"
                    f"  {told}{stale}",
                    flush=True,
                )
    print("RESULT", json.dumps([asdict(cell) for cell in cells]), flush=True)
    if any(cell.refused or cell.used_of_few > 1 for cell in cells) or any(
        cell.missed for cell in cells if cell.perturbed
    ):
        sys.exit("a healthy engine is refused, or the start check misses a fault")
