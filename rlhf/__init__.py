"""Reinforcement learning for language models: Ray, vLLM and DeepSpeed behind one readable loop.

>>> from rlhf import Trainer
>>> Trainer.from_recipe("recipes/quickstart.yaml").fit()
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlhf.api import Trainer
    from rlhf.apps.sweeps.python import sweep
    from rlhf.apps.sweeps.trial import trainable
    from rlhf.controller.run import Callback

__version__ = "0.1.0"
__all__ = ["Callback", "Trainer", "__version__", "sweep", "trainable"]
_HOMES = {
    "Callback": "rlhf.controller.run", "Trainer": "rlhf.api", "sweep": "rlhf.apps.sweeps.python",
    "trainable": "rlhf.apps.sweeps.trial",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    """Import a class or function on first use: `import rlhf` stays cheap."""
    if name not in _HOMES:
        raise AttributeError(f"module 'rlhf' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
