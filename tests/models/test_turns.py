"""Going on from a cache: a mask says of the columns before a call what the cache has read."""

import pytest
import torch

from cosformer.models import CosformerCache, CosformerForCausalLM, CosformerForConditionalGeneration
from tests.models.tiny import build, close, having, tokens


def mask_of(*rows):
    return torch.tensor(rows)


@having(recurrent=True, causal=True)
def test_a_mask_that_hides_what_was_read_is_refused(mechanism):
    """As after generate() in a batch, where a row that ended early has read its padding."""
    net, ids, new = build(CosformerForCausalLM, attention=mechanism), tokens(2, 6), tokens(2, 3)
    whole = torch.ones(2, 9, dtype=torch.int64)
    ended = whole.clone()
    ended[1, 4:6] = 0
    for steps in (3, 1):  # several tokens, and the way of one
        cache = CosformerCache(net.config)
        with torch.no_grad():
            net(ids, past_key_values=cache)
            with pytest.raises(ValueError, match=r"has 4 real tokens among the 6 columns .* has read 6"):
                net(new[:, :steps], attention_mask=ended[:, : 6 + steps], past_key_values=cache)
            told = net(new[:, :steps], attention_mask=whole[:, : 6 + steps], past_key_values=cache)
            close(told.logits, net(torch.cat([ids, new[:, :steps]], 1)).logits[:, 6:])


@pytest.mark.parametrize("how", [{"do_sample": False}, {"do_sample": True}], ids=["greedy", "sampled"])
@pytest.mark.parametrize("told", [True, False], ids=["mask", "no mask"])
@having(recurrent=True, causal=True)
def test_a_row_that_ended_early_goes_on_as_alone(mechanism, told, how):
    """Two turns of a batch: what a row reads behind its end is padding, and no part of its text."""
    net = build(CosformerForCausalLM, attention=mechanism)
    ids, pad = tokens(2, 6), 0
    torch.manual_seed(1)
    free = net.generate(ids, max_new_tokens=8, eos_token_id=None, pad_token_id=pad, **how)
    end = next(
        t for t in free[0, 7:].tolist() if t not in (pad, *free[1].tolist())
    )  # ends the first row alone
    cache = CosformerCache(net.config)
    torch.manual_seed(1)
    made = net.generate(
        ids, max_new_tokens=8, eos_token_id=end, pad_token_id=pad, past_key_values=cache, **how
    )
    ended = 6 + made[0, 6:].tolist().index(end) + 1
    assert ended < made.shape[1]
    assert (made[0, ended:] == pad).all()
    mask = torch.ones_like(made)
    mask[0, ended:] = 0
    new = tokens(2, 3)
    text, mask = torch.cat([made, new], 1), torch.cat([mask, torch.ones_like(new)], 1)
    again = {"max_new_tokens": 4, "do_sample": False, "eos_token_id": None, "pad_token_id": pad}
    options = {"attention_mask": mask} if told else {}
    out = net.generate(text, **options, past_key_values=cache, **again)[:, text.shape[1] :]
    for row, own in enumerate((torch.cat([made[0, :ended], new[0]]), text[1])):
        alone = net.generate(own[None], **again)[0, len(own) :]
        assert out[row].tolist() == alone.tolist()


def test_a_mask_that_adds_to_what_was_read_is_refused():
    net, ids, new = build(CosformerForCausalLM), tokens(1, 6), tokens(1, 2)
    cache = CosformerCache(net.config)
    net(ids, attention_mask=mask_of([0, 0, 1, 1, 1, 1]), past_key_values=cache)
    with pytest.raises(ValueError, match=r"has 6 real tokens among the 6 columns .* row 0, .* has read 4"):
        net(new, attention_mask=torch.ones(1, 8), past_key_values=cache)
    mask = mask_of([0, 0, 1, 1, 1, 1, 1, 1])
    out = net(new, attention_mask=mask, past_key_values=cache).logits
    close(out, net(torch.cat([ids[:, 2:], new], 1)).logits[:, 4:])


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_of_a_source_does_not_count_towards_its_end(side):
    net = build(CosformerForConditionalGeneration, max_position_embeddings=16)
    own, target = tokens(1, 10), tokens(1, 4)
    source, mask = torch.full((1, 18), 5), torch.zeros(1, 18, dtype=torch.int64)
    at = slice(0, 10) if side == "right" else slice(8, 18)
    source[:, at], mask[:, at] = own, 1
    out = net(source, attention_mask=mask, decoder_input_ids=target).logits
    close(out, net(own, decoder_input_ids=target).logits)


def test_a_cache_without_text_has_no_source():
    """Another one may come with the next text."""
    net = build(CosformerForConditionalGeneration)
    one, other, text = tokens(1, 9), tokens(1, 7), tokens(1, 5)
    cache = CosformerCache(net.config)
    net(one, decoder_input_ids=text, past_key_values=cache)
    cache.crop(-5)
    out = net(other, decoder_input_ids=text, past_key_values=cache).logits
    close(out, net(other, decoder_input_ids=text).logits)


@having(recurrent=True, causal=True)
def test_new_tokens_alone_go_on_under_the_mask_of_all(mechanism):
    """transformers takes the whole text, or what is new of it beside the whole mask."""
    net, ids, new = build(CosformerForCausalLM, attention=mechanism), tokens(2, 6), tokens(2, 3)
    mask = torch.ones(2, 9, dtype=torch.int64)
    mask[1, :2] = 0
    cache, how = CosformerCache(net.config), {"max_new_tokens": 4, "do_sample": False}
    with torch.no_grad():
        net(ids, attention_mask=mask[:, :6], past_key_values=cache)
    kept = cache.snapshot()
    alone = net.generate(new, attention_mask=mask, past_key_values=cache, **how)[:, 3:]
    cache.restore(kept)
    text = torch.cat([ids, new], 1)
    assert torch.equal(net.generate(text, attention_mask=mask, past_key_values=cache, **how)[:, 9:], alone)
    assert torch.equal(net.generate(text, attention_mask=mask, use_cache=False, **how)[:, 9:], alone)


def test_an_end_in_the_prompt_is_none_of_the_row():
    """A turn of a chat ends in one; the model may go on with the token of padding."""
    net, end, pad = build(CosformerForCausalLM), 1, 0
    ids = tokens(2, 6)
    ids[:, -1] = end
    how = {"max_new_tokens": 5, "do_sample": False, "eos_token_id": end, "pad_token_id": pad}
    net.lm_head.weight.data[pad] += 0.3 * net.model(ids).last_hidden_state[0, -1]
    assert net.generate(ids, **how)[0, 6] == pad
    given = net.generate(ids, past_key_values=CosformerCache(net.config), **how)
    assert torch.equal(given, net.generate(ids, **how))
