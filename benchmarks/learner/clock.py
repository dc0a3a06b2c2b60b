"""Time and memory of this process, fit for a machine that others use too."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch.profiler import ProfilerActivity, profile

Work = Callable[[], object]


def fastest(rounds: int, *sides: Work) -> list[float]:
    """Seconds of processor time of each side: the least of its rounds. The sides take turns."""
    best = [float("inf")] * len(sides)
    for _ in range(rounds):
        for index, side in enumerate(sides):
            began = time.process_time()
            side()
            best[index] = min(best[index], time.process_time() - began)
    return best


def peak_bytes(work: Work) -> int:
    """The most that torch's allocator held at once during `work`, above what it held before."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        work()
    events = [event for event in recorded.profiler.kineto_results.events() if event.name() == "[memory]"]
    changes = torch.tensor([event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())])
    return int(changes.cumsum(0).max())
