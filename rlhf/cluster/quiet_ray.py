"""Ray, imported after its environment is set; its warnings are about itself."""

from __future__ import annotations

import logging
from typing import Any


def quiet_ray() -> Any:
    """The module."""
    import ray

    logging.getLogger("ray").setLevel(logging.ERROR)
    return ray
