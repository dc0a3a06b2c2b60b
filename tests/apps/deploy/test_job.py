"""What SLURM would misread is refused before it is asked."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from rlhf.apps.deploy.slurm.job import Container, NodeGroup, check_job, gpus_of, seconds_of
from rlhf.errors import UserError
from tests.apps.deploy.rendered import job


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 5400),
        ("90:30", 5430),
        ("1:30:00", 5400),
        ("2-12", 216_000),
        ("2-12:30", 217_800),
        ("2-12:30:15", 217_815),
        ("0:00:01", 1),
    ],
)
def test_a_time_is_read_as_slurm_reads_it(text: str, seconds: int) -> None:
    assert seconds_of(text) == seconds


@pytest.mark.parametrize(
    ("text", "words"),
    [
        *((text, "is no time") for text in ("", "soon", "1h", "-5", "1:2:3:4", "1-", "1.5", "2-12:00:00:00")),
        *((text, "is zero") for text in ("0", "0-0", "00:00:00")),  # SLURM takes it for no limit
    ],
)
def test_what_is_no_time_is_refused(text: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        seconds_of(text)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"account": "a b"}, "--account 'a b' must consist of"),
        ({"account": "-x"}, "--account '-x' must consist of"),
        ({"name": "a\n#SBATCH --wrap"}, "must consist of"),
        ({"main": NodeGroup(nodes=1, partition="gpu;rm")}, "--partition"),
        ({"servers": NodeGroup(nodes=1, partition='"')}, "--cpu-partition"),
        ({"run_dir": Path("/shared/%j")}, "has a character"),
        ({"qos": "a b"}, "--qos"),
        ({"reservation": "$x"}, "--reservation"),
        ({"interface": "ib0;rm"}, "--interface"),
        ({"main": NodeGroup(nodes=1, constraint='"')}, "--constraint"),
        ({"main": NodeGroup(nodes=1, memory="64 GB")}, "--mem '64 GB' is no amount of memory"),
        ({"extra": ("comment",)}, "--extra 'comment' is no option of sbatch"),
        ({"extra": ("--comment=a\n#SBATCH --wrap",)}, "is no option of sbatch"),
        ({"container": Container(image="a b")}, "--container 'a b' is neither"),
        ({"container": Container(image="a.sif", mounts=("data",))}, "--container-mounts 'data' must be /FOLDER"),
        ({"container": Container(image="a.sif"), "run_dir": Path("/shared/a,b")}, "cannot be mounted"),
        ({"time": "5", "warn_seconds": 300}, "not longer than the 300 s"),
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
