"""A few models of the table measured anew, and the table itself."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path

import pytest

from tests.architectures.families import FAMILIES, Family
from tests.architectures.measured import MEASURES, measure
from tests.architectures.table import MAIN, Cell, Row, for_check, page
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
    assert row.verdict == ("right" if family.name in QUICK else verdict_of(family.name)), row.line


def verdict_of(name: str) -> str:
    """What docs/models.md says."""
    rows = [line.split("|") for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    return {cells[1].strip(): cells[3].strip() for cells in rows}[name]


def test_the_page_has_a_row_for_every_model_and_no_other() -> None:
    rows = [line.split("|")[1].strip() for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    assert rows[1:] == [family.name for family in FAMILIES]


def test_what_rlhf_check_says_is_what_the_page_says() -> None:
    said = json.loads(files("rlhf.models").joinpath("supported_families.json").read_text())["families"]
    firsts: dict[str, str] = {}
    for family in FAMILIES:
        firsts.setdefault(family.kind, verdict_of(family.name))
    assert {kind: one["verdict"] for kind, one in said.items()} == firsts


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
    assert "- llama: no place for x" in page([by_adapter], "2026-11-22")
    assert "- llama: no place for x" in page([by_engine], "2026-11-22")
    assert json.loads(for_check([by_engine, by_adapter], "2026-11-22"))["families"] == {
        "llama": {"verdict": "refused", "reason": "no place for x"}
    }
