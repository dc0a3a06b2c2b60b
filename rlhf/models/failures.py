"""Name a library's exceptions at a model that it does not support, and not failures of the machine."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError

from rlhf.errors import ModelError, RlhfError

OF_CODE = (
    ArithmeticError, AssertionError, AttributeError, ImportError, LookupError, NotImplementedError,
    StrictDataclassError, TypeError, ValueError,
)  # fmt: skip
"""Exceptions of code that meets unsupported input."""
UNKNOWN = (*OF_CODE, RuntimeError)
"""Those, and errors of tensors whose shapes do not fit, or of the machine: see `concerns_model`."""
MACHINE = re.compile(
    r"memory|CUDA|CUBLAS|cuDNN|NVIDIA|NCCL|gloo|[Ww]orker|device type|\bport\b|address|new thread|timed out|Connection"
    r"|os error|\[Errno (?!(2|13|20|21)\])"  # but no file, no permission, no folder, a folder
)
"""Words of an exception about the machine, among kinds that models cause too. Others of torch have classes."""
LONGEST = 300


def concerns_model(error: BaseException) -> bool:
    """Whether a library's exception is one of its code, and not of the machine."""
    if isinstance(error, OSError | SafetensorError) or type(error) is RuntimeError:
        return not MACHINE.search(str(error))
    return not isinstance(error, RuntimeError | MemoryError) or isinstance(error, NotImplementedError)


def cause_of(error: BaseException) -> str:
    """Return an exception in one short line; ours need no type."""
    kind = "" if isinstance(error, RlhfError) else f"{type(error).__name__}: "
    text = " ".join(f"{kind}{error}".split()).removesuffix(":")
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


@contextmanager
def naming_model(what: str, *also: type[BaseException]) -> Iterator[None]:
    """Raise `ModelError`, which begins with `what`, for exceptions at a model, `also` those of its files."""
    kinds: tuple[type[BaseException], ...] = (*UNKNOWN, *also)
    try:
        yield
    except kinds as error:
        if not concerns_model(error):
            raise
        raise ModelError(f"{what}: {cause_of(error)}") from error
