"""Reinforcement learning for language models: Ray, vLLM and DeepSpeed behind one readable loop.

>>> from rlhf import Trainer
>>> Trainer.from_recipe("recipes/quickstart.yaml").fit()
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlhf.api import Trainer
    from rlhf.controller.run import Callback

__version__ = "0.1.0"
__all__ = ["Callback", "Trainer", "__version__"]


def __getattr__(name: str) -> Any:
    """Import `Trainer` and `Callback` when they are asked for: `import rlhf` stays cheap."""
    if name == "Trainer":
        from rlhf.api import Trainer

        return Trainer
    if name == "Callback":
        from rlhf.controller.run import Callback

        return Callback
    raise AttributeError(f"module 'rlhf' has no attribute {name!r}")
