"""Columns taken back from a cache of keys: those that the caller sees, wherever the padding is."""

import pytest
import torch

from cosformer.models import CosformerCache, CosformerForCausalLM, HorizonError
from tests.models.tiny import PADDINGS, build, close, padded_batch, tokens

# Each kind of state that keeps its keys: under a mask, with positions beside it, with positions alone.
KEEPING = {
    "softmax": {"attention": "softmax"},
    "windows": {"attention": "softmax", "attention_parameters": {"windows": [1, 3, 9, None]}},
    "local": {"attention": "local"},
}
EACH = pytest.mark.parametrize("kind", KEEPING.values(), ids=KEEPING)


@EACH
@pytest.mark.parametrize("padding", PADDINGS)
@torch.no_grad()
def test_the_last_columns_go_wherever_the_padding_is(padding, kind):
    """The prompt in two calls: what is taken back lies in the second, or reaches into the first."""
    net = build(CosformerForCausalLM, position="rotary", **kind)
    ids, mask, _ = padded_batch(PADDINGS[padding])
    expected = net(ids, attention_mask=mask, use_cache=False).logits
    for gone in (1, 3, 8):
        cache = CosformerCache(net.config)
        for end in (7, 12):
            piece = slice(cache.get_seq_length(), end)
            net(ids[:, piece], attention_mask=mask[:, :end], past_key_values=cache, only_state=True)
        cache.crop(-gone)
        assert cache.get_seq_length() == 12 - gone
        assert cache.past.positions.tolist() == mask[:, :-gone].sum(1).tolist()
        if mask[:, -gone:].any(1).all():
            again = net(ids[:, -gone:], attention_mask=mask, past_key_values=cache).logits
            real = mask[:, -gone:].bool()
            close(again[real], expected[:, -gone:][real])


@EACH
def test_guesses_are_taken_back_behind_a_padded_prompt(kind):
    """Prompt lookup and an assistant, which guess and crop: the text is that of no guessing."""
    net = build(CosformerForCausalLM, position="rotary", **kind)
    assistant = build(CosformerForCausalLM, position="rotary", num_hidden_layers=1, **kind)
    options = {"max_new_tokens": 8, "do_sample": False}
    for seed in range(2):
        torch.manual_seed(seed)
        ids = torch.cat([torch.zeros(1, 3, dtype=torch.int64), torch.randint(2, 6, (1, 9))], 1)
        mask = (torch.arange(12) >= 3).long()[None]
        expected = net.generate(ids, attention_mask=mask, **options)
        for guesses in ({"prompt_lookup_num_tokens": 3}, {"assistant_model": assistant}):
            found = net.generate(ids, attention_mask=mask, **options, **guesses)
            assert torch.equal(found, expected)


@pytest.mark.parametrize("by", ["lookup", "assistant"])
@EACH
def test_guesses_behind_a_cache_with_text(kind, by):
    """It was read again, columns and all, and every guess was wrong."""
    net = build(CosformerForCausalLM, position="rotary", **kind)
    assistant = build(CosformerForCausalLM, position="rotary", num_hidden_layers=1, **kind)
    guess = {"prompt_lookup_num_tokens": 3} if by == "lookup" else {"assistant_model": assistant}
    options, cache = {"max_new_tokens": 8, "do_sample": False}, CosformerCache(net.config)
    text = torch.cat([net.generate(tokens(1, 9), past_key_values=cache, **options), tokens(1, 3)], 1)
    found = net.generate(text, past_key_values=cache, **guess, **options)
    assert torch.equal(found, net.generate(text, **options))
    assert cache.get_seq_length() == found.shape[1] - 1


def test_guesses_end_where_the_model_ends():
    net = build(CosformerForCausalLM, attention="softmax", max_position_embeddings=40)
    options = {"do_sample": False}
    ids = tokens(1, 4).repeat(1, 7)
    guess = {"prompt_lookup_num_tokens": 10}
    fits = net.generate(ids, max_new_tokens=12, **options, **guess)
    assert torch.equal(fits, net.generate(ids, max_new_tokens=12, **options))
    with pytest.raises(HorizonError) as caught:
        net.generate(ids, max_new_tokens=20, **options, **guess)
    assert torch.equal(caught.value.sequences, net.generate(ids, max_new_tokens=13, **options)[:, :41])


