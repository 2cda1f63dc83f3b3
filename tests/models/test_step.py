"""A call of one token a row: the short way gives what the general one gives, and changes nothing that
somebody holds."""

import gc
from dataclasses import fields, is_dataclass, replace

import pytest
import torch

from cosformer import attention
from cosformer.attention import Attention
from cosformer.models import CosformerCache, CosformerForCausalLM, CosformerForConditionalGeneration
from tests.models.tiny import PADDINGS, build, close, having, padded_batch, tokens

RECURRENT = [n for n in attention.names() if attention.traits(n).recurrent and attention.traits(n).causal]
MODELS = {
    **{name: {"attention": name} for name in RECURRENT},
    "rfa, gate": {"attention": "rfa", "attention_parameters": {"gate": True}},
    "rotary": {"position": "rotary"},
    "learned": {"position": "learned"},
    "stochastic": {"position": "stochastic"},
    "post-norm": {"pre_norm": False, "norm": "rms", "feed_forward": "gated"},
    "windows": {"attention_parameters": {"windows": [1, 2, 2, 7]}},
    "grouped windows": {"num_key_value_heads": 2, "attention_parameters": {"windows": [3, None]}},
    "scattered windows": {"attention_parameters": {"windows": [None, 5, None, 2]}},
    "conv, gate, norms": {"conv_size": 4, "output_gate": "silu", "output_norm": True, "qk_norm": True},
    "conv, softmax": {"conv_size": 3, "attention": "softmax"},
    "mixed": {"attention": ["cosformer", "local"], "conv_size": 2, "position": "rotary"},
    "named backend": {"attention_parameters": {"backend": "chunked"}},
}
EACH_MODEL = pytest.mark.parametrize("changes", MODELS.values(), ids=MODELS)


def numbers(state):
    """Copies of all tensors of a state, of the one within it too."""
    found = []
    for field in fields(state) if state is not None else ():
        value = getattr(state, field.name)
        if isinstance(value, torch.Tensor):
            found.append(value.clone())
        elif is_dataclass(value):
            found += numbers(value)
    return found


def general(net, ids, cache):
    """With gradients there is no short way."""
    with torch.enable_grad():
        return net(ids, past_key_values=cache).logits.detach()


@pytest.fixture
def no_general_way(monkeypatch):
    """Raises where a layer is asked in the general way."""

    def refuse(*args, **kwargs):
        raise AssertionError("the general way was taken")

    return lambda: monkeypatch.setattr(Attention, "forward", refuse)


@EACH_MODEL
@torch.no_grad()
def test_a_token_is_as_by_the_general_way_and_as_in_the_whole_text(changes, no_general_way):
    net = build(CosformerForCausalLM, **changes)
    ids, mask, rows = padded_batch(PADDINGS["left"])
    more = tokens(2, 6)
    caches = [net(ids, attention_mask=mask, use_cache=True).past_key_values for _ in range(2)]
    slow = torch.cat([general(net, more[:, t : t + 1], caches[0]) for t in range(6)], 1)
    alone = [net(torch.cat([row, new])[None]).logits[0, -6:] for row, new in zip(rows, more, strict=True)]
    no_general_way()
    fast = torch.cat([net(more[:, t : t + 1], past_key_values=caches[1]).logits for t in range(6)], 1)
    close(fast, slow, 1e-10)
    close(fast, torch.stack(alone))
    for a, b in zip(*(cache.layers for cache in caches), strict=True):
        assert a.columns == b.columns == 18
        assert a.state.seen == b.state.seen
        for x, y in zip(numbers(a.state), numbers(b.state), strict=True):
            close(x, y, 1e-10)


@having(recurrent=True, causal=True)
@torch.no_grad()
def test_200_tokens_are_those_of_no_cache(mechanism):
    """Greedy, float32: each token is the one that a call without a cache over all before it finds best."""
    net = build(CosformerForCausalLM, torch.float32, attention=mechanism, max_position_embeddings=256)
    ids, mask, rows = padded_batch(PADDINGS["inside"])
    out = net.generate(ids, attention_mask=mask, max_new_tokens=200, min_new_tokens=200, do_sample=False)
    for row, own in zip(rows, out[:, 12:], strict=True):
        text = torch.cat([row, own])[None]
        assert torch.equal(net(text, use_cache=False).logits[0, len(row) - 1 : -1].argmax(-1), own)


