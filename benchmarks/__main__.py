"""`python -m benchmarks NAME [options]`: runs one benchmark. Its last line is `RESULT {json}`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib import import_module

from rlhf.errors import RlhfError

BENCHMARKS = {
    "canary": "benchmarks.canary.command",
    "code_reward": "benchmarks.code_reward.command",
    "colocation": "benchmarks.colocation.command",
    "controller": "benchmarks.controller.command",
    "end_to_end": "benchmarks.end_to_end.command",
    "engine": "benchmarks.engine.command",
    "environment": "benchmarks.environment.command",
    "episodes": "benchmarks.episodes.command",
    "learner": "benchmarks.learner.command",
    "memory_of_ranks": "benchmarks.memory_of_ranks.command",
    "memory": "benchmarks.memory.command",
    "overlap": "benchmarks.overlap.command",
    "policies": "benchmarks.policies.command",
    "publish": "benchmarks.publish.command",
    "records": "benchmarks.records.command",
    "roles": "benchmarks.roles.command",
    "sandbox": "benchmarks.sandbox.command",
    "saves": "benchmarks.saves.command",
    "sweep": "benchmarks.sweep.command",
    "what_to_play": "benchmarks.what_to_play.command",
    "wires": "benchmarks.wires.command",
}
"""Name to the module whose `main(arguments)` runs it; imported only when asked for."""


def main(arguments: Sequence[str]) -> int:
    if not arguments or arguments[0] not in BENCHMARKS:
        print(f"usage: python -m benchmarks NAME; NAME is one of: {', '.join(BENCHMARKS)}", file=sys.stderr)
        return 2
    run: Callable[[Sequence[str]], None] = import_module(BENCHMARKS[arguments[0]]).main
    try:
        run(arguments[1:])
    except RlhfError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
