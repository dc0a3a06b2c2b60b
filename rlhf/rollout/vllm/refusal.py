"""Check requests that an engine cannot answer as asked. vLLM would silently answer some of them differently."""

from __future__ import annotations

from rlhf.rollout.vllm.settings import EngineFacts, GenerateRequest

COLDEST = 0.01
"""vLLM raises lower temperatures to this value: its log-probs would differ from the learner's."""


def why_refused(request: GenerateRequest, facts: EngineFacts) -> str:
    """The reason to refuse this request, or ""."""
    length = len(request.token_ids)
    if length == 0:
        return "the prompt has no tokens"
    if length >= facts.max_context_tokens:
        return f"a prompt of {length} tokens leaves no room in a context of {facts.max_context_tokens}"
    if not (request.token_ids.min() >= 0 and request.token_ids.max() < facts.vocab_size):
        return f"a prompt token is outside the vocabulary of {facts.vocab_size}"
    if request.max_tokens < 1:
        return f"max_tokens is {request.max_tokens}, at least 1 is needed"
    if request.temperature != 0 and request.temperature < COLDEST:
        return f"temperature is {request.temperature}; give 0 (greedy) or at least {COLDEST}"
    return ""
