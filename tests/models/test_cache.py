"""The cache: constant in size, kept, restored, cut, moved, saved; and the end of the text."""

import re

import pytest
import torch
from safetensors.torch import save_file
from transformers import DynamicCache

from cosformer import attention
from cosformer.models import (
    CosformerCache,
    CosformerForCausalLM,
    CosformerForConditionalGeneration,
    CosformerForMaskedLM,
    CosformerForQuestionAnswering,
    CosformerForSequenceClassification,
    CosformerForTokenClassification,
    CosformerModel,
    HorizonError,
)
from tests.models.tiny import MECHANISMS, build, close, config, gradients, having, tokens

# Every mechanism that carries a state, in each head that it suits.
WITH_A_CACHE = pytest.mark.parametrize(
    ("mechanism", "head"),
    [
        (name, head)
        for name in MECHANISMS
        for head, needed in ((CosformerForCausalLM, "causal"), (CosformerForConditionalGeneration, "cross"))
        if attention.traits(name).recurrent and getattr(attention.traits(name), needed)
    ],
)


def started(mechanism="cosformer", length=9, **changes):
    """(model, tokens, cache after them)."""
    net = build(CosformerForCausalLM, attention=mechanism, position="learned", **changes)
    ids = tokens(2, length)
    return net, ids, net(ids, use_cache=True).past_key_values


def step(net, ids, cache):
    return net(ids, past_key_values=cache, use_cache=True).logits


@having(constant_state=True)
def test_as_large_after_64k_tokens_as_after_1k(mechanism):
    sizes = {}
    net = build(CosformerForCausalLM, torch.float32, attention=mechanism, max_position_embeddings=65_536 + 1,
                num_hidden_layers=1)  # fmt: skip
    cache = CosformerCache(net.config)
    with torch.no_grad():
        for piece in tokens(1, 65_536).split(1024, 1):
            net(piece, past_key_values=cache, logits_to_keep=1)
            sizes[cache.get_seq_length()] = cache.nbytes
    assert sizes[1024] == sizes[65_536] == net.model.layers[0].attention.attention.state_size(
        65_536, num_kv_heads=4, head_dim=8
    ) * 4 + 8  # fmt: skip


@having(recurrent=True, constant_state=False)
def test_a_growing_cache_grows(mechanism):
    _, _, short = started(mechanism, length=5)
    _, _, long = started(mechanism, length=50)
    assert long.nbytes > 5 * short.nbytes


@having(recurrent=True)
def test_snapshot_and_restore(mechanism):
    net, _, cache = started(mechanism)
    kept, guess, other = cache.snapshot(), tokens(2, 4), tokens(2, 3)
    wanted = step(net, other, cache)
    cache.restore(kept)
    assert cache.get_seq_length() == 9
    step(net, guess, cache)
    cache.restore(kept)
    assert torch.equal(step(net, other, cache), wanted)
    cache.restore(CosformerCache(net.config).snapshot())
    assert cache.past is None
    assert cache.nbytes == 0


def test_speculation_rolls_back_to_what_was_accepted():
    """Four guesses at once, the first two accepted: the state is that of never having guessed the others."""
    net, ids, cache = started()
    guess = tokens(2, 4)
    kept = cache.snapshot()
    step(net, guess, cache)
    cache.restore(kept)
    step(net, guess[:, :2], cache)
    after = tokens(2, 1)
    close(step(net, after, cache), net(torch.cat([ids, guess[:, :2], after], 1)).logits[:, -1:])


@having(recurrent=True, constant_state=True)
def test_a_state_of_constant_size_refuses_to_be_cut(mechanism):
    net, ids, cache = started(mechanism)
    before = cache.snapshot()
    with pytest.raises(ValueError, match=r"cannot forget its last 2 tokens: take a snapshot\(\)"):
        cache.crop(-2)
    assert cache.snapshot() == before
    cache.crop(0)
    assert cache.get_seq_length() == 9
    assert not cache.is_croppable
    cache.crop(-9)
    close(step(net, ids, cache), net(ids).logits)


