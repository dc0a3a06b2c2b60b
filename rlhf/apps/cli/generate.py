"""`rlhf generate` samples one reply from a checkpoint."""

from __future__ import annotations

from pathlib import Path

from rlhf.apps.failures import reporting_failures
from rlhf.cluster.supervisor import supervise
from rlhf.trainer.checkpoint import model_folder
from rlhf.untrusted_text import escape_controls


def run_generate(checkpoint: Path, prompt: str, max_tokens: int, temperature: float, seed: int) -> int:
    """Print the reply."""
    model = model_folder(checkpoint)

    def run() -> int:
        from rlhf.controller.inference import replies

        (reply,) = replies(model, [prompt], max_tokens=max_tokens, temperature=temperature, seed=seed)
        print(escape_controls(reply))
        return 0

    return supervise(reporting_failures(run))
