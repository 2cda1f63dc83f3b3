"""Models whose heads have windows: where all have one, a text has no end and its cache one size."""

import json

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from cosformer.models import (
    CosformerCache,
    CosformerForCausalLM,
    CosformerForConditionalGeneration,
    CosformerForMaskedLM,
    HorizonError,
)
from tests.models.tiny import PADDINGS, build, close, config, pad, tokens

ALL = {"attention_parameters": {"windows": [1, 2, 4, 8]}, "max_position_embeddings": 16}
SOME = {"attention_parameters": {"windows": [1, 2, None, 8]}, "max_position_embeddings": 16}


@pytest.mark.parametrize("given", [[2, 8, None, 3], (2, 8, None, 3)], ids=["list", "tuple"])
def test_windows_reach_every_layer(given, tmp_path):
    net = build(CosformerForCausalLM, torch.float32, attention_parameters={"windows": given})
    assert all(layer.attention.attention.windows == (2, 8, None, 3) for layer in net.model.layers)
    net.save_pretrained(tmp_path)
    again = CosformerForCausalLM.from_pretrained(tmp_path).eval()
    assert again.config.attention_parameters == net.config.attention_parameters
    ids = tokens(2, 20)
    assert torch.equal(again(ids).logits, net(ids).logits)


def test_a_head_sees_no_further_than_its_window():
    """Two layers with windows up to 3: a token moves what is less than 5 places later, and nothing else."""
    net = build(CosformerForCausalLM, attention_parameters={"windows": [3, 1, 2, 3]})
    ids = tokens(1, 20)
    other = ids.clone()
    other[0, 6] = (ids[0, 6] + 1) % 64
    moved = (net(ids).logits - net(other).logits).abs().amax(-1)[0] > 1e-9
    assert moved.nonzero().flatten().tolist() == [6, 7, 8, 9, 10]
    both = build(CosformerForMaskedLM, attention_parameters={"windows": [3, 1, 2, 3]})
    moved = (both(ids).logits - both(other).logits).abs().amax(-1)[0] > 1e-9
    assert moved.nonzero().flatten().tolist() == [*range(2, 11)]


@pytest.mark.parametrize("position", ["none", "rotary", "sinusoidal"])
def test_a_text_without_end(position):
    """Generation past max_position_embeddings, in a cache of constant size, as without a cache."""
    net = build(CosformerForCausalLM, **ALL, position=position)
    assert not net.config.bounded
    cache = CosformerCache(net.config)
    start = tokens(2, 5)
    text = net.generate(start, max_new_tokens=60, do_sample=False, past_key_values=cache)
    assert text.shape == (2, 65)
    size = cache.nbytes
    assert size == 2 * 2 * ((0 + 1 + 3 + 7) * 16 * 8 + 8)
    # The whole text read at once, and token by token with another start of the cache.
    logits = net(text, use_cache=False).logits
    assert torch.equal(logits[:, 4:-1].argmax(-1), text[:, 5:])
    more = net.generate(text, max_new_tokens=30, do_sample=False, past_key_values=cache)
    assert torch.equal(more, net.generate(start, max_new_tokens=90, do_sample=False, use_cache=False))
    assert cache.nbytes == size
    assert cache.get_seq_length() == 94


def test_a_long_stream_forgets_and_stays_exact():
    """What comes out depends on the last tokens alone: 2 layers of 8 see 15."""
    net = build(CosformerForCausalLM, **ALL)
    ids = tokens(1, 3000)
    cache, size = None, None
    for piece in ids.split([7, 993, 1, 1999], 1):
        out = net(piece, past_key_values=cache, use_cache=True)
        cache = out.past_key_values
        size = cache.nbytes if size is None else size
        assert cache.nbytes == size
    close(out.logits[:, -1:], net(ids[:, -15:]).logits[:, -1:])


@pytest.mark.parametrize("pattern", PADDINGS.values(), ids=PADDINGS)
def test_padding_and_packing_without_end(pattern):
    """Rows and documents longer than max_position_embeddings."""
    net = build(CosformerForCausalLM, **ALL, position="rotary")
    long = pattern * 4
    rows = [tokens(sum(long)), tokens(len(long))]
    first, mask = pad(rows[0], long)
    ids, masks = torch.stack([first, rows[1]]), torch.stack([mask, torch.ones_like(mask)])
    out = net(ids, attention_mask=masks, use_cache=True)
    more = tokens(2, 3)
    after = net(
        more,
        attention_mask=torch.cat([masks, torch.ones_like(more)], 1),
        past_key_values=out.past_key_values,
    ).logits
    bounds = torch.tensor([0, *torch.tensor([len(r) for r in rows]).cumsum(0)])
    packed = net(torch.cat(rows)[None], cu_seqlens=bounds).logits[0]
    for i, row in enumerate(rows):
        alone = net(torch.cat([row, more[i]])[None]).logits[0]
        close(out.logits[i, masks[i].bool()], alone[:-3])
        close(after[i], alone[-3:])
        close(packed[bounds[i] : bounds[i + 1]], alone[:-3])


