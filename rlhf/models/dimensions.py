"""Checks whether the weights in a folder match its `config.json`, as far as tensor shapes show, without torch.

It compares what every architecture has: the rows and columns of the embedding, and the number of layers. Loading the
model checks the rest.
"""

from __future__ import annotations

import re
from pathlib import Path

from rlhf.errors import ModelError
from rlhf.models.folder import Values, text_config
from rlhf.models.headers import Shapes

EMBEDDINGS = ("embed_tokens", "wte", "embed_in", "word_embeddings", "tok_embeddings", "embeddings", "embedding")
"""Names of the token embedding in various architectures."""
HEADS = ("lm_head.weight", "embed_out.weight")
"""Names of the head, in models where it is not tied to the embedding."""
WIDTHS = (
    "word_embed_proj_dim", "input_embedding_size", "embedding_size", "hidden_size", "n_embd", "n_embed", "d_model",
)  # fmt: skip
"""Names of the embedding width in configurations; the first one present is used."""
DEPTHS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
LAYER = r"(?:layers|h|blocks)\.(\d+)\."
UNCOUNTED = re.compile("mtp|nextn")
"""Layers for multi-token prediction. Some checkpoints have them after the counted layers."""
REMEDY = "take config.json and weights of the same model"


def embedding_rows(shapes: Shapes) -> int | None:
    """Return the number of rows of the embedding; None if it is not found."""
    name = _embedding(shapes)
    return shapes[name][0] if name else None


def check_dimensions(folder: Path, config: Values, shapes: Shapes) -> None:
    """Raise `ModelError` naming a difference. Values that `config` or the files do not have are skipped."""
    name, text = _embedding(shapes), text_config(config)
    if name is None:
        return
    rows, columns = shapes[name]
    width = _first(WIDTHS, text)
    # Some embeddings have more rows than there are tokens to predict; the head has one row for each of those.
    sizes = {rows, *(shapes[head][0] for head in shapes if head.endswith(HEADS))}
    for key, found in (("vocab_size", sizes), (width, {columns})):
        size = text.get(key)
        if isinstance(size, int) and size not in found:
            raise ModelError(
                f"{folder}: its weights do not fit its config.json: {name} is {rows} x {columns}, and {key} is "
                f"{size}; {REMEDY}"
            )
    _check_depth(folder, config, shapes, name)


def _check_depth(folder: Path, config: Values, shapes: Shapes, embedding: str) -> None:
    text = text_config(config)
    key = _first(DEPTHS, text)
    layer = re.compile(re.escape(_above(embedding)) + LAYER)
    found = 1 + max((int(match[1]) for match in map(layer.match, shapes) if match), default=-1)
    depth = text.get(key)
    if not found or not isinstance(depth, int):
        return
    more_are_known = any(UNCOUNTED.search(name) for name in (*config, *text))
    if found < depth or (found > depth and not more_are_known):
        raise ModelError(
            f"{folder}: its weights do not fit its config.json: they have {found} layers, and {key} is {depth}; "
            f"{REMEDY}"
        )


def _embedding(shapes: Shapes) -> str | None:
    """Return the name of the token embedding, if there is exactly one."""
    for called in EMBEDDINGS:
        found = [name for name in shapes if f".{name}".endswith(f".{called}.weight") and len(shapes[name]) == 2]
        if found:
            return found[0] if len(found) == 1 else None
    return None


def _above(name: str) -> str:
    """Return the prefix of a name, such as `model.` of `model.embed_tokens.weight`."""
    return "".join(f"{part}." for part in name.split(".")[:-2])


def _first(keys: tuple[str, ...], values: Values) -> str:
    return next((key for key in keys if isinstance(values.get(key), int)), keys[0])
