"""`python -m tests.cluster`: write the kept plans anew; `git diff` shows what a change does to them."""

from __future__ import annotations

from tests.cluster.cases import CASES, GOLDENS


def main() -> None:
    GOLDENS.mkdir(exist_ok=True)
    for stale in GOLDENS.glob("*.txt"):
        stale.unlink()
    for case in CASES:
        case.file.write_text(case.text())


if __name__ == "__main__":
    main()
