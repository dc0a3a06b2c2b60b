"""How busy an engine was between two weight syncs."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from rlhf.weight_sync.types import Load


@dataclass
class LoadCounter:
    """Sums over the steps of an engine, and over the prompts of its ended requests; `cached_tokens` of these were in
    its cache."""

    steps: int = 0
    running: int = 0
    waiting: int = 0
    kv_cache: float = 0.0
    """The largest share in use."""
    prompt_tokens: int = 0
    cached_tokens: int = 0

    def step(self, running: int, waiting: int, kv_cache: float) -> None:
        self.steps += 1
        self.running += running
        self.waiting += waiting
        self.kv_cache = max(self.kv_cache, kv_cache)

    def prompt(self, tokens: int, cached: int) -> None:
        self.prompt_tokens += tokens
        self.cached_tokens += cached

    @property
    def load(self) -> Load:
        """Return means over the steps, and the other numbers; nothing for an engine that took no step."""
        if not self.steps:
            return {}
        return asdict(self) | {"running": self.running / self.steps, "waiting": self.waiting / self.steps}