def test_an_assistant_that_ends_before_the_model_guesses_no_more():
    net = build(CosformerForCausalLM, attention="softmax", position="rotary")
    short = build(CosformerForCausalLM, attention="softmax", position="rotary", max_position_embeddings=20)
    ids, options = tokens(1, 9), {"max_new_tokens": 30, "do_sample": False}
    assert torch.equal(net.generate(ids, assistant_model=short, **options), net.generate(ids, **options))


@pytest.mark.parametrize("by", ["lookup", "assistant"])
@pytest.mark.parametrize("cached", [True, False])
@EACH
def test_guesses_behind_embeddings(kind, cached, by):
    """A prompt that repeats itself, of which lookup would make guesses that the embeddings do not have."""
    net = build(CosformerForCausalLM, position="rotary", **kind)
    assistant = build(CosformerForCausalLM, position="rotary", num_hidden_layers=1, **kind)
    guess = {"prompt_lookup_num_tokens": 3} if by == "lookup" else {"assistant_model": assistant}
    options, text = {"max_new_tokens": 8, "do_sample": False}, tokens(1, 4).repeat(1, 4)
    expected, embedded = net.generate(text, **options), net.model.embed_tokens(text)
    for ids in ({"input_ids": text}, {}):
        cache = CosformerCache(net.config) if cached else None
        if cached:
            net(text[:, :9], past_key_values=cache)
        given = {"inputs_embeds": embedded, "past_key_values": cache} | ids | guess | options
        if not ids and by == "assistant":
            with pytest.raises(ValueError, match="input_ids is missing beside inputs_embeds: an assistant"):
                net.generate(**given)
        else:
            assert torch.equal(net.generate(**given)[:, -8:], expected[:, -8:])


@pytest.mark.parametrize("padded", [True, False])
def test_guesses_need_the_whole_text(padded):
    """It was cut to the length of the mask of the new tokens alone, or of the tokens of the cache."""
    net = build(CosformerForCausalLM, attention="softmax")
    ids, new, cache = tokens(1, 6), tokens(1, 9), CosformerCache(net.config)
    mask = torch.ones(1, 15, dtype=torch.int64)
    mask[0, : 2 * padded] = 0
    net(ids, attention_mask=mask[:, :6], past_key_values=cache)
    given = {"attention_mask": mask, "past_key_values": cache, "prompt_lookup_num_tokens": 3}
    with pytest.raises(ValueError, match=r"the whole text .* got 9 tokens and an attention_mask of 15"):
        net.generate(new, max_new_tokens=4, **given)


def test_an_assistant_that_cannot_forget_is_refused():
    net, assistant = build(CosformerForCausalLM, attention="softmax"), build(CosformerForCausalLM)
    with pytest.raises(ValueError, match="assistant_model must keep its keys, to take guesses back"):
        net.generate(tokens(1, 4), assistant_model=assistant, max_new_tokens=4)


def test_padding_longer_than_the_model_keeps_its_columns(tmp_path):
    """A prompt whose padding alone reaches past the end is cut short inside; its cache is not."""
    net = build(CosformerForCausalLM, attention="softmax", max_position_embeddings=10)
    ids = tokens(1, 14)
    mask = torch.tensor([[1] * 6 + [0] * 8])
    cache = net(ids, attention_mask=mask, use_cache=True).past_key_values
    assert cache.layers[0].state.length == 14
    cache.save(tmp_path / "cache.safetensors")
    cache = CosformerCache.load(tmp_path / "cache.safetensors", net.config)
    cache.crop(-9)
    more = net(ids[:, 5:6], past_key_values=cache).logits
    close(more[0, -1], net(ids[:, :6]).logits[0, -1])
