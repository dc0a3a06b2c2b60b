"""Choose the environment variables of a child process: those that programs commonly need, and those named for it.

Environments and scorers are third-party code, and may run code that a policy wrote. The environment of the process that
started the run may hold tokens of the run, of a model hub or of a cloud; children must not get these.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

USUAL = frozenset((
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TERM", "TMPDIR", "TMP", "TEMP", "COLUMNS",
    "LD_LIBRARY_PATH", "LD_PRELOAD", "VIRTUAL_ENV", "CONDA_PREFIX", "SSL_CERT_FILE", "SSL_CERT_DIR",
    "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "NO_PROXY", "no_proxy", "DISPLAY", "SDL_VIDEODRIVER",
))  # fmt: skip
BEGINNINGS = (
    "LC_", "OMP_", "KMP_", "GOMP_", "MKL_", "OPENBLAS_", "NUMEXPR_", "PYTHON", "XDG_", "CUDA_", "NVIDIA_", "TORCH_",
    "HF_", "TRANSFORMERS_", "TOKENIZERS_", "MUJOCO_", "MPL", "RLHF_", "COVERAGE_",
)  # fmt: skip
PROXIES = frozenset(("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"))
"""Passed on if their value holds no password."""
SECRET = re.compile(r"TOKEN(?!IZER)|SECRET|PASSW|CREDENTIAL|_KEY|AUTH|COOKIE", re.IGNORECASE)
NAMED_BY = "token_env"
"""The argument that tells a class which variable holds its token."""


def child_env(named: Iterable[str] = ()) -> dict[str, str]:
    """Return the variables for a child; the `named` ones are passed on unconditionally."""
    wanted = frozenset(named)
    return {name: value for name, value in os.environ.items() if name in wanted or is_usual(name, value)}


def is_usual(name: str, value: str) -> bool:
    """Return whether every child may have this variable."""
    if name in PROXIES:
        return "@" not in value
    return name in USUAL or (name.startswith(BEGINNINGS) and not SECRET.search(name))


def variables_named_in(arguments: Mapping[str, Any]) -> Iterator[str]:
    """Yield the variables that arguments name at any depth: the values of `token_env`."""
    for name, value in arguments.items():
        if name == NAMED_BY and isinstance(value, str):
            yield value
        elif isinstance(value, Mapping):
            yield from variables_named_in(value)
        elif isinstance(value, list | tuple):
            yield from (found for item in value if isinstance(item, Mapping) for found in variables_named_in(item))
