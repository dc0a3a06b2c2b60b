"""`rlhf generate` samples one reply from a checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rlhf.apps.failures import reporting_failures
from rlhf.cluster.supervisor import supervise
from rlhf.data.row_images import read_image
from rlhf.trainer.checkpoint import model_folder
from rlhf.untrusted_text import escape_controls


def run_generate(
    checkpoint: Path, prompt: str, max_tokens: int, temperature: float, seed: int, image: Sequence[Path] = ()
) -> int:
    """Print the reply to the `image` files, followed by the prompt. Raises `DataError` for one that is no image."""
    images = [read_image(file, Path(), f"--image {file}") for file in image]
    model = model_folder(checkpoint)

    def run() -> int:
        from rlhf.controller.inference import replies

        (reply,) = replies(model, [prompt], images=images, max_tokens=max_tokens, temperature=temperature, seed=seed)
        print(escape_controls(reply))
        return 0

    return supervise(reporting_failures(run))
