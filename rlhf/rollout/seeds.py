"""Every draw's seed is a hash of what it is for, never of when it arrives: a run can be replayed sample by sample."""

from __future__ import annotations

from hashlib import blake2b


def request_seed(*, run_seed: int, purpose: str, ordinal: int, sample: int, turn: int) -> int:
    """A 62-bit seed for one request to an engine. `purpose` keeps training and evaluation apart."""
    text = f"{run_seed}/{purpose}/{ordinal}/{sample}/{turn}"
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big") >> 2
