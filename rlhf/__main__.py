"""`rlhf`, and `python -m rlhf`: the command line. Ctrl-C while it is imported ends it as quietly as later."""

import sys


def main() -> None:
    """Import the command line, which takes a second, and run it."""
    try:
        from rlhf.cli import main as run
    except KeyboardInterrupt:
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
