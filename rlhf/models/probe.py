"""Proves at load time how a model computes packed rows as it does single sequences: one that carries state from token
to token, or infers structure from a mask, would otherwise train on wrong numbers unnoticed."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from rlhf.chat.image_reader import ImageReader
from rlhf.errors import ModelError
from rlhf.models.attention import decoder_of
from rlhf.models.config import Packing
from rlhf.models.failures import UNKNOWN, cause_of, concerns_model
from rlhf.models.image_probe import rows_with_images, sees_later_tokens
from rlhf.models.policy import RowForward, SequencesAlone, WholeRows, logits_of
from rlhf.models.rounding import rounded
from rlhf.models.stateful_layers import separate_states
from rlhf.models.vision import Vision

Sight = tuple[ImageReader, Vision]
"""How a model that is shown images gets them, and its tower."""
TOLERANCE = 1e-3
"""In nats, for float32, where rounding is below 1e-5, and a wrong result is off by one or more."""
MARGIN = 4
"""Factor on one measurement of rounding, below which a difference counts as rounding, for 16 bits."""
SHARED, LENGTHS = 4, (9, 7, 6)
"""The number of tokens that the first two sequences share, and the lengths of all three."""
WINDOWS = (
    "sliding_window", "sliding_window_size", "attention_window_size", "attention_chunk_size", "local_attention",
    "local_attention_window", "window_size", "index_topk",
)  # fmt: skip
"""Names in configurations of the number of tokens that one token sees."""


def sight_of(tower: str | None, path: str, *, trust_remote_code: bool = False) -> Sight | None:
    """Return the reader and the tower of a model with this `model.tower`; None for one that trains on text."""
    if tower is None:
        return None
    return ImageReader(path, trust_remote_code=trust_remote_code), Vision(frozen=tower == "frozen")


def proved_rows(
    model: PreTrainedModel,
    path: str,
    *,
    device: str = "cpu",
    setting: str = "model.path",
    packing: Packing = "auto",
    sight: Sight | None = None,
) -> RowForward:
    """Move the model to `device`, and return how it computes packed rows correctly, with `sight` also rows with images:
    whole if a test proves it, else every sequence alone, unless `packing` is `always`. Raises `ModelError` naming what
    differs."""
    reader, vision = sight or (None, None)
    nn.Module.to(model, device)
    if packing == "never":
        why = "trainer.packing is never"
    else:
        separate_states(model)
        try:
            whole = WholeRows(vision)
            check_packed_forward(model, path, setting=setting, rows=whole, reader=reader)
            return whole
        except ModelError as refused:
            if packing == "always":
                raise
            why = str(refused)
    alone = SequencesAlone(why, vision)
    check_packed_forward(model, path, setting=setting, rows=alone, reader=reader)
    return alone


def check_packed_forward(
    model: PreTrainedModel,
    path: str,
    *,
    setting: str = "model.path",
    rows: RowForward | None = None,
    reader: ImageReader | None = None,
) -> None:
    """Compare packed rows, as `rows` computes them, with single sequences: short ones, some that are longer than any
    window in the configuration, and with a `reader` some with images. Raises `ModelError` naming what differs."""
    named = f"{setting}={path}"
    rows = rows or WholeRows()
    try:
        _check(model, named, rows)
        if reader:
            _check_images(model, named, rows, reader)
    except UNKNOWN as error:
        if not concerns_model(error):
            raise
        what = "a sequence alone" if rows.why_alone else "packed sequences"
        raise ModelError(f"{named}: {type(model).__name__} does not take {what} ({cause_of(error)})") from error


def _check(model: PreTrainedModel, named: str, rows: RowForward) -> None:
    with torch.no_grad():
        _check_head(model, named)
        for longer in (0, *_windows(model)[-1:]):
            sequences = _sequences(model, longer)
            alone = [_alone(model, ids) for ids in sequences]
            allowed = _allowed(model, sequences, alone)
            followed = _followed(model, sequences)
            _refuse([followed], alone[:1], allowed, named, f"results of {len(followed)} tokens that others follow")
            for layout, found in _packed(model, rows, sequences, SHARED + longer):
                what = "hidden states" if _head(model) is None else "logits"
                beyond = f" longer than the attention window of {longer} tokens" if longer else ""
                _refuse(found, alone, allowed, named, f"{what} of packed sequences{beyond} ({layout})")


def _check_images(model: PreTrainedModel, named: str, rows: RowForward, reader: ImageReader) -> None:
    with torch.no_grad():
        found, expected = rows_with_images(model, rows, reader)
        found, expected = [_shown_all(model, one) for one in found], [_shown_all(model, one) for one in expected]
        allowed = TOLERANCE
        if model.dtype != torch.float32:
            rows.forget_images()
            with rounded(model):
                again = [_shown_all(model, one) for one in rows_with_images(model, rows, reader)[1]]
            allowed = MARGIN * _gap(again, expected)
        rows.forget_images()
        ahead = ", whose tokens see later ones," if sees_later_tokens(model) else ""
        _refuse(found, expected, allowed, named, f"logits of sequences with images{ahead}")


def _check_head(model: PreTrainedModel, named: str) -> None:
    """Compare the separately called head with the model's logits, except for a scalar model."""
    if _head(model) is None:
        return
    sequences = _sequences(model, 0)
    alone = [_alone(model, ids) for ids in sequences]
    own = [model(input_ids=ids[None], use_cache=False).logits[0].float() for ids in sequences]
    _refuse(alone, own, _allowed(model, sequences, alone), named, "logits of the head alone")


