"""`python -m tests.answers`: how far the reward `math` agrees with pairs of reference and reply, by kind. The last line
is `RESULT {…}`.

The pairs are those of `answers.jsonl` and `reported_answers.jsonl` in `tests/reward`; the second are users' reports.
A row of the first has a reference `gold` and replies that are `right`, `wrong`, or to `none` of which a number can be
given; those that are no whole replies stand in a box.
"""

from __future__ import annotations

import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rlhf.errors import NoReference
from rlhf.reward.math import math

OWN = Path(__file__).parent / "reward" / "answers.jsonl"
REPORTED = OWN.with_name("reported_answers.jsonl")
VERDICTS = {"right": 1.0, "right_replies": 1.0, "wrong": 0.0, "wrong_replies": 0.0, "none": None}


@dataclass(frozen=True, slots=True)
class Pair:
    """A reference, a reply, and the number that a careful reader gives; None where nothing can be said."""

    kind: str
    gold: str
    reply: str
    verdict: float | None

    @property
    def given(self) -> float | None:
        """The number that the reward gives."""
        try:
            return math(self.reply, {"answer": self.gold})
        except NoReference:
            return None


def own_pairs() -> Iterator[Pair]:
    """Iterate over our pairs."""
    for line in OWN.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        for key, verdict in VERDICTS.items():
            for text in row.get(key, ()):
                reply = text if key.endswith("replies") else f"So it is \\boxed{{{text}}}."
                yield Pair(row["kind"], row["gold"], reply, verdict)


def reported_pairs() -> Iterator[Pair]:
    """Iterate over the pairs that users reported."""
    for line in REPORTED.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        yield Pair("reported", row["gold"], row["answer"], float(row["right"]))


def main() -> int:
    """Print the agreement. Return 1 where a wrong answer earns."""
    kinds: defaultdict[str, Counter[str]] = defaultdict(Counter)
    result = {"wrong_accepted": 0, "right_refused": 0, "no_number": 0}
    for pair in (*own_pairs(), *reported_pairs()):
        given = pair.given
        kinds[pair.kind].update(("pairs", "agree" if given == pair.verdict else "differ"))
        if given != pair.verdict:
            fault = "no_number" if given is None else "wrong_accepted" if given else "right_refused"
            result[fault] += 1
            print(f"{fault}: {pair.gold!r} for {pair.reply!r}")
    for kind, counts in kinds.items():
        print(f"{kind:<20}{counts['agree']:>5} of {counts['pairs']:>5} agree")
    print("RESULT " + json.dumps(result))
    return int(result["wrong_accepted"] > 0)


if __name__ == "__main__":
    sys.exit(main())
