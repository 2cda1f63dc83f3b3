"""generate() with states: every way of decoding equals the same without a cache, and alone."""

from dataclasses import replace

import pytest
import torch
from transformers import TextStreamer, pipeline
from transformers.generation.streamers import BaseStreamer

from cosformer import attention
from cosformer.models import CosformerCache, CosformerForCausalLM, byte_tokenizer, token_fields
from tests.models.tiny import PADDINGS, build, close, having, padded_batch, tokens

NEW = 12
MODES = {
    "greedy": {"do_sample": False},
    "sampling": {"do_sample": True, "top_k": 0},
    "beams": {"num_beams": 3},
    "sampled beams": {"num_beams": 3, "do_sample": True},
    "several": {"do_sample": True, "num_return_sequences": 3},
    "best beams": {"num_beams": 4, "num_return_sequences": 2},
}


def generate(net, ids, seed=0, **options):
    torch.manual_seed(seed)
    return net.generate(ids, **{"max_new_tokens": NEW, "min_new_tokens": NEW, "do_sample": False} | options)


def model(**changes):
    return build(CosformerForCausalLM, **{"position": "learned", "num_key_value_heads": 2} | changes)


@having(recurrent=True, causal=True)
def test_every_step_has_the_logits_of_no_cache(mechanism):
    net = model(attention=mechanism)
    ids, mask, _ = padded_batch(PADDINGS["left"])
    results = [
        generate(
            net, ids, attention_mask=mask, use_cache=cached, output_logits=True, return_dict_in_generate=True
        )
        for cached in (True, False)
    ]
    assert torch.equal(*(r.sequences for r in results))
    assert len(results[0].logits) == NEW
    for cached, uncached in zip(*(r.logits for r in results), strict=True):
        close(cached, uncached)
    assert isinstance(results[0].past_key_values, CosformerCache)


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
@having(recurrent=True, causal=True)
def test_every_mode_is_as_without_a_cache(mechanism, mode):
    net = model(attention=mechanism)
    ids, mask, _ = padded_batch(PADDINGS["left"])
    cached, uncached = (generate(net, ids, attention_mask=mask, use_cache=c, **mode) for c in (True, False))
    assert torch.equal(cached, uncached)
    assert cached.shape == (2 * mode.get("num_return_sequences", 1), 12 + NEW)


@pytest.mark.parametrize("mode", [MODES["greedy"], MODES["beams"]], ids=["greedy", "beams"])
@pytest.mark.parametrize("pattern", PADDINGS.values(), ids=PADDINGS)
@having(recurrent=True, causal=True)
def test_padded_prompts_go_on_as_each_alone(mechanism, pattern, mode):
    net = model(attention=mechanism)
    ids, mask, rows = padded_batch(pattern)
    out = generate(net, ids, attention_mask=mask, **mode)
    for i, row in enumerate(rows):
        alone = generate(net, row[None], **mode)
        assert torch.equal(out[i, 12:], alone[0, len(row) :])


@pytest.mark.parametrize("size", [1, 3, 5, 12])
@having(recurrent=True, causal=True)
def test_a_prompt_in_pieces(mechanism, size):
    net = model(attention=mechanism)
    ids, mask, _ = padded_batch(PADDINGS["left"])
    options = {"attention_mask": mask, "output_logits": True, "return_dict_in_generate": True}
    whole = generate(net, ids, **options)
    pieces = generate(net, ids, prefill_chunk_size=size, **options)
    assert torch.equal(pieces.sequences, whole.sequences)
    close(torch.stack(pieces.logits), torch.stack(whole.logits))


@pytest.mark.parametrize("pattern", PADDINGS.values(), ids=PADDINGS)
@pytest.mark.parametrize("mechanism", ["cosformer", "softmax"])
def test_padding_anywhere_in_a_prompt_in_pieces(mechanism, pattern):
    """A row may have no real token in the last piece, or be given as embeddings."""
    net = model(attention=mechanism)
    ids, mask, _ = padded_batch(pattern)
    whole = generate(net, ids, attention_mask=mask)
    assert torch.equal(generate(net, ids, attention_mask=mask, prefill_chunk_size=3), whole)
    embedded = {"inputs_embeds": net.get_input_embeddings()(ids), "attention_mask": mask}
    assert torch.equal(generate(net, None, **embedded, prefill_chunk_size=3), whole[:, 12:])


@having(recurrent=True, causal=True)
def test_going_on_from_a_returned_cache(mechanism):
    net = model(attention=mechanism)
    ids, mask, _ = padded_batch(PADDINGS["left"])
    once = generate(net, ids, attention_mask=mask, max_new_tokens=2 * NEW, min_new_tokens=2 * NEW)
    first = generate(net, ids, attention_mask=mask, return_dict_in_generate=True)
    longer = torch.cat([mask, torch.ones(2, NEW, dtype=torch.long)], 1)
    second = generate(net, first.sequences, attention_mask=longer, past_key_values=first.past_key_values)
    assert torch.equal(second, once)
    cache = CosformerCache(net.config)
    generate(net, ids, attention_mask=mask, past_key_values=cache)
    again = generate(net, first.sequences, attention_mask=longer, past_key_values=cache)
    assert torch.equal(again, once), "a cache that the user brought is filled"


def test_a_conversation():
    """A turn of the user between two answers: only the new tokens are computed."""
    net = model()
    ids, more = tokens(1, 7), tokens(1, 4)
    first = generate(net, ids, return_dict_in_generate=True)
    text = torch.cat([first.sequences, more], 1)
    expected = generate(net, text)
    assert torch.equal(generate(net, text, past_key_values=first.past_key_values), expected)


