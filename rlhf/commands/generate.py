"""`rlhf generate`: one reply of a checkpoint."""

from __future__ import annotations

from rlhf.cluster.supervisor import supervise
from rlhf.commands.failures import telling
from rlhf.http.inert import inert
from rlhf.trainer.checkpoint import model_folder


def generate(checkpoint: str, prompt: str, max_tokens: int, temperature: float, seed: int) -> int:
    """Print the reply."""
    model = model_folder(checkpoint)

    def run() -> int:
        from rlhf.controller.inference import reply

        print(inert(reply(model, prompt, max_tokens=max_tokens, temperature=temperature, seed=seed)))
        return 0

    return supervise(telling(run))
