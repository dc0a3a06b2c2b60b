"""Which variables of this process's environment a child gets: those that programs need to run, and those it is named.

Environments and scorers are somebody else's code, and what runs in them may be what a policy wrote. The tokens of a
run, of a hub, of a cloud are in the environment of whoever started it, and are not theirs.
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
"""Passed on where they hold no password."""
SECRET = re.compile(r"TOKEN(?!IZER)|SECRET|PASSW|CREDENTIAL|_KEY|AUTH|COOKIE", re.IGNORECASE)
NAMED_BY = "token_env"
"""The argument by which a class is told where its token is."""


def passed_on(named: Iterable[str] = ()) -> dict[str, str]:
    """The variables for a child; `named` are passed on whatever they hold."""
    wanted = frozenset(named)
    return {name: value for name, value in os.environ.items() if name in wanted or is_usual(name, value)}


def is_usual(name: str, value: str) -> bool:
    """Whether any child may have it."""
    if name in PROXIES:
        return "@" not in value
    return name in USUAL or (name.startswith(BEGINNINGS) and not SECRET.search(name))


def named_in(arguments: Mapping[str, Any]) -> Iterator[str]:
    """The variables that arguments name, however deep: the values of `token_env`."""
    for name, value in arguments.items():
        if name == NAMED_BY and isinstance(value, str):
            yield value
        elif isinstance(value, Mapping):
            yield from named_in(value)
        elif isinstance(value, list | tuple):
            yield from (found for one in value if isinstance(one, Mapping) for found in named_in(one))
