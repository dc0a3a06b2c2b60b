"""The chunked head against plain softmax in float64: values, gradients, memory."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM

from rlhf.models import head_chunks
from rlhf.models.head import BehindHead, chosen_logprobs, head_logprobs
from rlhf.models.head_chunks import tokens_at_once
from rlhf.models.policy import logits_of

TOKENS, HIDDEN, VOCABULARY = 23, 16, 50
IDS = torch.arange(TOKENS) * 7 % VOCABULARY
OF_LOGPROBS, OF_ENTROPIES = torch.linspace(-1, 2, TOKENS), torch.linspace(1, -2, TOKENS)


@pytest.fixture(autouse=True)
def chunks_of_five_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head_chunks, "LOGITS_AT_ONCE", 5 * VOCABULARY)
    monkeypatch.setattr(head_chunks, "MIN_CHUNK_TOKENS", 1)


def made(dtype: torch.dtype, bias: bool = False) -> tuple[nn.Linear, Tensor]:
    torch.manual_seed(0)
    head = nn.Linear(HIDDEN, VOCABULARY, bias=bias).to(dtype)
    return head, (3 * torch.randn(TOKENS, HIDDEN)).to(dtype).requires_grad_()


class Capped(nn.Linear):
    """A head, and what Gemma 2 and Granite make of its numbers, as their papers write it."""

    def forward(self, hidden: Tensor) -> Tensor:
        return 2 * torch.tanh(super().forward(hidden) / 3 / 2)


def plain(head: nn.Module, hidden: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    log_softmax = torch.log_softmax(head(hidden).double() / temperature, -1)
    return log_softmax.gather(1, IDS[:, None])[:, 0], -(log_softmax.exp() * log_softmax).sum(-1)


def chunked(head: Callable[[Tensor], Tensor], hidden: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    return head_logprobs(head, hidden, IDS, temperature, vocabulary=VOCABULARY, entropy_gradient=True)


def gradients(
    compute: Callable[[nn.Module, Tensor, float], tuple[Tensor, Tensor]],
    head: nn.Module,
    hidden: Tensor,
    temperature: float = 0.7,
) -> list[Tensor]:
    logprobs, entropies = compute(head, hidden, temperature)
    loss = (logprobs * OF_LOGPROBS).sum() + (entropies * OF_ENTROPIES).sum()
    return [g.double() for g in torch.autograd.grad(loss, [hidden, *head.parameters()])]


def close(found: list[Tensor], expected: list[Tensor], relative: float) -> None:
    for one, other in zip(found, expected, strict=True):
        assert float((one - other).norm() / other.norm()) <= relative


@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.5])
def test_chunks_give_the_values_of_a_plain_softmax(temperature: float) -> None:
    head, hidden = made(torch.float32)
    found = chunked(head, hidden, temperature)
    for one, exact in zip(found, plain(head.double(), hidden.double(), temperature), strict=True):
        torch.testing.assert_close(one.double(), exact, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.5])
def test_gradients_of_log_probs_and_entropies_equal_those_of_a_plain_softmax(bias: bool, temperature: float) -> None:
    head, hidden = made(torch.float32, bias)
    exact_head, _ = made(torch.float32, bias)
    exact = gradients(plain, exact_head.double(), hidden.detach().double().requires_grad_(), temperature)
    close(gradients(chunked, head, hidden, temperature), exact, 1e-6)


def test_capped_and_scaled_logits_have_the_values_and_gradients_of_the_formula() -> None:
    head, hidden = made(torch.float32)
    behind = BehindHead(scale=1 / 3, cap=2.0)

    def computed(head: nn.Module, hidden: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
        return chunked(lambda part: behind(head(part)), hidden, temperature)

    capped = Capped(HIDDEN, VOCABULARY, bias=False).double()
    capped.weight.data.copy_(head.weight)
    exact = hidden.detach().double().requires_grad_()
    for one, other in zip(computed(head, hidden, 0.7), plain(capped, exact, 0.7), strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-5, atol=1e-5)
    close(gradients(computed, head, hidden), gradients(plain, capped, exact), 1e-6)


@pytest.mark.parametrize(
    ("family", "settings"),
    [
        ("gemma2", {"final_logit_softcapping": 2.0}),
        ("granite", {"logits_scaling": 4.0}),
        ("cohere", {"logit_scale": 0.25}),
        ("llama", {}),
    ],
)
def test_what_is_behind_a_head_is_read_from_the_configuration(family: str, settings: dict[str, float]) -> None:
    shape = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2}
    config = AutoConfig.for_model(family, **shape, **heads, pad_token_id=0, **settings)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).eval()
    model.get_output_embeddings().weight.data.mul_(30)
    ids = torch.arange(9)[None]
    with torch.no_grad():
        expected = model(input_ids=ids).logits
        hidden = model.base_model(input_ids=ids).last_hidden_state
        assert torch.equal(logits_of(model, hidden), expected)
        assert bool(settings) == (not torch.allclose(model.get_output_embeddings()(hidden), expected))


def test_sixteen_bit_weights_have_their_softmax_in_float32() -> None:
    head, hidden = made(torch.bfloat16)
    for found, exact in zip(chunked(head, hidden, 0.7), plain(head, hidden, 0.7), strict=True):
        assert found.dtype == torch.float32
        torch.testing.assert_close(found.double(), exact, rtol=1e-5, atol=1e-5)
    close(gradients(chunked, head, hidden), gradients(plain, head, hidden), 1e-2)


def test_the_logits_given_are_left_as_they_are() -> None:
    logits = torch.randn(TOKENS, VOCABULARY).requires_grad_()
    before = logits.detach().clone()
    logprobs, entropies = chosen_logprobs(logits, IDS, entropy_gradient=True)
    loss = (logprobs + entropies).sum()
    first = torch.autograd.grad(loss, logits, retain_graph=True)[0]
    assert torch.equal(first, torch.autograd.grad(loss, logits)[0]), "a second backward pass differs"
    assert torch.equal(logits, before)


def test_a_head_is_called_as_a_module_in_both_passes() -> None:
    """ZeRO-3 gathers a head in its hooks: they must be called in the recomputation too."""
    head, hidden = made(torch.float32)
    calls: list[int] = []
    head.register_forward_pre_hook(lambda _module, inputs: calls.append(len(inputs[0])))
    logprobs, _ = head_logprobs(head, hidden, IDS, vocabulary=VOCABULARY)
    assert calls == [5, 5, 5, 4, 4]
    logprobs.sum().backward()
    assert sorted(calls) == [*[4] * 4, *[5] * 6]


@pytest.mark.parametrize(
    ("vocabulary", "gigabytes", "tokens"), [(152_064, 80, 1103), (152_064, 24, 330), (32_000, 80, 5242)]
)
def test_chunks_on_a_gpu_are_sized_by_its_memory_and_the_vocabulary(
    vocabulary: int, gigabytes: int, tokens: int
) -> None:
    assert tokens_at_once(vocabulary, gigabytes * 2**30) == tokens
    assert 4 * tokens * vocabulary <= gigabytes * 2**30 / 128


@pytest.mark.parametrize("tokens", [0, 3, 23])
def test_ranks_with_fewer_tokens_call_the_head_as_often_as_the_one_with_most(tokens: int) -> None:
    head, hidden = made(torch.float32)
    calls: list[int] = []
    head.register_forward_pre_hook(lambda _module, inputs: calls.append(len(inputs[0])))
    logprobs, _ = head_logprobs(head, hidden[:tokens], IDS[:tokens], vocabulary=VOCABULARY, most=31)
    assert len(calls) == 7
    assert sum(calls) == tokens == len(logprobs)
    logprobs.sum().backward()
    assert len(calls) == 14


def test_no_tensor_is_as_large_as_the_logits_of_all_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    head, hidden, ids = nn.Linear(4, 2000), torch.randn(64, 4).requires_grad_(), torch.arange(64)
    monkeypatch.setattr(head_chunks, "LOGITS_AT_ONCE", 8 * 2000)
    with torch.profiler.profile(profile_memory=True) as profile:
        logprobs, entropies = head_logprobs(head, hidden, ids, vocabulary=2000, entropy_gradient=True)
        (logprobs + entropies).sum().backward()
    sizes = [event.nbytes() for event in profile.profiler.kineto_results.events() if event.name() == "[memory]"]
    assert max(sizes) == 8 * 2000 * 4


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("tokens", [TOKENS, 3], ids=["chunked", "one chunk"])
def test_a_logit_of_minus_infinity_adds_nothing_to_entropies_and_gradients(dtype: torch.dtype, tokens: int) -> None:
    """Padded rows of a head: 0 log 0 is 0. Without the row the numbers are the same."""
    head, hidden = made(dtype, bias=True)
    hidden = hidden.detach()[:tokens].requires_grad_()
    ids = IDS[:tokens] % (VOCABULARY - 1)

    def found(bias: float, rows: int) -> list[Tensor]:
        with torch.no_grad():
            head.bias[-1] = bias
        logprobs, entropies = head_logprobs(
            lambda states: head(states)[:, :rows], hidden, ids, 0.7, vocabulary=VOCABULARY, entropy_gradient=True
        )
        loss = (logprobs * OF_LOGPROBS[:tokens]).sum() + (entropies * 1e4 * OF_ENTROPIES[:tokens]).sum()
        return [logprobs, entropies, *torch.autograd.grad(loss, [hidden, head.weight])]

    for one, other in zip(found(-torch.inf, VOCABULARY), found(0.0, VOCABULARY - 1), strict=True):
        assert torch.isfinite(one).all()
        torch.testing.assert_close(one, other)
