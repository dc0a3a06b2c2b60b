"""`rlhf`, and `python -m rlhf`: the command line. Ctrl-C while it is imported ends it as quietly as later."""

import gc
import locale
import os
import sys

IMPORTED_OBJECTS = 50_000


def run_rlhf() -> None:
    """Import the command line, which takes a second, and run it."""
    for standard in range(3):
        try:
            os.fstat(standard)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # a shell may have closed it, and some file would get its number
    if locale.getpreferredencoding(False).lower() != "utf-8" and os.environ.get("PYTHONUTF8") != "1":
        os.environ["PYTHONUTF8"] = "1"  # for files of ours, of libraries and of users, in every process of the command
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
    gc.set_threshold(IMPORTED_OBJECTS)  # a collection for every 700 new objects takes a fifth of the time of imports
    try:
        from rlhf.apps.cli.main import main
    except KeyboardInterrupt:
        sys.exit(130)
    main()


if __name__ == "__main__":
    run_rlhf()
