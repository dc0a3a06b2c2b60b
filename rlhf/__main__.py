"""`python -m rlhf`: the command `rlhf`, where a virtual environment has no script of that name."""

from rlhf.cli import main

main()
