"""`rlhf`, and `python -m rlhf`: the command line. Ctrl-C while it is imported ends it as quietly as later."""

import sys


def run_rlhf() -> None:
    """Import the command line, which takes a second, and run it."""
    try:
        from rlhf.cli import main
    except KeyboardInterrupt:
        sys.exit(130)
    main()


if __name__ == "__main__":
    run_rlhf()
