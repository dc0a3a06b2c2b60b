"""Small tokenizers of the kinds that models come with, trained on a few sentences."""

from __future__ import annotations

import base64
from collections.abc import Callable
from functools import cache
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import sentencepiece
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import TikTokenConverter, bytes_to_unicode, generate_merges

from tests.models.wire import Wire

SENTENCES = (
    "The answer is 42.", "Hello there, how are you today?", "two plus two is four", "user assistant system model tool",
    "a question and an answer", "Be brief and be kind.\n", "I say three, and then I say four.\n\n", '{"name": "add"}',
)  # fmt: skip
PIECES = 400
MARK = "▁"
"""What sentencepiece writes for a space."""


def byte_level() -> Tokenizer:
    """GPT-2's way, and Qwen's: merges of bytes within words; a space belongs to the word behind it."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=PIECES, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(SENTENCES * 9, trainer)
    return tokenizer


def tiktoken() -> Tokenizer:
    """A file of bytes and ranks, converted as transformers does: Llama 3, GLM 4, gpt-oss."""
    unwritten = {letter: bytes([byte]) for byte, letter in bytes_to_unicode().items()}
    ranks = sorted(byte_level().get_vocab().items(), key=lambda item: item[1])
    lines = [base64.b64encode(b"".join(unwritten[one] for one in token)) + f" {rank}".encode() for token, rank in ranks]
    with TemporaryDirectory() as folder:
        file = Path(folder) / "small.tiktoken"
        file.write_bytes(b"\n".join(lines))
        return TikTokenConverter(str(file)).converted()


def prefix_everywhere() -> Tokenizer:
    """Llama 2 and what was made from it: a space is put before every text, behind a mark too."""
    return _sentencepiece_bpe(
        normalizer=normalizers.Sequence([normalizers.Prepend(MARK), normalizers.Replace(" ", MARK)]), strips=True
    )


def prefix_first() -> Tokenizer:
    """The same without `legacy`: a space is put before a text that does not begin with a mark."""
    before = pre_tokenizers.Metaspace(replacement=MARK, prepend_scheme="first", split=False)
    return _sentencepiece_bpe(pre_tokenizer=before, strips=True)


def no_prefix() -> Tokenizer:
    """Gemma: no space is put anywhere."""
    return _sentencepiece_bpe(normalizer=normalizers.Replace(" ", MARK), strips=False)


def unigram() -> Tokenizer:
    """Pieces with scores instead of merges: T5 and many Japanese models."""
    model = _trained("unigram")
    pieces = [(model.id_to_piece(one), model.get_score(one)) for one in range(model.get_piece_size())]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=model.unk_id(), byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement=MARK, prepend_scheme="always")
    tokenizer.decoder = decoders.Sequence(
        [decoders.ByteFallback(), decoders.Metaspace(replacement=MARK, prepend_scheme="always")]
    )
    return tokenizer


VOCABULARIES: dict[str, Callable[[], Tokenizer]] = {
    "byte-level BPE": byte_level,
    "tiktoken": tiktoken,
    "sentencepiece BPE, a space before every text": prefix_everywhere,
    "sentencepiece BPE, a space before the first text": prefix_first,
    "sentencepiece BPE, no space": no_prefix,
    "unigram": unigram,
}


def tokenizer_of(vocabulary: str, wire: Wire) -> PreTrainedTokenizerBase:
    """A tokenizer of that kind with the marks and the template of a family. Where there is a beginning of sequence, the
    tokenizer adds it by itself to a text, as most do."""
    tokenizer = Tokenizer.from_str(_written(vocabulary))
    whole = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=wire.eos, bos_token=wire.bos)
    whole.add_tokens(wire.added)
    if wire.bos:
        beginning = (wire.bos, whole.convert_tokens_to_ids(wire.bos))
        whole.backend_tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{wire.bos}:0 $A:0", pair=f"{wire.bos}:0 $A:0 $B:1", special_tokens=[beginning]
        )
    whole.chat_template = wire.template
    return whole


def _sentencepiece_bpe(*, strips: bool, normalizer: Any = None, pre_tokenizer: Any = None) -> Tokenizer:
    """Pieces and bytes for what has none. `strips` takes the space at the beginning of a text away when it is read."""
    model = _trained("bpe")
    vocabulary = {model.id_to_piece(one): one for one in range(model.get_piece_size())}
    merges = generate_merges(vocabulary, None)
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    if pre_tokenizer is not None:
        tokenizer.pre_tokenizer = pre_tokenizer
    read = [decoders.Replace(MARK, " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence(read + ([decoders.Strip(content=" ", left=1)] if strips else []))
    return tokenizer


@cache
def _trained(kind: str) -> Any:
    written = BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(SENTENCES * 9), model_writer=written, model_type=kind, vocab_size=PIECES,
        hard_vocab_limit=False, byte_fallback=True, normalization_rule_name="identity", num_threads=1, minloglevel=2,
    )  # fmt: skip
    return sentencepiece.SentencePieceProcessor(model_proto=written.getvalue())


@cache
def _written(vocabulary: str) -> str:
    return VOCABULARIES[vocabulary]().to_str()
