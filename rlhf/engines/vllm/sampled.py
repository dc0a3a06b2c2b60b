"""The tokens that an engine has sampled for each unfinished request.

vLLM's own output processor builds objects for every token, which cost as much processor time as its scheduler; here
the numbers that its core returns go into plain arrays.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from vllm.v1.engine import EngineCoreOutput
from vllm.v1.engine import FinishReason as Ended
from vllm.v1.engine.detokenizer import IncrementalDetokenizer

from rlhf.engines.vllm.routing import expert_choices
from rlhf.types import Completion, FinishReason, PolicyVersion, Routing, SampledTokens


@dataclass(slots=True, kw_only=True)
class SampledReply:
    """The tokens of a request with their log-probs and the versions of the weights that sampled them. Only a reply with
    stop texts has a `detokenizer`."""

    prompt_tokens: int
    detokenizer: IncrementalDetokenizer | None
    token_ids: array[int] = field(default_factory=lambda: array("i"))
    behaviour_logprobs: array[float] = field(default_factory=lambda: array("f"))
    versions: array[int] = field(default_factory=lambda: array("i"))
    prompt_logprobs: list[NDArray[np.float32]] = field(default_factory=list)
    experts: list[NDArray[np.int16]] = field(default_factory=list)
    cached_tokens: int = 0
    constrained: bool = False
    reported: int = 0
    """Number of tokens that `progress` has returned."""

    def extend(self, output: EngineCoreOutput, version: PolicyVersion) -> Ended | None:
        """Add the tokens of one step; returns the reason if they end the reply, for example by a stop text."""
        if output.prefill_stats is not None:
            self.cached_tokens = output.prefill_stats.num_cached_tokens
        if output.new_prompt_logprobs_tensors is not None:
            self.prompt_logprobs.append(output.new_prompt_logprobs_tensors.logprobs[:, 0].numpy())
        if output.routed_experts is not None:
            self.experts.append(output.routed_experts)
        self.token_ids.extend(output.new_token_ids)
        if output.new_logprobs is not None:
            self.behaviour_logprobs.extend(output.new_logprobs.logprobs[:, 0].tolist())
        self.versions.extend([version] * len(output.new_token_ids))
        ended = output.finish_reason
        if self.detokenizer and self.detokenizer.update(output.new_token_ids, ended is Ended.STOP):
            return Ended.STOP
        return ended

    def progress(self) -> SampledTokens | None:
        """Return the tokens since the last call, if there are any."""
        first, self.reported = self.reported, len(self.token_ids)
        return self._tokens(first) if first < self.reported else None

    def completion(self, reason: FinishReason) -> Completion:
        return Completion(**self._tokens()._asdict(), finish_reason=reason, routing=self.routing)

    def _tokens(self, first: int = 0) -> SampledTokens:
        return SampledTokens(
            token_ids=np.array(self.token_ids[first:], dtype=np.int32),
            behaviour_logprobs=np.array(self.behaviour_logprobs[first:], dtype=np.float32),
            versions=np.array(self.versions[first:], dtype=np.int32),
        )

    @property
    def routing(self) -> Routing | None:
        """The experts of prompt and reply that vLLM reported."""
        return expert_choices(np.concatenate(self.experts)) if self.experts else None
