"""The arithmetic of the publish benchmark."""

from __future__ import annotations

from benchmarks.publish.figures import Measured, Round, missed, result, table


def plan(name: str, *rounds: tuple[float, float, float]) -> Measured:
    return Measured(
        plan=name,
        rounds=[
            Round(gloo=g, reload=r, kept=r / 2, publish=p, spans={"canary": p / 2, "reload": r}) for g, r, p in rounds
        ],
    )


def test_a_publish_is_held_against_the_slower_of_its_two_bounds() -> None:
    assert plan("a", (1, 2, 3)).ratio == 1.5
    assert plan("a", (4, 2, 3)).ratio == 0.75


def test_the_median_of_the_rounds_counts() -> None:
    assert plan("a", (1, 2, 3), (1, 2, 90), (1, 50, 4)).ratio == 2.0


def test_a_plan_that_takes_more_than_twice_its_bound_is_missed() -> None:
    plans = [plan("fine", (1, 2, 4)), plan("slow", (1, 2, 4.1))]
    assert missed(plans) == ["slow"]
    assert result(plans) == {"benchmark": "publish", "fine": 2.0, "slow": 2.05, "missed": ["slow"]}


def test_the_table_shows_every_phase_of_every_plan() -> None:
    head, _, row = table([plan("fine", (1, 2, 4))]).splitlines()
    cells = dict(zip(head.strip("| ").split(" | "), row.strip("| ").split(" | "), strict=True))
    assert cells["plan"] == "fine"
    assert (cells["canary"], cells["reload"], cells["ratio"], cells["send"]) == (
        "2.00", "2.00", "2.00", "0.00",
    )  # fmt: skip
