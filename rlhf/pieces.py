"""Pieces of the user's own, named in a recipe as `module:function`."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

from rlhf.errors import ConfigError


def is_piece(name: str) -> bool:
    """Whether `name` is of the form `module:function`."""
    module, colon, function = name.partition(":")
    return bool(module and colon and function)


def load_piece(name: str, setting: str) -> Any:
    """The function that `name` names; modules of the folder the command runs in are found, as with `python -m`.

    Raises `ConfigError` with the `setting` that named it when it cannot be imported or is no function.
    """
    module, _, function = name.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        piece = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, SyntaxError) as error:
        raise ConfigError(f"{setting} is {name}, which cannot be imported: {type(error).__name__}: {error}") from error
    if not callable(piece):
        raise ConfigError(f"{setting} is {name}, which is not a function but {piece!r:.80}")
    return piece
