"""Load a model; refuse missing or mismatched weights, which transformers would draw at random and only log."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.utils import logging

from rlhf.errors import ModelError
from rlhf.models.sharded_loading import Sharding, pretrained


def load_whole(path: str, *, sharding: Sharding | None = None, **settings: Any) -> PreTrainedModel:
    """Return a causal LM, loaded with the `settings` of `from_pretrained`, whole or in the shards of a `sharding`.
    Raises `ModelError` naming a weight that the folder lacks, or has in another shape than its `config.json` says."""
    with quiet():
        model, found = pretrained(AutoModelForCausalLM, path, sharding, ignore_mismatched_sizes=True, **settings)
    for name, there, needed in sorted(found["mismatched_keys"])[:1]:
        raise ModelError(
            f"model.path={path}: its weights do not fit its config.json: {name} is {by(there)}, and {by(needed)} by "
            "config.json; take config.json and weights of the same model"
        )
    check_none_missing(path, set(found["missing_keys"]))
    return model


def by(shape: tuple[int, ...]) -> str:
    """Return a shape as text: `288 x 64`."""
    return " x ".join(map(str, shape))


def check_none_missing(path: str, missing: set[str], setting: str = "model.path") -> None:
    """Raise `ModelError` naming one of the weights that the folder named by `setting` lacks."""
    if missing:
        raise ModelError(f"{setting}={path} has no weights for {min(missing)}; it is not a whole model folder")


@contextmanager
def quiet() -> Iterator[None]:
    """Silence transformers' reports of missing and random weights: here these are intended, or raise an error."""
    before = logging.get_verbosity()
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        logging.set_verbosity(before)