@EACH_MODEL
@torch.no_grad()
def test_what_somebody_holds_stays_as_it_is(changes):
    net = build(CosformerForCausalLM, **changes)
    cache = net(tokens(2, 5), use_cache=True).past_key_values
    more = tokens(2, 8)
    held = []
    for t in range(8):  # every kind of look at the cache, in different places
        if t in (0, 2, 3, 6):
            held.append((cache.snapshot(), [numbers(layer.state) for layer in cache.layers]))
        if t == 5:
            kept = cache.layers[0].state
            of_kept = numbers(kept)
        net(more[:, t : t + 1], past_key_values=cache)
    for snapshot, before in held:
        for (state, _, _), wanted in zip(snapshot.layers, before, strict=True):
            assert all(map(torch.equal, numbers(state), wanted))
    assert all(map(torch.equal, numbers(kept), of_kept))
    last = net(more[:, :1], past_key_values=cache).logits
    cache.restore(held[0][0])
    for t in (*range(8), 0):
        again = net(more[:, t : t + 1], past_key_values=cache).logits
    close(again, last, 1e-10)


@having(recurrent=True, causal=True)
@torch.no_grad()
def test_a_token_that_fails_leaves_the_cache_as_it_was(mechanism, monkeypatch):
    net = build(CosformerForCausalLM, attention=mechanism)
    cache = net(tokens(2, 5), use_cache=True).past_key_values
    more = tokens(2, 4)
    for t in range(3):
        net(more[:, t : t + 1], past_key_values=cache)
    twin = CosformerCache(net.config)
    twin.restore(cache.snapshot())
    wanted = net(more[:, 3:], past_key_values=twin).logits

    def broken(*args, **kwargs):
        raise KeyboardInterrupt

    for _ in range(2):
        with monkeypatch.context() as patch:
            patch.setattr(net.model.layers[1].feed_forward, "forward", broken)
            with pytest.raises(KeyboardInterrupt):
                net(more[:, 3:], past_key_values=cache)
        assert cache.get_seq_length() == 8
    close(net(more[:, 3:], past_key_values=cache).logits, wanted, 1e-10)


@torch.no_grad()
def test_a_decoder_with_a_source():
    net = build(CosformerForConditionalGeneration, position="rotary")
    source, ids, more = net.get_encoder()(tokens(2, 5)), tokens(2, 9), tokens(2, 3)
    caches = [
        net(encoder_outputs=source, decoder_input_ids=ids, use_cache=True).past_key_values for _ in range(2)
    ]
    for t in range(3):
        inputs = {"encoder_outputs": source, "decoder_input_ids": more[:, t : t + 1]}
        short = net(**inputs, past_key_values=caches[0]).logits
        with torch.enable_grad():
            close(net(**inputs, past_key_values=caches[1]).logits, short, 1e-10)


@torch.no_grad()
def test_other_calls_take_the_general_way():
    """Padding in place of a token, other rows, another dtype: as before, or refused as before."""
    net = build(CosformerForCausalLM, torch.float32)
    ids, token = tokens(2, 5), tokens(2, 1)
    cache = net(ids, use_cache=True).past_key_values
    kept = cache.snapshot()
    mask = torch.ones(2, 6)
    mask[1, 5] = 0
    net(token, attention_mask=mask, past_key_values=cache)
    assert cache.past.positions.tolist() == [6, 5]
    with pytest.raises(ValueError, match="state must have one row for each of the 1"):
        net(token[:1], past_key_values=cache)
    with pytest.raises(TypeError, match=r"state must be torch\.float64"):
        build(CosformerForCausalLM)(token, past_key_values=cache)
    with pytest.raises(ValueError, match="to be added to scores"):
        net(token, attention_mask=torch.full((2, 7), -1e9), past_key_values=cache)
    cache.restore(kept)
    with torch.autocast("cpu", torch.bfloat16):
        net(token, past_key_values=cache)
    assert cache.layers[0].state.numerator.dtype == torch.float32
    net(token, past_key_values=cache)
    wrong = cache.layers[1].state
    cache.layers[1].state = replace(wrong, numerator=wrong.numerator.double())
    with pytest.raises(TypeError, match=r"state must be torch\.float32"):
        net(token, past_key_values=cache)


@torch.no_grad()
def test_generations_leave_nothing_behind():
    net = build(CosformerForCausalLM, torch.float32, attention=["cosformer", "softmax"], conv_size=2)

    def alive():
        gc.collect()
        return sum(issubclass(type(x), torch.Tensor) for x in gc.get_objects())

    counts = []
    for _ in range(3):
        for _ in range(2):
            net.generate(tokens(2, 5), max_new_tokens=4, do_sample=False)
        counts.append(alive())
    assert counts[1] == counts[2]
