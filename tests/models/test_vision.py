"""Rows with images: a tiny Qwen3-VL computes them as transformers' own forward pass computes single sequences."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForImageTextToText

from rlhf.chat.image_reader import ImageReader, marked, noise_image
from rlhf.errors import ModelError
from rlhf.images import ImageFeatures, PlacedImage, RowImages, row_images
from rlhf.models.config import TinyModelConfig
from rlhf.models.image_probe import rows_with_images
from rlhf.models.loading import load_policy
from rlhf.models.policy import PolicyModel, SequencesAlone, WholeRows
from rlhf.models.probe import proved_rows
from rlhf.models.tiny import byte_tokenizer, save_tiny
from rlhf.models.vision import Vision

SEES = TinyModelConfig(architecture="qwen3_vl", hidden_size=64, intermediate_size=128, max_position_embeddings=1024)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_tiny(SEES, 0, tmp_path_factory.mktemp("sees")))


@pytest.fixture(scope="module")
def reader(folder: str) -> ImageReader:
    return ImageReader(folder)


def policy(folder: str, *, frozen: bool = False, alone: bool = False) -> PolicyModel:
    vision = Vision(frozen=frozen)
    model = load_policy(folder, trains_tower=not frozen)
    return PolicyModel(model, SequencesAlone("asked", vision) if alone else WholeRows(vision))


def row(images: list[ImageFeatures]) -> tuple[torch.Tensor, torch.Tensor, RowImages, list[torch.Tensor]]:
    """Two sequences that share an image and two tokens, and one with another image: their tokens packed, the positions,
    the images, and each sequence alone."""
    one, other = images
    first = torch.tensor([11, 12, *one.token_ids, 13, 14, 15, 16, 17])
    second = torch.tensor([11, 12, *one.token_ids, 13, 14, 25, 26])
    third = torch.tensor([31, *other.token_ids, 32, 33, 34])
    shared = 4 + len(one.token_ids)
    positions = torch.cat([torch.arange(len(first)), torch.arange(shared, len(second)), torch.arange(len(third))])
    begin = len(first) + len(second) - shared
    placed = row_images([(begin + 1, other), (2, one)], ())
    assert placed is not None
    return torch.cat([first, second[shared:], third])[None], positions[None], placed, [first, second, third]


def losses(model: PolicyModel, images: list[ImageFeatures]) -> torch.Tensor:
    ids, positions, placed, (first, second, _) = row(images)
    shared = 4 + len(images[0].token_ids)
    behind = len(first) + len(second) - shared
    targets = torch.tensor([n for n in range(1, ids.numel()) if n != behind])
    sources = torch.where(targets == len(first), shared - 1, targets - 1)
    logprobs, _ = model(ids, positions, sources, targets, 1.0, images=placed)
    return torch.cat([logprobs[: len(first) - 1], logprobs[: shared - 1], logprobs[len(first) - 1 :]])


def plain_losses(folder: str, images: list[ImageFeatures]) -> tuple[torch.Tensor, torch.nn.Module]:
    model = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float64).eval()
    _, _, _, sequences = row(images)
    found = []
    for ids, image in zip(sequences, (images[0], images[0], images[1]), strict=True):
        tensors = {name: torch.from_numpy(array) for name, array in image.tensors.items()}
        kinds = (ids == model.config.image_token_id).long()
        logits = model(input_ids=ids[None], mm_token_type_ids=kinds[None], **tensors).logits[0, :-1]
        found.append(logits.log_softmax(-1).gather(-1, ids[1:, None])[:, 0])
    return torch.cat(found), model


@pytest.mark.parametrize("alone", [False, True])
def test_logprobs_and_gradients_of_packed_rows_are_those_of_sequences_alone(
    folder: str, reader: ImageReader, alone: bool
) -> None:
    images = [reader.features(noise_image(size)) for size in ((56, 56), (84, 56))]
    packed = policy(folder, alone=alone)
    own, (expected, plain) = losses(packed, images), plain_losses(folder, images)
    assert (own - expected).abs().max() < 1e-5
    weights = 1 + torch.cos(torch.arange(len(own)))
    (own * weights).sum().backward()
    (expected * weights).sum().backward()
    found, wanted = dict(packed.model.named_parameters()), dict(plain.named_parameters())
    gaps = {name: (found[name].grad.double() - one.grad).norm() for name, one in wanted.items()}  # type: ignore[union-attr]
    whole = torch.stack([one.grad.norm() for one in wanted.values()]).norm()  # type: ignore[union-attr]
    assert torch.stack(list(gaps.values())).norm() / whole < 1e-6
    tower = [name for name in wanted if "visual" in name]
    assert torch.stack([gaps[name] for name in tower]).norm() < 1e-6 * whole
    assert all(found[name].grad.abs().sum() > 0 for name in tower)  # type: ignore[union-attr]


def test_a_frozen_tower_sees_an_image_once_until_it_is_forgotten_and_learns_nothing(
    folder: str, reader: ImageReader
) -> None:
    images = [reader.features(noise_image(size)) for size in ((56, 56), (84, 56))]
    model = policy(folder, frozen=True)
    vision = model.rows.vision  # type: ignore[attr-defined]
    for _ in range(3):
        losses(model, images).sum().backward()
    assert vision.computed == 2
    model.rows.forget_images()
    losses(model, images)
    assert vision.computed == 4
    assert all(one.grad is None for name, one in model.model.named_parameters() if "visual" in name)
    trained = policy(folder)
    torch.testing.assert_close(losses(trained, images), losses(model, images), rtol=0, atol=0)


def test_a_row_without_images_runs_the_tower_of_a_batch_with_some(folder: str, reader: ImageReader) -> None:
    """All ranks take part in the tower's collectives; the result is as without images, and so are the gradients."""
    model, ids = policy(folder), torch.arange(3, 19)[None]
    where, unplaced = (
        torch.arange(16)[None],
        row_images([], [PlacedImage(features=reader.features(noise_image((56, 56))), start=0)]),
    )
    given = (ids, where, torch.arange(15), torch.arange(1, 16), 1.0)
    with_one, without = (model(*given, images=images)[0] for images in (unplaced, None))
    torch.testing.assert_close(with_one, without, rtol=0, atol=1e-6)
    with_one.sum().backward()
    grads = [one.grad for name, one in model.model.named_parameters() if "visual" in name]
    assert all(grad is not None and not grad.any() for grad in grads)


