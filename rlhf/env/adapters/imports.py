"""Import packages of third-party environments, only when an adapter is made."""

from __future__ import annotations

import importlib
from typing import Any

from rlhf.errors import ConfigError

BY_THEMSELVES = {
    "envpool": "envpool==1.2.5",
    "gem": "gem-llm==0.1.0",
    "mcp": "mcp>=2.3",
    "skyrl_gym": "skyrl-gym==0.4.0",
}
"""Packages that are not in the extra: too large, or with version pins that conflict with others."""


def imported(module: str) -> Any:
    """Return the module. Raises `ConfigError` that names the package to install if it is missing."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        package = BY_THEMSELVES.get(module.partition(".")[0], "rlhf[environments]")
        raise ConfigError(
            f"this environment needs {module}, but {error.name} is not installed: pip install '{package}'"
        ) from error
