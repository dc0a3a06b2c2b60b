"""A few models of the table measured anew, and the table itself."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import pytest

from tests.architectures.families import MEASURED, SEEING, Family
from tests.architectures.measured import measure
from tests.architectures.table import MAIN, Row, for_check, page, recorded
from tests.warm.calls import WarmCalls

PAGE = Path(__file__).parents[2] / "docs" / "models.md"
QUICK = ("gemma2", "qwen3_moe", "gpt_neox", "qwen2_5_vl-images")
"""Caps and windows; experts that are stacked; fused and renamed weights that vLLM runs by transformers' own code;
images."""
SECONDS = 600


@pytest.mark.engine
@pytest.mark.timeout(SECONDS)
@pytest.mark.parametrize(
    "family",
    [pytest.param(one, id=one.name, marks=[] if one.name in QUICK else [pytest.mark.slow]) for one in MEASURED],
)
def test_a_model_of_the_family_is_right_or_refused_by_name(family: Family) -> None:
    columns = MAIN if family.name in QUICK else ()
    process = WarmCalls()
    try:
        row = Row(family=family, cells=process.submit(measure, family, columns).result(SECONDS))
    finally:
        process.end()
    verdicts = {row.family.name: row.verdict for row in recorded().rows}
    assert row.verdict == ("right" if family.name in QUICK else verdicts[family.name]), row.line


@pytest.mark.parametrize("family", [one for one in SEEING if one.name not in QUICK], ids=lambda one: str(one.name))
def test_rows_with_images_are_right_or_refused_by_name(family: Family) -> None:
    """As the learner computes them, its tower included."""
    process = WarmCalls()
    try:
        cells = process.submit(measure, family, ("packed", "gradient", "export")).result(SECONDS)
    finally:
        process.end()
    row = Row(family=family, cells=cells)
    assert row.verdict == ("refused" if family.kind == "gemma3" else "right"), row.line


def test_the_page_and_what_rlhf_check_says_are_made_of_the_recorded_cells() -> None:
    table = recorded()
    assert [row.family.name for row in table.rows] == [family.name for family in MEASURED]
    assert page(table) == PAGE.read_text()
    assert for_check(table) == files("rlhf.models").joinpath("supported_families.json").read_text()
