"""The account of a colocated run: every moment belongs to a state, and parts are summed and held against samples."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.colocation.account import account, by_state, state_at, told
from benchmarks.colocation.memory import Held, Sample, by_phase
from rlhf.recipe.planning.processes import Part

SPANS: list[dict[str, Any]] = [
    {"name": "start", "start": 0, "seconds": 9},
    {"name": "wait", "start": 10, "seconds": 9},
    {"name": "train", "start": 20, "seconds": 9},
    {"name": "sleep", "start": 20, "seconds": 1},
    {"name": "hold", "start": 22, "seconds": 1, "held": "everything"},
    {"name": "record", "start": 29.2, "seconds": 0.1},
    {"name": "weight_sync", "start": 30, "seconds": 9},
    {"name": "hold", "start": 30, "seconds": 1, "held": "weights"},
    {"name": "hold", "start": 38, "seconds": 1, "held": "nothing"},
]
RANK = {
    "generate": (Part(what="libraries", bytes=4), Part(what="moments", bytes=6, place="files")),
    "forward and backward": (Part(what="libraries", bytes=4), Part(what="activations", bytes=9)),
    "optimizer step": (Part(what="libraries", bytes=4), Part(what="flat gradients", bytes=3)),
    "weight sync": (Part(what="libraries", bytes=4), Part(what="weights", bytes=2)),
}  # fmt: skip
ENGINE = {
    "generate": (Part(what="libraries", bytes=5), Part(what="KV cache", bytes=7)),
    "forward and backward": (Part(what="libraries", bytes=5),),
    "optimizer step": (Part(what="libraries", bytes=5),),
    "weight sync": (Part(what="libraries", bytes=5), Part(what="KV cache", bytes=7)),
}


def sample(moment: float, rank: int, engine: int) -> Sample:
    workers = {name: Held(resident=bytes, part=bytes - 1) for name, bytes in
               (("learner-0", rank), ("learner-1", rank), ("engine-0", engine))}  # fmt: skip
    return Sample(moment=moment, workers=workers)


@pytest.mark.parametrize(
    ("moment", "state"),
    [
        (-1, None), (5, "weight sync"), (12, "generate"), (19.5, "generate"), (20.5, "generate"), (22.5, "train"),
        (29.25, "train"), (30.5, "train"), (35, "weight sync"), (38.5, "weight sync"), (50, "weight sync"),
    ],
)  # fmt: skip
def test_a_moment_belongs_to_the_fuller_of_two_states_and_a_gap_to_what_was_before(
    moment: float, state: str | None
) -> None:
    assert state_at(moment, SPANS) == state


def test_the_fullest_sample_of_a_state_is_held_against_the_sum_of_its_parts() -> None:
    samples = [sample(12, 5, 12), sample(13, 4, 11), sample(25, 14, 5), sample(29.25, 15, 5)]
    by = by_state(samples, SPANS)
    generating, training = account(RANK, ENGINE, 2, 1, by)  # type: ignore[arg-type]
    assert (generating.planned, generating.measured) == (2 * 4 + 12, 2 * 5 + 12)
    assert (training.planned, training.measured) == (2 * 13 + 5, 2 * 15 + 5)
    assert by_phase(samples, SPANS)["train"].total == 32, "what a gap holds is part of the peak"
    lines = list(told(generating, 1))
    assert [line.split()[-1] for line in lines if "libraries" in line] == ["4", "5"]
    assert any("moments (in files)" in line for line in lines)
    assert lines[-2].split()[-5:] == ["20", "measured", "22,", "ratio", "0.91"]
