"""Text token by token is the text of the whole: spaces between words, joined pieces, whole characters."""

import random

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from cosformer.models import byte_tokenizer
from cosformer.models.continuation import Continuation, continuation

WORDS = [
    "the", "model", "\N{PARTY POPPER}", "p\xe4per", "def", "main(x):", "\n\n", "", "spaces", "", "",
    "and\ttabs", "\u65e5\u672c\u8a9e", "\xe9",
]  # fmt: skip
TEXTS = ["the model is a model", "spaces and words of a text", "def main(x): the text"] * 3
MARK = "\N{REPLACEMENT CHARACTER}"
SPECIAL = ["<unk>", "<s>", "</s>"]


def tokenizer_of(made):
    names = dict(zip(("unk_token", "bos_token", "eos_token"), SPECIAL, strict=True))
    return PreTrainedTokenizerFast(tokenizer_object=made, **names)


def trained(model, before, after, trainer):
    made = Tokenizer(model)
    made.pre_tokenizer, made.decoder = before, after
    made.train_from_iterator(TEXTS, trainer(vocab_size=300, special_tokens=SPECIAL))
    return tokenizer_of(made)


def metaspace():
    bpe = models.BPE(unk_token="<unk>")
    return trained(bpe, pre_tokenizers.Metaspace(), decoders.Metaspace(), trainers.BpeTrainer)


def word_pieces():
    model = models.WordPiece(unk_token="<unk>")
    return trained(model, pre_tokenizers.Whitespace(), decoders.WordPiece(), trainers.WordPieceTrainer)


def byte_fallback():
    """As Llama's: what is in no piece is written in bytes, one mark for each that is not complete."""
    pieces = {"<unk>": 0, "<s>": 1, "</s>": 2, "\u2581": 3, "a": 4, "b": 5, "\u2581a": 6, "\u2581b": 7}
    pieces |= {f"<0x{byte:02X}>": 8 + byte for byte in range(256)}
    merges = [("\u2581", "a"), ("\u2581", "b")]
    made = Tokenizer(models.BPE(pieces, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    steps = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    made.decoder = decoders.Sequence(steps)
    return tokenizer_of(made)


def byte_level():
    before = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return trained(models.BPE(unk_token="<unk>"), before, decoders.ByteLevel(), trainers.BpeTrainer)


@pytest.mark.parametrize("make", [metaspace, word_pieces, byte_fallback, byte_level, byte_tokenizer])
def test_the_parts_are_the_whole(make):
    tokenizer, rng = make(), random.Random(0)
    decode = tokenizer.backend_tokenizer.decode
    for i in range(200):
        text, after = (" ".join(rng.choice(WORDS) for _ in range(rng.randrange(n))) for n in (6, 9))
        prompt = tokenizer.encode(text, add_special_tokens=i % 2 == 0)
        tokens = tokenizer.encode(after, add_special_tokens=False)
        if i % 3 == 0 and make is not byte_fallback:  # it takes characters back before bytes that are none
            tokens = [rng.randrange(len(tokenizer)) for _ in range(20)]
        made = Continuation(tokenizer, prompt)
        parts = [made.add([token]) for token in tokens] + [made.rest()]
        expected = decode(prompt + tokens)[len(decode(prompt)) :]
        assert "".join(parts) == continuation(tokenizer, prompt, tokens) == expected
        assert made.tokens == tokens


def test_spaces_and_pieces_of_words_are_said_as_they_come():
    tokenizer = metaspace()
    prompt, tokens = (tokenizer.encode(text, add_special_tokens=False) for text in ("the", "model is"))
    assert continuation(tokenizer, prompt, tokens) == " model is"
    tokenizer = word_pieces()
    made = Continuation(tokenizer, tokenizer.encode("the"))
    parts = [made.add([token]) for token in tokenizer.convert_tokens_to_ids(["m", "##o", "##d"])]
    assert parts == [" m", "o", "d"]


def test_what_never_becomes_a_character_is_said():
    """After some tokens; what may be the beginning of a character waits on."""
    made = Continuation(byte_tokenizer())
    said = [made.add([byte]) for byte in b"\xff" * 40 + "\N{PARTY POPPER}".encode() + b"a"]
    assert "".join(said) == MARK * 40 + "\N{PARTY POPPER}a"
    assert sum(map(len, said[:40])) > 20


def test_many_bytes_that_are_no_text_take_no_longer_each():
    made = Continuation(byte_tokenizer())
    parts = [made.add([0x80]) for _ in range(4000)]
    assert "".join(parts) + made.rest() == MARK * 4000
    assert len(made._waiting) <= 16