@pytest.mark.parametrize(
    "bound",
    [
        SOME,
        ALL | {"position": "learned"},
        ALL
        | {"attention": ["cosformer", "softmax"], "attention_parameters": [{"windows": [1, 2, 4, 8]}, None]},
        ALL | {"position": "stochastic", "position_parameters": {"kind": "conv"}},
    ],
    ids=["a head without a window", "learned", "a layer without", "stochastic"],
)
def test_where_something_ends_the_text_does(bound):
    net = build(CosformerForCausalLM, **bound)
    assert net.config.bounded
    with pytest.raises(HorizonError, match="position 16 is past the end"):
        net(tokens(1, 17))
    with pytest.raises(HorizonError, match="position 16 is past the end"):
        net.generate(tokens(1, 5), max_new_tokens=30)


def test_an_encoder_decoder_has_windows_within_each_text():
    """Cross-attention has none, and its bound."""
    net = build(CosformerForConditionalGeneration, **ALL)
    assert net.config.bounded
    assert all(layer.cross_attention.attention.windows is None for layer in net.get_decoder().layers)
    assert all(layer.attention.attention.windows == (1, 2, 4, 8) for layer in net.get_decoder().layers)
    ids = tokens(2, 11)
    results = [net.generate(ids, max_new_tokens=10, use_cache=cached) for cached in (True, False)]
    assert torch.equal(*results)
    for source, target in ((tokens(1, 17), tokens(1, 3)), (tokens(1, 3), tokens(1, 17))):
        with pytest.raises(HorizonError, match="position 16 is past the end"):
            net(source, decoder_input_ids=target)


@pytest.mark.parametrize("head", [CosformerForCausalLM, CosformerForConditionalGeneration])
def test_a_saved_cache(head, tmp_path):
    net = build(head, torch.bfloat16, **SOME)
    source = {} if head is CosformerForCausalLM else {"input_ids": tokens(2, 7)}
    name = "decoder_input_ids" if source else "input_ids"
    cache = net(**source, **{name: tokens(2, 9)}, use_cache=True).past_key_values
    path = tmp_path / "cache.safetensors"
    cache.save(path)
    again = CosformerCache.load(path, net.config)
    assert again.layers[0].state.windows == (1, 2, None, 8)
    assert again.layers[0].state.keys.dtype == torch.bfloat16
    more = tokens(2, 3)
    results = [net(**source, **{name: more}, past_key_values=c).logits for c in (cache, again)]
    assert torch.equal(*results)
    with pytest.raises(ValueError, match=r"attention_parameters is \{'windows': \[1, 2, None, 8\]\} there"):
        CosformerCache.load(path, config(**ALL))


@pytest.mark.parametrize(("version", "message"), [(1, "an earlier version"), (3, "a later version")])
def test_a_cache_saved_by_another_version(version, message, tmp_path):
    """Before version 2 keys lay oldest first: read as they lie now, they would be at wrong distances."""
    net, path = build(CosformerForCausalLM, **SOME), tmp_path / "cache.safetensors"
    net(tokens(2, 9), use_cache=True).past_key_values.save(path)
    with safe_open(path, "pt") as file:
        header = json.loads(file.metadata()["cosformer_cache"])
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    assert header["format"] == 2
    for changed in ({**header, "format": version}, {k: v for k, v in header.items() if k != "format"}):
        save_file(tensors, path, metadata={"cosformer_cache": json.dumps(changed)})
        with pytest.raises(ValueError, match=message if "format" in changed else "an earlier version"):
            CosformerCache.load(path, net.config)


@pytest.mark.parametrize(
    ("windows", "message"),
    [
        ([2, 4], "windows must have one entry for each of the 4 key-value heads, but got 2"),
        ([2, 4, 0, 8], r"windows\[2\] must be at least 1"),
        ([2, 4, 300, 8], r"windows\[2\] must be a multiple of 64 above 256, but got 300; the nearest is 320"),
        ([2, 4, 1.5, 8], r"windows\[2\] must be an int or None"),
        (8, "windows must be a list or tuple with an int or None for each key-value head, but got int"),
    ],
)
def test_windows_that_cannot_be(windows, message):
    with pytest.raises((TypeError, ValueError), match=message):
        config(attention_parameters={"windows": windows})
    with pytest.raises((TypeError, ValueError), match=message):
        config(attention_parameters=[None, {"windows": windows}])


def test_windows_as_wide_as_the_text_are_as_the_horizon():
    """One window for all heads, no shorter than the text: the model without windows of that horizon."""
    plain = build(CosformerForCausalLM, max_position_embeddings=64)
    wide = build(CosformerForCausalLM, max_position_embeddings=64, attention_parameters={"windows": [64] * 4})
    ids = tokens(2, 64)
    close(wide(ids).logits, plain(ids).logits)
