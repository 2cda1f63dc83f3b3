"""Tokenizers that need no download: single bytes, and byte-pair encoding trained from texts.

Both are ordinary fast tokenizers of transformers: they save and load beside a model, and AutoTokenizer
finds them.
"""

from collections.abc import Iterable
from typing import Any

from tokenizers import Tokenizer, decoders, pre_tokenizers, trainers
from tokenizers import models as encodings
from transformers import PreTrainedTokenizerFast

from cosformer.ops.checks import positive_int

# In this order after the 256 bytes, or before the tokens that byte-pair encoding has learned.
SPECIAL = {
    "pad_token": "<pad>",
    "bos_token": "<bos>",
    "eos_token": "<eos>",
    "sep_token": "<sep>",
    "cls_token": "<cls>",
    "mask_token": "<mask>",
}


def byte_tokenizer(*, max_length: int | None = None, padding_side: str = "left") -> Any:
    """Token b is byte b of the UTF-8 text, for b below 256; then come the special tokens.

    Every text is decoded to itself. The default vocabulary of `CosformerConfig` fits.
    """
    alphabet = _bytes_as_characters()
    vocabulary = {character: byte for byte, character in enumerate(alphabet)}
    return _finished(Tokenizer(encodings.BPE(vocab=vocabulary, merges=[])), max_length, padding_side)


def train_bpe(
    texts: Iterable[str],
    vocab_size: int,
    *,
    max_length: int | None = None,
    padding_side: str = "left",
) -> Any:
    """Byte-pair encoding (Sennrich et al., 2016, arXiv:1508.07909) over bytes, learned from texts.

    Every text can be encoded: what was not seen in training is split into bytes.
    """
    if isinstance(texts, str):
        raise TypeError("texts must be a list of strings, or an iterator over them, but got one string.")
    smallest = 256 + len(SPECIAL)
    if positive_int("vocab_size", vocab_size) < smallest:
        raise ValueError(
            f"vocab_size must be at least {smallest}, all bytes and {len(SPECIAL)} special tokens, but got "
            f"{vocab_size}."
        )
    tokenizer = Tokenizer(encodings.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=list(SPECIAL.values()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return _finished(tokenizer, max_length, padding_side)


def token_fields(tokenizer: Any, multiple: int = 8) -> dict[str, int]:
    """The fields of `CosformerConfig` that depend on the tokenizer: the size of the vocabulary, rounded up
    to a multiple, and the special tokens."""
    return {
        "vocab_size": -(-len(tokenizer) // multiple) * multiple,
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "decoder_start_token_id": tokenizer.bos_token_id,
    }


def _bytes_as_characters() -> list[str]:
    """The printable character by which `tokenizers` writes each byte."""
    printable = [
        *range(ord("!"), ord("~") + 1),
        *range(ord("¡"), ord("¬") + 1),
        *range(ord("®"), ord("ÿ") + 1),
    ]
    others = iter(range(256, 512))
    return [chr(b) if b in printable else chr(next(others)) for b in range(256)]


def _finished(tokenizer: Tokenizer, max_length: int | None, padding_side: str) -> Any:
    if tokenizer.pre_tokenizer is None:
        # No splitting into words, which matters only for merges.
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIAL.values()))
    lengths = {} if max_length is None else {"model_max_length": positive_int("max_length", max_length)}
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        padding_side=padding_side,
        clean_up_tokenization_spaces=False,
        model_input_names=["input_ids", "attention_mask"],
        **SPECIAL,
        **lengths,
    )