@having(recurrent=True, constant_state=False)
def test_a_cache_of_keys_is_cut_exactly(mechanism):
    net, ids, cache = started(mechanism)
    step(net, tokens(2, 3), cache)
    cache.crop(-3)
    assert cache.is_croppable
    more = tokens(2, 2)
    close(step(net, more, cache), net(torch.cat([ids, more], 1)).logits[:, 9:])
    with pytest.raises(ValueError, match="crop takes a negative number"):
        cache.crop(5)


@WITH_A_CACHE
def test_rows_are_chosen_and_repeated(mechanism, head):
    """The encoder's memory is chosen with the rest: the source of a call with a cache is not looked at."""
    net = build(head, attention=mechanism, position="learned")
    ids, more = tokens(2, 9), tokens(2, 2)
    if head is CosformerForCausalLM:
        cache = net(ids, use_cache=True).past_key_values

        def following(ids):
            return step(net, ids, cache)
    else:
        source = net.get_encoder()(tokens(2, 5))
        cache = net(encoder_outputs=source, decoder_input_ids=ids, use_cache=True).past_key_values

        def following(ids):
            zeros = [torch.zeros(len(ids), 5, 32, dtype=torch.float64)]
            return net(encoder_outputs=zeros, decoder_input_ids=ids, past_key_values=cache).logits

    kept = cache.snapshot()
    wanted = following(more)
    for change, rows in (
        (lambda: cache.reorder_cache(torch.tensor([1, 0])), [1, 0]),
        (lambda: cache.batch_select_indices(torch.tensor([1])), [1]),
        (lambda: cache.batch_select_indices(torch.tensor([False, True])), [1]),
        (lambda: cache.batch_repeat_interleave(2), [0, 0, 1, 1]),
    ):
        cache.restore(kept)
        change()
        close(following(more[rows]), wanted[rows])


@WITH_A_CACHE
def test_saved_and_loaded(mechanism, head, tmp_path):
    net = build(head, attention=mechanism, position="rotary", num_decoder_layers=1)
    ids, more = tokens(2, 9), tokens(2, 2)
    encoder_decoder = head is CosformerForConditionalGeneration
    source = {"input_ids": tokens(2, 7)} if encoder_decoder else {}
    name = "decoder_input_ids" if encoder_decoder else "input_ids"
    cache = net(**source, **{name: ids}, use_cache=True).past_key_values
    cache.save(tmp_path / "cache.safetensors")
    again = CosformerCache.load(tmp_path / "cache.safetensors", net.config).to("cpu")
    assert again.get_seq_length() == 9
    assert again.nbytes == cache.nbytes
    assert again.past.seen == cache.past.seen == 9
    results = [net(**source, **{name: more}, past_key_values=c).logits for c in (cache, again)]
    assert torch.equal(*results)


def test_what_is_wrong_with_a_file(tmp_path):
    net, _, cache = started()
    path = tmp_path / "cache.safetensors"
    with pytest.raises(FileNotFoundError, match=r"there is no cache file .*cache\.safetensors"):
        CosformerCache.load(path, net.config)
    with pytest.raises(FileNotFoundError, match=r"there is no folder .*missing to save the cache in"):
        cache.save(tmp_path / "missing" / "cache.safetensors")
    cache.save(path)
    with pytest.raises(ValueError, match="holds 2 layers of attention 'cosformer', but the model has 1"):
        CosformerCache.load(path, build(CosformerForCausalLM, num_hidden_layers=1).config)
    save_file({}, path, metadata={"cosformer_cache": '{"attention": "cosformer", "layers": [{}, {}]}'})
    with pytest.raises(ValueError, match="does not say which model it belongs to"):
        CosformerCache.load(path, net.config)
    cache.save(path)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ValueError, match="damaged or incomplete"):
        CosformerCache.load(path, net.config)
    save_file({"x": torch.zeros(1)}, path)
    with pytest.raises(ValueError, match="is not the file of a cache"):
        CosformerCache.load(path, net.config)


