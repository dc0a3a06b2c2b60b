"""Every draw's seed is a hash of what it is for, never of when it arrives: a run can be replayed sample by sample."""

from __future__ import annotations

from hashlib import blake2b


def request_seed(*, run_seed: int, purpose: str, ordinal: int, sample: int, turn: int) -> int:
    """A 62-bit seed for one request to an engine. `purpose` keeps training and evaluation apart."""
    text = f"{run_seed}/{purpose}/{ordinal}/{sample}/{turn}"
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big") >> 2


def environment_seed(*, run_seed: int, purpose: str, task: str) -> int:
    """The seed an environment is reset with. It follows from the task's id alone: all samples of a group are asked the
    same, and so is every epoch. Seeds of training are even and those of evaluations odd, so that an environment that
    makes its questions from the seed can keep the two apart."""
    drawn = request_seed(run_seed=run_seed, purpose=f"{purpose}/environment/{task}", ordinal=0, sample=0, turn=0)
    return drawn - drawn % 2 + (purpose != "train")
