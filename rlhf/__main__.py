"""`rlhf`, and `python -m rlhf`: the command line. Ctrl-C while it is imported ends it as quietly as later."""

import gc
import sys

IMPORTED_OBJECTS = 50_000


def run_rlhf() -> None:
    """Import the command line, which takes a second, and run it."""
    gc.set_threshold(IMPORTED_OBJECTS)  # a collection for every 700 new objects takes a fifth of the time of imports
    try:
        from rlhf.cli import main
    except KeyboardInterrupt:
        sys.exit(130)
    main()


if __name__ == "__main__":
    run_rlhf()
