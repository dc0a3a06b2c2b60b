"""The whole public directory through the library, and the runner itself."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from tests.goldens.declined import declined
from tests.goldens.records import records
from tests.goldens.verdicts import Verdict, counts, judge

PUBLIC = Path(__file__).parent / "public"


@cache
def verdicts() -> list[Verdict]:
    return judge(PUBLIC)


def test_no_array_of_the_public_directory_differs_and_no_more_are_declined_than_before() -> None:
    assert [verdict for verdict in verdicts() if verdict.outcome == "differ"] == []
    assert counts(verdicts()) == {"agree": 2384, "declined": 982, "differ": 0}


def test_every_declined_entry_has_a_reason_and_covers_something() -> None:
    public = list(records(PUBLIC))
    for entry in declined():
        assert entry.reason
        assert any(entry.covers(record, quantity) for record in public for quantity in record.outputs), entry
