"""A scalar at any token of packed rows, from a folder that every other library reads the same."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForSequenceClassification, AutoTokenizer, GranitePreTrainedModel
from transformers.modeling_layers import GenericForSequenceClassification

from rlhf.errors import ModelError
from rlhf.models.config import TinyModelConfig
from rlhf.models.probe import proved_rows
from rlhf.models.scalar import ScalarHead, check_same_vocabulary, load_scalar, pad_alike, padding_id
from rlhf.models.tiny import byte_tokenizer, save_tiny
from tests.architectures.families import FAMILIES, save

LENGTHS = (7, 12, 5)
MADE = {
    "granite": "Granite", "olmoe": "Olmoe", "lfm2": "Lfm2", "codegen": "CodeGen", "llama4_text": "Llama4",
}  # fmt: skip
"""Families without a class for sequence classification in transformers, and what its name would begin with: plain,
with experts, with a state, with another prefix than `model`, with none."""
ALONE = ("llama4_text", "bloom")


@pytest.fixture(scope="module", params=["llama", "qwen2"])
def causal(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    config = TinyModelConfig(architecture=request.param, hidden_size=64, intermediate_size=128)
    return str(save_tiny(config, 0, tmp_path_factory.mktemp(request.param)))


@pytest.fixture(scope="module")
def scalar(causal: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A scalar model that has learnt something: its head is not zero."""
    folder = tmp_path_factory.mktemp("scalar")
    model = load_scalar(causal, fresh_head=True)
    torch.manual_seed(1)
    torch.nn.init.normal_(model.score.weight)
    model.save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return str(folder)


def sequences() -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randint(3, 250, (length,)) for length in LENGTHS]


def packed(head: ScalarHead, places: torch.Tensor) -> torch.Tensor:
    """All sequences in one row."""
    positions = torch.cat([torch.arange(length) for length in LENGTHS])
    return head(torch.cat(sequences())[None], positions[None], places)


def alone(head: ScalarHead, ids: torch.Tensor) -> torch.Tensor:
    """Every token's number by Hugging Face's own layers, one sequence a forward pass, no packing."""
    return head.model.score(head.model.base_model(ids[None]).last_hidden_state)[0, :, 0]


def gradient(head: ScalarHead, numbers: torch.Tensor) -> torch.Tensor:
    head.zero_grad()
    (numbers * torch.cos(torch.arange(len(numbers)))).sum().backward()
    return torch.cat([p.grad.double().flatten() for p in head.parameters()])


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_packed_numbers_and_gradients_equal_those_of_each_sequence_alone(scalar: str, attention: str) -> None:
    head = ScalarHead(load_scalar(scalar, attention=attention))
    together = packed(head, torch.arange(sum(LENGTHS)))
    apart = torch.cat([alone(head, ids) for ids in sequences()])
    torch.testing.assert_close(together, apart, rtol=0, atol=1e-5)
    difference = gradient(head, together) - (expected := gradient(head, apart))
    assert float(difference.norm() / expected.norm()) <= 1e-6


def test_branches_see_their_shared_beginning_and_not_one_another(scalar: str) -> None:
    head = ScalarHead(load_scalar(scalar))
    first, second = sequences()[0], torch.cat([sequences()[0][:4], sequences()[2]])
    row = torch.cat([first, second[4:]])[None]
    positions = torch.cat([torch.arange(len(first)), torch.arange(4, len(second))])[None]
    together = head(row, positions, torch.tensor([len(first) - 1, row.shape[1] - 1]))
    apart = torch.stack([alone(head, first)[-1], alone(head, second)[-1]])
    torch.testing.assert_close(together, apart, rtol=0, atol=1e-5)


def test_a_fresh_head_starts_at_exactly_zero_and_learns(causal: str) -> None:
    head = ScalarHead(load_scalar(causal, fresh_head=True))
    numbers = packed(head, torch.arange(sum(LENGTHS)))
    assert not numbers.any()
    gradient(head, numbers)
    assert bool(head.model.score.weight.grad.any())


def test_a_scalar_model_with_a_fresh_head_keeps_all_but_its_head(scalar: str) -> None:
    kept, fresh = load_scalar(scalar), load_scalar(scalar, fresh_head=True)
    assert not fresh.score.weight.any()
    for (name, weight), (_, other) in zip(
        kept.base_model.named_parameters(), fresh.base_model.named_parameters(), strict=True
    ):
        assert torch.equal(weight, other), name


def test_without_places_the_backward_pass_reaches_every_weight_with_zero(scalar: str) -> None:
    head = ScalarHead(load_scalar(scalar))
    packed(head, torch.zeros(0, dtype=torch.int64)).sum().backward()
    assert all(p.grad is not None and not p.grad.any() for p in head.parameters())


def test_in_bfloat16_the_numbers_are_float32(scalar: str) -> None:
    head = ScalarHead(load_scalar(scalar, dtype="bfloat16"))
    assert head.model.dtype == torch.bfloat16
    assert packed(head, torch.arange(3)).dtype == torch.float32


def test_a_causal_model_is_no_reward_model(causal: str) -> None:
    with pytest.raises(ModelError, match=r"reward\.model=.* is a \w+ForCausalLM, not a sequence-classification model"):
        load_scalar(causal, setting="reward.model")