@pytest.mark.parametrize(
    ("mechanism", "change", "difference"),
    [
        ("cosformer", {"num_key_value_heads": 2}, "num_key_value_heads is 4 there and 2 here"),
        ("cosformer", {"hidden_size": 64}, "head_dim is 8 there and 16 here"),
        ("cosformer", {"horizon": 200}, "horizon is 96 there and 200 here"),
        ("cosformer", {"position": "rotary"}, "position is 'learned' there and 'rotary' here"),
        ("cosformer", {"num_attention_heads": 8, "num_key_value_heads": 4},
         "num_attention_heads is 4 there and 8 here, head_dim is 8 there and 4 here"),
        ("rfa", {"attention_parameters": {"kernel": "arccos"}},
         "attention_parameters is {} there and {'kernel': 'arccos'} here"),
    ],
)  # fmt: skip
def test_a_file_of_another_model_is_refused(mechanism, change, difference, tmp_path):
    _, _, cache = started(mechanism)
    cache.save(tmp_path / "cache.safetensors")
    other = config(**{"attention": mechanism, "position": "learned"} | change)
    with pytest.raises(ValueError, match=rf"belongs to another model: {re.escape(difference)}\.$"):
        CosformerCache.load(tmp_path / "cache.safetensors", other)


def test_a_cache_of_another_model_is_refused():
    net, ids, cache = started()
    other = build(CosformerForCausalLM, position="rotary")
    message = "must be of a model with position 'rotary', but it was made for 'learned'"
    with pytest.raises(ValueError, match=message):
        other(ids[:, -1:], past_key_values=cache)
    with pytest.raises(ValueError, match=f"snapshot {message}"):
        CosformerCache(other.config).restore(cache.snapshot())
    for change in ({"attention": "linear"}, {"num_hidden_layers": 3}):
        with pytest.raises(ValueError, match=r"snapshot must be of a cache with \d layers of attention"):
            CosformerCache(config(**change)).restore(cache.snapshot())
    net(ids[:, -1:], past_key_values=cache)


@pytest.mark.parametrize(
    "head",
    [
        CosformerForMaskedLM, CosformerForSequenceClassification, CosformerForTokenClassification,
        CosformerForQuestionAnswering, CosformerModel,
    ],
)  # fmt: skip
def test_what_looks_both_ways_takes_no_cache(head):
    """It would compute something else without a word. Nor does it read another text."""
    net, ids = build(head), tokens(2, 5)
    for given in ({"past_key_values": CosformerCache(config())}, {"use_cache": True}):
        with pytest.raises(ValueError, match=r"must be left out|needs a causal model"):
            net(ids, **given)
    with pytest.raises(ValueError, match="encoder_hidden_states must be left out"):
        net(ids, encoder_hidden_states=torch.zeros(2, 3, 32))
    net(ids, use_cache=False, past_key_values=None, encoder_hidden_states=None)


def test_a_cache_of_another_kind_is_refused():
    net, ids, cache = started()
    for call in (
        lambda c: net(ids, past_key_values=c),
        lambda c: net.generate(ids, past_key_values=c, max_length=20),
    ):
        with pytest.raises(TypeError, match="past_key_values must be a CosformerCache, but got DynamicCache"):
            call(DynamicCache())
    other = build(CosformerForCausalLM, attention="softmax", position="learned")
    with pytest.raises(ValueError, match="2 layers of attention 'softmax', but it has 2 of 'cosformer'"):
        other(ids, past_key_values=cache)
    with pytest.raises(ValueError, match=r"cache_implementation must be left out, or .* but got 'offloaded'"):
        net.generate(ids, cache_implementation="offloaded", max_length=20)
    with pytest.raises(TypeError, match="holds states, not keys and values"):
        cache.update(ids, ids, 0)


