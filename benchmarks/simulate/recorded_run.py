"""One run with a tiny model, kept in a folder: `python -m benchmarks.simulate.recorded_run '{"folder": …}'`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from benchmarks.end_to_end import our_side
from benchmarks.end_to_end.workload import Lengths, reply_tokens
from rlhf.recipe.loading import recipe_from


def record(*, folder: str, model: str, prompts: str, lengths: Lengths, staleness: int, updates: int) -> None:
    from rlhf.api import Trainer

    drawn = reply_tokens(lengths)
    our_side.end_replies_as_drawn(drawn)
    values = our_side.recipe(
        model=model, prompts=prompts, precision="float32", longest=max(drawn), staleness=staleness, updates=updates,
        folder=str(Path(folder)),
    )  # fmt: skip
    Trainer(recipe_from(values)).fit()


if __name__ == "__main__":
    record(**json.loads(sys.argv[1]))
