"""Seeds of all draws: a hash of what a draw is for, independent of timing, so that any sample can be replayed."""

from __future__ import annotations

from hashlib import blake2b


def request_seed(*, run_seed: int, purpose: str, ordinal: int, sample: int, turn: int) -> int:
    """Return a 62-bit seed for one request to an engine. `purpose` separates training from evaluation."""
    text = f"{run_seed}/{purpose}/{ordinal}/{sample}/{turn}"
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big") >> 2


def environment_seed(*, run_seed: int, purpose: str, task: str) -> int:
    """Return the seed of an environment, by the task's id alone: all samples of a group get the same question. Seeds of
    training are even and those of evaluations odd, to keep questions made from the seed separate."""
    drawn = request_seed(run_seed=run_seed, purpose=f"{purpose}/environment/{task}", ordinal=0, sample=0, turn=0)
    return drawn - drawn % 2 + (purpose != "train")