@pytest.mark.parametrize("cached", [True, False], ids=["cached", "uncached"])
@pytest.mark.parametrize("options", [{}, {"num_beams": 2}], ids=["greedy", "beams"])
def test_the_end_of_the_text_is_an_error_that_loses_nothing(options, cached):
    net = build(CosformerForCausalLM, max_position_embeddings=20, horizon=30)
    ids = tokens(2, 8)
    with pytest.raises(
        HorizonError, match=r"position 20 is past the end: .* horizon 30 .* at most 20"
    ) as caught:
        net.generate(ids, max_new_tokens=30, do_sample=False, use_cache=cached, **options)
    error = caught.value
    assert (error.horizon, error.length, error.position) == (30, 20, 20)
    beams = options.get("num_beams", 1)
    assert error.sequences.shape == (2 * beams, 21), "the last token was chosen, but cannot be read any more"
    assert torch.equal(error.sequences[::beams, :8], ids)
    if cached:
        assert error.past_key_values.get_seq_length() == 20
    if beams == 1:
        assert torch.equal(error.sequences, net.generate(ids, max_length=21, do_sample=False))


def test_a_prompt_past_the_end():
    net = build(CosformerForCausalLM, max_position_embeddings=20)
    for call in (net, lambda ids: net.generate(ids, max_new_tokens=2)):
        with pytest.raises(HorizonError, match="position 24 is past the end"):
            call(tokens(1, 25))
    with pytest.raises(HorizonError, match="position 21 is past the end"):
        net(tokens(1, 30), cu_seqlens=torch.tensor([0, 8, 30]))
    cache = net(tokens(1, 19), use_cache=True).past_key_values
    before = cache.snapshot()
    with pytest.raises(HorizonError, match="position 21"):
        step(net, tokens(1, 3), cache)
    assert cache.snapshot() == before, "the cache is as it was"


@having(recurrent=True)
def test_a_call_that_fails_leaves_the_cache_as_it_was(mechanism, monkeypatch):
    net, ids, cache = started(mechanism)
    more = tokens(2, 3)

    def broken(*args, **kwargs):
        raise RuntimeError("out of memory")

    for state in (cache, CosformerCache(net.config)):
        length, size = state.get_seq_length(), state.nbytes
        with monkeypatch.context() as patch:
            patch.setattr(net.model.layers[1].feed_forward, "forward", broken)
            with pytest.raises(RuntimeError, match="out of memory"):
                step(net, more, state)
        assert [layer.columns for layer in state.layers] == [length, length]
        assert state.nbytes == size
        text = torch.cat([ids, more], 1) if length else more
        close(step(net, more, state), net(text).logits[:, length:])


@having(recurrent=True, causal=True)
def test_gradients_end_where_a_cache_is_detached(mechanism):
    """The values of the whole text, and gradients of each piece alone behind its past."""
    net, ids = build(CosformerForCausalLM, attention=mechanism).train(), tokens(2, 12)
    whole = net(ids, use_cache=False).logits
    cache, pieces = CosformerCache(net.config), []
    for piece in ids.split(4, 1):
        logits = net(piece, past_key_values=cache, use_cache=True).logits
        pieces.append(logits)
        logits.square().sum().backward()  # a second time through the pieces before would be an error
        assert cache.detach() is cache
    close(torch.cat(pieces, 1), whole)
    with torch.no_grad():
        past = CosformerCache(net.config)
        net(ids[:, :8], past_key_values=past)

    def of_last(cache):
        return net(ids[:, 8:], past_key_values=cache, use_cache=True).logits.square().sum()

    expected = gradients(net, of_last(past))
    cache = CosformerCache(net.config)
    net(ids[:, :8], past_key_values=cache, use_cache=True)
    found = gradients(net, of_last(cache.detach()))
    assert found.keys() == expected.keys()
    for name, grad in found.items():
        close(grad, expected[name])
