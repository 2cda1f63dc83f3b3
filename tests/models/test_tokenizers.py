"""Tokenizers without a download: nothing is lost, and they live beside a model."""

import pytest
from transformers import AutoTokenizer

from cosformer.models import CosformerConfig, CosformerForCausalLM, byte_tokenizer, token_fields, train_bpe

TEXTS = ["", "plain text", "naïve – 数 🙂\n\ttabs", "  two  spaces ", "".join(map(chr, range(1, 300)))]
CORPUS = ["the cat sat on the mat", "the dog sat on the cat"] * 20


def kinds():
    return {"bytes": byte_tokenizer(), "bpe": train_bpe(CORPUS, 300)}


@pytest.mark.parametrize("kind", ["bytes", "bpe"])
@pytest.mark.parametrize("text", TEXTS)
def test_what_goes_in_comes_out(kind, text):
    tokenizer = kinds()[kind]
    ids = tokenizer(text)["input_ids"]
    assert tokenizer.decode(ids) == text
    assert (
        tokenizer.decode([tokenizer.bos_token_id, *ids, tokenizer.eos_token_id], skip_special_tokens=True)
        == text
    )


def test_a_token_is_a_byte():
    tokenizer = byte_tokenizer()
    for text in TEXTS:
        assert tokenizer(text)["input_ids"] == list(text.encode())
    assert [tokenizer.convert_tokens_to_ids(t) for t in ("<pad>", "<bos>", "<eos>", "<mask>")] == [
        256,
        257,
        258,
        261,
    ]


def test_the_default_configuration_fits_bytes():
    config = CosformerConfig()
    assert token_fields(byte_tokenizer()) == {
        name: getattr(config, name) for name in token_fields(byte_tokenizer())
    }


def test_training_learns_what_is_frequent():
    tokenizer = train_bpe(CORPUS, 300)
    assert len(tokenizer(CORPUS[0])["input_ids"]) < len(CORPUS[0]) / 2
    assert len(tokenizer) <= 300
    assert train_bpe(CORPUS, 300).get_vocab() == tokenizer.get_vocab(), "the same texts give the same tokens"


def test_too_small_a_vocabulary():
    with pytest.raises(ValueError, match="vocab_size must be at least 262"):
        train_bpe(CORPUS, 100)


def test_one_string_is_not_a_list_of_texts():
    with pytest.raises(TypeError, match=r"texts must be a list of strings, .* but got one string"):
        train_bpe("hello world", vocab_size=300)


@pytest.mark.parametrize("kind", ["bytes", "bpe"])
def test_saved_with_a_model(kind, tmp_path):
    tokenizer = kinds()[kind]
    config = CosformerConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, **token_fields(tokenizer)
    )
    CosformerForCausalLM(config).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    again = AutoTokenizer.from_pretrained(tmp_path)
    batch = again(["one", "a longer text 🙂"], padding=True)
    assert batch == tokenizer(["one", "a longer text 🙂"], padding=True)
    assert batch["attention_mask"][0][0] == 0, "padded on the left"
    assert set(batch) == {"input_ids", "attention_mask"}
    assert again.decode(batch["input_ids"][1]) == "a longer text 🙂"
