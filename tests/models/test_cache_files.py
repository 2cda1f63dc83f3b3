"""Files of caches that somebody has changed: whatever could not have been saved is refused."""

import copy
import json

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from cosformer.models import CosformerCache, CosformerForCausalLM, CosformerForConditionalGeneration
from tests.models.tiny import build, having, tokens

KEY = "cosformer_cache"


def opened(path):
    with safe_open(path, framework="pt") as file:
        header = json.loads(file.metadata()[KEY])
        return {name: file.get_tensor(name) for name in file.keys()}, header  # noqa: SIM118


def spoilt(path, change):
    tensors, header = copy.deepcopy(opened(path))
    change(tensors, header)
    spoilt = path.with_name("spoilt.safetensors")
    save_file({n: x.contiguous() for n, x in tensors.items()}, spoilt, metadata={KEY: json.dumps(header)})
    return spoilt


def saved(tmp_path, mechanism="cosformer", head=CosformerForCausalLM, **changes):
    net = build(head, torch.float32, attention=mechanism, position="rotary", **changes)
    ids = tokens(2, 9)
    inputs = {"input_ids": ids}
    if head is CosformerForConditionalGeneration:
        inputs = {"input_ids": tokens(2, 7), "decoder_input_ids": ids}
    path = tmp_path / "cache.safetensors"
    net(**inputs, use_cache=True).past_key_values.save(path)
    return net.config, path


def set_all(name, value):
    """In every layer: so that the layers agree."""

    def change(tensors, header):
        for key in [k for k in tensors if k.endswith(name)]:
            tensors[key] = torch.full_like(tensors[key], value)

    return change


def set_first(name, value):
    def change(tensors, header):
        key = next(k for k in tensors if k.endswith(name))
        tensors[key] = value(tensors[key]) if callable(value) else torch.full_like(tensors[key], value)

    return change


def number(name, value, layers=(0, 1)):
    def change(tensors, header):
        for layer in layers:
            header["layers"][layer]["state"][name] = value

    return change


def columns(value, layers=(0, 1)):
    def change(tensors, header):
        for layer in layers:
            header["layers"][layer]["columns"] = value

    return change


def drop(tensors, header):
    del tensors[next(iter(tensors))]


def add(tensors, header):
    tensors["0.state.more"] = torch.zeros(1)


def add_layer(tensors, header):
    tensors["7.state.numerator"] = torch.zeros(1)


def top(value):
    def change(tensors, header):
        header.update(value)

    return change


SPOILT = {
    "a negative position": set_all("positions", -1),
    "a position beyond the horizon": set_all("positions", 97),
    "a far position": set_all("positions", 2**62),
    "a position beyond the columns": set_all("positions", 20),
    "layers at other positions": set_first("positions", 3),
    "positions that are not whole": set_first("positions", lambda x: x.double()),
    "positions of another shape": set_first("positions", lambda x: x[:, None]),
    "fewer rows in a layer": set_first("numerator", lambda x: x[:1]),
    "another head size": set_first("numerator", lambda x: x[..., :-1]),
    "more heads": set_first("denominator", lambda x: x.repeat(1, 2, 1, 1)),
    "sums that are not real": set_first("numerator", lambda x: x.long()),
    "NaN": set_first("denominator", float("nan")),
    "a tensor missing": drop,
    "a tensor too many": add,
    "a tensor of no layer": add_layer,
    "negative columns": columns(-1),
    "columns in words": columns("nine"),
    "columns that differ": columns(10, [1]),
    "true columns": columns(True),
    "fewer columns than tokens": columns(3),
    "a position seen in words": number("seen", "nine"),
    "less seen than there is": number("seen", 3),
    "more seen than there is": number("seen", 2**60),
    "another horizon": number("horizon", 7.0),
    "a horizon in words": number("horizon", "far"),
    "windows of its own": number("windows", [2, 2, 2, 2]),
    "an unknown number": number("speed", 3),
    "no number": number("numerator", 3),
    "a state that is a list": lambda t, h: h["layers"][0].update(state=[1]),
    "no state in a layer": lambda t, h: h["layers"][0].pop("state"),
    "layers that are a word": top({"layers": "two"}),
    "a layer that is a number": top({"layers": [1, 2]}),
    "a model that is a list": top({"model": []}),
    "an attention that is a number": top({"attention": 3}),
    "a field too many": top({"code": "import os"}),
}


