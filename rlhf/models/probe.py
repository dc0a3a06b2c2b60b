"""Proof at load that a model computes here what it computes on its own.

Its rows hold several sequences, some with a shared beginning, and its head is called apart from it. An architecture
that carries a state from token to token, or scales its logits outside the head, would train on wrong numbers unseen.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from rlhf.errors import ModelError
from rlhf.models.policy import hidden_states

TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.5, torch.float16: 0.1}
"""Nats. Rounding is below 1e-5 in float32 and 0.1 in bfloat16; a head that is scaled, or a neighbour that is seen, is
off by one and more."""
SHARED, LENGTHS = 4, (9, 7, 6)
"""Two sequences that begin with the same tokens, and a third; their lengths."""


def check_model(model: PreTrainedModel, path: str) -> None:
    """Compare packed rows with each sequence alone. Raises `ModelError` naming what is off.

    Flash attention takes no mask: its rows hold one sequence each, and there is nothing to compare.
    """
    if model.config._attn_implementation == "flash_attention_2":
        return
    sequences = _sequences(int(model.config.get_text_config().vocab_size), model.device)
    with torch.no_grad():
        packed = _packed(model, sequences)
        alone = [model.base_model(input_ids=ids[None], use_cache=False).last_hidden_state[0] for ids in sequences]
        head: nn.Module | None = model.get_output_embeddings()  # type: ignore[no-untyped-call]
        if head is None:  # a scalar model: its head is a layer as it is
            _refuse(packed, alone, path, "hidden states of packed sequences")
            return
        expected = [model(input_ids=ids[None], use_cache=False).logits[0] for ids in sequences]
        _refuse([head(one) for one in alone], expected, path, "logits of the head alone")
        _refuse([head(one) for one in packed], expected, path, "logits of packed sequences")


def _sequences(vocabulary: int, device: torch.device) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    first, second, third = (torch.randint(vocabulary, (n,), generator=generator) for n in LENGTHS)
    second[:SHARED] = first[:SHARED]
    return [ids.to(device) for ids in (first, second, third)]


def _packed(model: PreTrainedModel, sequences: list[Tensor]) -> list[Tensor]:
    """Hidden states of the three from one row: the first whole, the second as a branch of it, the third behind."""
    first, second, third = sequences
    ids = torch.cat([first, second[SHARED:], third])
    places = [torch.arange(len(first)), torch.arange(SHARED, len(second)), torch.arange(len(third))]
    row = hidden_states(model, ids[None], torch.cat(places).to(ids.device)[None])[0]
    own, branch, behind = torch.split(row, [len(part) for part in places])
    return [own, torch.cat([own[:SHARED], branch]), behind]


def _refuse(found: list[Tensor], expected: list[Tensor], path: str, what: str) -> None:
    gap = max(float(_centred(a - b).abs().max()) for a, b in zip(found, expected, strict=True))
    allowed = TOLERANCE[found[0].dtype]
    if not gap <= allowed:
        raise ModelError(
            f"model.path={path}: {what} are off by {gap:.3g} from the model's own (allowed: {allowed:g}); this "
            "architecture cannot be trained here"
        )


def _centred(logits: Tensor) -> Tensor:
    """A shift of all logits is none of their distribution."""
    return logits.float() - logits.float().mean(-1, keepdim=True)
