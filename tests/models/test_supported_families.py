"""The table of measured families: what it says of a model, and that it is there."""

from __future__ import annotations

import pytest

from rlhf.models.supported_families import NOT_MEASURED, FamilySupport, Measurements, measurements

TABLE = Measurements(
    date="2026-01-02",
    versions={"vllm": "1", "torch": "2"},
    families={
        "a": FamilySupport(verdict="right", reason=""),
        "b": FamilySupport(verdict="refused", reason="it has a state"),
    },
    images={"v": FamilySupport(verdict="refused", reason="it looks ahead")},
)
WHEN = "(measured 2026-01-02 with vllm 1, torch 2)"


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({"model_type": "a"}, f"right {WHEN}"),
        ({"model_type": "b"}, f"refused: it has a state {WHEN}"),
        ({"model_type": "c"}, "not measured: it is proved at the start of the run"),
        ({"model_type": "a", "text_config": {"model_type": "b"}}, f"right {WHEN}"),
        ({"model_type": "v"}, f"{NOT_MEASURED}; with images refused: it looks ahead {WHEN}"),
        (
            {"model_type": "v", "text_config": {"model_type": "a"}},
            f"right; with images refused: it looks ahead {WHEN}",
        ),
        ({"model_type": "c", "text_config": {"model_type": "b"}}, f"refused: it has a state {WHEN}"),
    ],
)
def test_a_family_is_right_or_refused_or_not_measured(config: dict[str, object], told: str):
    assert TABLE.verdict_text(config) == told


def test_every_family_of_the_table_is_right_or_has_a_reason():
    table = measurements()
    assert {"torch", "transformers", "vllm"} <= set(table.versions)
    for family, one in [*table.families.items(), *table.images.items()]:
        assert bool(one.reason) == (one.verdict != "right"), family