def test_the_probe_finds_positions_that_ignore_the_image(
    folder: str, reader: ImageReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load_policy(folder)
    sight = (reader, Vision(frozen=True))
    assert isinstance(proved_rows(model, "sees", sight=sight), WholeRows)
    found, expected = rows_with_images(model, WholeRows(sight[1]), reader)
    assert max(float((a - b).abs().max()) for a, b in zip(found, expected, strict=True)) < 1e-5
    monkeypatch.setattr("rlhf.models.vision._rotary_positions", lambda model, ids, positions, images: positions)
    with pytest.raises(ModelError, match=r"model\.path=sees: logits of sequences with images are off by"):
        proved_rows(model, "sees", sight=sight)


def test_an_image_is_read_once_and_its_tokens_take_the_place_of_the_mark(reader: ImageReader) -> None:
    image, tokenizer = noise_image((84, 56)), byte_tokenizer(sees=True)
    features = reader.features(image)
    assert reader.features(image) is features
    assert features.size == (84, 56)
    assert len(features.token_ids) == 6
    assert reader.added_tokens(image) == 5
    ids = tokenizer.encode("a<|vision_start|><|image_pad|><|vision_end|>b<|image_pad|>")
    prompt = reader.expanded(ids, [image, image])
    assert [placed.start for placed in prompt.images] == [2, 10]
    assert len(prompt.token_ids) == len(ids) + 10
    np.testing.assert_array_equal(marked(prompt.token_ids, prompt.images), ids)
    with pytest.raises(ModelError, match=r"a conversation with 1 images has 2 places for one \(<\|image_pad\|>\)"):
        reader.expanded(ids, [image])


def test_a_model_without_a_processor_cannot_be_shown_images(tmp_path: Path) -> None:
    save_tiny(TinyModelConfig(), 0, tmp_path)
    with pytest.raises(ModelError, match="has no processor of images, so it cannot be shown any"):
        ImageReader(str(tmp_path))


def test_other_tensors_have_another_checksum(reader: ImageReader) -> None:
    from rlhf.chat.image_reader import tensors_checksum

    features = reader.features(noise_image((56, 56)))
    pixels = features.tensors["pixel_values"].copy()
    pixels[0, 0] += 1e-3
    changed = replace(features, tensors={**features.tensors, "pixel_values": pixels})
    assert (
        tensors_checksum(features.tensors.values()) == features.checksum != tensors_checksum(changed.tensors.values())
    )
