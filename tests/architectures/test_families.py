"""A few models of the table measured anew, and the table itself."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path

import pytest

from tests.architectures.families import FAMILIES, Family
from tests.architectures.measured import MEASURES, measure
from tests.architectures.table import MAIN, Cell, Row, Table, for_check, page, recorded
from tests.warm.calls import WarmCalls

PAGE = Path(__file__).parents[2] / "docs" / "models.md"
QUICK = ("gemma2", "qwen3_moe", "gpt_neox")
"""Caps and windows; experts that are stacked; fused and renamed weights that vLLM runs by transformers' own code."""
SECONDS = 600
FINE = {name: Cell(value=0.0) for name in MEASURES}


@pytest.mark.engine
@pytest.mark.timeout(SECONDS)
@pytest.mark.parametrize(
    "family",
    [pytest.param(one, id=one.name, marks=[] if one.name in QUICK else [pytest.mark.slow]) for one in FAMILIES],
)
def test_a_model_of_the_family_is_right_or_refused_by_name(family: Family) -> None:
    columns = MAIN if family.name in QUICK else tuple(MEASURES)
    process = WarmCalls()
    try:
        row = Row(family=family, cells=process.submit(measure, family, columns).result(SECONDS))
    finally:
        process.end()
    verdicts = {row.family.name: row.verdict for row in recorded().rows}
    assert row.verdict == ("right" if family.name in QUICK else verdicts[family.name]), row.line


def test_the_page_and_what_rlhf_check_says_are_made_of_the_recorded_cells() -> None:
    table = recorded()
    assert [row.family.name for row in table.rows] == [family.name for family in FAMILIES]
    assert page(table) == PAGE.read_text()
    assert for_check(table) == files("rlhf.models").joinpath("supported_families.json").read_text()


@pytest.mark.parametrize("name", MEASURES)
def test_one_number_beyond_its_limit_makes_a_row_wrong(name: str) -> None:
    family = FAMILIES[0]
    assert Row(family=family, cells=FINE).verdict == "right"
    assert Row(family=family, cells={**FINE, name: Cell(value=1e-3)}).verdict == "wrong"
    assert Row(family=family, cells={**FINE, name: Cell(value=float("nan"))}).verdict == "wrong"
    assert Row(family=family, cells={}, broke="its process ended with status 11").verdict == "wrong"


def test_a_family_is_refused_by_what_training_needs_and_not_by_its_adapters() -> None:
    refused = Cell(refused="weight sync of version 0 to engine-0 failed in phase 'prepare': no place for x")
    by_adapter = Row(family=FAMILIES[0], cells={**FINE, "adapter": refused})
    by_engine = Row(family=FAMILIES[0], cells={**FINE, "engine": refused})
    assert (by_adapter.verdict, by_engine.verdict, by_engine.reason) == ("right", "refused", "no place for x")
    first, both = (Table(versions={}, rows=rows) for rows in ([by_adapter], [by_engine, by_adapter]))
    assert "- llama: no place for x" in page(first)
    assert "- llama: no place for x" in page(both)
    assert json.loads(for_check(both))["families"] == {"llama": {"verdict": "refused", "reason": "no place for x"}}
