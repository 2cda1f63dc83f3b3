"""Going on from a cache: a mask says of the columns before a call what the cache has read."""

import pytest
import torch
from transformers import StoppingCriteria, StoppingCriteriaList

from cosformer.models import (
    CosformerCache,
    CosformerForCausalLM,
    CosformerForConditionalGeneration,
    byte_tokenizer,
)
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


def end_of_the_first(net, ids, pad, **how):
    """A token that ends the first of two rows, and not the second."""
    torch.manual_seed(1)
    free = net.generate(ids, max_new_tokens=8, eos_token_id=None, pad_token_id=pad, **how)
    return next(t for t in free[0, 7:].tolist() if t not in (pad, *free[1].tolist()))


def check_next_turn(net, cache, made, ended, pad, told, **options):
    """Of rows of which the first has ended before the column `ended`: each goes on as alone."""
    mask = torch.ones_like(made)
    mask[0, ended:] = 0
    new = tokens(2, 3)
    new[new == pad] = 1  # which no mask would take for padding
    text, mask = torch.cat([made, new], 1), torch.cat([mask, torch.ones_like(new)], 1)
    again = {"max_new_tokens": 4, "do_sample": False, "eos_token_id": None, "pad_token_id": pad} | options
    given = {"attention_mask": mask} if told else {}
    out = net.generate(text, **given, past_key_values=cache, **again)[:, text.shape[1] :]
    for row, own in enumerate((torch.cat([made[0, :ended], new[0]]), text[1])):
        alone = net.generate(own[None], attention_mask=torch.ones(1, len(own)), **again)[0, len(own) :]
        assert out[row].tolist() == alone.tolist() + [pad] * (out.shape[1] - len(alone))


TOLD = pytest.mark.parametrize("told", [True, False], ids=["mask", "no mask"])


@pytest.mark.parametrize("how", [{"do_sample": False}, {"do_sample": True}], ids=["greedy", "sampled"])
@TOLD
@having(recurrent=True, causal=True)
def test_a_row_that_ended_early_goes_on_as_alone(mechanism, told, how):
    """Two turns of a batch: what a row reads behind its end is padding, and no part of its text."""
    net = build(CosformerForCausalLM, attention=mechanism)
    ids, pad = tokens(2, 6), 0
    end = end_of_the_first(net, ids, pad, **how)
    cache = CosformerCache(net.config)
    torch.manual_seed(1)
    made = net.generate(
        ids, max_new_tokens=8, eos_token_id=end, pad_token_id=pad, past_key_values=cache, **how
    )
    ended = 6 + made[0, 6:].tolist().index(end) + 1
    assert ended < made.shape[1]
    assert (made[0, ended:] == pad).all()
    check_next_turn(net, cache, made, ended, pad, told)


class Stop(StoppingCriteria):
    def __init__(self, token):
        self.token = token

    def __call__(self, input_ids, scores, **kwargs):
        return input_ids[:, -1] == self.token


@TOLD
@pytest.mark.parametrize("by", ["padding that is the end", "a criterion", "strings", "a returned cache"])
@pytest.mark.parametrize("mechanism", ["cosformer", "softmax"])
def test_however_a_row_has_ended(mechanism, by, told):
    net, ids, how = build(CosformerForCausalLM, attention=mechanism), tokens(2, 6), {"do_sample": False}
    end = end_of_the_first(net, ids, 0, **how)
    cache = CosformerCache(net.config)
    ends, pad = {"eos_token_id": end, "past_key_values": cache}, 0
    if by == "padding that is the end":
        pad = end
    elif by == "a criterion":
        ends |= {"eos_token_id": 63, "stopping_criteria": StoppingCriteriaList([Stop(end)])}
    elif by == "strings":
        ends |= {"eos_token_id": 63, "stop_strings": [chr(end)], "tokenizer": byte_tokenizer()}
    else:
        del ends["past_key_values"]
    out = net.generate(
        ids,
        max_new_tokens=8,
        pad_token_id=pad,
        return_dict_in_generate=by == "a returned cache",
        **how,
        **ends,
    )
    made, cache = (out, cache) if isinstance(out, torch.Tensor) else (out.sequences, out.past_key_values)
    ended = 6 + made[0, 6:].tolist().index(end) + 1
    assert ended < made.shape[1]
    assert cache.past.positions.tolist() == [ended, made.shape[1] - 1]
    kept = cache.snapshot()
    for options in ({"eos_token_id": end if pad == end else None}, {"num_beams": 2}):
        cache.restore(kept)
        if "num_beams" in options:
            cache.batch_repeat_interleave(2)
        check_next_turn(net, cache, made, ended, pad, told, **options)


