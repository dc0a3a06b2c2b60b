"""Continue another engine's partial reply on a CPU with the draw that it would have made next."""

from __future__ import annotations

from typing import Any

import torch
from vllm import SamplingParams

from rlhf.weight_sync.vllm_internals import after_scheduling

SAMPLED = "sampled"
SEEDS = 2**31
"""On a CPU vLLM draws one number below this from a request's generator for each token."""


def skip_draws(worker: Any) -> None:
    """Make each new request's generator skip the draws of the tokens it came with. vLLM makes generators when it first
    schedules a request, and has no call for this."""
    runner = worker.model_runner

    def skip(scheduled: Any) -> None:
        for new in scheduled.scheduled_new_reqs:
            generator = runner.requests[new.req_id].generator
            if generator is not None and (sampled := _sampled(new.sampling_params)):
                torch.randint(0, SEEDS, (sampled,), generator=generator)

    after_scheduling(runner, skip)


def _sampled(params: SamplingParams | None) -> int:
    return params.extra_args.get(SAMPLED, 0) if params and params.extra_args else 0