def _windows(model: PreTrainedModel) -> list[int]:
    """Return the windows in the configuration that are shorter than the model's context, in rising order."""
    settings = model.config.get_text_config().to_dict()
    context = settings.get("max_position_embeddings") or 0
    named = [settings[name] for name in WINDOWS if isinstance(settings.get(name), int)]
    return sorted(window for window in named if window > 0 and window + max(LENGTHS) <= context)


def _sequences(model: PreTrainedModel, longer: int) -> list[Tensor]:
    """Three sequences, the first two longer by `longer` tokens."""
    vocabulary = int(model.config.get_text_config().vocab_size)
    generator = torch.Generator().manual_seed(0)
    lengths = (LENGTHS[0] + longer, LENGTHS[1] + longer, LENGTHS[2])
    first, second, third = (torch.randint(vocabulary, (n,), generator=generator) for n in lengths)
    second[: SHARED + longer] = first[: SHARED + longer]
    return [ids.to(model.device) for ids in (first, second, third)]


def _alone(model: PreTrainedModel, ids: Tensor) -> Tensor:
    return _shown(model, decoder_of(model)(input_ids=ids[None], use_cache=False).last_hidden_state[0])


def _followed(model: PreTrainedModel, sequences: list[Tensor]) -> Tensor:
    """Return what the model shows of the first sequence where the others continue it: the same as alone."""
    hidden = decoder_of(model)(input_ids=torch.cat(sequences)[None], use_cache=False).last_hidden_state[0]
    return _shown(model, hidden[: len(sequences[0])])


def _packed(
    model: PreTrainedModel, rows: RowForward, sequences: list[Tensor], shared: int
) -> Iterator[tuple[str, list[Tensor]]]:
    """Iterate over the packed sequences: the first, the second as its branch, the third; the third and the first."""
    first, second, third = sequences
    parts = [torch.arange(len(first)), torch.arange(shared, len(second)), torch.arange(len(third))]
    own, branch, behind = _row(model, rows, torch.cat([first, second[shared:], third]), parts)
    yield "with a shared beginning", [_shown(model, x) for x in (own, torch.cat([own[:shared], branch]), behind)]
    before, own = _row(model, rows, torch.cat([third, first]), [parts[2], parts[0]])
    yield "one after the other", [_shown(model, x) for x in (own, torch.cat([own[:shared], branch]), before)]


def _row(model: PreTrainedModel, rows: RowForward, ids: Tensor, places: list[Tensor]) -> tuple[Tensor, ...]:
    every = torch.arange(len(ids), device=ids.device)
    _, row = rows.hidden(model, ids[None], torch.cat(places).to(ids.device)[None], every)
    return torch.split(row, [len(part) for part in places])


def _shown(model: PreTrainedModel, hidden: Tensor) -> Tensor:
    """Output for a sequence's last tokens: logits in nats, or hidden states if there is no vocabulary head."""
    return _shown_all(model, hidden[-max(LENGTHS) :])


def _shown_all(model: PreTrainedModel, hidden: Tensor) -> Tensor:
    return (hidden if _head(model) is None else logits_of(model, hidden)).float()


def _head(model: PreTrainedModel) -> nn.Module | None:
    head: nn.Module | None = model.get_output_embeddings()  # type: ignore[no-untyped-call]
    return head


def _allowed(model: PreTrainedModel, sequences: list[Tensor], alone: list[Tensor]) -> float:
    """Return the largest difference that rounding explains, for this model in its precision."""
    if model.dtype == torch.float32:
        return TOLERANCE
    with rounded(model):
        again = [_alone(model, ids) for ids in sequences]
    return MARGIN * _gap(again, alone)


def _refuse(found: list[Tensor], expected: list[Tensor], allowed: float, named: str, what: str) -> None:
    gap = _gap(found, expected)
    if not gap <= allowed:
        raise ModelError(f"{named}: {what} are off by {gap:.3g} from the model's own (allowed: {allowed:.3g})")


def _gap(found: list[Tensor], expected: list[Tensor]) -> float:
    """Return the largest difference, of distributions: a constant added to all logits is ignored."""
    gaps = (a - b for a, b in zip(found, expected, strict=True))
    return max(float((gap - gap.mean(-1, keepdim=True)).abs().max()) for gap in gaps)