@pytest.mark.parametrize("beams", [1, 2])
@TOLD
def test_targets_of_which_one_has_ended_go_on_as_alone(told, beams):
    net, source, pad = build(CosformerForConditionalGeneration), tokens(2, 6), 0
    how = {"do_sample": False, "pad_token_id": pad}
    free = net.generate(source, max_new_tokens=8, eos_token_id=None, **how)
    end = next(t for t in free[0, 2:].tolist() if t not in (pad, *free[1].tolist()))
    cache = CosformerCache(net.config)
    made = net.generate(source, max_new_tokens=8, eos_token_id=end, past_key_values=cache, **how)
    ended = made[0].tolist().index(end) + 1
    assert cache.past.positions.tolist() == [ended, made.shape[1] - 1]
    cache.batch_repeat_interleave(beams)
    text, mask = torch.cat([made, tokens(2, 3)], 1), torch.ones(2, made.shape[1] + 3)
    mask[0, ended : made.shape[1]] = 0
    how |= {"max_new_tokens": 4, "eos_token_id": None, "num_beams": beams}
    given = {"decoder_attention_mask": mask} if told else {}
    out = net.generate(source, decoder_input_ids=text, past_key_values=cache, **given, **how)
    for row in range(2):
        own = text[row, mask[row] == 1][None]
        alone = net.generate(source[row : row + 1], decoder_input_ids=own, **how)
        assert out[row, text.shape[1] :].tolist() == alone[0, own.shape[1] :].tolist()


@pytest.mark.parametrize("further", [True, False])
def test_what_was_padding_is_that_of_its_column(further):
    """Of later columns, and of another text in the same ones, it says nothing."""
    net, ids, how = build(CosformerForCausalLM), tokens(2, 6), {"do_sample": False}
    end = end_of_the_first(net, ids, 0, **how)
    how |= {"eos_token_id": end, "pad_token_id": end}
    cache = CosformerCache(net.config)
    before = cache.snapshot()
    made = net.generate(ids, max_new_tokens=8, past_key_values=cache, **how)
    cache.restore(cache.snapshot() if further else before)
    read = torch.cat([made, tokens(2, 8)], 1) if further else made[:, :-1]
    net(read[:, cache.get_seq_length() :], past_key_values=cache)
    positions = cache.past.positions + 2
    net.generate(torch.cat([read, tokens(2, 2)], 1), max_new_tokens=1, past_key_values=cache, **how)
    assert torch.equal(cache.past.positions, positions)


@having(recurrent=True, causal=True)
def test_a_text_without_the_padding_of_the_turn_before_is_read_whole(mechanism):
    """What the cache has read, and new tokens: none of them is padding, whatever stood in their column."""
    net, ids, how = build(CosformerForCausalLM, attention=mechanism), tokens(2, 6), {"do_sample": False}
    end = end_of_the_first(net, ids, 0, **how)
    cache = CosformerCache(net.config)
    how |= {"pad_token_id": 0, "past_key_values": cache}
    made = net.generate(ids, max_new_tokens=8, eos_token_id=end, **how)
    read, positions = cache.get_seq_length(), cache.past.positions
    net.generate(torch.cat([made[:, :read], tokens(2, 2) | 1], 1), max_new_tokens=1, **how)
    assert torch.equal(cache.past.positions, positions + 2)


@pytest.mark.parametrize("options", [{"num_beams": 2}, {"num_return_sequences": 2, "do_sample": True}])
def test_a_token_like_padding_that_was_read_is_none_without_a_mask(options):
    """Rows of the cache that are there for each beam, too."""
    net, ids, new = build(CosformerForCausalLM), tokens(2, 6), tokens(2, 2)
    ids[0, 2] = 0
    text, cache = torch.cat([ids, new], 1), CosformerCache(net.config)
    net(ids, past_key_values=cache)
    cache.batch_repeat_interleave(2)
    found = []
    for more in ({"past_key_values": cache}, {"attention_mask": torch.ones_like(text)}):
        torch.manual_seed(1)
        found.append(net.generate(text, max_new_tokens=4, pad_token_id=0, **options, **more))
    assert torch.equal(*found)


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
    cache = CosformerCache(net.config)
    given = net.generate(ids, past_key_values=cache, **how)
    assert torch.equal(given, net.generate(ids, **how))
    assert cache.past.positions.tolist() == [given.shape[1] - 1] * 2
