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
SPECIAL = ["<unk>", "<s>", "</s>"]


def trained(model, before, after, trainer):
    made = Tokenizer(model)
    made.pre_tokenizer, made.decoder = before, after
    made.train_from_iterator(TEXTS, trainer(vocab_size=300, special_tokens=SPECIAL))
    return PreTrainedTokenizerFast(
        tokenizer_object=made, unk_token="<unk>", bos_token="<s>", eos_token="</s>"
    )


def metaspace():
    bpe = models.BPE(unk_token="<unk>")
    return trained(bpe, pre_tokenizers.Metaspace(), decoders.Metaspace(), trainers.BpeTrainer)


def word_pieces():
    model = models.WordPiece(unk_token="<unk>")
    return trained(model, pre_tokenizers.Whitespace(), decoders.WordPiece(), trainers.WordPieceTrainer)


def byte_level():
    before = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return trained(models.BPE(unk_token="<unk>"), before, decoders.ByteLevel(), trainers.BpeTrainer)


@pytest.mark.parametrize("make", [metaspace, word_pieces, byte_level, byte_tokenizer])
def test_the_parts_are_the_whole(make):
    tokenizer, rng = make(), random.Random(0)
    decode = tokenizer.backend_tokenizer.decode
    for i in range(200):
        text, after = (" ".join(rng.choice(WORDS) for _ in range(rng.randrange(n))) for n in (6, 9))
        prompt = tokenizer.encode(text, add_special_tokens=i % 2 == 0)
        tokens = tokenizer.encode(after, add_special_tokens=False)
        if i % 3 == 0:
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
    """But for the last of it, which may be the beginning of one: here it was of the next."""
    made = Continuation(byte_tokenizer())
    said = [made.add([byte]) for byte in b"\xff\xff\x9f" + "\N{PARTY POPPER}".encode() + b"a"]
    assert "".join(said) == "\N{REPLACEMENT CHARACTER}" * 3 + "\N{PARTY POPPER}a"
    assert said[1] == "\N{REPLACEMENT CHARACTER}"
