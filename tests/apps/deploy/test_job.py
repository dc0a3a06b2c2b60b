"""What SLURM would misread is refused before it is asked."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from rlhf.apps.deploy.slurm.job import NodeGroup, check_job, gpus_of
from rlhf.errors import UserError
from tests.apps.deploy.rendered import job


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"account": "a b"}, "--account 'a b' must be one word without quotes"),
        ({"name": "a\n#SBATCH --wrap"}, "must be one word"),
        ({"main": NodeGroup(nodes=1, constraint='"')}, "--constraint"),
        ({"servers": NodeGroup(nodes=1, partition='"')}, "--cpu-partition"),
        ({"extra": ("comment",)}, "--extra 'comment' is no option of sbatch"),
        ({"extra": ("--comment=a\n#SBATCH --wrap",)}, "is no option of sbatch"),
        ({"run_dir": Path("/shared/%j")}, "has a character"),
    ],
)
def test_a_job_that_slurm_would_misread_is_refused(changed: dict[str, object], words: str) -> None:
    with pytest.raises(UserError, match=words):
        check_job(replace(job(NodeGroup(nodes=1)), **changed))


def test_gpus_are_a_number_or_a_type_and_a_number() -> None:
    assert gpus_of("8") == (None, 8)
    assert gpus_of("h100:8") == gpus_of("gpu:h100:8") == ("h100", 8)
    assert gpus_of("1g.10gb:7") == ("1g.10gb", 7)
    for wrong in ("", "h100", "h100:", ":8", "8 "):
        with pytest.raises(UserError, match="--gpus-per-node"):
            gpus_of(wrong)


def test_a_job_with_nothing_wrong_is_taken() -> None:
    check_job(job(NodeGroup(nodes=2, gpus=8, partition="gpu"), NodeGroup(nodes=1, partition="cpu")))