@pytest.mark.parametrize("options", [{}, {"prefill_chunk_size": 3}], ids=["whole", "pieces"])
@pytest.mark.parametrize("padding", [0, 1])
def test_a_prompt_that_the_cache_has_read_already(padding, options):
    net, ids = model(), tokens(1, 9)
    mask = torch.ones_like(ids)
    mask[:, :padding] = 0
    cache = CosformerCache(net.config)
    text = generate(net, ids, attention_mask=mask, past_key_values=cache)
    mask = torch.cat([mask, torch.ones(1, NEW, dtype=torch.long)], 1)
    read = cache.get_seq_length()
    for length in (3, read):
        with pytest.raises(ValueError, match=f"has {length} tokens, but .* has read {read} already"):
            generate(net, text[:, :length], attention_mask=mask[:, :length], past_key_values=cache, **options)
    assert cache.get_seq_length() == read


@pytest.mark.parametrize("helper", ["prompt lookup", "assistant"])
def test_guesses_need_a_cache_that_can_forget(helper):
    """The prompt repeats itself, so that lookup finds what to guess; random weights go on otherwise."""
    ids = tokens(1, 4).repeat(1, 5)
    for mechanism in ("cosformer", "softmax"):
        net = model(attention=mechanism)
        guess = {"prompt_lookup_num_tokens": 2}
        if helper == "assistant":
            guess = {"assistant_model": model(attention="softmax", num_hidden_layers=1)}
        if mechanism == "softmax":
            assert torch.equal(generate(net, ids, **guess), generate(net, ids))
        else:
            for cached in ({}, {"past_key_values": CosformerCache(net.config)}):
                with pytest.raises(ValueError, match="prompt_lookup_num_tokens and assistant models must be"):
                    generate(net, ids, **guess, **cached)


def test_some_of_the_layers_cannot_make_guesses():
    """transformers would leave the configuration changed where its guess fails."""
    net, ids = model(attention="softmax"), tokens(1, 7)
    with pytest.raises(ValueError, match="assistant_early_exit must be left out"):
        generate(net, ids, assistant_early_exit=1)
    assert net.config.num_hidden_layers == 2


def test_embeddings_in_place_of_tokens():
    net = model()
    ids, mask, _ = padded_batch(PADDINGS["left"])
    embedded = net.generate(
        inputs_embeds=net.get_input_embeddings()(ids),
        attention_mask=mask,
        max_new_tokens=NEW,
        min_new_tokens=NEW,
        do_sample=False,
    )
    assert torch.equal(embedded, generate(net, ids, attention_mask=mask)[:, 12:])


def test_streamers():
    class Collect(BaseStreamer):
        def __init__(self):
            self.got, self.ended = [], False

        def put(self, value):
            self.got.append(value.flatten())

        def end(self):
            self.ended = True

    net, streamer = model(), Collect()
    out = generate(net, tokens(1, 5), streamer=streamer)
    assert torch.equal(torch.cat(streamer.got), out[0])
    assert streamer.ended


def test_pipeline_and_text_streamer(capsys):
    tokenizer = byte_tokenizer()
    net = model(**token_fields(tokenizer) | {"eos_token_id": None}).float()
    made = pipeline("text-generation", model=net, tokenizer=tokenizer)
    texts = ["Once upon", "A"]
    batch = made(texts, max_new_tokens=5, do_sample=False, batch_size=2)
    single = [made(text, max_new_tokens=5, do_sample=False)[0] for text in texts]
    assert [b[0] for b in batch] == single
    assert single[0]["generated_text"].startswith("Once upon")
    inputs = tokenizer("Once upon", return_tensors="pt")
    net.generate(**inputs, max_new_tokens=5, do_sample=False, streamer=TextStreamer(tokenizer))
    assert capsys.readouterr().out.startswith("Once upon")


def test_a_mechanism_without_a_state_computes_the_text_again(monkeypatch):
    net = model(attention="softmax")
    ids = tokens(2, 6)
    expected = generate(net, ids)
    without = replace(attention.traits("softmax"), recurrent=False)
    monkeypatch.setattr(attention.Softmax, "traits", without)
    assert torch.equal(generate(net, ids), expected)
    with pytest.raises(ValueError, match="attention 'softmax' carries no state"):
        net(ids, use_cache=True)


@pytest.mark.parametrize("cached", [True, False], ids=["cached", "uncached"])
def test_a_prompt_that_is_padded_on_the_right(cached):
    """transformers counts positions on from the last column, padding or not: the model does not use them."""
    net = build(CosformerForCausalLM, position="rotary")
    ids, options = tokens(1, 6), {"max_new_tokens": 4, "do_sample": False}
    expected = net.generate(ids[:, :4], **options)[:, 4:]
    mask = torch.tensor([[1, 1, 1, 1, 0, 0]])
    assert torch.equal(net.generate(ids, attention_mask=mask, use_cache=cached, **options)[:, 6:], expected)


def test_a_cache_with_other_rows_than_beams_says_how_they_are_made():
    net, ids = model(), tokens(2, 5)
    cache = CosformerCache(net.config)
    text = torch.cat([generate(net, ids, past_key_values=cache), tokens(2, 1)], 1)
    with pytest.raises(ValueError, match=r"has 2 rows, and 6 are generated.*batch_repeat_interleave\(3\)"):
        generate(net, text, num_beams=3, past_key_values=cache)
    cache.batch_repeat_interleave(3)
    beams = generate(net, text, num_beams=3, past_key_values=cache)
    assert torch.equal(beams, generate(net, text, num_beams=3))