@pytest.fixture(params=(*MADE, "bloom"))
def learnt(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, str]:
    """A family, and a folder of its scalar model."""
    save(next(family for family in FAMILIES if family.kind == request.param), tmp_path / "causal")
    model = load_scalar(str(tmp_path / "causal"), fresh_head=True)
    torch.manual_seed(1)
    torch.nn.init.normal_(model.score.weight, std=0.1)
    model.save_pretrained(tmp_path / "scalar")
    byte_tokenizer().save_pretrained(tmp_path / "scalar")
    return request.param, str(tmp_path / "scalar")


def test_a_scalar_model_of_any_family_is_saved_read_again_and_right_in_packed_rows(learnt: tuple[str, str]) -> None:
    name, folder = learnt
    config = json.loads((Path(folder) / "config.json").read_text())
    assert config["architectures"] == [f"{MADE.get(name, 'Bloom')}ForSequenceClassification"]
    model = load_scalar(folder)
    rows = proved_rows(model, folder)
    assert bool(rows.why_alone) == (name in ALONE)
    together = packed(ScalarHead(model, rows), torch.arange(sum(LENGTHS)))
    plain = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    ends = torch.tensor(LENGTHS).cumsum(0) - 1
    with torch.no_grad():
        own = torch.cat([plain(input_ids=ids[None], use_cache=False).logits[0] for ids in sequences()])
    assert own.abs().min() > 1e-3
    torch.testing.assert_close(together[ends], own, rtol=0, atol=1e-5)


class GraniteForSequenceClassification(GenericForSequenceClassification, GranitePreTrainedModel):
    """As docs/your-own-data-and-reward.md writes it for users without this library."""

    base_model_prefix = GranitePreTrainedModel.base_model_prefix


@pytest.mark.parametrize("learnt", ["granite"], indirect=True)
def test_a_few_lines_of_transformers_read_a_scalar_model_that_was_made_here(learnt: tuple[str, str]) -> None:
    _, folder = learnt
    model, found = GraniteForSequenceClassification.from_pretrained(folder, output_loading_info=True)
    assert not any(found.values())
    assert torch.equal(model.score.weight, load_scalar(folder).score.weight)


def changed(scalar: str, target: Path, labels: int, keep: str) -> str:
    """The same folder with `labels` labels, and of its weights those whose name contains `keep`."""
    names = {str(index): f"LABEL_{index}" for index in range(labels)}
    config = json.loads((Path(scalar) / "config.json").read_text()) | {"id2label": names}
    config["label2id"] = {name: int(index) for index, name in names.items()}
    (target / "config.json").write_text(json.dumps(config))
    weights = load_file(Path(scalar) / "model.safetensors")
    kept = {name: tensor for name, tensor in weights.items() if keep in name}
    save_file(kept, target / "model.safetensors", {"format": "pt"})
    return str(target)


@pytest.mark.parametrize(
    ("labels", "keep", "fresh", "words"),
    [
        (3, "", False, r"has 3 labels \(num_labels\), but a score needs exactly 1"),
        (1, "model.", False, r"has no weights for score\.weight"),
        (1, "layers", True, r"has no weights for model\."),
    ],
)
def test_a_folder_without_one_score_or_all_weights_is_refused(
    scalar: str, tmp_path: Path, labels: int, keep: str, fresh: bool, words: str
) -> None:
    with pytest.raises(ModelError, match=words):
        load_scalar(changed(scalar, tmp_path, labels, keep), fresh_head=fresh)


def test_the_same_tokenizer_passes_and_one_more_token_is_harmless(causal: str, tmp_path: Path) -> None:
    larger = byte_tokenizer()
    larger.add_tokens(["<|score|>"])
    larger.save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text((Path(causal) / "config.json").read_text())
    check_same_vocabulary(causal, causal)
    check_same_vocabulary(causal, str(tmp_path))
    with pytest.raises(ModelError, match=r"token '<\|score\|>' is 259 here and not there"):
        check_same_vocabulary(str(tmp_path), causal)


def test_padding_is_never_the_token_that_ends_a_sequence() -> None:
    tokenizer = byte_tokenizer()
    assert padding_id(tokenizer) == tokenizer.pad_token_id
    tokenizer.pad_token = tokenizer.eos_token
    assert padding_id(tokenizer) not in (None, tokenizer.eos_token_id)


def test_scores_of_a_batch_in_transformers_are_those_of_each_sequence_where_padding_was_the_end(
    causal: str, tmp_path: Path
) -> None:
    model, tokenizer = load_scalar(causal, fresh_head=True), byte_tokenizer()
    torch.nn.init.normal_(model.score.weight)
    tokenizer.pad_token = tokenizer.eos_token
    pad_alike(model, tokenizer)
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    read, tokens = AutoModelForSequenceClassification.from_pretrained(tmp_path), AutoTokenizer.from_pretrained(tmp_path)
    assert read.config.pad_token_id == tokens.pad_token_id != tokens.eos_token_id
    texts = [f"{text}<|im_end|>" for text in ("one", "a longer reply", "2")]
    with torch.no_grad():
        together = read(**tokens(texts, padding=True, return_tensors="pt")).logits[:, 0]
        apart = torch.cat([read(**tokens(text, return_tensors="pt")).logits[:, 0] for text in texts])
        ends = torch.stack(
            [alone(ScalarHead(read), tokens(text, return_tensors="pt").input_ids[0])[-1] for text in texts]
        )
    torch.testing.assert_close(together, apart, rtol=0, atol=1e-5)
    torch.testing.assert_close(together, ends, rtol=0, atol=1e-5)