@pytest.mark.parametrize("name", SPOILT)
def test_what_could_not_have_been_saved_is_refused(name, tmp_path):
    config, path = saved(tmp_path)
    assert CosformerCache.load(path, config).get_seq_length() == 9
    with pytest.raises(ValueError, match=r"spoilt\.safetensors") as error:
        CosformerCache.load(spoilt(path, SPOILT[name]), config)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("text", ["", "[]", "7", "{", "[" * 100_000, '{"layers": []}'])
def test_headers_of_another_kind(text, tmp_path):
    config, path = saved(tmp_path)
    save_file({"x": torch.zeros(1)}, path, metadata={KEY: text})
    with pytest.raises(ValueError, match=r"cache\.safetensors"):
        CosformerCache.load(path, config)


@having(recurrent=True, causal=True)
@pytest.mark.parametrize("changes", [{}, {"conv_size": 3}], ids=["plain", "convolved"])
def test_every_tensor_of_every_mechanism(mechanism, changes, tmp_path):
    """Each is needed, in its shape and kind, in every row."""
    config, path = saved(tmp_path, mechanism, **changes)
    CosformerCache.load(path, config)
    tensors, _ = opened(path)
    for key, x in tensors.items():
        other = x.bool().logical_not() if x.dtype != torch.bool else x.float()
        for value in (None, x[:1], x.repeat(2, *[1] * (x.dim() - 1)), x[..., None], other):

            def change(found, header, key=key, value=value):
                del found[key]
                if value is not None:
                    found[key] = value

            with pytest.raises(ValueError, match=r"spoilt\.safetensors"):
                CosformerCache.load(spoilt(path, change), config)
        for axis in range(1, x.dim()):
            with pytest.raises(ValueError, match=r"spoilt\.safetensors"):
                CosformerCache.load(
                    spoilt(path, lambda f, h, k=key, a=axis: f.update({k: torch.cat([f[k], f[k]], a)})),
                    config,
                )


def test_encoder_decoders_and_windows_load(tmp_path):
    for head, changes in (
        (CosformerForConditionalGeneration, {}),
        (CosformerForCausalLM, {"attention_parameters": {"windows": [2, 4, 8, None]}}),
        (CosformerForCausalLM, {"attention_parameters": {"windows": [2, 4, 8, 3]}}),
        (CosformerForCausalLM, {"attention_parameters": {"windows": [2, None, None, None]}}),
        (
            CosformerForCausalLM,
            {"mechanism": "softmax", "attention_parameters": {"windows": [2, 4, 8, None]}},
        ),
        (CosformerForCausalLM, {"mechanism": ["cosformer", "softmax"]}),
    ):
        config, path = saved(tmp_path, head=head, **changes)
        CosformerCache.load(path, config)
    config, path = saved(tmp_path, head=CosformerForConditionalGeneration)
    with pytest.raises(ValueError, match="spoilt"):
        CosformerCache.load(spoilt(path, set_all("memory.positions", -3)), config)
    with pytest.raises(ValueError, match="spoilt"):
        CosformerCache.load(spoilt(path, lambda t, h: [layer.pop("memory") for layer in h["layers"]]), config)


@having(recurrent=True, causal=True)
def test_what_padding_leaves_loads(mechanism, tmp_path):
    net = build(CosformerForCausalLM, attention=mechanism, position="rotary")
    ids, mask = tokens(3, 9), torch.ones(3, 9, dtype=torch.int64)
    mask[0, :4] = mask[1, 6:] = 0
    cache = net(ids, attention_mask=mask, use_cache=True).past_key_values
    more, after = tokens(3, 2), torch.cat([mask, torch.ones(3, 2, dtype=torch.int64)], 1)
    cache.save(tmp_path / "cache.safetensors")
    again = CosformerCache.load(tmp_path / "cache.safetensors", net.config)
    both = [net(more, attention_mask=after, past_key_values=c, use_cache=True).logits for c in (cache, again)]
    assert torch.equal(*both)
    for c in (cache, again):  # of several calls, cropped, selected and repeated
        c.batch_repeat_interleave(2)
        c.batch_select_indices(torch.tensor([0, 1, 5]))
    cache.save(tmp_path / "cache.safetensors")
    CosformerCache.load(tmp_path / "cache.safetensors", net.config)
